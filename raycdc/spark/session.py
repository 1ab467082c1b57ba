"""Starts the Spark session of a pipeline, with settings that were found by measurement.

Called once by the driver. All of Spark's files go into one folder of raycdc, including its log, and the Delta jars come
from a local folder, so that a start needs no network.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from raycdc.core.trusted_files import user_cache
from raycdc.errors import ConfigError, EngineNotStartedError
from raycdc.spark import artifacts, class_archive
from raycdc.spark.executors import executor_settings, executors_python
from raycdc.spark.jvm_start import JvmStart

#: The Spark that works with the Delta jars below; others fail late and obscurely.
PYSPARK_SERIES = "4.1"
DELTA_PACKAGE = "io.delta:delta-spark_4.1_2.13:4.4.0"
JAVA_MIN = 17

#: Attempts per task; ``local[N]`` alone never tries a task twice.
TASK_ATTEMPTS = 4

#: The folder that contains the package: workers import it from there, and `make setup` puts jars next to it.
_PROJECT = Path(__file__).resolve().parents[2]

#: The JVM's optimizing compiler waits ten times as long as usual before it compiles a method: otherwise it would
#: compile most of the code of Spark's own start (measured 14 instead of 9 CPU-seconds), which runs once.
PATIENT_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

#: Java's words about itself if its options leave it only the quick compiler.
_QUICK = "emulated-client, "

#: Options of Java that do nothing but to be right or wrong: agents, logs and recordings are not started to be tried.
_TRIED = re.compile(r"-X(mx|ms|mn|ss)\S+|-XX:([+-]\w+|\w+=[\w%.]+)")
#: Spark's settings that become options of the JVM that it starts.
_JAVA_OPTIONS = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

#: Settings that give the source of Spark's jars.
_JARS_GIVEN = {"spark.jars", "spark.jars.packages"}

_LOCAL = re.compile(r"local(?:\[(\*|\d+)\])?$")


def spark_session(
    master: str,
    scratch: Path,
    conf: Mapping[str, str] | None = None,
    *,
    sink: str = "",
    jvm: JvmStart | None = None,
) -> Any:
    """Start Spark (4–5 s) and return its session. `scratch` gets warehouse, temporary files and ``spark.log``.

    Executors on other machines get what tasks of `sink` (its type) import. `conf` overrides the default settings. The
    start may be cancelled at `jvm`. Raises `ConfigError` if Java or a suitable pyspark is missing, or Spark refuses the
    settings, and `EngineNotStartedError` if its JVM was killed, or jars could not be fetched.
    """
    java = check_java()
    check_pyspark()
    if not _JARS_GIVEN & (conf or {}).keys():
        fetch_delta_jars()
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from raycdc.spark.gateway import forget_lost_jvm, start_jvm

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {**_settings(master, scratch, java), **(conf or {})}
    if not master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = executors_python(conf or {})
        settings |= executor_settings(master, conf or {}, sink)
    scratch.mkdir(parents=True, exist_ok=True)
    # A process has one JVM: pyspark would keep the first, and leave a second one unused.
    forget_lost_jvm()
    gateway, jvm = SparkContext._gateway, jvm or JvmStart()
    if gateway is None:
        with (scratch / "spark.log").open("ab") as log:
            try:
                gateway = start_jvm(settings, scratch, log, jvm)
            except PySparkRuntimeError as cause:
                reason = "its JVM ended at once."
                raise _not_started(master, reason, scratch / "spark.log", refused=not jvm.was_killed) from cause
    try:
        context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())), gateway=gateway)
        context.setLogLevel("ERROR")
        return SparkSession(context)
    except Py4JError as cause:
        reason = next((line for line in str(cause).splitlines()[1:] if line.strip()), str(cause)).strip(": \t")
        # An error of Java is Spark's answer to its settings; any other is of a JVM that answers no more.
        refused = isinstance(cause, Py4JJavaError)
        raise _not_started(master, reason, scratch / "spark.log", refused=refused) from cause


def _not_started(master: str, reason: str, log: Path, *, refused: bool) -> ConfigError:
    """Return the error for a failed start: whether Spark `refused` its settings, or did not reach that step."""
    text = (
        f"Spark did not start at spark.master = {master!r}: {reason} Correct spark.master or spark.conf; {log} has the "
        "rest."
    )
    return ConfigError(text) if refused else EngineNotStartedError(text)


def check_settings(conf: Mapping[str, str]) -> None:
    """Raise `ConfigError` for memory or options with which no JVM starts.

    Only Spark can check the other settings of `conf`, and reports their errors when it starts. Values may contain
    credentials.
    """
    given = [key for key in _JAVA_OPTIONS if conf.get(key)]
    if not given:
        return
    memory = conf.get("spark.driver.memory")
    try:
        every = [option for key in given if key != "spark.driver.memory" for option in shlex.split(conf[key])]
    except ValueError as cause:
        raise ConfigError(f"spark.conf: {', '.join(given)}: {cause}. Correct it.") from cause
    options = [option for option in every if _TRIED.fullmatch(option)]
    answer = _ask_java([*([f"-Xmx{memory}"] if memory else []), *options, "-version"])
    if answer.returncode != 0:
        # Java's first line names the refused option.
        why = next((line for line in (answer.stdout + answer.stderr).splitlines() if "Picked up" not in line), "")
        raise ConfigError(f"spark.conf: Java does not start with {', '.join(given)}: {why.strip()} Correct it.")


def parallelism(spark: Any) -> int:
    """Return the number of tasks that run at the same time."""
    return int(spark.sparkContext.defaultParallelism)


def effective_master(master: str) -> str:
    """`master` with retries: ``local[*]`` becomes ``local[8,4]`` on eight cores; others are left alone."""
    match = _LOCAL.match(master)
    if not match:
        return master
    cores = (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)
    return f"local[{cores},{TASK_ATTEMPTS}]"


def delta_jars() -> list[Path]:
    """The Delta jars, from ``$RAYCDC_JARS``, ``.cache/jars`` beside the package, or where `fetch_delta_jars` put them;
    empty when there are none.
    """
    configured = os.environ.get("RAYCDC_JARS")
    folder = Path(configured) if configured else _PROJECT / ".cache" / "jars"
    jars = sorted(folder.glob("*.jar"))
    if configured and not jars:
        raise ConfigError(f"RAYCDC_JARS is {configured}, but there are no jars. Unset it or run make setup.")
    return jars or sorted(_fetched().glob("*.jar"))


def fetch_delta_jars() -> None:
    """Fetch the Delta jars into the user's cache, once, where there are none.

    Raises `EngineNotStartedError` if that fails, `ConfigError` for jars that are there and are others.

    They have the hashes that this version of raycdc knows (`raycdc.spark.artifacts`), and are compared with them again
    at each start, because others may be able to write where they lie.
    """
    folder = _fetched()
    try:
        if not delta_jars():
            folder.parent.mkdir(parents=True, exist_ok=True)
            _print_line(f"fetching {DELTA_PACKAGE} and what it needs for Spark into {folder}, once …")
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as scratch:
                jars = artifacts.fetch(Path(scratch, "jars"), [DELTA_PACKAGE])
                size = sum(jar.stat().st_size for jar in jars) / 2**20
                _print_line(f"{len(jars)} jars are here ({size:.0f} MiB), with the SHA-256 that they should have")
                # Another process may have been faster.
                with suppress(OSError):
                    Path(scratch, "jars").rename(folder)
    except (artifacts.ArtifactError, OSError) as cause:
        raise EngineNotStartedError(_without_jars(cause)) from cause
    try:
        artifacts.verify([jar for jar in delta_jars() if jar.parent == folder])
    except (artifacts.ArtifactError, OSError) as cause:
        raise ConfigError(_without_jars(cause)) from cause


def _without_jars(cause: Exception) -> str:
    return f"Spark has no Delta jars: {cause} Run make setup, or set RAYCDC_JARS to a folder that has them."


def _print_line(line: str) -> None:
    """Print a line for a user at a terminal, or in the log; standard output may be JSON."""
    print(f"raycdc: {line}", file=sys.stderr, flush=True)  # noqa: T201


def _fetched() -> Path:
    return user_cache() / f"jars-{DELTA_PACKAGE.rpartition(':')[2]}"


def _settings(master: str, scratch: Path, java: str) -> dict[str, str]:
    settings = {
        "spark.master": effective_master(master),
        "spark.app.name": "raycdc",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        # Delta replays its log in a shuffle of 50 partitions by default, which costs seconds for every small table.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dderby.system.home={scratch}",
                f"-Djava.io.tmpdir={scratch}",
                PATIENT_COMPILER,
                # Without memory the JVM cannot continue, and is started again (`raycdc.sinks.jvm_end`).
                "-XX:+ExitOnOutOfMemoryError",
                *class_archive.use(java, delta_jars()),
            ]
        ),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # For executors, and for the Python workers of this machine.
        "spark.executorEnv.PYTHONPATH": str(_PROJECT),
        "spark.python.daemon.module": "raycdc.spark.daemon",
        # mapInArrow is lenient: without this it cuts decimals and drops columns silently.
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Otherwise every process of this machine may talk to the driver. Spark makes a secret for itself alone.
        settings["spark.authenticate"] = "true"
    jars = [str(jar) for jar in delta_jars()]
    if jars and master.startswith("local"):
        settings["spark.driver.extraClassPath"] = os.pathsep.join(jars)
    elif jars:
        settings["spark.jars"] = ",".join(jars)
    return settings


def check_pyspark() -> None:
    """Raise `ConfigError` if the installed pyspark does not fit the Delta jars."""
    version = package_version("pyspark")
    if not version.startswith(f"{PYSPARK_SERIES}."):
        raise ConfigError(f"pyspark {version} is installed, but Delta needs {PYSPARK_SERIES}. Run make setup again.")


def check_java() -> str:
    """The version text of the Java that Spark will use, without the options that the environment gives it.

    `ConfigError` when it is missing or too old.
    """
    java = _java()
    if java is None or not Path(java).exists():
        raise ConfigError(
            f"Java is missing (looked at JAVA_HOME and PATH); Spark needs Java {JAVA_MIN} or newer. Run make setup, or "
            f"install openjdk-17-jre-headless, or unpack any JDK and set JAVA_HOME."
        )
    answer = _ask_java(["-version"]).stderr
    found = re.search(r'version "(\d+)', answer)
    if found is None or int(found[1]) < JAVA_MIN:
        raise ConfigError(
            f"{java} is not Java {JAVA_MIN} or newer (it says {answer.strip()[:80]!r}). Install a newer one, or set "
            f"JAVA_HOME to it."
        )
    return "".join(line for line in answer.splitlines(keepends=True) if "Picked up" not in line).replace(_QUICK, "")


def _java() -> str | None:
    """The Java that Spark will use, be it there or not; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _ask_java(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # With a copy of the variables: those of the process may be moved in memory by another thread that sets some.
    environment = dict(os.environ)
    command = [_java() or "java", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
