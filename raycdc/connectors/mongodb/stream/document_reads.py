"""Reads the documents of changes that came without documents, and tracks changes whose document was not found.

A document that is not found was deleted since, and the stream has the deletion before the cluster time of the read.
Such a change is not passed on. It is *absent* until one of these events of the stream:

| event | the change is |
|---|---|
| a deletion of the key, or a later event with the document | settled: this later event gives the row |
| the end, or a resnapshot, of the collection | settled |
| the cluster time of the read, without any of these | read again, by its key alone |

If the document is found then, it is passed on as the change. Otherwise the change is a row that the source cannot
deliver: it is reported, together with the deletion of the key (`raycdc.state.missing`). Absent changes are in the
stream's state, so they survive a crash. If many changes are absent, because many documents were changed and then
deleted, the log is read ahead once, without documents, to find the events that settle these changes. This bounds their
number.

One thread, except for the reads.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import bson
import numpy as np
from bson import json_util
from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.bson.documents import RAW, Document
from raycdc.connectors.mongodb.stream.causal import Found
from raycdc.connectors.mongodb.stream.events import EventBatch, RowWriter
from raycdc.connectors.mongodb.stream.reopened_stream import Stream
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.core.typed_codec import NOWHERE, read, stored, write
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.state.codec import NEW_STATE
from raycdc.state.missing import MissingRow
from raycdc.state.opaque import LogNotes

_log = logging.getLogger(__name__)

#: The version of the absent changes in the stream's state.
VERSION = 1
#: The limit of the bytes of absent changes: about 40,000 changes with typical keys. A manifest holds them.
WAITING_BYTES_MAX = 4 << 20
#: The bytes of an absent change without its key.
_BYTES_EACH = 80
#: Changes whose documents are read again in one go.
_AGAIN_MAX = 1000

#: A time after all cluster times.
_NEVER = (1 << 63) - 1
#: Events after which the collection has no earlier rows (MongoDB manual, "Change Events").
_ENDS = frozenset({"drop", "rename", "create", "reshardCollection"})


class ReadDocuments(Protocol):
    """A function like `raycdc.connectors.mongodb.stream.causal.read_documents`, with a client."""

    def __call__(
        self, table: TableId, uuid: str, keys: list[Any], cluster_time: int, *, singly: bool = False
    ) -> Found: ...


def _key_to_json(key: bytes) -> str:
    return base64.b64encode(key).decode()


@dataclass(frozen=True, slots=True)
class Absent:
    """A change whose document was not found.

    `key` is BSON (``{_id: …}``), `time` is the cluster time of the change, and `wall_ms` its wall time (-1: unknown).
    If several changes of the key are absent, `time` is of the first and `wall_ms` of the last one. `seen` is the
    cluster time of the read. The change is `due` if the log was already read up to `seen`.
    """

    table: TableId
    uuid: str
    key: bytes = field(metadata=stored(write=_key_to_json, read=base64.b64decode))
    time: int
    wall_ms: int
    seen: int
    due: bool = field(default=False, metadata=NOWHERE)

    def missing(self) -> MissingRow:
        key = json_util.dumps(bson.decode(self.key), json_options=json_util.RELAXED_JSON_OPTIONS)
        reason = (
            f"its document was not there when it was read, nor by its _id again later, and the change stream "
            f"brought no deletion of it up to what was read then ({_text(self.seen)})"
        )
        ms = self.wall_ms if self.wall_ms >= 0 else seconds_of(self.time)[0] * 1000
        return MissingRow(self.table, key, reason, ms, _text(self.time))


@dataclass(frozen=True, slots=True)
class RereadEvents:
    """The result of reading some documents again.

    `events` are concatenated events as a stream would bring them: the changes of documents that were found. If the
    documents were not found, `events` are deletions of their keys, and `missing` has the missing rows by collection, in
    order.
    """

    absent: Sequence[Absent]
    events: bytes
    missing: dict[TableId, list[MissingRow]]


def is_complete(notes: LogNotes, up_to: int) -> bool:
    """Return True if the notes from `DocumentReads` have no absent change up to that cluster time."""
    return all(read(Absent, entry).time > up_to for entry in notes.to_json().get("absent", ()))


class DocumentReads:
    """The document reads of one stream, and its absent changes; see the module's docstring."""

    def __init__(self, read_documents: ReadDocuments, state: Mapping[str, Any]) -> None:
        """Restore the absent changes from `state`, the result of an earlier `state` call; empty if there was none.

        Raises `StateError` for the state of a newer raycdc.
        """
        if state.get("version", VERSION) > VERSION:
            raise StateError(f"The stream's state was written by a newer raycdc. Upgrade raycdc, or {NEW_STATE}.")
        self._read_documents = read_documents
        self._absent: dict[TableId, dict[bytes, Absent]] = {}
        #: The cluster time of the earliest read among absent changes, and the bytes of all.
        self._first_seen: int | None = None
        self._due = False
        #: True while the events of a `RereadEvents` are passed on.
        self._passing = False
        self._bytes = 0
        self._changed = False
        for entry in state.get("absent", ()):
            absent = read(Absent, entry)
            self._absent.setdefault(absent.table, {})[absent.key] = absent
        self._work_out()
        self._changed = False

    def __repr__(self) -> str:
        return f"DocumentReads(absent={sum(map(len, self._absent.values()))})"

    @property
    def resolved_to(self) -> int:
        """Return the cluster time before which no change can be absent, wherever the stream is."""
        return _NEVER if self._first_seen is None else self._first_seen - 1

    @property
    def changed(self) -> bool:
        """Return True if `state` would return a change."""
        return self._changed

    @property
    def full(self) -> bool:
        """Return True if the absent changes exceed the limit."""
        return self._bytes > WAITING_BYTES_MAX

    def state(self) -> dict[str, Any] | None:
        """Return the state for a later reader, empty if no change is absent; None if unchanged since the last call."""
        if not self._changed:
            return None
        self._changed = False
        absent = [write(one) for own in self._absent.values() for one in own.values()]
        return {"version": VERSION, "absent": absent} if absent else {}

    def filled(self, batch: EventBatch, own: np.ndarray, writer: RowWriter) -> tuple[bytes, np.ndarray]:
        """Return the events `own`, with the missing documents appended to the data."""
        events = batch.events[own]
        bare = np.flatnonzero((events[:, codes.E_KIND] != codes.DELETE) & (events[:, codes.E_AFTER] == 0))
        if not bare.size:
            self._resolve(writer.table, batch.data, events, ())
            return batch.data, events
        keys = {int(n): batch.key(int(own[n])) for n in bare}
        last = int(batch.times[own[bare[-1]]])
        documents = self._read_documents(writer.table, writer.layout.uuid, list(keys.values()), last)
        parts, end = [batch.data], len(batch.data)
        indexes: dict[bytes, int] = {}
        for key, document in documents.documents.items():
            indexes[key] = end
            parts.append(document)
            end += len(document)
        # The changes without a document, by key and in order.
        absent: dict[bytes, list[int]] = {}
        for n, key in keys.items():
            events[n, codes.E_AFTER] = indexes.get(bson.encode({"_id": key}), 0)
            if not events[n, codes.E_AFTER]:
                absent.setdefault(_key(batch.data, int(events[n, codes.E_KEY])), []).append(n)
        data = b"".join(parts)
        later = self._resolve(writer.table, data, events, absent)
        for raw, changes in absent.items():
            if left := [n for n in changes if n > later.get(raw, -1)]:
                # The document is absent since the first of these changes. A report has the time of the last one.
                time, wall_ms = int(events[left[0], codes.E_TIME]), int(events[left[-1], codes.E_WALL])
                self._wait(Absent(writer.table, writer.layout.uuid, raw, time, wall_ms, documents.seen))
        return data, events

    def forget(self, table: TableId) -> None:
        """Forget a collection that was dropped, or is resnapshotted."""
        if self._absent.pop(table, None):
            self._work_out()

    def unexplained(self, up_to: int, writer: Callable[[TableId], RowWriter | None]) -> list[Absent]:
        """Return some of the changes that the stream should have settled when it is at the cluster time `up_to`."""
        if self._first_seen is None or (self._first_seen > up_to and not self._due):
            return []
        for table in list(self._absent):
            self._keep_own(table, writer(table))
        due = (one for own in self._absent.values() for one in own.values() if one.due or one.seen <= up_to)
        return list(islice(due, _AGAIN_MAX))

    def read_ahead(
        self, stream: Stream, scan: Callable[[bytes], EventBatch], *, whole_when_idle: bool, stopped: Callable[[], bool]
    ) -> None:
        """Settle absent changes by the log after the stream's position, which `stream` returns without documents.

        Changes that are left after the latest read's cluster time are due. Blocks; raises the errors of `stream`.
        """
        end = max((one.seen for own in self._absent.values() for one in own.values()), default=0)
        reached = 0
        while self._absent and reached < end and not stopped():
            answer = stream.next()
            if answer.data:
                self._resolve_ahead(scan(answer.data))
            if answer.ended:
                # The stream was invalidated: no watched collection exists any more.
                for table in list(self._absent):
                    self.forget(table)
            if answer.token is not None:
                passed = answer.token.cluster_time
                silent = not answer.data and whole_when_idle and passed <= answer.server_time
                reached = passed if silent else passed - 1
        if reached >= end:
            for own in self._absent.values():
                own.update({key: replace(one, due=True) for key, one in own.items()})
            self._work_out()

    def again(self, due: Sequence[Absent], *, at: int) -> Iterator[RereadEvents]:
        """Yield the results of reading the `due` changes again by their keys; found documents come first.

        The stream is at the cluster time `at`. Call `resolved` with each result just before its rows are passed on.
        """
        found: list[tuple[Absent, bytes]] = []
        absent: list[Absent] = []
        for table, uuid in dict.fromkeys((one.table, one.uuid) for one in due):
            own = [one for one in due if (one.table, one.uuid) == (table, uuid)]
            keys = [RawBSONDocument(one.key, RAW)["_id"] for one in own]
            documents = self._read_documents(table, uuid, keys, at, singly=True).documents
            for one, key in zip(own, keys, strict=True):
                document = documents.get(bson.encode({"_id": key}))
                if document is None:
                    absent.append(one)
                else:
                    found.append((one, document))
        if found:
            _log.info("%d documents were not there when they were first read, and are now", len(found))
            events = [_event(one, document, at=at) for one, document in found]
            self._passing = True
            yield RereadEvents([one for one, _ in found], b"".join(events), {})
        if absent:
            missing: dict[TableId, list[MissingRow]] = {}
            for one in absent:
                missing.setdefault(one.table, []).append(one.missing())
            self._passing = True
            yield RereadEvents(absent, b"".join(_event(one, None, at=at) for one in absent), missing)

    def resolved(self, resolved: RereadEvents) -> None:
        """Remove changes that are being passed on."""
        self._passing = False
        for one in resolved.absent:
            self._absent.get(one.table, {}).pop(one.key, None)
        self._work_out()

    def _resolve_ahead(self, batch: EventBatch) -> None:
        """Settle absent changes by `batch`, which is of the log after the stream's position, without documents."""
        named = batch.events[:, codes.E_NAMESPACE]
        for number in np.unique(named[named >= 0]):
            table = batch.names[int(number)]
            if table is None or table not in self._absent:
                continue
            own = batch.events[named == number]
            whole = np.isin(own[:, codes.E_KIND], (codes.INSERT, codes.REPLACE))
            # These events come with their document, or it is read when the stream reaches them.
            own[:, codes.E_AFTER] = np.where(whole, 1, 0)
            self._resolve(table, batch.data, own, ())
        for number in np.flatnonzero(batch.events[:, codes.E_KIND] == codes.OTHER):
            event = batch.collection_event(int(number))
            if event.kind in _ENDS:
                for table in filter(None, (event.table, event.to)):
                    self.forget(table)

    def _resolve(self, table: TableId, data: bytes, events: np.ndarray, more: Collection[bytes]) -> dict[bytes, int]:
        """Settle changes by `events`.

        Returns the number of the last event that settles each key, including the keys `more`.
        """
        own = self._absent.get(table, {})
        if (not own and not more) or self._passing:
            return {}
        resolves = (events[:, codes.E_KIND] == codes.DELETE) | (events[:, codes.E_AFTER] != 0)
        indexes = np.flatnonzero(resolves)
        keys = [_key(data, at) for at in events[indexes, codes.E_KEY].tolist()]
        last = {key: n for key, n in zip(keys, indexes.tolist(), strict=True) if key in own or key in more}
        resolved = [key for key in last if own.pop(key, None)]
        if resolved:
            self._work_out()
        return last

    def _wait(self, absent: Absent) -> None:
        """Add an absent change. A key that is absent already keeps its earlier time, so that it is settled sooner."""
        own = self._absent.setdefault(absent.table, {})
        before = own.get(absent.key)
        if before is not None and before.uuid == absent.uuid:
            time, seen = min(absent.time, before.time), min(absent.seen, before.seen)
            absent = replace(absent, time=time, seen=seen, due=before.due)
        own[absent.key] = absent
        self._bytes += 0 if before is not None else len(absent.key) + _BYTES_EACH
        self._first_seen = absent.seen if self._first_seen is None else min(self._first_seen, absent.seen)
        self._changed = True

    def _keep_own(self, table: TableId, writer: RowWriter | None) -> None:
        """Drop changes of a collection that is not followed any more, because it is resnapshotted or was dropped."""
        kept = {k: a for k, a in self._absent[table].items() if writer is not None and a.uuid == writer.layout.uuid}
        if len(kept) != len(self._absent[table]):
            self._absent[table] = kept
            self._work_out()

    def _work_out(self) -> None:
        self._absent = {table: own for table, own in self._absent.items() if own}
        all_ = [one for own in self._absent.values() for one in own.values()]
        self._first_seen = min((one.seen for one in all_), default=None)
        self._due = any(one.due for one in all_)
        self._bytes = sum(len(one.key) + _BYTES_EACH for one in all_)
        self._changed = True


