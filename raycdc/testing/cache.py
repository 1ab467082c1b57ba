"""One folder for everything that is downloaded or prepared once: server binaries, initialised data folders, jars.

Called by the server classes and by ``make setup``. *Invariant*: an entry either exists complete or not at all; it is
built beside its final name under a lock and renamed, so that several processes may ask for it at once and a killed
build leaves nothing that looks finished.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raycdc.own_files import user_cache


def cache_dir() -> Path:
    """The cache folder: ``$RAYCDC_CACHE``, else ``$XDG_CACHE_HOME/raycdc``, else ``~/.cache/raycdc``; made."""
    configured = os.environ.get("RAYCDC_CACHE")
    folder = Path(configured) if configured else user_cache()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock called `name`; blocks while another process holds it, freed by the kernel at exit."""
    path = cache_dir() / f"{name}.lock"
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, built by ``build(folder)`` if it is not there. Blocks while others build it."""
    final = cache_dir() / name
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(name.replace("/", "-")):
        if final.is_dir():
            return final
        partial = final.with_name(final.name + ".partial")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        build(partial)
        partial.rename(final)
    return final
