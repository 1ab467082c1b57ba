"""The one door to numba: where compiled code is cached, and what `njit` means in this package.

Compiled functions live in files called ``*_loops.py`` and import `njit` from here, never from numba, so that the
cache directory is set before numba reads its configuration. The directory's name holds a digest of all those files:
numba itself notices a change in a function's own file only, and would go on using a caller compiled against an older
callee. A read-only installation works, because the cache is the user's.

``NUMBA_CACHE_DIR`` set by the user wins (and then clearing it after an upgrade is the user's business).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

_PACKAGE = Path(__file__).resolve().parent

Function = TypeVar("Function", bound=Callable[..., Any])


def cache_directory() -> Path:
    """Where this version's compiled code is kept: under ``XDG_CACHE_HOME`` or ``~/.cache``."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*_loops.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    configured = os.environ.get("XDG_CACHE_HOME")
    root = Path(configured) if configured else Path("~/.cache").expanduser()
    return root / "raycdc" / "compiled" / digest.hexdigest()[:16]


os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_directory()))

import numba  # noqa: E402  the cache directory must be known first


def njit(function: Function) -> Function:
    """Compile on first call, keep on disk, release the GIL while running."""
    return cast("Function", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """A small helper that is compiled into its callers; not called from Python."""
    return cast("Function", numba.njit(nogil=True, error_model="numpy", inline="always")(function))


def helper(function: Function) -> Function:
    """A helper that LLVM may inline; called from compiled code (tests may call it from Python)."""
    return cast("Function", numba.njit(nogil=True, error_model="numpy")(function))