#: The sizes of a document with only an `_id`: by its type, or as the sum of this and the length of the value.
_FIXED = {codes.OBJECT_ID: 22, codes.INT32: 14, codes.INT64: 18, codes.DOUBLE: 18, codes.DATE: 18, codes.DECIMAL128: 26}
_MEASURED = {codes.STRING: 14, codes.BINARY: 15, codes.DOCUMENT: 10}


def _key(data: bytes, at: int) -> bytes:
    """Return an event's key as BSON. Its document of keys, at `at`, may have the fields of a shard key, too."""
    raw = data[at : at + int.from_bytes(data[at : at + 4], "little")]
    if raw[5:9] == b"_id\0":
        kind, size = raw[4], int.from_bytes(raw[9:13], "little")
        if _FIXED.get(kind) == len(raw) or (kind in _MEASURED and _MEASURED[kind] + size == len(raw)):
            return raw
    return bson.encode({"_id": RawBSONDocument(raw, RAW)["_id"]})


def _event(absent: Absent, document: bytes | None, *, at: int) -> bytes:
    """Return the event that a stream would bring: the change with its `document`, or a deletion."""
    event: Document = {
        "_id": {},
        "operationType": "delete" if document is None else "update",
        "clusterTime": bson.Timestamp(*seconds_of(at)),
        "ns": {"db": absent.table.db, "coll": absent.table.table},
        "documentKey": RawBSONDocument(absent.key),
    }
    if absent.wall_ms >= 0:
        event["wallTime"] = bson.DatetimeMS(absent.wall_ms)
    if document is not None:
        event["fullDocument"] = RawBSONDocument(document)
    return bson.encode(event)


def _text(cluster_time: int) -> str:
    return ".".join(map(str, seconds_of(cluster_time)))
