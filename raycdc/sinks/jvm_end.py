"""Detects whether a call to Spark failed because its JVM has ended, and why it ended.

Used by callers of a session (`raycdc.sinks.delta.spark_merge`, `raycdc.spark`). When a JVM ends, its connections break
first and its process ends a moment later. This module therefore waits for the end of the process after a connection
broke. If the JVM has ended, the work is repeated in a new session; otherwise the broken connection is an error that
ends the run.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

from raycdc.errors import SparkLostError

#: The beginning of the message about a JVM that ended.
LOST = "Spark is gone: its JVM ended."
#: The part of the message about a JVM that ran out of memory.
MEMORY = 'It had no memory left: set "spark.driver.memory" in spark.conf to more than it has (2g where nothing is set).'
#: The time in seconds that the process may take to end after its connections broke or its memory ran out. Spark runs
#: its shutdown hooks in this time.
ENDS_S = 20.0
#: Exit codes of a JVM that ran out of memory: of Java with ``-XX:+ExitOnOutOfMemoryError``, and of Spark
#: (`SparkExitCode.OOM`).
_NO_MEMORY = frozenset({3, 52})
#: These texts do not prove that the JVM ended: py4j gives the second one for a missing class, too.
_UNCLEAR = re.compile(r"java\.lang\.OutOfMemoryError|does not exist in the JVM")
#: The text of py4j's error for a call whose connection broke. If Java raised an error, py4j's text has a trace after
#: these words.
_UNANSWERED = re.compile(r"An error occurred while calling \S+")


def exit_code(session: Any) -> int | None:
    """Return the exit code of the JVM of `session`, negative for a signal; None if it runs or is not a child of this
    process.
    """
    process = _process(session)
    return None if process is None else process.poll()


def of_memory(code: int | None) -> bool:
    """Return True if a JVM with that exit code had no memory left."""
    return code in _NO_MEMORY


def words(code: int | None) -> str:
    """Return the message about a JVM that ended with that exit code."""
    return f"{LOST} {MEMORY}" if of_memory(code) else LOST


def lost(session: Any, cause: BaseException) -> SparkLostError | None:
    """Return a `SparkLostError` if the JVM of `session` has ended and that explains `cause`; otherwise None.

    Blocks for at most `ENDS_S`, and only if the end of a JVM may have caused `cause`. If the JVM can no longer be
    reached and does not end by itself, it is killed.
    """
    process = _process(session)
    if process is None:
        return None
    if process.poll() is None:
        cut, unclear = _is_cut_off(cause), _UNCLEAR.search(str(cause)) is not None
        if not (cut or unclear):
            return None
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            if not cut:
                return None
            process.kill()
            process.wait()
    return SparkLostError(words(process.returncode))


def _is_cut_off(cause: BaseException | None) -> bool:
    """Return True if `cause`, or one of its causes, is a broken connection to Java.

    Errors that Java raised are answers over a working connection, and so is py4j's error about an impossible call.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError

    while cause is not None:
        if isinstance(cause, Py4JNetworkError | ConnectionError | EOFError):
            return True
        if isinstance(cause, Py4JError):
            return type(cause) is Py4JError and _UNANSWERED.fullmatch(str(cause)) is not None
        cause = cause.__cause__
    return False


def _process(session: Any) -> subprocess.Popen[Any] | None:
    gateway = getattr(getattr(session, "sparkContext", None), "_gateway", None)
    process: subprocess.Popen[Any] | None = getattr(gateway, "proc", None)
    return process
