"""The notes about the files of one pipeline in a folder: written before a file becomes visible, and once more after it.

What is visible says which epochs the folder has, as long as nobody takes files away. So the newest file that was ever
visible has a note of its own, which stays when a loader took the file.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from raycdc.checkpoint.folder import LocalFolder
from raycdc.checkpoint.opaque import Positions


@dataclass(frozen=True, slots=True)
class Note:
    """The facts about a file that was to become visible: whose it is, and how many rows it has. A `tombstone` has none,
    and bars its epoch. `positions` are the source's, for people to see.
    """

    pipeline: str
    epoch: int
    generation: int
    rows: int
    tombstone: bool
    inode: int
    positions: Positions

    def to_json(self) -> str:
        return json.dumps({part.name: getattr(self, part.name) for part in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Note:
        """Keys that a newer version may have added are passed over."""
        data = json.loads(text)
        return cls(**{part.name: data[part.name] for part in fields(cls)})


class Notes:
    """Those in the folder of records `folder`; `identity` is the pipeline's in names of files."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder
        self._newest = f"newest-{identity}.json"

    def write(self, stem: str, note: Note) -> None:
        """Before the file called `stem` becomes visible. Whole or not at all: a recovery may read it when this process
        died right after.
        """
        LocalFolder(self._folder).write(f"{stem}-g{note.generation}.json", note.to_json().encode())

    def write_newest(self, note: Note) -> None:
        """The file is visible, and whoever loads it may take it away from here on."""
        LocalFolder(self._folder).write(self._newest, note.to_json().encode())

    def newest(self) -> Note | None:
        """The note about the newest file that is known to have been visible. Older raycdcs wrote none."""
        try:
            return Note.from_json((self._folder / self._newest).read_text())
        except FileNotFoundError:
            return None

    def of(self, stem: str, file: Path) -> Note | None:
        """The note about the visible `file` called `stem`. Of several generations that tried, the one whose file it is:
        a link keeps the inode. (In a copied folder inodes say nothing; there the newest is as good as any, and where a
        loader takes the file right now.)
        """
        inode = 0
        with suppress(FileNotFoundError):
            inode = file.stat().st_ino
        notes = [Note.from_json(path.read_text()) for path in self._folder.glob(f"{stem}-g*.json")]
        return max(notes, key=lambda note: (note.inode == inode, note.generation), default=None)
