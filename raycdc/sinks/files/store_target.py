"""The operations of a `raycdc.sinks.steps.Target` on files in an object store, which can neither rename nor link.

```
URL/DB/TABLE/epoch-0000000012.3-1a2b3c4d.jsonl         visible rows
URL/DB/TABLE/_raycdc/commit-0000000012-1a2b3c4d.json   the commit record of the epoch, written only once
URL/DB/TABLE/_raycdc/newest-1a2b3c4d.json              the newest record whose rows became visible
URL/DB/TABLE/_raycdc/writer-1a2b3c4d.json, barred-…    the writers, as in a folder
URL/DB/TABLE/_raycdc/stage/…                           staged objects, deleted after they became visible
```

An epoch is committed when its record is written, by a conditional put. The record names the staged object. The store
then copies that object to its visible name, and ``newest-….json`` is written. After a crash before that, the epoch
counts as missing and is delivered again, and `recover` copies the object that the record names. Records are never
deleted, because a suspended driver may try to commit any epoch.

`StoreNotes` reads and writes the records and ``newest-….json``. `StoreWriters` corresponds to
`raycdc.sinks.files.folder_target.Writers`. Both raise `StoreError`.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from raycdc.core.failpoints import reach
from raycdc.core.typed_codec import LEFT_OUT, JsonObject
from raycdc.errors import FencedError, SinkError, TargetDroppedError
from raycdc.model import TableId
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, CommitVector, SinkContext, TableCommit
from raycdc.sinks.files.folder_target import FilesTarget, Part, committed_by_another
from raycdc.sinks.steps import CommitMetadata, ForeignTarget, MissingTarget, OwnTarget, TargetState
from raycdc.sinks.targets import absent, lost_files
from raycdc.storage.api import ObjectWritten, PreconditionFailed, Stored
from raycdc.storage.files import StorePath, copy, delete, is_there, names_after, names_in
from raycdc.storage.object_store import ObjectStore

#: Since version 2 a record may have a digest.
_VERSION = 2
_RECORD = re.compile(r"commit-(\d{10})-([0-9a-f]{8})\.json")


@dataclass(frozen=True, slots=True)
class StoreCommitRecord(JsonObject):
    """The commit record of a target's epoch: the pipeline and generation that wrote it, the number of rows, and the
    name of the staged object. The name is empty if there are no rows. A `tombstone` has no rows; it prevents that its
    epoch is committed later. `positions` are the source's positions as JSON text, for people to see.
    """

    pipeline: str
    epoch: int
    generation: int
    rows: int
    tombstone: bool
    staged: str
    positions: str
    digest: int = field(default=0, metadata=LEFT_OUT)

    version = _VERSION
    written_first = ("version",)
    refuses_unknown_keys = True

    @property
    def vector(self) -> CommitVector:
        step = STEP_TOMBSTONE if self.tombstone else STEP_LAST
        return CommitVector(self.epoch, step, self.generation, self.digest)

    def encoded(self) -> bytes:
        return json.dumps(self.to_json()).encode()

    @classmethod
    def decoded(cls, data: bytes, location: object) -> StoreCommitRecord:
        """Return the record in `data`. Raises `SinkError` for a version that this raycdc does not know."""
        record = json.loads(data)
        if (version := record.get("version", 0)) not in range(1, _VERSION + 1):
            raise SinkError(
                f"{location} has a record of version {version}, and this raycdc reads up to {_VERSION}. Use the "
                "newer one that wrote it."
            )
        return cls.from_json(record)


class StoreNotes:
    """The documents about one pipeline in `folder`. `identity` stands for the pipeline in their names."""

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
        """Record that the rows of `record` are visible. From then on, a program that loads the files may remove them. A
        suspended driver cannot replace the document of a newer driver.
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
    """The notes about the pipelines that write to the target in `folder`. The pipeline `app_id` reads and writes them
    through `notes`.
    """

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


