"""The JVM of a session, started with its settings in a file that only this user can read.

pyspark would put every setting on the command line, which each user of the machine can list, and settings hold the
credentials of object stores and catalogs. Java's own options (``spark.driver.extraJavaOptions``) still stand
there, so that a secret does not belong into them. The file is read while the JVM starts, and is gone afterwards.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.java_gateway import launch_gateway

#: Where pyspark looks for further arguments of spark-submit.
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES_FILE = "--properties-file"
_ESCAPES = str.maketrans(
    {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f", " ": r"\ "} | {c: f"\\{c}" for c in ":=#!"}
)


def start_jvm(settings: Mapping[str, str], scratch: Path, log: Any) -> Any:
    """A gateway of pyspark to a new JVM, which writes its warnings to the open file `log`.

    Raises pyspark's `PySparkRuntimeError` where the JVM ends at once.
    """
    with _properties(settings, scratch / "settings.properties") as arguments, _environment(_ARGUMENTS, arguments):
        # The JVM writes warnings of its own to both before any logging is set up; they are for the log.
        return launch_gateway(popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]


@contextmanager
def _properties(settings: Mapping[str, str], path: Path) -> Iterator[str]:
    """Write the settings; yields the arguments of spark-submit that name them, beside those that the user has given."""
    words = shlex.split(os.environ.get(_ARGUMENTS, "pyspark-shell"))
    text = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    if _PROPERTIES_FILE in words[:-1]:  # spark-submit takes one: ours begins with the user's
        at = words.index(_PROPERTIES_FILE)
        text = Path(words[at + 1]).read_text(encoding="utf-8") + "\n" + text
        del words[at : at + 2]
    else:
        words.insert(0, "--load-spark-defaults")  # as without a file
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
    """A key or a value as ``java.util.Properties`` reads it."""
    return text.translate(_ESCAPES)
