"""The archive for executors elsewhere: a bare Python with nothing but its files has all that tasks import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from raycdc.spark import executors
from raycdc.spark.executors import executor_settings, executors_python, own_address

UNPACKED_BYTES_MAX = 250_000_000
#: What a task of the sink imports besides.
OF_SINKS = {
    "delta": "raycdc.sinks.delta.tasks, raycdc.storage.files, obstore",
    "iceberg": "raycdc.sinks.iceberg.tasks, raycdc.storage.files, obstore, numba",
    "jdbc": "raycdc.sinks.jdbc.tasks, raycdc.sinks.jdbc.mysql, raycdc.sinks.jdbc.postgres",
    "kafka": "raycdc.sinks.kafka.tasks",
    "mongodb": "raycdc.sinks.mongodb.tasks, numba",
}
SAY = "; import sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is the same for all sinks, so that what they share is compiled once."""
    return tmp_path_factory.mktemp("place")


@pytest.mark.long_variants("kafka", "iceberg", suite="sinks")
@pytest.mark.parametrize("sink", OF_SINKS)
def test_a_bare_python_has_all_that_tasks_import(sink: str, place: Path) -> None:
    files = place / "files"
    shutil.rmtree(files, ignore_errors=True)
    for name, path in executors.archive_contents(sink):
        there = files / name
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(path)
    # The module of a user's function may begin with raycdc's pipeline.
    modules = "raycdc.pipeline, raycdc.spark.stage, raycdc.spark.executors, raycdc.segments.flight, pandas"
    words = f"import {modules}, {OF_SINKS[sink]}{SAY}"
    code = f"import sys; sys.path.append({str(files)!r}); {words}"
    command = [sys.executable, "-I", "-S", "-X", f"pycache_prefix={place / 'compiled'}", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    unwanted = {"'ray'", "'pyspark'"} | (set() if "numba" in OF_SINKS[sink] else {"'numba'", "'llvmlite'"})
    assert not unwanted & set(ran.stdout.strip("[]\n").split(", "))


def test_it_is_made_once_and_is_not_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(path.stat().st_size for _, path in executors.archive_contents("delta")) <= UNPACKED_BYTES_MAX
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(executors, "_ALWAYS", ("six",))
    old = tmp_path / "raycdc" / f"{executors.ARCHIVE_NAME}-old.tar.gz"
    old.parent.mkdir()
    old.touch()
    os.utime(old, (0, 0))
    made = executors.executor_archive("console")
    assert made == executors.executor_archive("console")
    assert list(made.parent.iterdir()) == [made]
    with tarfile.open(made) as packed:
        names = packed.getnames()
    assert {"six.py", "raycdc/spark/stage.py", "raycdc/spark/artifacts.lock"} <= set(names)
    assert not [name for name in names if "testing" in name or name.endswith(".pyc")]


def test_settings_of_the_user_stay_and_a_python_that_has_raycdc_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "executor_archive", lambda _sink: tmp_path / "made.tar.gz")
    own = {"spark.archives": "theirs.zip", "spark.executorEnv.PYTHONPATH": "theirs"}
    assert executor_settings("yarn", own, "delta") == {
        "spark.archives": f"theirs.zip,{tmp_path}/made.tar.gz#raycdc_tasks",
        "spark.executorEnv.PYTHONPATH": "raycdc_tasks:theirs",
    }
    installed = {"spark.pyspark.python": "/opt/raycdc/bin/python", "spark.driver.host": "10.0.0.7"}
    assert executor_settings("k8s://https://k:6443", installed, "delta") == {"spark.driver.host": "10.0.0.7"}
    assert executors_python(installed) == "/opt/raycdc/bin/python"
    assert executors_python({}) == f"python3.{sys.version_info.minor}"


def test_the_address_for_a_standalone_master_is_that_of_the_way_to_it() -> None:
    assert own_address("spark://127.0.0.1:7077", {}) == "127.0.0.1"
    assert own_address("spark://127.0.0.1:7077,127.0.0.1:7078", {"spark.driver.host": "db7"}) == "db7"
    assert own_address("yarn", {}) == ""
