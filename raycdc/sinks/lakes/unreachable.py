"""Detects errors that affect a whole lake and not a single table. Its disk may be full, broken, read-only or missing;
its object store may not answer or may refuse access. Libraries report the system's error in different ways: Python and
Arrow raise an `OSError`, while delta-rs and others put ``os error 28`` into a text.

`raised_in` helps to decide if an exception concerns the table or is a bug of raycdc. Libraries raise `ValueError` and
Arrow's errors for a damaged table, and a bug of raycdc may raise the same errors. The traceback shows the difference:
below raycdc's last function, a library's error has passed through modules of the library.
"""

from __future__ import annotations

import errno
import os
from types import TracebackType

from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.storage.api import StoreError

_ABSENT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.EHOSTDOWN}
)
#: The texts of these errors in Rust, Python and Java. They include the system's message, so that a value of a row in
#: the message is not mistaken for such an error.
_IN_TEXT = [
    form
    for number in _ABSENT
    for form in (
        f"{os.strerror(number)} (os error {number})",
        f"[Errno {number}] {os.strerror(number)}",
        f"java.io.IOException: {os.strerror(number)}",
    )
]
#: Texts of the stores' client inside delta-rs (object_store), when all retries failed or there was no answer.
_IN_TEXT += [f"Generic {store} error: Error performing" for store in ("S3", "GCS", "MicrosoftAzure")]
#: Texts of refused access.
_UNAUTHORIZED = (
    "The operation lacked the necessary privileges to complete",
    "The operation lacked valid authentication credentials",
    "<Code>NoSuchBucket</Code>",
    "<Code>ContainerNotFound</Code>",
)

#: Texts of Arrow's object-store file systems for an error of the server or a missing answer.
_OF_STORE = ("AWS Error", "google::cloud::Status", "Azure Error", "Azure Exception")
#: Texts of errors among them that only a person can fix.
_LASTING = (
    "ACCESS_DENIED",
    "NO_SUCH_BUCKET",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "EXPIRED_TOKEN",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "ContainerNotFound",
)


def is_refused(cause: BaseException | None) -> bool:
    """Return True if an object store refuses access, or lacks the bucket: only a person can fix that."""
    while cause is not None:
        if isinstance(cause, StoreError) and cause.lasting:
            return True
        if _is_of_store(cause) and any(word in str(cause) for word in _LASTING):
            return True
        if any(form in str(cause) for form in _UNAUTHORIZED):
            return True
        cause = cause.__cause__
    return False


def _is_of_store(cause: BaseException) -> bool:
    if isinstance(cause, FileNotFoundError) or not isinstance(cause, OSError):
        return False
    return any(word in str(cause) for word in _OF_STORE)


def refusal_of(cause: BaseException, *, keys_change: bool) -> type[SinkError]:
    """Return the error class for a store that does not answer or refuses access. With `keys_change`, a refusal counts
    as temporary, because new keys may come.
    """
    return SinkUnavailableError if is_refused(cause) and keys_change else SinkError


def is_absent(cause: BaseException | None) -> bool:
    """Return True if `cause`, or one of its causes, says that the storage is unreachable."""
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _ABSENT:
            return True
        if isinstance(cause, StoreError) or _is_of_store(cause):
            return not is_refused(cause)
        if any(form in str(cause) for form in _UNAUTHORIZED):
            return False
        if any(form in str(cause) for form in _IN_TEXT):
            return True
        cause = cause.__cause__
    return False


def raised_in(error: BaseException, *packages: str) -> bool:
    """Return True if `error` was raised in a call by our code to a function of one of `packages`."""
    called = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == "raycdc":
            called = ""
        elif not called:
            called = module
        trace = trace.tb_next
    return any(called == package or called.startswith(f"{package}.") for package in packages)
