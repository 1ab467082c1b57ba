"""The verbs of `raycdc.sinks.steps` for files on an object store, where nothing is renamed or linked.

``` URL/DB/TABLE/epoch-0000000012.3-1a2b3c4d.jsonl visible rows URL/DB/TABLE/_raycdc/commit-0000000012-1a2b3c4d.json the
commit record of the epoch, written only once URL/DB/TABLE/_raycdc/newest-1a2b3c4d.json the newest record whose rows
became visible URL/DB/TABLE/_raycdc/writer-1a2b3c4d.json, barred-… who writes here, as in a folder
URL/DB/TABLE/_raycdc/stage/… staged objects, removed when they became visible ```

An epoch is committed by its record, which is written by a conditional put and names the staged object. The store then
copies that object to its visible name, and the newest record is noted. After a crash in between, the epoch counts as
missing and is delivered again; `recover` then copies the object that the record names. Records are never deleted,
because a suspended driver may try to commit any epoch.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence

from raycdc.core.failpoints import reach
from raycdc.errors import FencedError, TargetDroppedError
from raycdc.model import TableId
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, SinkContext, TableCommit
from raycdc.sinks.files.folder_target import FilesTarget, Part, committed_by_another
from raycdc.sinks.files.store_notes import StoreCommitRecord, StoreNotes, StoreWriters
from raycdc.sinks.steps import CommitMetadata, ForeignTarget, MissingTarget, OwnTarget, TargetState
from raycdc.sinks.targets import absent, lost_files
from raycdc.storage.files import StorePath, copy, delete, is_there, names_in


class StoreSteps(FilesTarget):
    """The objects of one target. `accepted` is as in `raycdc.sinks.files.folder_target.FileSteps`."""

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
        # Others are barred first, so that none of their files remains: they check this after making a file visible.
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
        record = StoreCommitRecord(self._context.app_id, work.epoch, work.generation, rows, barred, staged, positions)
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
                # The staged object is missing if another driver has completed the record and deleted it, or if a user
                # deleted it.
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
