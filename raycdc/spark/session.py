"""Starts the Spark session of a pipeline, with settings that were found by measurement.

The driver calls it. All of Spark's files, including its log, go into one folder of raycdc. The Delta jars come from a
local folder, so a start needs no network.

An archive holds the classes that Spark loads, so that its JVM maps them instead of reading and checking them again: a
start takes 4.7 instead of 9.2 CPU-seconds. The archive is made once per machine (`make_class_archive`; `make setup`
calls it). The name of the archive contains a hash of everything that it depends on. If an archive does not fit the
class path nevertheless, the JVM ignores it. An archive that another user could have written is not used, because the
JVM would run its code. Method: "Class Data Sharing" with dynamic archives, JDK 13 and newer.
"""

from __future__ import annotations

import hashlib
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

from raycdc.core.trusted_files import is_own, user_cache
from raycdc.errors import ConfigError, EngineNotStartedError
from raycdc.spark import artifacts
from raycdc.spark.executors import executor_settings, executors_python
from raycdc.spark.jvm_start import JvmStart

#: The Spark version that works with the Delta jars below. Other versions fail late, with obscure errors.
PYSPARK_SERIES = "4.1"
DELTA_PACKAGE = "io.delta:delta-spark_4.1_2.13:4.4.0"
JAVA_MIN = 17

#: Attempts per task. With ``local[N]`` alone, a task has only one.
TASK_ATTEMPTS = 4

#: The folder that contains the package `raycdc`. Workers import the package from this folder, and `make setup` puts
#: jars into it.
_PROJECT = Path(__file__).resolve().parents[2]

#: The JVM's optimizing compiler compiles a method only after ten times as many calls as usual. Otherwise it would
#: compile most of the code that Spark runs once at its start (measured: 14 instead of 9 CPU-seconds).
PATIENT_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

#: Java adds this to its version text if its options leave only the quick compiler.
_QUICK = "emulated-client, "

#: Java options that can be checked without side effects. Agents, logs and recordings would be started by a check.
_TRIED = re.compile(r"-X(mx|ms|mn|ss)\S+|-XX:([+-]\w+|\w+=[\w%.]+)")
#: Spark's settings that become options of the JVM that it starts.
_JAVA_OPTIONS = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

#: Settings with which users name jars themselves.
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
    """Start Spark (4–5 s) and return its session. `scratch` gets the warehouse, temporary files and ``spark.log``.

    Executors on other machines get the packages that tasks of `sink` (its type) import. `conf` overrides the default
    settings. The start may be cancelled through `jvm`. Raises `ConfigError` if Java or a suitable pyspark is missing,
    or if Spark refuses the settings, and `EngineNotStartedError` if its JVM was killed or jars could not be fetched.
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
    # pyspark keeps the first JVM of a process, even if it has ended.
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
        # A Java error means that Spark refuses its settings. Any other error means that the JVM does not answer any
        # more.
        refused = isinstance(cause, Py4JJavaError)
        raise _not_started(master, reason, scratch / "spark.log", refused=refused) from cause


def _not_started(master: str, reason: str, log: Path, *, refused: bool) -> ConfigError:
    """Return the error for a failed start; `refused` says that Spark refused its settings."""
    text = (
        f"Spark did not start at spark.master = {master!r}: {reason} Correct spark.master or spark.conf; {log} has the "
        "rest."
    )
    return ConfigError(text) if refused else EngineNotStartedError(text)


def archive_options(java: str, jars: Sequence[Path]) -> tuple[str, ...]:
    """Return the JVM options that use the archive of classes for `jars` and this version of Java (the text of `java
    -version`). Return none if there is no archive.
    """
    path = archive_path(java, jars)
    return (f"-XX:SharedArchiveFile={path}", "-Xshare:auto") if is_own(path) else ()


def archive_path(java: str, jars: Sequence[Path]) -> Path:
    """Return the path of the archive for this Java, Spark and these `jars`, which may not exist yet."""
    import pyspark

    root = user_cache() / "spark-classes"
    parts = [java, pyspark.__version__, str(Path(pyspark.__file__).parent), *map(str, jars)]
    return root / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:20]}.jsa"


def check_settings(conf: Mapping[str, str]) -> None:
    """Raise `ConfigError` if no JVM starts with the memory or Java options of `conf`.

    Spark itself checks the remaining settings when it starts. The message has the names of the settings and Java's
    error, but not the values of the settings, because they may contain credentials.
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
    """Return the number of tasks that run concurrently."""
    return int(spark.sparkContext.defaultParallelism)


def effective_master(master: str) -> str:
    """Return `master` with retries of tasks: ``local[*]`` becomes ``local[8,4]`` on eight cores.

    Other masters stay unchanged.
    """
    match = _LOCAL.match(master)
    if not match:
        return master
    cores = (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)
    return f"local[{cores},{TASK_ATTEMPTS}]"


def delta_jars() -> list[Path]:
    """Return the Delta jars in ``$RAYCDC_JARS``, in ``.cache/jars`` beside the package, or from `fetch_delta_jars`, in
    this order. Empty if none exist.
    """
    configured = os.environ.get("RAYCDC_JARS")
    folder = Path(configured) if configured else _PROJECT / ".cache" / "jars"
    jars = sorted(folder.glob("*.jar"))
    if configured and not jars:
        raise ConfigError(f"RAYCDC_JARS is {configured}, but there are no jars. Unset it or run make setup.")
    return jars or sorted(_fetched().glob("*.jar"))


def fetch_delta_jars() -> None:
    """Fetch the Delta jars into the user's cache if there are none yet, and check the hashes of the jars in the cache.

    The hashes must be those that this version of raycdc knows (`raycdc.spark.artifacts`). They are checked at each
    start, because other users may be able to write to the cache. Raises `EngineNotStartedError` if fetching fails, and
    `ConfigError` if a jar in the cache has another hash.
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
                # The folder exists if another process was faster.
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
    """Print a line to standard error, because standard output may be JSON."""
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
        # Delta reads its log with a shuffle of 50 partitions by default, which takes seconds even for a small table.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dderby.system.home={scratch}",
                f"-Djava.io.tmpdir={scratch}",
                PATIENT_COMPILER,
                # A JVM that runs out of memory must end, so that Spark is started again (`raycdc.sinks.jvm_end`).
                "-XX:+ExitOnOutOfMemoryError",
                *archive_options(java, delta_jars()),
            ]
        ),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # For executors, and for the Python workers of this machine.
        "spark.executorEnv.PYTHONPATH": str(_PROJECT),
        "spark.python.daemon.module": "raycdc.spark.daemon",
        # Without this, mapInArrow silently cuts decimals and drops columns.
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Without authentication, any process on this machine could connect to the driver. Spark makes the secret
        # itself.
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
    """Return the version text of the Java that Spark will use, without lines about options from the environment.

    Raises `ConfigError` if Java is missing or too old.
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
    """Return the path of the Java that Spark will use, which may not exist; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _ask_java(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # The variables are copied, because another thread may set some, which moves them in memory.
    environment = dict(os.environ)
    command = [_java() or "java", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
