"""Batches of change events: the parts of events, found by the compiled scan, and the rows of their documents.

An `EventBatch` is one answer of the server; its events are numbered in the order of the stream. `Scanner` remembers the
names of collections. Events other than a document's change are decoded one by one into `CollectionEvent`s, because they
are few.

Metadata columns have the collection and the times of a row's change:

| field | column | rows of the snapshot |
|---|---|---|
| database, collection | STRING | the same |
| op_time | TIMESTAMP(3): the wall time, or else the seconds of the cluster time | NULL |
| cluster_time | BIGINT: its seconds × 2³², and its increment | NULL |
| wall_time | TIMESTAMP(3); NULL if the server does not report it (before 6.0) | NULL |
| txn_number | BIGINT: the number of the transaction in its session; NULL outside of a transaction | NULL |

The row before a change has the values of that change.

`MongoDbTransactionAssembler` groups events of one cluster time into transactions, and decides which transactions are
complete. The events of a transaction have its commit's cluster time, and transactions of several shards may share one.
The events of the last cluster time in an answer wait here, as bytes, until it is certain that no more events of that
time come:

| next | the waiting transaction is complete |
|---|---|
| an event of a later time | always |
| a token of a later time after the answer | always |
| an answer without events | with a replica set, whose log has a transaction as a whole; never with a ``mongos`` |

Therefore at most one answer waits; a longer transaction is passed on in parts. The token after an answer without events
(`postBatchResumeToken`) shows how far the stream is, so that the position of a quiet collection advances; with a
``mongos`` it means that all events *before* its time were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import bson
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder, fields_of
from raycdc.connectors.mongodb.bson.documents import PLAIN, RAW, Document
from raycdc.connectors.mongodb.bson.event_loops import scan
from raycdc.connectors.mongodb.layout import METADATA, CollectionLayout
from raycdc.connectors.mongodb.server.catalog import uuid_text
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken, StreamPosition
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.errors import DataError
from raycdc.formats.loops.code_loops import OK
from raycdc.model import RowKind, TableId, TypeKind, changelog_schema, lost_values, with_lost_values
from raycdc.source.snapshot.handoff.hand_off import LogRows


@dataclass(frozen=True, slots=True)
class CollectionEvent:
    """An event that changes no document. `kind` is the server's name for it (MongoDB manual, "Change Events").

    `table` is the collection that it is about, None for an event of a database or of the stream; `to` is the new name
    of a renamed collection. `uuid` is the collection's, in hexadecimal ("": unknown).
    """

    kind: str
    table: TableId | None = None
    to: TableId | None = None
    uuid: str = ""

    @classmethod
    def of(cls, event: Document) -> CollectionEvent:
        uuid = uuid_text(event.get("collectionUUID"))
        return cls(event["operationType"], table_of(event.get("ns")), table_of(event.get("to")), uuid)


def table_of(namespace: Document | None) -> TableId | None:
    """Return the collection in the ``ns`` of an event; None if it has none."""
    if namespace is None or "coll" not in namespace:
        return None
    return TableId(namespace["db"], namespace["coll"])


Events = npt.NDArray[np.int64]


def filled(
    batch: pa.RecordBatch, layout: CollectionLayout, table: TableId, events: Events | None = None
) -> pa.RecordBatch:
    """Return `batch`, decoded by `layout`, with its metadata: of each row's event, or empty for the snapshot."""
    for at, column in enumerate(layout.columns):
        if not column.type.native.startswith(METADATA):
            continue
        field = column.type.native.removeprefix(METADATA)
        if field in ("database", "collection"):
            name = table.db if field == "database" else table.table
            array = pa.repeat(pa.scalar(name, batch.schema.types[at]), batch.num_rows)
        elif events is None:
            continue
        else:
            values, missing = _OF_EVENTS[field](events)
            array = pa.array(values, mask=missing)
            if column.type.kind is TypeKind.TIMESTAMP:
                array = array.cast(pa.timestamp("ms"))
            array = array.cast(batch.schema.types[at])
        batch = batch.set_column(at, batch.schema.field(at), array)
    return batch


def op_time_ms(events: Events) -> Events:
    """Return when each change was made, in Unix milliseconds."""
    walls = events[:, codes.E_WALL]
    found: Events = np.where(walls >= 0, walls, (events[:, codes.E_TIME] >> 32) * 1000)
    return found


