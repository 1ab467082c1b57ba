"""Tells of each table that goes into another phase, and of snapshots that are in the sink.

A table is out of its snapshot when its last chunk is in an epoch, and its rows are in the target when the sink holds
that one: until then the news waits. A driver that dies in between tells of it in its next run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import StateError
from raycdc.run_events import SnapshotDone, SnapshotsDone, TableMoved
from raycdc.source.protocol.job_status import JobStatus
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.table_life import phase_word

SNAPSHOT = "snapshot"
#: What a table is in whose snapshot was finished.
_FOLLOWED = "stream"
#: What a table is in that the state knows by name alone.
_NEW = "new"

Told = TableMoved | SnapshotDone | SnapshotsDone


class TableLives:
    """Hears each status of the source side. `phases` are those of the state's tables as the last commit left them; of
    tables that are not among them the first status that has them says what they are.
    """

    def __init__(self, phases: Mapping[str, str], tell: Callable[[Told], None]) -> None:
        self._phases = dict(phases)
        self._tell = tell
        #: Rows of snapshots that the sink may not hold yet, and the epoch whose commit says that it does.
        self._waiting: dict[str, tuple[int, int | None]] = {}
        self._done = 0

    def __repr__(self) -> str:
        return f"TableLives({len(self._phases)} tables, {len(self._waiting)} wait for their commit)"

    def heard(self, status: JobStatus | None) -> None:
        """For the thread that looks at statuses."""
        if status is None:
            return
        for table, now in status.tables.items():
            name, phase = str(table), now.progress.phase
            before = self._phases.get(name)
            if phase == before:
                continue
            self._phases[name] = phase
            amount = now.progress.amount
            # A table that nobody knew is told of as a new one (`NewTables`), and a first start would tell of all.
            if before is not None:
                self._tell(TableMoved(name, before, phase))
            if phase == _FOLLOWED and before in (None, _NEW, SNAPSHOT) and amount is not None:
                self._waiting[name] = _holding(status), amount.rows
            elif phase == SNAPSHOT:
                # It begins again before the news of the last one was out.
                self._waiting.pop(name, None)
        idle = _is_idle(status)
        self._tell_held(lambda epoch: idle or epoch <= status.committed, lambda: self._all_done(status))

    def ended(self) -> None:
        """The run has committed everything, and there is no status any more."""
        self._tell_held(lambda _: True, lambda: SNAPSHOT not in self._phases.values())

    def _tell_held(self, held: Callable[[int], bool], all_done: Callable[[], bool]) -> None:
        for name in sorted(name for name, (epoch, _) in self._waiting.items() if held(epoch)):
            _, rows = self._waiting.pop(name)
            self._done += 1
            self._tell(SnapshotDone(name, rows))
        if self._done and not self._waiting and all_done():
            done, self._done = self._done, 0
            self._tell(SnapshotsDone(done))

    def _all_done(self, status: JobStatus) -> bool:
        """Looked at after snapshots were done only: it takes the longer the more tables there are."""
        return not status.counts.in_snapshot and SNAPSHOT not in self._phases.values()


def _is_idle(status: JobStatus) -> bool:
    """Whether everything that was read is in the sink."""
    on_its_way = status.sealing is not None or status.sealed > status.committed
    return not on_its_way and not any(reader.open_bytes for reader in status.readers)


def _holding(status: JobStatus) -> int:
    """The epoch that surely has what was read by now: the one behind what is sealed, or being sealed."""
    return (status.sealed if status.sealing is None else status.sealing.epoch) + 1


def phases_at(store: CheckpointStore, committed: int) -> dict[str, str]:
    """The phase of each table that the epoch `committed`, the last one that is recorded, knows. What was sealed behind
    it nobody was told of yet.
    """
    sealed = store.sealed_epochs()
    if not committed or not sealed:
        return {}
    stream = stream_of(_manifest(store, committed if committed in sealed else sealed[-1]) or store.last_manifest())
    return {} if stream is None else {str(table): phase_word(stream[table]) for table in stream.tables}


def _manifest(store: CheckpointStore, epoch: int) -> Manifest | None:
    """None where it cannot be read: only words hang on it, and a start complains of what it needs itself."""
    try:
        return store.manifest(epoch)
    except StateError:
        return None
