"""Secrets for tasks that must not appear in their arguments: passwords, addresses with one, keys of stores.

They are kept in files of the driver's user (`raycdc.state.files.folder.private_file`), which tasks on the same machine
read. For tasks on other machines, Spark sends the content with the function and not with its arguments, and their
process keeps it in memory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_sent: dict[str, str] = {}


def private_text(path: str) -> str:
    """Return the content of a private file, either as it was sent to this process or as read on this machine.

    Raises `OSError` if there is neither.
    """
    return _sent[path] if path in _sent else Path(path).read_text(encoding="utf-8")


def all_private(folder: Path) -> dict[str, str]:
    """Return the content of each private file of `folder`, by its path.

    Other processes may write there meanwhile.
    """
    if not folder.is_dir():
        return {}
    found: dict[str, str] = {}
    for path in folder.iterdir():
        # A file is renamed to its final name at the end, so it may be gone under its first name.
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path)] = path.read_text(encoding="utf-8")
    return found


def take_private(texts: Mapping[str, str]) -> None:
    """Keep the content of files of another machine, so that `private_text` finds it."""
    _sent.update(texts)
