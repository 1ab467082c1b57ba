"""Settings of Spark reach its JVM and nobody else, and nobody else talks to the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SECRET = "Spark-s3cr3t"
#: All that a line of a file of properties may take for something else.
ODD = f'{SECRET} = :x\\y "q" é\n#z!'

SESSION = """
import json, os, sys
from pathlib import Path
from raycdc.spark.session import spark_session
settings = json.loads(Path(sys.argv[1]).read_text())
session = spark_session("local[1]", Path(sys.argv[2]), settings)
context = session.sparkContext
jvm = context._jvm.java.lang.System.getProperties()
print(json.dumps([
    {key: context.getConf().get(key) for key in settings},
    {key: jvm.getProperty(key) for key in settings},
    context._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
    context.getConf().get("spark.user.default"),
    os.environ.get("PYSPARK_SUBMIT_ARGS"),
]))
session.stop()
"""

#: Another JVM of this machine looks for an endpoint of the driver, as an executor would. It says how that went.
INTRUDER = """
import sys
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import launch_gateway
gateway = launch_gateway()
jvm = gateway.jvm
def constant(name):
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)
conf = jvm.org.apache.spark.SparkConf(False).set("spark.rpc.lookupTimeout", "20s")
secret_file = constant("org.apache.spark.internal.config.package$").AUTH_SECRET_FILE()
security = jvm.org.apache.spark.SecurityManager(conf, constant("scala.None$"), secret_file)
env = jvm.org.apache.spark.rpc.RpcEnv.create("intruder", "127.0.0.1", "127.0.0.1", 0, conf, security, 1, True)
driver = jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", int(sys.argv[1]))
try:
    env.setupEndpointRef(driver, "HeartbeatReceiver")
    print("reached")
except Py4JJavaError:
    print("refused")
gateway.shutdown()
"""


def test_settings_stand_on_no_command_line_and_in_no_file_that_stays(tmp_path: Path) -> None:
    settings = {"spark.hadoop.fs.s3a.secret.key": ODD, "spark.odd key:": "x"}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.user.default here\n")
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path / "conf")}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    command = [sys.executable, "-c", SESSION, str(tmp_path / "settings.json"), str(tmp_path / "scratch")]
    shown: set[str] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        while process.poll() is None:
            shown |= {line for line in _command_lines() if "spark" in line}
        assert process.stdout is not None
        answer = json.loads(process.stdout.read())
    assert answer == [settings, settings, ODD, "here", None]
    assert any("SparkSubmit" in line for line in shown), "the JVM was seen"
    assert [line for line in shown if SECRET in line] == []
    files = [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.long(suite="spark-elsewhere")
def test_settings_of_the_user_for_spark_submit_are_heeded(tmp_path: Path) -> None:
    (tmp_path / "theirs.properties").write_text("spark.user.default theirs\n")
    (tmp_path / "settings.json").write_text("{}")
    arguments = f"--properties-file {tmp_path / 'theirs.properties'} pyspark-shell"
    ended = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "settings.json"), str(tmp_path / "scratch")],
        capture_output=True,
        check=True,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": arguments},
    )
    assert json.loads(ended.stdout)[3:] == ["theirs", arguments]


def test_another_process_of_this_machine_does_not_reach_the_driver(spark: Any) -> None:
    port = spark.sparkContext.getConf().get("spark.driver.port")
    ended = subprocess.run([sys.executable, "-c", INTRUDER, port], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-1] == "refused"


def _command_lines() -> Iterator[str]:
    """Those of every process of this machine, as each of its users can read them."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
