"""The mark of a demo in its folder: later demos may remove the folder, and runs there learn if the servers are up.

The demo keeps the mark locked while its servers are up, so that even a killed demo is detected. The mark identifies the
configuration that the demo wrote: a changed one may use other servers.
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
    """True if a demo made the folder."""
    return (folder / MARK).exists()


def mark(folder: Path) -> None:
    """A demo makes the folder."""
    (folder / MARK).write_text(_TEXT, encoding="utf-8")


@contextmanager
def serving(config: Path) -> Iterator[None]:
    """The servers of `config`, which is written, are up within the block."""
    with (config.parent / MARK).open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{_digest(config)}\n")
        file.flush()
        yield


def require_servers(config: Path) -> None:
    """Raise `SourceError` if `config` is as a demo wrote it, and that demo has ended."""
    location = config.parent / MARK
    if not is_free(location):
        return
    *_, written = location.read_text(encoding="utf-8", errors="replace").split() or [""]
    if config.is_file() and written == _digest(config):
        raise SourceError(
            f"{config} is of a demo, which has ended, and its servers with it. `raycdc demo` starts new ones and "
            "begins anew; with --stay they stay up until Ctrl-C. `raycdc init` writes a configuration for a server of "
            "your own."
        )


def _digest(config: Path) -> str:
    return hashlib.sha256(config.read_bytes()).hexdigest()
