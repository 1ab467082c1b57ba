"""Reads the commits in a state that another process may be writing. Takes no lease, and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.split import StreamSplit
from raycdc.source.tables.table_life import AsOf, Behind, CatchingUp, InSnapshot, Live, Parked, ParkedPhase
from raycdc.state.drivers.heartbeat import DriverWatch, Vacancy
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore, CommitRecord
from raycdc.verify.targets.api import NotComparedError

#: The interval at which the state is read while waiting for a commit.
POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The state as of a commit. The target has all changes up to the position of `stream`, according to `record`."""

    record: CommitRecord
    stream: StreamState
    documents: Callable[[str], SchemaDocument]

    @property
    def position(self) -> Position:
        return self.stream.position

    @property
    def ordinal(self) -> int:
        return self.stream.ordinal

    def document(self, table: TableId) -> SchemaDocument:
        """Return the table's schema document at this position.

        Raises `NotComparedError` if the table is not followed at this position.
        """
        for name, entry in self.record.parked.items():
            if str(table) in entry.sources:
                raise NotComparedError(f"its target {name} is parked: {entry.text}")
        match state := self.stream[table]:
            case Live() | Behind():
                return self.documents(state.schema)
            case InSnapshot() | AsOf():
                raise NotComparedError("its snapshot is under way; compare it when that is complete")
            case CatchingUp():
                raise NotComparedError("it goes on from an older position; compare it when it is where the log is")
            case Parked(reason=reason, phase=phase):
                raise NotComparedError(f"it is {phase}: {reason}")
            case _:
                raise NotComparedError("the pipeline does not follow it (yet)")

    def why_left_out(self, table: TableId) -> str:
        """Return the reason why the table is not followed any more: a user removed it, or it was dropped at the source.

        The text is empty if the table is to be compared, or if it cannot be compared for a different reason.
        """
        match self.stream[table]:
            case Parked(reason=reason, phase=ParkedPhase.REMOVED | ParkedPhase.ENDED as phase):
                return f"it is {phase}: {reason}"
            case _:
                return ""

    def split(self, table: TableId) -> StreamSplit:
        """Return a split of the log from this position on that has only this table."""
        stream = self.stream.only([table])
        state = StreamState(stream.position, stream.ordinal, stream.followed, notes=stream.notes)
        return StreamSplit.of(state, self.documents)


class PipelineState:
    """Reads the commits of one state; see the module's docstring."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self._watch = DriverWatch(store.generations, store.lock.holder, lock=store.lock.identity)
        self._documents: dict[str, SchemaDocument] = {}
        self._newest: CommittedState | None = None

    def held(self) -> CommittedState:
        """Return the state as of the newest commit.

        Raises `StateError` if nothing was committed yet, or if the source has no log.
        """
        for _ in range(3):
            record = self.store.last_commit()
            if record is None:
                raise StateError(f"Nothing was committed yet, as {self.store.location} says. Run the pipeline first.")
            if self._newest is not None and self._newest.record == record:
                return self._newest
            try:
                manifest = self.store.manifest(record.epoch)
            except StateError:
                continue  # The manifest was pruned, because several epochs were committed meanwhile.
            self._newest = self._held(record, manifest)
            return self._newest
        raise StateError(f"{self.store.location} has no manifest of its newest commit. Is another process changing it?")

    def goes_on(self, table: TableId, held: CommittedState) -> bool:
        """Return True if no sealed epoch after `held` resnapshots or removes the table.

        Each epoch is sealed before a target has any of its rows, and the first epoch of a new snapshot empties the
        target.
        """
        newest = stream_of(self.store.last_manifest())
        if newest is None or table not in newest.followed:
            return False
        return newest.followed[table].incarnation == held.stream.followed[table].incarnation

    def is_running(self) -> bool:
        """Return True if a driver seems to have the state."""
        return not isinstance(self._watch.poll(), Vacancy)

    def held_beyond(self, ordinal: int, wait_s: float, stopped: threading.Event) -> CommittedState | None:
        """Return the first commit with everything up to `ordinal`; None if there is none within `wait_s`.

        Also None if the pipeline stops running.
        """
        left = wait_s
        while True:
            held = self.held()
            if held.ordinal >= ordinal:
                return held
            if left <= 0 or not self.is_running() or stopped.wait(POLL_S):
                return None
            left -= POLL_S

    def _held(self, record: CommitRecord, manifest: Manifest) -> CommittedState:
        stream = stream_of(manifest)
        if stream is None:
            raise StateError(
                "verify compares tables of one log (MySQL, MariaDB, MongoDB), and this pipeline's source has others: "
                "topics keep no rows that could be read again."
            )
        return CommittedState(record, stream, self._document)

    def _document(self, fingerprint: str) -> SchemaDocument:
        if fingerprint not in self._documents:
            self._documents[fingerprint] = SchemaDocument.from_json(self.store.document(fingerprint))
        return self._documents[fingerprint]
