"""The mark that a demo leaves in its folder.

The mark permits later demos to remove the folder. It also shows ``raycdc run``, started with the demo's configuration,
if the demo's servers are up: the demo keeps the mark locked while they are, so that even a killed demo is detected. The
mark identifies the configuration that the demo wrote, because a configuration that was changed may use different
servers.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raycdc.errors import SourceError
from raycdc.state.files.folder import is_free

MARK = ".raycdc-demo"
_TEXT = "Made by `raycdc demo`, which removes this folder when it runs again.\n"


def is_marked(folder: Path) -> bool:
    """Return True if a demo made the folder."""
    return (folder / MARK).exists()


def mark(folder: Path) -> None:
    """Mark the folder as made by a demo."""
    (folder / MARK).write_text(_TEXT, encoding="utf-8")


@contextmanager
def serving(config: Path) -> Iterator[None]:
    """Mark the servers of the configuration file `config` as running, until the end of the block."""
    with (config.parent / MARK).open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{_digest(config)}\n")
        file.flush()
        yield


def require_servers(config: Path) -> None:
    """Raise `SourceError` if `config` is unchanged since a demo wrote it, and that demo has ended."""
    location = config.parent / MARK
    if not is_free(location):
        return
    *_, written = location.read_text(encoding="utf-8", errors="replace").split() or [""]
    if config.is_file() and written == _digest(config):
        raise SourceError(
            f"{config} belongs to a demo that has ended, together with its servers. `raycdc demo` starts new servers "
            "and a new demo; with --stay the servers stay up until Ctrl-C. `raycdc init` writes a configuration for "
            "your own server."
        )


def _digest(config: Path) -> str:
    return hashlib.sha256(config.read_bytes()).hexdigest()
