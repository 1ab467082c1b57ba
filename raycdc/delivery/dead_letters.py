"""Dead letters from the moment they wait until people find them: each bad row once, whichever driver dies.

What a driver stages may be staged again by the next one, or never come to be, so a file of bad rows waits
(`raycdc.segments.dead_letter_files`), and is shown once its epoch is recorded. It is there before any target can lack
its rows.

| | in a folder | on an object store |
|---|---|---|
| waits | hidden, in the folder where it is shown | in a folder of this machine, then (`keep`) in the state |
| shown | by a link, which nobody makes twice | by a put that makes a new object, then the document is deleted |

A document of the state is written only by the newest driver, in one step with the look at the generations, so that a
stale one's counts for nobody. In a folder each driver's files have its generation in their names.

*What if the process dies here?* Before the record: the next driver stages the epoch anew, and its files count; where it
does not need to, because the target holds the epoch, those of the one before do. After the record: they are shown at
the next start.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from raycdc.errors import StateError
from raycdc.segments.bad_rows import DEAD_LETTER, BadRecords
from raycdc.segments.dead_letter_files import counting, epoch_of
from raycdc.state.files.folder import sync_folder
from raycdc.state.store import CheckpointStore

#: Documents of a state on an object store, and the objects that people find.
_WAITING = "letters"
_SHOWN = "dead_letters"


class DeadLetters:
    """See the module's docstring. Of the driver that has the state; callable from one thread at a time."""

    def __init__(self, records: BadRecords, store: CheckpointStore) -> None:
        self._on = records.action == DEAD_LETTER
        self._folder = Path(records.folder)
        self._driver = records.driver
        self._store = store
        self._documents = store.documents.folder if store.place.on_store else None
        #: The epochs of which documents wait, so that a store is not asked for each epoch; None until `sweep`, as
        #: there may be those of an earlier driver.
        self._kept: set[int] | None = None

    def keep(self, epoch: int) -> None:
        """What waits of `epoch` survives this machine. Before any target can lack it."""
        documents = self._documents
        if documents is None:
            return
        own = [file for file in self._files() if epoch_of(file) == epoch and self._is_own(file)]
        if own and self._kept is not None:
            self._kept.add(epoch)
        for file in sorted(own):
            data = (self._folder / file).read_bytes()
            put = partial(documents.write, f"{_WAITING}/{file}", data)
            self._store.documents.as_driver(_letters_of(epoch), put)
            (self._folder / file).unlink(missing_ok=True)

    def show(self, epoch: int) -> None:
        """`epoch` is recorded: let people find what it left out. Doing it again changes nothing."""
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
        """Remove what never came to be, or will be staged again. Only while nothing is staged.

        Who is the newest driver behind the list removes nothing of a newer one's.
        """
        files, documents = self._files(), self._documents
        waiting = [] if documents is None or not self._on else documents.list(_WAITING)
        if files or waiting:
            self._require_own(committed + 1)
        for file in files:
            # Before letters waited, they were shown before their epoch was recorded.
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
            # Whoever shows it at the same time shows the same, and may have removed it.
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

        self._store.documents.as_driver(_letters_of(epoch), delete)

    def _files(self) -> list[str]:
        """What lies in the folder of this machine."""
        return [entry.name for entry in os.scandir(self._folder)] if self._on and self._folder.is_dir() else []

    def _is_own(self, file: str) -> bool:
        return f".{self._driver:010d}." in file

    def _require_own(self, epoch: int) -> None:
        self._store.generations.require_own(_letters_of(epoch))


def _letters_of(epoch: int) -> str:
    return f"the dead letters of epoch {epoch}"