def _plain(column: int) -> Callable[[Events], tuple[Events, npt.NDArray[np.bool_]]]:
    """Return a function that returns a column of events with its null mask: values below zero are null."""
    return lambda events: (events[:, column], events[:, column] < 0)


_OF_EVENTS: Mapping[str, Callable[[Events], tuple[Events, npt.NDArray[np.bool_]]]] = {
    "op_time": lambda events: (op_time_ms(events), np.zeros(len(events), np.bool_)),
    "cluster_time": _plain(codes.E_TIME),
    "wall_time": _plain(codes.E_WALL),
    "txn_number": _plain(codes.E_TXN),
}


#: The number of events found in one scan. A larger batch is scanned in several parts.
_EVENTS_FIRST = 4096
#: The number of remembered namespaces. A database with more creates and drops collections all the time.
_NAMESPACES_MAX = 1 << 16

#: The kind of the row after a change, by the kind of event. A change with the document before it has a second row.
_AFTER = np.array([-1, RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.UPDATE_AFTER, RowKind.DELETE], np.int8)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A batch of events, which are concatenated in `data`.

    Row ``n`` of `events` has the offsets of the n-th event (`E_…`). `names` has the collection of each namespace's
    number, None for a collection that is not captured.
    """

    data: bytes
    events: npt.NDArray[np.int64]
    names: list[TableId | None]

    def __len__(self) -> int:
        return len(self.events)

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """Return the cluster times of the events."""
        return self.events[:, codes.E_TIME]

    def token(self, number: int) -> ResumeToken:
        """Return the resume token of an event."""
        return ResumeToken(self._raw(int(self.events[number, codes.E_TOKEN])))

    def collection_event(self, number: int) -> CollectionEvent:
        """Return an event that changes no document."""
        return CollectionEvent.of(bson.decode(self._raw(int(self.events[number, codes.E_BEGIN])), PLAIN))

    def key(self, number: int) -> Any:
        """Return the `_id` of the document of an event; a document as `_id` is raw."""
        return RawBSONDocument(self._raw(int(self.events[number, codes.E_KEY])), RAW)["_id"]

    def table(self, number: int) -> TableId | None:
        """Return the captured collection of an event."""
        named = int(self.events[number, codes.E_NAMESPACE])
        return self.names[named] if named >= 0 else None

    def part(self, first: int, last: int) -> EventBatch:
        """Return the events from `first` to before `last`, with the same data."""
        return EventBatch(self.data, self.events[first:last], self.names)

    def _raw(self, at: int) -> bytes:
        return self.data[at : at + int.from_bytes(self.data[at : at + 4], "little")]


class Scanner:
    """The scanner of batches. One thread; `captures` returns True for captured collections."""

    def __init__(self, captures: Callable[[TableId], bool]) -> None:
        self._captures = captures
        self._envelope = fields_of([name.encode() for name in codes.EVENT_FIELDS], len(codes.EVENT_FIELDS))
        self._found = np.zeros((_EVENTS_FIRST, codes.EVENT_COLUMNS), np.int64)
        self._forget()

    def scan(self, data: bytes) -> EventBatch:
        """Return the events of `data`. Raises `DataError` if it is damaged."""
        if len(self._numbers) > _NAMESPACES_MAX:
            self._forget()
        buffer = np.frombuffer(data, np.uint8)
        parts, at = [], 0
        while at < len(data):
            count = int(scan(buffer, at, self._envelope, self._namespaces, self._found))
            if int(self._envelope.state[codes.CODE_AT]) != OK:
                raise DataError(
                    f"The server sent a batch of {len(data)} bytes that has no change event at byte {at}. Start again, "
                    "so that it is read again; if that repeats, look at the server's log."
                )
            at = int(self._envelope.state[codes.AT])
            parts.append(self._found[:count].copy())
            self._name(data, parts[-1])
        events = np.concatenate(parts) if parts else self._found[:0].copy()
        return EventBatch(data, events, self._names)

    def _name(self, data: bytes, events: npt.NDArray[np.int64]) -> None:
        """Number the namespaces that are new."""
        met = len(self._numbers)
        for number in np.flatnonzero(events[:, codes.E_NAMESPACE] == codes.UNKNOWN_NAMESPACE):
            at = int(events[number, codes.E_NAMESPACE_AT])
            raw = data[at : at + int.from_bytes(data[at : at + 4], "little")]
            found = self._numbers.get(raw[4:-1])
            if found is None:
                found = self._numbers[raw[4:-1]] = len(self._numbers)
                table = table_of(bson.decode(raw))
                self._names.append(table if table is not None and self._is_wanted(table) else None)
            events[number, codes.E_NAMESPACE] = found
        if len(self._numbers) > met:
            self._namespaces = fields_of(list(self._numbers), len(self._numbers))

    def _is_wanted(self, table: TableId) -> bool:
        return not table.table.startswith("system.") and self._captures(table)

    def _forget(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._names: list[TableId | None] = []
        self._namespaces = fields_of([], 1)


class RowWriter:
    """The maker of the rows of one collection's events. One thread."""

    def __init__(self, table: TableId, layout: CollectionLayout, *, watched: bool = False) -> None:
        """Prepare the decoder. If `watched` is set, `met` returns the elements without a column."""
        self.table = table
        self.layout = layout
        self._decoder = DocumentDecoder(layout, collection=str(table), watched=watched)
        self._schema = changelog_schema(layout.schema())

    def rows(
        self,
        data: bytes,
        events: npt.NDArray[np.int64],
        *,
        numbers: npt.NDArray[np.int64],
        ranks: npt.NDArray[np.int64],
    ) -> Iterator[LogRows]:
        """Yield the rows of changes in `events`, in order. An update whose document does not exist any more has no row.

        `numbers` are row numbers over all collections, `ranks` row numbers within one cluster time. Each event uses its
        number and the next one.
        """
        indexes, ops, owner = _row_indexes(events)
        times = events[owner, codes.E_TIME]
        seconds, increments = times >> 32, times & 0xFFFF_FFFF
        millis = op_time_ms(events[owner])
        second = ops != RowKind.UPDATE_BEFORE
        sequence, in_time = numbers[owner] + second, ranks[owner] + second
        done = 0
        for batch in _in_pairs(self._decoder.decode_at(data, indexes), ops):
            part = slice(done, done + batch.num_rows)
            done += batch.num_rows
            position = pc.binary_join_element_wise(
                *(pa.array(values[part]).cast(pa.string()) for values in (seconds, increments)), "."
            )
            position = pc.binary_join_element_wise(position, pa.array(in_time[part]).cast(pa.string()), ":")
            meta = [pa.array(ops[part]), pa.array(sequence[part]), pa.array(millis[part]), position]
            columns = filled(batch, self.layout, self.table, events[owner[part]]).columns
            rows = pa.RecordBatch.from_arrays([*columns, *meta], schema=self._schema)
            lost = lost_values(batch)
            yield LogRows(self.table, with_lost_values(rows, lost) if lost else rows, times[part])

    def met(self, data: bytes) -> list[bytes]:
        """Return `DocumentDecoder.met` of the rows that were made last, of `data`."""
        return self._decoder.met(data)

    @property
    def met_all(self) -> bool:
        """Return True if `met` will return no more elements."""
        return self._decoder.met_all


