"""Holds back the dead letters of an epoch until its commit is recorded, so that each bad row appears once.

An epoch that a driver stages may be staged again by the next driver, or never be committed. The file of its bad rows
(`raycdc.segments.bad_rows`) is therefore hidden at first, and shown once the epoch is recorded. The hidden file is
durable before any target is written without these rows.

| | in a folder | on an object store |
|---|---|---|
| hidden | a hidden file in the final folder | in a folder of this machine, then (`keep`) in the state |
| shown | by a hard link, which cannot be made twice | by a put of a new object; then the document is deleted |

Each write of a document of the state also checks the generations, so only the newest driver can write one. In a folder,
the names of files contain the generation of their driver.

*Crashes*: before the record, the next driver stages the epoch again, and its files are shown. If the target already
holds the epoch, the files of the earlier driver are shown. After the record, the next start shows the files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from raycdc.errors import StateError
from raycdc.segments.bad_rows import DEAD_LETTER, BadRecords, counting, epoch_of
from raycdc.state.files.folder import sync_folder
from raycdc.state.store import CheckpointStore

#: The folders of hidden documents and of shown objects, for a state on an object store.
_WAITING = "letters"
_SHOWN = "dead_letters"


class DeadLetters:
    """Keeps and shows the dead letters of the driver that owns the state; see the module's docstring.

    Used by one thread at a time.
    """

    def __init__(self, records: BadRecords, store: CheckpointStore) -> None:
        self._on = records.action == DEAD_LETTER
        self._folder = Path(records.folder)
        self._driver = records.driver
        self._store = store
        self._documents = store.documents.folder if store.location.on_store else None
        #: The epochs that have hidden documents, so that the store need not be listed for each epoch. None until
        #: `sweep`, because an earlier driver may have left some.
        self._kept: set[int] | None = None

    def keep(self, epoch: int) -> None:
        """Copy the hidden files of `epoch` to the state, so that they survive the loss of this machine.

        Called before any target is written without the bad rows. Does nothing if the state is in a folder, because the
        hidden files are there already.
        """
        documents = self._documents
        if documents is None:
            return
        own = [file for file in self._files() if epoch_of(file) == epoch and self._is_own(file)]
        if own and self._kept is not None:
            self._kept.add(epoch)
        for file in sorted(own):
            data = (self._folder / file).read_bytes()
            put = partial(documents.write, f"{_WAITING}/{file}", data)
            self._store.documents.as_driver(_dead_letters_of(epoch), put)
            (self._folder / file).unlink(missing_ok=True)

    def show(self, epoch: int) -> None:
        """Show the files of `epoch`, which is recorded. May be repeated."""
        if not self._on:
            return
        try:
            if self._documents is None:
                self._show_files(epoch)
            elif self._kept is None or epoch in self._kept:
                self._show_objects(epoch)
                if self._kept is not None:
                    self._kept.discard(epoch)
        except OSError as cause:
            raise StateError(f"{self._folder} cannot be written: {cause}.") from cause

    def sweep(self, committed: int) -> None:
        """Delete hidden files of epochs that will never be committed, or will be staged again.

        Call it while nothing is staged. Raises `FencedError` if a newer driver has replaced this one, so that no file
        of the newer driver is deleted.
        """
        files, documents = self._files(), self._documents
        waiting = [] if documents is None or not self._on else documents.list(_WAITING)
        if files or waiting:
            self._require_own(committed + 1)
        for file in files:
            # Older versions showed files before their epoch was recorded.
            if file.startswith(".") or (file[:10].isdigit() and int(file[:10]) > committed):
                (self._folder / file).unlink(missing_ok=True)
        for file in waiting:
            assert documents is not None
            documents.delete(f"{_WAITING}/{file}")
        self._kept = set()

    def _show_files(self, epoch: int) -> None:
        files = [file for file in self._files() if epoch_of(file) == epoch]
        if not files:
            return
        self._require_own(epoch)
        for file, name in counting(files, epoch).items():
            # Another driver may have shown the same file and removed the hidden one.
            with suppress(FileExistsError, FileNotFoundError):
                os.link(self._folder / file, self._folder / name)
        sync_folder(self._folder)
        for file in files:
            (self._folder / file).unlink(missing_ok=True)

    def _show_objects(self, epoch: int) -> None:
        documents = self._documents
        assert documents is not None
        files = [file for file in documents.list(_WAITING) if epoch_of(file) == epoch]
        if not files:
            return
        for file, name in counting(files, epoch).items():
            data = documents.read(f"{_WAITING}/{file}")
            if data is not None:
                documents.create_once(f"{_SHOWN}/{name}", data)

        def delete() -> None:
            for file in files:
                documents.delete(f"{_WAITING}/{file}")

        self._store.documents.as_driver(_dead_letters_of(epoch), delete)

    def _files(self) -> list[str]:
        """Return the names of the files in the folder of this machine."""
        return [entry.name for entry in os.scandir(self._folder)] if self._on and self._folder.is_dir() else []

    def _is_own(self, file: str) -> bool:
        return f".{self._driver:010d}." in file

    def _require_own(self, epoch: int) -> None:
        self._store.generations.require_own(_dead_letters_of(epoch))


def _dead_letters_of(epoch: int) -> str:
    return f"the dead letters of epoch {epoch}"
