"""Reads and writes files of code that this process loads or sends, unless another user could have written them.

Machine code, class archives and the files of executors are in the user's cache folder, or in a folder that an
environment variable names. Other users may be able to write into such a folder. A file is used only if file and folder
belong to the user of this process or to root, and no other user may write to them. Any other file is ignored. Files
that this module writes can be read only by their user.
"""

from __future__ import annotations

import os
import stat
import threading
from functools import cache
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_own(path: Path) -> bytes | None:
    """Return the bytes of a file that only this process's user or root can have written.

    Returns None if the file is missing, or if another user could have written it.
    """
    try:
        # This module writes no links and no pipes, so they are ignored. Opening a pipe would also wait for its other
        # end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        own = _is_own_file(path, os.fstat(descriptor))
    except OSError:
        own = False
    if not own:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def is_own(path: Path) -> bool:
    """Return True if the file exists and `read_own` would read it."""
    try:
        return _is_own_file(path, path.lstat())
    except OSError:
        return False


def write_own(path: Path, content: bytes) -> bool:
    """Write the file atomically, readable by us alone; return True if it was written.

    The file is not written if its folder belongs to another user or is read-only. Then a warning is logged once, and
    each process repeats the work that the file would have saved.
    """
    try:
        make_own_folder(path.parent)
        if not _is_own_folder(path.parent):
            return False
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError as cause:
        _warn(path.parent, f"cannot be written to ({cause.strerror})")
        return False
    return True


def user_cache() -> Path:
    """Return the user's cache folder: ``$XDG_CACHE_HOME/raycdc``, else ``~/.cache/raycdc``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "raycdc"


def make_own_folder(path: Path) -> None:
    """Create the folder and its missing parents, accessible to this user alone. Existing folders are not changed."""
    for folder in [*reversed(path.parents), path]:
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def _is_own_file(path: Path, status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and _is_ours(path, status) and _is_own_folder(path.parent)


def _is_own_folder(path: Path) -> bool:
    return _is_ours(path, path.stat())


def _is_ours(path: Path, status: os.stat_result) -> bool:
    if status.st_uid in (0, os.geteuid()) and not status.st_mode & _WRITABLE_BY_OTHERS:
        return True
    _warn(path, f"belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}")
    return False


@cache
def _warn(path: Path, why: str) -> None:
    """Log once that a file or folder is not used."""
    import logging  # Rarely needed, and every process imports this module.

    logging.getLogger(__name__).warning(
        "%s %s, so that no code is loaded from it or kept there, and each process makes its own again. Give it to "
        "the user of this process with mode 0700, or point RAYCDC_COMPILED_DIR (or XDG_CACHE_HOME) elsewhere.",
        path,
        why,
    )
