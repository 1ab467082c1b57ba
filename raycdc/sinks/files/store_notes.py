"""Small documents about a target's files on an object store: commit records, and notes about the writers.

Called by `store_target`, by one thread at a time. Raises `StoreError`. `StoreWriters` corresponds to
`raycdc.sinks.files.folder_target.Writers` for a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from raycdc.core.typed_codec import JsonObject
from raycdc.errors import SinkError, TargetDroppedError
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, CommitVector
from raycdc.storage.api import ObjectWritten, PreconditionFailed, Stored
from raycdc.storage.files import StorePath, names_after, names_in
from raycdc.storage.object_store import ObjectStore

_VERSION = 1
_RECORD = re.compile(r"commit-(\d{10})-([0-9a-f]{8})\.json")


@dataclass(frozen=True, slots=True)
class StoreCommitRecord(JsonObject):
    """The commit record of an epoch of a target: its author, number of rows, and the name of the staged object.

    The name is empty if there are no rows. A `tombstone` has no rows and bars its epoch. `positions` are the source's,
    as JSON text, for people to see.
    """

    pipeline: str
    epoch: int
    generation: int
    rows: int
    tombstone: bool
    staged: str
    positions: str

    version = _VERSION
    written_first = ("version",)
    refuses_unknown_keys = True

    @property
    def vector(self) -> CommitVector:
        return CommitVector(self.epoch, STEP_TOMBSTONE if self.tombstone else STEP_LAST, self.generation)

    def encoded(self) -> bytes:
        return json.dumps(self.to_json()).encode()

    @classmethod
    def decoded(cls, data: bytes, location: object) -> StoreCommitRecord:
        """Return the record in `data`. Raises `SinkError` for a version that this raycdc does not know."""
        record = json.loads(data)
        if (version := record.get("version", 0)) != _VERSION:
            raise SinkError(
                f"{location} has a record of version {version}, and this raycdc reads version {_VERSION}. Use the "
                "newer one that wrote it."
            )
        return cls.from_json(record)


class StoreNotes:
    """The documents in `folder`; `identity` stands for the pipeline in their names."""

    def __init__(self, folder: StorePath, identity: str) -> None:
        self._folder = folder
        self.identity = identity
        self._store = ObjectStore(folder.location, folder.access.settings)

    def commit(self, record: StoreCommitRecord) -> bool:
        """Write `record` as the record of its epoch. Returns False if another record exists."""
        # The bytes are unique, because of the staged object's unique name, or the generation if there is none.
        return not isinstance(self._store.put_if_absent(self._name(record.epoch), record.encoded()), PreconditionFailed)

    def newest_done(self) -> StoreCommitRecord | None:
        """Return the newest record that is known to be carried out: its rows are or were visible."""
        return self._read(f"newest-{self.identity}.json")

    def done(self, record: StoreCommitRecord) -> None:
        """Note that the rows of a record are visible. From then on, a loader may remove them.

        A suspended driver cannot replace a newer note.
        """
        name = f"newest-{self.identity}.json"
        there = self._store.read(name)
        while there is None or self._parsed(name, there).epoch < record.epoch:
            if there is None:
                outcome = self._store.put_if_absent(name, record.encoded())
            else:
                outcome = self._store.replace_if_match(name, record.encoded(), there.version)
            if isinstance(outcome, ObjectWritten):
                return
            there = outcome.current

    def open_ones(self, done: StoreCommitRecord | None) -> list[StoreCommitRecord]:
        """Return the records after `done`, which may be incomplete, oldest first."""
        after = "" if done is None else self._name(done.epoch)
        found = (_RECORD.fullmatch(name) for name in names_after(self._folder, "commit-", after))
        names = [match[0] for match in found if match and match[2] == self.identity]
        return [record for name in sorted(names) if (record := self._read(name)) is not None]

    def mark(self, name: str, pipeline: str) -> None:
        """Write a marker object."""
        self._store.put(name, json.dumps({"version": _VERSION, "pipeline": pipeline}).encode())

    def has(self, name: str) -> bool:
        return self._store.read(name) is not None

    def names(self, beginning: str) -> list[str]:
        """Return the names of the documents that begin with `beginning`."""
        return names_after(self._folder, beginning)

    def _name(self, epoch: int) -> str:
        return f"commit-{epoch:010d}-{self.identity}.json"

    def _read(self, name: str) -> StoreCommitRecord | None:
        stored = self._store.read(name)
        return None if stored is None else self._parsed(name, stored)

    def _parsed(self, name: str, stored: Stored) -> StoreCommitRecord:
        return StoreCommitRecord.decoded(stored.data, f"{self._folder}/{name}")


_FILE = re.compile(r"epoch-\d{10}\.\d-([0-9a-f]{8})\.")
_WRITER = re.compile(r"writer-([0-9a-f]{8})\.json")
_BARRED = re.compile(r"barred-([0-9a-f]{8})\.json")


class StoreWriters:
    """The notes of writers of the target in `folder`, which the pipeline `app_id` reads and writes by `notes`."""

    def __init__(self, folder: StorePath, notes: StoreNotes, app_id: str) -> None:
        self._folder = folder
        self._notes = notes
        self._app_id = app_id

    def enter(self) -> None:
        """Note that this pipeline writes here."""
        self._notes.mark(f"writer-{self._notes.identity}.json", self._app_id)

    def has_entered(self) -> bool:
        """Return True if this pipeline has written here before."""
        return self._notes.has(f"writer-{self._notes.identity}.json")

    def require_not_barred(self) -> None:
        """Raise `SinkError` if another pipeline replaced this one's files."""
        if self._notes.has(f"barred-{self._notes.identity}.json"):
            raise TargetDroppedError(
                f"{self._folder} was taken over by another pipeline, which replaced the files of this one "
                '(pipeline.on_existing = "replace"). Nothing more was written. Let only one of the two write there: '
                "choose another sink.path, or delete what is there, and read the source table anew."
            )

    def bar_other_writers(self) -> None:
        """Bar every other pipeline that ever wrote here from making files visible."""
        ever = _identity_of(_FILE, self.visible()) | _identity_of(_WRITER, self._notes.names("writer-"))
        for identity in ever - {self._notes.identity}:
            self._notes.mark(f"barred-{identity}.json", self._app_id)

    def foreign(self) -> list[str]:
        """Return the visible files that this pipeline did not write."""
        return [name for name in self.visible() if _identity_of(_FILE, [name]) != {self._notes.identity}]

    def of_barred(self) -> list[str]:
        """Return the visible files that a barred pipeline could not remove before it died."""
        barred = _identity_of(_BARRED, self._notes.names("barred-"))
        return [name for name in self.visible() if _identity_of(_FILE, [name]) & barred] if barred else []

    def visible(self) -> list[str]:
        """Return the files that readers see."""
        return [name for name in names_in(self._folder) if not name.startswith(("_", "."))]


def _identity_of(pattern: re.Pattern[str], names: Iterable[str]) -> set[str]:
    return {match[1] for match in map(pattern.match, names) if match}