class StoreSteps(FilesTarget):
    """The operations on the objects of one target. `accepted` is as in `raycdc.sinks.files.folder_target.FileSteps`."""

    def __init__(
        self, name: TableId, folder: StorePath, context: SinkContext, *, kind: str, accepted: set[TableId]
    ) -> None:
        super().__init__(name, str(folder))
        self._folder = folder
        self._context = context
        self._kind = kind
        self._accepted = accepted
        self._identity = hashlib.sha256(context.app_id.encode()).hexdigest()[:8]
        self._notes = StoreNotes(folder / "_raycdc", self._identity)
        self._writers = StoreWriters(folder, self._notes, context.app_id)

    def read_state(self, epoch: int | None = None) -> TargetState:
        self._writers.require_not_barred()
        if self.name in self._accepted and not self._writers.has_entered():
            if self._writers.visible():
                raise self.disappeared()
            return MissingTarget()
        done = self._notes.newest_done()
        vector = None if done is None else done.vector
        if (
            vector is None
            and self.name not in self._accepted
            and not self._writers.has_entered()
            and self._writers.foreign()
        ):
            return ForeignTarget()
        return OwnTarget(vector)

    def recover(self, commit_metadata: CommitMetadata) -> bool:
        found = self._notes.open_ones(self._notes.newest_done())
        for record in found:
            if record.generation > commit_metadata.vector.generation:
                raise FencedError(f"{self.location} was written by a newer driver (generation {record.generation}).")
            self._carry_out(record)
        return bool(found)

    def create(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self.evolve(work, commit_metadata)

    def replace(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        # The other pipelines are barred before their files are removed. A pipeline that makes a file visible meanwhile
        # finds that it is barred, and removes the file itself.
        self._writers.bar_other_writers()
        delete(self._folder / name for name in self._writers.foreign())
        self.evolve(work, commit_metadata)

    def adopt(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self.evolve(work, commit_metadata)

    def evolve(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Note that this run writes here. Nothing else is needed, because each file has its own schema."""
        if self.name not in self._accepted:
            self._writers.enter()
            self._accepted.add(self.name)

    def write(self, work: TableCommit, staged: Sequence[Part], step: int, commit_metadata: CommitMetadata) -> None:
        delete(self._folder / name for name in self._writers.of_barred())
        self.evolve(work, commit_metadata)
        written = [part for part in staged if part.rows]
        assert len(written) <= 1, written
        name = str(written[0].path).rpartition("/")[2] if written else ""
        self._commit(work, commit_metadata, staged=name, rows=sum(part.rows for part in staged))

    def vanished(self, staged: Sequence[Part], step: int) -> Sequence[str]:
        return absent(self._folder / "_raycdc" / "stage" / str(part.path).rpartition("/")[2] for part in staged)

    def bar(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._commit(work, commit_metadata, staged="", rows=0)
        self.unstage(work.epoch)

    def part(self, work: TableCommit, index: int) -> StorePath:
        """Return the name of a new staged object of `work`, which is unique and does not look like a file with rows."""
        name = f"{self._staged(work.epoch)}{work.generation}-{index}-{uuid.uuid4().hex}.staged"
        return self._folder / "_raycdc" / "stage" / name

    def unstage(self, epoch: int) -> None:
        """Delete the objects staged for `epoch`."""
        folder = self._folder / "_raycdc" / "stage"
        delete(folder / name for name in names_in(folder) if name.startswith(self._staged(epoch)))

    def _commit(self, work: TableCommit, commit_metadata: CommitMetadata, *, staged: str, rows: int) -> None:
        barred = commit_metadata.vector.step == STEP_TOMBSTONE
        positions = json.dumps(dict(commit_metadata.positions))
        record = StoreCommitRecord(
            self._context.app_id, work.epoch, work.generation, rows, barred, staged, positions, work.digest
        )
        reach("in_commit")
        if not self._notes.commit(record):
            raise committed_by_another(work)
        self._writers.require_not_barred()
        self._carry_out(record)

    def _carry_out(self, record: StoreCommitRecord) -> None:
        """Make the rows of a record visible. May be repeated."""
        if record.staged:
            visible = self._folder / f"epoch-{record.epoch:010d}.{STEP_LAST}-{self._identity}.{self._kind}"
            try:
                copy(self._folder / "_raycdc" / "stage" / record.staged, visible)
            except FileNotFoundError as cause:
                # The staged object is missing if another driver has already made the rows visible and deleted the
                # object, or if a user deleted it.
                if not is_there(visible):
                    raise lost_files(self.location, record.epoch, [record.staged]) from cause
            try:
                self._writers.require_not_barred()
            except TargetDroppedError:
                delete([visible])
                raise
        self._notes.done(record)

    def _staged(self, epoch: int) -> str:
        return f"{epoch:010d}-{self._identity}-"
