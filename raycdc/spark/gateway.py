"""Starts the JVM of a session, with its settings in a file that only this user can read.

pyspark would put every setting on the command line, which all users of the machine can see, and settings contain
credentials of object stores and catalogs. Java's own options (``spark.driver.extraJavaOptions``) remain on the command
line, so they must not contain secrets. The file is read while the JVM starts, and is deleted afterwards.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from subprocess import Popen
from typing import Any

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from raycdc.spark.jvm_start import JvmStart

#: The environment variable from which pyspark reads further arguments of spark-submit.
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES_FILE = "--properties-file"
#: The attributes in which pyspark keeps the JVM of this process and the JVM's objects.
_OF_CONTEXT = ("_gateway", "_jvm", "_active_spark_context")
_OF_SESSION = ("_instantiatedSession", "_activeSession")
_ESCAPES = str.maketrans(
    {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f", " ": r"\ "} | {c: f"\\{c}" for c in ":=#!"}
)


def start_jvm(settings: Mapping[str, str], scratch: Path, log: Any, jvm: JvmStart) -> Any:
    """Start a JVM and return pyspark's gateway to it. The JVM writes its warnings to the open file `log`.

    Raises pyspark's `PySparkRuntimeError` if the JVM ends while it starts, for example because `jvm` was cancelled.
    """
    with (
        jvm.under_way(),
        _properties(settings, scratch / "settings.properties") as arguments,
        _environment(_ARGUMENTS, arguments),
        on_loopback(settings),
        _announced(jvm),
    ):
        # The JVM writes its own warnings to both streams before logging is set up; they belong in the log.
        return java_gateway.launch_gateway(popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]


def on_loopback(settings: Mapping[str, str]) -> AbstractContextManager[None]:
    """Make the web UI of a local Spark listen on loopback only during the block, because it asks for no login."""
    if not settings["spark.master"].startswith("local"):
        return nullcontext()
    return _environment("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))


def forget_lost_jvm() -> None:
    """Remove a JVM that has ended from pyspark, which would use it again; the next session starts a new one."""
    process: Popen[Any] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    for holder, names in ((SparkContext, _OF_CONTEXT), (SparkSession, _OF_SESSION)):
        for name in names:
            setattr(holder, name, None)


@contextmanager
def _announced(jvm: JvmStart) -> Iterator[None]:
    """Pass the process that pyspark starts in the block to `jvm`, because pyspark returns it only after the start."""
    module: Any = java_gateway
    starts = module.Popen

    def start(*command: Any, **options: Any) -> Popen[Any]:
        process: Popen[Any] = starts(*command, **options)
        jvm.started(process)
        return process

    module.Popen = start
    try:
        yield
    finally:
        module.Popen = starts


@contextmanager
def _properties(settings: Mapping[str, str], path: Path) -> Iterator[str]:
    """Write the settings to a file, and yield the arguments of spark-submit: this file, and the user's arguments."""
    words = shlex.split(os.environ.get(_ARGUMENTS, "pyspark-shell"))
    text = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    if _PROPERTIES_FILE in words[:-1]:  # spark-submit accepts only one file, so the content of the user's is copied.
        at = words.index(_PROPERTIES_FILE)
        text = Path(words[at + 1]).read_text(encoding="utf-8") + "\n" + text
        del words[at : at + 2]
    else:
        words.insert(0, "--load-spark-defaults")  # spark-submit reads its default file only if no other is given.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        yield shlex.join([_PROPERTIES_FILE, str(path), *words])
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _escaped(text: str) -> str:
    """Return a key or a value in the syntax of ``java.util.Properties``."""
    return text.translate(_ESCAPES)
