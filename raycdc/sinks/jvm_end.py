"""Whether a call to Spark failed because its JVM is gone, and why that ended.

Asked by whoever calls a session (`raycdc.sinks.delta.spark_merge`, `raycdc.spark`). A JVM that ends breaks its
connections first, and is an ended process a moment later: who looked at once would take its end for an error of the
work, by which the run would end. What Spark was asked for can be asked of another session, so such an error is one that
is tried again.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

from raycdc.errors import SparkLostError

#: Begins the words about a JVM that ended.
LOST = "Spark is gone: its JVM ended."
#: Stands in those about one that had no memory left.
MEMORY = 'It had no memory left: set "spark.driver.memory" in spark.conf to more than it has (2g where nothing is set).'
#: How long a process may take to end whose connections are gone, or which says that it has no memory: Spark lets its
#: own hooks run first.
ENDS_S = 20.0
#: Exit codes of a JVM without memory: with ``-XX:+ExitOnOutOfMemoryError``, and of Spark (`SparkExitCode.OOM`).
_NO_MEMORY = frozenset({3, 52})
#: In what may be of a JVM that lives on, too: py4j says the same of a class that is not there.
_UNCLEAR = re.compile(r"java\.lang\.OutOfMemoryError|does not exist in the JVM")
#: All that py4j says of a call whose connection broke; one that Java answered with an error has a trace behind this.
_UNANSWERED = re.compile(r"An error occurred while calling \S+")


def exit_code(session: Any) -> int | None:
    """The exit code of the JVM that `session` was of, negative for a signal; None while it lives, or where its process
    is not ours.
    """
    process = _process(session)
    return None if process is None else process.poll()


def of_memory(code: int | None) -> bool:
    """Whether a JVM with that exit code had no memory left."""
    return code in _NO_MEMORY


def words(code: int | None) -> str:
    """For people, of a JVM that ended with that exit code."""
    return f"{LOST} {MEMORY}" if of_memory(code) else LOST


def lost(session: Any, cause: BaseException) -> SparkLostError | None:
    """The error that says that the JVM of `session` is gone, where a call to it failed with `cause` because of that;
    None where it lives. Blocks for `ENDS_S` at most, and only where `cause` may be of an end; one that does not end
    although nobody can speak to it any more is ended.
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
    """Whether `cause`, or what led to it, is of a connection to Java that broke. An error of Java's is an answer, and
    py4j's own word about a call that cannot be made is none of a connection.
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
