"""Texts that tasks must know and their arguments must not say: passwords, addresses with one, keys of stores.

They are in files of the driver's user (`raycdc.state.files.folder.private_file`), which tasks on the same machine read.
Tasks on other machines have no such file: Spark sends them what it says, with the function and not with its arguments,
and their process keeps it in memory alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_sent: dict[str, str] = {}


def private_text(path: str) -> str:
    """The content of a private file, as it was sent here or as it is on this machine. `OSError` where it is neither."""
    return _sent[path] if path in _sent else Path(path).read_text(encoding="utf-8")


def all_private(folder: Path) -> dict[str, str]:
    """The content of each private file of `folder`, by its path; others may write there meanwhile."""
    if not folder.is_dir():
        return {}
    found: dict[str, str] = {}
    for path in folder.iterdir():
        # One that is written gets its name last, and is gone by the name that it had first.
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path)] = path.read_text(encoding="utf-8")
    return found


def take_private(texts: Mapping[str, str]) -> None:
    """Keep what another machine's files say, for `private_text`."""
    _sent.update(texts)
