"""When a folder's trouble is the whole sink's, and no single table's: its disk is full, broken, read-only or away.

Libraries wrap the system's error: Python's and Arrow's are an `OSError`, delta-rs and others say ``os error 28``.
"""

from __future__ import annotations

import errno
import os

_ABSENT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.EHOSTDOWN}
)
#: As Rust, Python and Java say it, with the system's own words, so that a row's value is not taken for it.
_IN_TEXT = [
    form
    for number in _ABSENT
    for form in (
        f"{os.strerror(number)} (os error {number})",
        f"[Errno {number}] {os.strerror(number)}",
        f"java.io.IOException: {os.strerror(number)}",
    )
]


def is_absent(cause: BaseException | None) -> bool:
    """Whether `cause`, or what led to it, says so."""
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _ABSENT:
            return True
        if any(form in str(cause) for form in _IN_TEXT):
            return True
        cause = cause.__cause__
    return False
