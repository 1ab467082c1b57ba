"""The split enumerator for incremental snapshots: one stream split, and the chunks of every table.

It finds the tables and the position to start from, gives the stream split to one reader, plans chunks a few at a time
and gives them to whoever asks, and relays the hand-off's events between the reader of a chunk and the reader of the
log. It never touches a row.

| a chunk is | then |
|---|---|
| pending | given to the next reader that asks |
| out | with a reader; a reader that dies: the log reader is asked to void it |
| published | in the log reader's open epoch; the log reader dies: pending again |
| finished | in a sealed manifest: forgotten |

State (in every manifest): planning state per table, chunks not finished, the greatest H. Chunks in flight are simply
pending after a restore: what had been read of them was in no manifest.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from raycdc.checkpoint.manifest import Manifest
from raycdc.errors import ProtocolError, SourceError
from raycdc.model import TableId
from raycdc.source.api import EpochShare, SplitEnumeratorContext
from raycdc.source.log_reader import STATE_VERSION as LOG_STATE_VERSION
from raycdc.source.split import STREAM_SPLIT_ID, PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit

#: Version of this enumerator's state.
STATE_VERSION = 1
#: Chunks planned ahead of demand; keeps the enumerator's state and the server's planning queries small.
PLANNED_AHEAD = 32
#: Times a chunk is read again because its rows changed meanwhile, before the job gives up on it.
RETRIES_MAX = 50


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table at the start position: its schema document and how it is cut into chunks.

    `snapshot` as `HandOff.add_table` wants it, or None for a table that is followed without a snapshot.
    """

    table: TableId
    fingerprint: str
    document: dict[str, Any]
    snapshot: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where the log starts and what tables look like there."""

    position: dict[str, Any]
    ordinal: int
    tables: tuple[TablePlan, ...]


@dataclass(frozen=True, slots=True)
class PlannedChunks:
    """More chunks of a table: splits, the planner's new state (None: planned to the end), estimated total."""

    splits: tuple[SnapshotSplit, ...]
    planner: dict[str, Any] | None
    estimate: int


class EnumeratorDialect(Protocol):
    """What a connector gives the enumerator. Every method blocks and runs off the coordinator's thread."""

    def start_point(self) -> StartPoint: ...

    def plan(
        self, document: dict[str, Any], table: TableId, planner: dict[str, Any], first_index: int
    ) -> PlannedChunks: ...

    def current_ordinal(self) -> int:
        """The log's end now."""

    def captures(self, table: TableId) -> bool:
        """Whether the configuration selects the table. Does not block."""


@dataclass(slots=True)
class _TableState:
    fingerprint: str
    planner: dict[str, Any] | None
    planned: int = 0
    finished: int = 0
    estimate: int = 0
    published: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Out:
    split: SnapshotSplit
    owner: int | None
    published: bool = False


