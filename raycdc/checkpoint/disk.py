"""The file system below the state's folder: what a crash leaves of a file, and when a machine that loses power has it.

A simulation hands in another one, which forgets what was not synced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raycdc.failpoints import reach

#: Threads that wait for the disk; more of them gain nothing.
_SYNCS_AT_ONCE = 8


class Disk:
    """The file system as a folder asks it. Its calls raise `OSError`.

    What a call did survives the process at once, and the machine only when it was synced: the content of a file by
    `sync`, the names in a folder by `sync_folder`.
    """

    def make_folder(self, folder: Path) -> None:
        make_folder(folder)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def create(self, path: Path, parts: Sequence[bytes]) -> None:
        """A new file of `parts`, written one after the other."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for number, part in enumerate(parts):
                if number:
                    reach("half_written")
                file.write(part)
                file.flush()

    def sync(self, path: Path) -> None:
        """Make the content of a file durable."""
        _sync(path, os.O_RDONLY)

    def sync_all(self, paths: Sequence[Path]) -> None:
        """`sync` for each of them, a few at once: a file system writes what comes together in one go."""
        if len(paths) > 1:
            with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="raycdc-sync") as pool:
                list(pool.map(self.sync, paths))
        else:
            for path in paths:
                self.sync(path)

    def rename(self, path: Path, to: Path) -> None:
        """Give the file another name, in the place of whatever has it."""
        path.rename(to)

    def link(self, path: Path, to: Path) -> None:
        """Give the file another name beside its own. `FileExistsError` where something has it."""
        to.hardlink_to(path)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def names(self, folder: Path) -> list[str]:
        """Of all that lies in the folder."""
        return [entry.name for entry in folder.iterdir()]

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)


#: The file system of this machine.
DISK = Disk()


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents, durably: each parent that got a new entry is synced."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for made in reversed(missing):
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