def _in_pairs(batches: Iterator[pa.RecordBatch], ops: npt.NDArray[np.int8]) -> Iterator[pa.RecordBatch]:
    """Yield `batches`, cut so that the row before a change and the row after it are in one batch."""
    done, held = 0, None
    for batch in batches:
        done += batch.num_rows
        whole = batch if held is None else _joined_rows(held, batch)
        cut = whole.num_rows - int(ops[done - 1] == RowKind.UPDATE_BEFORE)
        # The count of lost values of a batch stays with its first part.
        held = whole.slice(cut).replace_schema_metadata(None) if cut < whole.num_rows else None
        if cut:
            yield whole.slice(0, cut)
        elif held is not None:
            held = whole
    assert held is None


def _joined_rows(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    lost = lost_values(first) + lost_values(second)
    parts = [part.replace_schema_metadata(None) for part in (first, second)]
    return with_lost_values(pa.concat_batches(parts), lost)


def _row_indexes(
    events: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """Return the document offset of each row, the kind of the row, and the number of its event."""
    kinds = events[:, codes.E_KIND]
    after, before, key = events[:, codes.E_AFTER], events[:, codes.E_BEFORE], events[:, codes.E_KEY]
    deleted = kinds == codes.DELETE
    indexes = np.zeros((len(events), 2), np.int64)
    indexes[:, 0] = np.where(deleted | (after == 0) | (kinds == codes.INSERT), 0, before)
    indexes[:, 1] = np.where(deleted, np.where(before > 0, before, -key), after)
    ops = np.stack([np.full(len(events), RowKind.UPDATE_BEFORE, np.int8), _AFTER[kinds]], axis=1)
    there = indexes.ravel() != 0
    owner = np.repeat(np.arange(len(events)), 2)
    return indexes.ravel()[there], ops.ravel()[there], owner[there]


def joined(fragments: list[bytes]) -> bytes:
    """Return the event whose fragments ``$changeStreamSplitLargeEvent`` made. Its token is the last fragment's."""
    fields: Document = {}
    for fragment in fragments:
        document = RawBSONDocument(fragment)
        fields.update({name: document[name] for name in document if name != "splitEvent"})
    return bson.encode(fields)


@dataclass(frozen=True, slots=True)
class Whole:
    """Complete transactions, and the token after them.

    `rank` is the number of earlier events of the first event's time.
    """

    batch: EventBatch
    token: ResumeToken
    rank: int


@dataclass(frozen=True, slots=True)
class PartialTransaction:
    """Events of one transaction, which has more events in the next answer. `rank` is as in `Whole`."""

    batch: EventBatch
    rank: int


@dataclass(frozen=True, slots=True)
class ClusterTimeReached:
    """A notice that all events up to the cluster time came, and that the stream continues after `token`."""

    token: ResumeToken
    cluster_time: int


class MongoDbTransactionAssembler:
    """The assembler of transactions; see the module's docstring.

    `whole_when_idle`: an answer without events proves that all transactions before it are complete.
    """

    def __init__(self, *, whole_when_idle: bool) -> None:
        self.whole_when_idle = whole_when_idle
        self._waiting: Whole | None = None

    def read_to(self, passed_to: StreamPosition) -> StreamPosition:
        """Return the position after all events received so far.

        All events up to `passed_to` were passed on, except the waiting transaction.
        """
        waiting = self._waiting
        if waiting is None:
            return passed_to
        return replace(passed_to, token=waiting.token, cluster_time=int(waiting.batch.times[-1]))

    def take(
        self, batch: EventBatch, token: ResumeToken | None, *, after: int
    ) -> list[Whole | PartialTransaction | ClusterTimeReached]:
        """Return the events to pass on, in order, now that `batch` came; `token` is the one after it, if there is one.

        All events up to the cluster time `after` were passed on. Raises `DataError` if the stream goes back in time.
        """
        if not len(batch):
            return []
        times, end = batch.times, len(batch)
        first, last = int(times[0]), int(times[-1])
        waiting = self._waiting
        begun = after if waiting is None else int(waiting.batch.times[-1])
        if first < begun or (np.diff(times) < 0).any():
            raise DataError(
                f"The change stream goes back in time, from {seconds_of(max(begun, int(times.max())))} to "
                f"{seconds_of(int(times.min()))}: the server's log is not the one that was read before."
            )
        ready: list[Whole | PartialTransaction | ClusterTimeReached] = []
        rank = 0
        if waiting is not None and first == begun:
            rank = waiting.rank + len(waiting.batch)
            ready.append(PartialTransaction(waiting.batch, waiting.rank))
        elif waiting is not None:
            ready.append(waiting)
        behind = batch.token(end - 1) if token is None else token
        cut = end if behind.cluster_time > last else int(np.searchsorted(times, last))
        if cut:
            ready.append(Whole(batch.part(0, cut), batch.token(cut - 1), rank))
        if cut < end:
            self._waiting = Whole(batch.part(cut, end), batch.token(end - 1), rank if first == last else 0)
        else:
            self._waiting = None
            ready.append(ClusterTimeReached(behind, behind.cluster_time - 1))
        return ready

    def idle(self, token: ResumeToken, server_time: int) -> list[Whole | PartialTransaction | ClusterTimeReached]:
        """Return the events to pass on now that an answer without events came at `server_time`, with a token after
        it.
        """
        time = token.cluster_time
        ready: list[Whole | PartialTransaction | ClusterTimeReached] = []
        if self._waiting is not None:
            if not self.whole_when_idle and time <= self._waiting.batch.times[-1]:
                return []
            ready.append(self._waiting)
            self._waiting = None
        # The token's time is in the future, so no event of it has passed, and no read could wait for it.
        ready.append(ClusterTimeReached(token, time if self.whole_when_idle and time <= server_time else time - 1))
        return ready