class IncrementalSnapshotEnumerator:
    """See the module's docstring. `until` is None (run on), ``"caught-up"`` or ``"snapshot"``."""

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        *,
        until: str | None,
        restored: dict[str, Any] | None = None,
    ) -> None:
        self._context = context
        self._dialect = dialect
        self._until = until
        self._tables: dict[TableId, _TableState] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self._pending: deque[SnapshotSplit] = deque()
        self._out: dict[str, _Out] = {}
        self._requests: deque[int] = deque()
        self._retries: dict[str, int] = {}
        self._stream: StreamSplit | None = None
        self._stream_owner: int | None = None
        self._planning = False
        self._high = 0
        self._run_start: int | None = None
        self._stop_sent = False
        self._started = restored is not None
        if restored is not None:
            self._restore(restored)

    def __repr__(self) -> str:
        chunks = f"pending={len(self._pending)}, out={len(self._out)}"
        return f"IncrementalSnapshotEnumerator({chunks}, log={self._stream_owner})"

    def start(self) -> None:
        """Find the start point, unless restored; and where the log ends now, when the run is bounded."""
        if not self._started:
            self._context.call_async(self._dialect.start_point, self._on_start_point)
        if self._until == "caught-up":
            self._context.call_async(self._dialect.current_ordinal, self._on_run_start)
        else:
            self._run_start = 0

    def close(self) -> None:
        """Nothing is open here; the dialect's connections live only inside its calls."""

    def add_reader(self, subtask_id: int) -> None:
        self._give_stream()

    def handle_split_request(self, subtask_id: int) -> None:
        self._requests.append(subtask_id)
        self._assign()

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        """`subtask_id` lost these splits; the stream may come later than the chunks, and after its successor."""
        registered = set(self._context.registered_readers())
        self._requests = deque(s for s in self._requests if s in registered)
        for split in splits:
            match split:
                case StreamSplit():
                    self._lose_log(split)
                case SnapshotSplit():
                    self._lose_chunk(split)
                case PartitionSplit():
                    raise ProtocolError(f"{split.split_id} is none of this enumerator's splits")
        self._give_stream()
        self._assign()

    def handle_source_event(self, subtask_id: int, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "open_chunk":
            split = SnapshotSplit.from_json(event["split"])
            if self._is_current(split.split_id, split.attempt):
                self._to_log(event)
            return
        out = self._out.get(event["split_id"])
        if out is None or out.split.attempt != event["attempt"]:
            return  # About an attempt that is over; its sender has been told, or is gone.
        match kind:
            case "close_chunk":
                self._high = max(self._high, event["high"])
                self._to_log(event)
            case "chunk_opened" | "chunk_delta":
                self._to_owner(out, event)
            case "chunk_published":
                out.published = True
                self._to_owner(out, event)
                self._maybe_stop()
            case "chunk_voided" if out.published:
                return  # The answer about a reader that died: too late, the chunk is out.
            case "chunk_voided":
                self._to_owner(out, event)
                self._put_back(out.split)
                if event["gone"]:
                    self._forget_table(out.split.table)
                elif out.owner is not None:
                    self._count_retry(out.split, event["reason"])
                self._assign()
            case _:
                raise ProtocolError(f"The enumerator does not know the event {kind!r}")

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        for split_id in split_ids:
            out = self._out.pop(split_id)
            self._retries.pop(split_id, None)
            self._tables[out.split.table].finished += 1
        self._plan()
        self._assign()
        self._maybe_stop()

    def epoch_sealed(self, epoch: int, splits: Mapping[str, Any]) -> EpochShare:
        """The log reader reports tables and the end by itself."""
        return EpochShare()

    @property
    def wants_seal(self) -> bool:
        return False

    def snapshot_state(self, checkpoint_id: int) -> dict[str, Any]:
        unfinished = [o.split for o in self._out.values()] + list(self._pending)
        return {
            "version": STATE_VERSION,
            "started": self._started,
            "high": self._high,
            "tables": {
                str(t): {
                    "schema": s.fingerprint,
                    "document": self._documents[s.fingerprint] if s.planner is not None else None,
                    "planner": s.planner,
                    "planned": s.planned,
                    "finished": s.finished,
                    "estimate": s.estimate,
                }
                for t, s in self._tables.items()
            },
            "unfinished": [s.to_json() for s in unfinished],
        }

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Nothing to clean up at the source: a binlog is not acknowledged."""

    def progress(self) -> dict[str, Any]:
        tables = {}
        for table, state in self._tables.items():
            published = sum(1 for o in self._out.values() if o.published and o.split.table == table)
            done = state.finished + published
            complete = state.planner is None and done >= state.planned
            tables[str(table)] = {
                "phase": "stream" if complete else "snapshot",
                "chunks_done": done,
                "chunks_total": state.planned if state.planner is None else max(state.estimate, state.planned),
            }
        return tables

    @property
    def chunks_waiting(self) -> int:
        """Chunks nobody reads yet; how many readers the phase needs follows from it."""
        return len(self._pending) + sum(1 for s in self._tables.values() if s.planner is not None)

    def _restore(self, state: dict[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ProtocolError(f"Enumerator state has version {state['version']}, this one knows {STATE_VERSION}")
        self._high = state["high"]
        self._started = state["started"]
        for name, table in state["tables"].items():
            self._tables[TableId.parse(name)] = _TableState(
                table["schema"], table["planner"], table["planned"], table["finished"], table["estimate"]
            )
            if table["document"] is not None:
                self._documents[table["schema"]] = table["document"]
        for data in state["unfinished"]:
            split = SnapshotSplit.from_json(data)
            self._pending.append(dataclasses.replace(split, attempt=split.attempt + 1))

    def _on_start_point(self, start: StartPoint) -> None:
        self._started = True
        tables = {}
        schemas = {}
        for plan in start.tables:
            schemas[plan.fingerprint] = plan.document
            tables[str(plan.table)] = {"schema": plan.fingerprint, "announced": False, "snapshot": plan.snapshot}
            # The key is settled here: the log reader compares by it from now on, whatever the configuration says later.
            planner = {"key": plan.snapshot["key"]} if plan.snapshot is not None else None
            self._tables[plan.table] = _TableState(plan.fingerprint, planner)
        self._documents.update(schemas)
        state = {
            "version": LOG_STATE_VERSION,
            "position": start.position,
            "ordinal": start.ordinal,
            "tables": tables,
        }
        self._stream = StreamSplit(state, schemas)
        self._give_stream()
        self._plan()

    def _on_run_start(self, ordinal: int) -> None:
        self._run_start = ordinal
        self._maybe_stop()

    def _give_stream(self) -> None:
        readers = self._context.registered_readers()
        if self._stream is None or self._stream_owner is not None or not readers:
            return
        self._stream_owner = min(readers)
        self._stop_sent = False
        self._context.assign_splits({self._stream_owner: [self._stream]})
        self._assign()
        self._maybe_stop()

    def _lose_chunk(self, split: SnapshotSplit) -> None:
        out = self._out.get(split.split_id)
        if out is None or out.split.attempt != split.attempt or out.published:
            return
        out.owner = None
        if self._stream_owner is not None:
            # The log reader may be about to publish it: only its answer tells. Should it be gone, `_lose_log` follows.
            self._to_log({"type": "void_chunk", **_name(out.split)})
        else:
            self._put_back(out.split)

    def _lose_log(self, split: StreamSplit) -> None:
        """The log reader died with everything open or published since the last manifest."""
        self._stream, self._stream_owner = split, None
        for out in list(self._out.values()):
            if out.owner is not None:
                self._to_owner(out, {"type": "chunk_voided", **_name(out.split), "reason": "the log reader is gone"})
            self._put_back(out.split)

    def _put_back(self, split: SnapshotSplit) -> None:
        del self._out[split.split_id]
        self._pending.appendleft(dataclasses.replace(split, attempt=split.attempt + 1))

    def _count_retry(self, split: SnapshotSplit, reason: str) -> None:
        """Give up on a chunk that is read again and again with its reader alive."""
        self._retries[split.split_id] = self._retries.get(split.split_id, 0) + 1
        if self._retries[split.split_id] > RETRIES_MAX:
            raise SourceError(
                f"Chunk {split.split_id} of {split.table} was read {RETRIES_MAX} times and not once usable: {reason}. "
                "Give the table a primary key, lower source.snapshot.chunk_rows, or start when fewer rows change."
            )

    def _forget_table(self, table: TableId) -> None:
        """The table was dropped at the source: nothing of it is left to read."""
        self._tables[table].planner = None
        self._pending = deque(split for split in self._pending if split.table != table)

    def _plan(self) -> None:
        if self._planning or len(self._pending) >= PLANNED_AHEAD // 2:
            return
        for table, state in self._tables.items():
            if state.planner is not None:
                self._planning = True
                document = self._documents[state.fingerprint]
                plan = partial(self._dialect.plan, document, table, state.planner, state.planned)
                self._context.call_async(plan, partial(self._on_planned, table))
                return

    def _on_planned(self, table: TableId, chunks: PlannedChunks) -> None:
        self._planning = False
        state = self._tables[table]
        if state.planner is None:
            return  # Dropped meanwhile.
        state.planner, state.estimate = chunks.planner, chunks.estimate
        state.planned += len(chunks.splits)
        self._pending.extend(chunks.splits)
        self._assign()
        self._plan()
        self._maybe_stop()

    def _assign(self) -> None:
        """Give pending chunks to waiting readers, only while there is a log reader to open them."""
        while self._requests and self._pending and self._stream_owner is not None:
            subtask_id, split = self._requests.popleft(), self._pending.popleft()
            self._out[split.split_id] = _Out(split, subtask_id)
            self._context.assign_splits({subtask_id: [split]})
        self._plan()
        if self._all_published() and not self._out:
            # Only when every chunk is in a manifest: until then the log reader's death makes chunks pending again.
            for subtask_id in sorted(set(self._requests)):
                self._context.signal_no_more_splits(subtask_id)
            self._requests.clear()

    def _all_published(self) -> bool:
        planned = self._started and all(s.planner is None for s in self._tables.values())
        return planned and not self._pending and all(o.published for o in self._out.values())

    def _maybe_stop(self) -> None:
        bounded = self._until is not None and self._run_start is not None and not self._stop_sent
        if bounded and self._stream_owner is not None and self._all_published():
            self._stop_sent = True
            assert self._run_start is not None
            self._to_log({"type": "stop_at", "ordinal": max(self._run_start, self._high)})

    def _is_current(self, split_id: str, attempt: int) -> bool:
        out = self._out.get(split_id)
        return out is not None and out.split.attempt == attempt

    def _to_log(self, event: dict[str, Any]) -> None:
        if self._stream_owner is not None:
            self._context.send_event(self._stream_owner, event)

    def _to_owner(self, out: _Out, event: dict[str, Any]) -> None:
        if out.owner is not None:
            self._context.send_event(out.owner, event)

    def restore_stream(self, split: StreamSplit) -> None:
        """The stream split as the last manifest has it; called once, before `start`, when restored."""
        if split.split_id != STREAM_SPLIT_ID:
            raise ProtocolError(f"{split.split_id} is not the stream split")
        self._stream = split


def restore_or_create(
    context: SplitEnumeratorContext,
    dialect: EnumeratorDialect,
    *,
    until: str | None,
    last: Manifest | None,
    document: Callable[[str], dict[str, Any]],
) -> IncrementalSnapshotEnumerator:
    """The enumerator as `last` left it, or a new one; `document` gives schema documents by fingerprint."""
    if last is None or STREAM_SPLIT_ID not in last.to_splits:
        # A run that was stopped before it knew where to start has sealed nothing but its end.
        return IncrementalSnapshotEnumerator(context, dialect, until=until)
    # A table left out by now is forgotten: its changes are passed over, so nobody may go on with it as if none were.
    restored = {
        **last.enumerator,
        "tables": _captured(last.enumerator["tables"], dialect),
        "unfinished": [s for s in last.enumerator["unfinished"] if dialect.captures(TableId.parse(s["table"]))],
    }
    enumerator = IncrementalSnapshotEnumerator(context, dialect, until=until, restored=restored)
    state = last.to_splits[STREAM_SPLIT_ID]
    state = {**state, "tables": _captured(state["tables"], dialect)}
    documents = {table["schema"]: document(table["schema"]) for table in state["tables"].values()}
    enumerator.restore_stream(StreamSplit(state, documents))
    return enumerator


def _captured(tables: dict[str, Any], dialect: EnumeratorDialect) -> dict[str, Any]:
    return {name: table for name, table in tables.items() if dialect.captures(TableId.parse(name))}


def _name(split: SnapshotSplit) -> dict[str, Any]:
    return {"split_id": split.split_id, "table": str(split.table), "attempt": split.attempt}
