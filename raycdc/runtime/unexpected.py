"""Turns an unknown error into an `UnexpectedError` with its kind and the line of code that raised it.

The reported line is the deepest line of the traceback in the package of the source, which is raycdc or a plug-in. If
the traceback has no line of that package, it is the deepest line of all.

If an error passed through code of a plug-in or of a user's function, only its kind and line are reported, because its
text may quote values (`raycdc.model.redaction`). Such code can raise a `RaycdcError` to show a text.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

import pyarrow as pa

from raycdc.errors import RaycdcError, UnexpectedError
from raycdc.model.redaction import without_quotations

#: Kinds of errors that bugs in code raise. Failures of files, sockets and servers are of different kinds.
LASTING = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
_TEXT_MAX = 500
#: Top-level packages that are no user's code: those that raycdc imports, and those that start it.
_KNOWN = sys.stdlib_module_names | {
    "__main__", "_yaml", "adbc_driver_manager", "adbc_driver_postgresql", "arro3", "boto3", "botocore",
    "bson", "certifi", "click", "cloudpickle", "confluent_kafka", "cryptography", "delta", "deltalake", "fsspec",
    "grpc", "gridfs", "jsonschema", "llvmlite", "msgpack", "numba", "numpy", "obstore", "pandas", "py4j",
    "pyarrow", "pydantic", "pydantic_core", "pyiceberg", "pymongo", "pymongoarrow", "pymysql", "pyspark", "ray",
    "raycdc", "requests", "rich", "sqlalchemy", "tenacity", "typer", "urllib3", "yaml",
}  # fmt: skip


def unexpected(error: Exception, maker: object) -> UnexpectedError:
    """Return an `UnexpectedError` for `error`, which was raised while an object of the package of `maker`
    was at work.
    """
    package = type(maker).__module__.partition(".")[0]
    steps = list(traceback.walk_tb(error.__traceback__))
    own = [step for step in steps if str(step[0].f_globals.get("__name__", "")).partition(".")[0] == package]
    text = " ".join(error_text(error).split())[:_TEXT_MAX]
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if deepest := (own or steps)[-1:]:
        frame, line = deepest[0]
        message += f" ({frame.f_code.co_filename}:{line}, in {frame.f_code.co_name})"
    trace = traceback_of(error)
    return UnexpectedError(f"{message}.", lasting=isinstance(error, LASTING), trace=trace)


def traceback_of(error: BaseException) -> str:
    """Return the tracebacks of `error` and its causes, oldest first.

    Of the causes of one of our errors, only the kinds are given. Our own text explains them, while their texts, from
    libraries and servers, may quote values of rows.
    """
    chain = list(_chain(error))
    parts = []
    for number, one in enumerate(chain):
        message = any(isinstance(later, RaycdcError) for later in chain[:number])
        kind = f"{type(one).__module__}.{type(one).__qualname__}".removeprefix("builtins.")
        text = "" if message and not isinstance(one, RaycdcError) else error_text(one)
        steps = "".join(traceback.format_tb(one.__traceback__))
        # Only errors of raycdc have this trace: the line at which a plug-in failed, in a different thread or process.
        notes = getattr(one, "__notes__", []) if isinstance(one, RaycdcError) else []
        where = "".join(f"\n{note}" for note in notes)
        parts.append(f"Traceback (most recent call last):\n{steps}{kind}{f': {text}' if text else ''}{where}")
    return "\n\nThe error above led to this one:\n\n".join(reversed(parts))


def error_text(error: BaseException) -> str:
    """Return the error's text for people; empty if it may contain values of rows.

    Arrow's errors are about values, and quote them. Python's errors about names in the code contain none.
    """
    if isinstance(error, pa.ArrowException):
        return without_quotations(str(error))
    return "" if not isinstance(error, RaycdcError) and not _of_names(error) and _is_foreign(error) else str(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return `error` and its causes, newest first."""
    seen: set[int] = set()
    pending: BaseException | None = error
    while pending is not None and id(pending) not in seen:
        seen.add(id(pending))
        yield pending
        pending = pending.__cause__ or (None if pending.__suppress_context__ else pending.__context__)


def _of_names(error: BaseException) -> bool:
    return isinstance(error, (AttributeError, ImportError, NameError)) and error.name is not None


def _is_foreign(error: BaseException) -> bool:
    """Return True if the error passed through code that is neither raycdc's nor of a library that raycdc uses."""
    names = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.partition(".")[0] not in _KNOWN for name in names)
