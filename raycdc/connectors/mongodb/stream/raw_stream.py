"""A change stream from the driver: batches of raw BSON with the token after each, and errors as raycdc's.

| error | meaning | reaction |
|---|---|---|
| 43, 222, 234, a router's, network | the cursor is lost, but not the stream | `StreamEndedError`: it is opened again |
| 136, 280, 286 | the log has lost the next changes | `LogLostError` |
| 260 | the token is not of this deployment | `LogLostError` |
| 10334 | an event is larger than the maximal answer | `EventTooLargeError`: it is requested without its documents |
| 40573 | no replica set | `SourceError` |

`RawFind` and `RawCommandCursor` are cursors whose batches are bytes, like the driver's raw cursors, but without an
object for each document. The driver splits a reply into documents and joins them again, which is most of the cost of
reading raw batches. Here a compiled loop joins the documents (`bson.reply_loops`). The driver reads all other replies
itself.

`StreamOpener` opens change streams, and refuses a position of a different replica set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import bson
import numpy as np
from pymongo.command_cursor import CommandCursor
from pymongo.cursor import RawBatchCursor
from pymongo.errors import AutoReconnect, ConnectionFailure, CursorNotFound, OperationFailure
from pymongo.synchronous.command_cursor import RawBatchCommandCursor

from raycdc.connectors.mongodb.bson.documents import Document
from raycdc.connectors.mongodb.bson.reply_loops import find_batch, join_documents
from raycdc.connectors.mongodb.server.catalog import discover, keep_images
from raycdc.connectors.mongodb.server.client import Client, MongoDbServerInfo, address_of, errors, probe
from raycdc.connectors.mongodb.stream.causal import log_end
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken, StreamPosition
from raycdc.connectors.mongodb.stream.token import ordinal_of, seconds_of
from raycdc.errors import LogLostError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.model.rules.rate_limit import UNLIMITED, RateLimit
from raycdc.model.rules.selector import TableSelector
from raycdc.state.codec import NEW_STATE


def reply_of(payload: bytes | memoryview) -> Document | None:
    """Return a reply with its batch in one piece of bytes (empty if there is none); None if the reply has no batch.

    Documents are not checked for damage inside.
    """
    data = np.frombuffer(payload, np.uint8)
    cursor, field, array, end = (int(index) for index in find_batch(data))
    if end < 0:
        return None
    documents = np.empty(end - array, np.uint8)
    size = int(join_documents(data, array, end, documents))
    if size < 0:
        return None
    rest = bytearray(payload[:field]) + bytearray(payload[end:])
    for index in (0, cursor):
        length = int.from_bytes(rest[index : index + 4], "little") - (end - field)
        rest[index : index + 4] = length.to_bytes(4, "little")
    reply: Document = bson.decode(bytes(rest))
    name = "firstBatch" if bytes(payload[field + 1 : field + 6]) == b"first" else "nextBatch"
    reply["cursor"][name] = [documents[:size].tobytes()] if size else []
    return reply


class RawFind(RawBatchCursor[Any]):
    """A cursor like that of `Collection.find_raw_batches`, with batches in one piece."""

    def _unpack_response(self, response: Any, *args: Any, **options: Any) -> Any:
        reply = reply_of(response.raw_command_response())
        return super()._unpack_response(response, *args, **options) if reply is None else [reply]


class RawCommandCursor(RawBatchCommandCursor[Any]):
    """A cursor like that of `Collection.aggregate_raw_batches`, with batches in one piece, of an open server cursor."""

    def _unpack_response(self, response: Any, *args: Any, **options: Any) -> Any:
        reply = reply_of(response.raw_command_response())
        return super()._unpack_response(response, *args, **options) if reply is None else [reply]


#: How long the server delays an answer while there are no events. It adds to the latency, because a transaction at the
#: end of the log is only known to be complete when an answer without events follows.
AWAIT_MS = 200
#: The most events in an answer of a stream that was opened without documents. Their documents, of up to 16 MiB each,
#: are read by their keys afterwards. After one such answer the stream is opened again with documents, so few suffice.
_LEAN_EVENTS_MAX = 64

#: A pattern that begins with a literal database name and its dot.
_DATABASE = re.compile(r"([A-Za-z0-9_-]+)\\\.(?![?*+{])")
#: The codes of lost cursors, and of nodes and routers while a set or a cluster changes (the drivers' "Change Streams"
#: specification; servers before 4.4 send no label).
_RESUMABLE = frozenset({43, 63, 133, 150, 222, 234, 13388})
_RESUMABLE_LABEL = "ResumableChangeStreamError"
_LOST = frozenset({136, 280, 286})
_BAD_TOKEN, _TOO_LARGE, _NO_REPLICA_SET = 260, 10334, 40573


class StreamEndedError(Exception):
    """The cursor was lost. The stream can be continued from its position."""


class EventTooLargeError(Exception):
    """An event with its documents is larger than an answer can be."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a change stream: one collection, one database, or the whole server if both fields are None."""

    database: str | None = None
    collection: str | None = None

    @classmethod
    def of(cls, selector: TableSelector) -> Scope:
        """Return the narrowest scope with everything that is selected.

        It decides which databases the account must be able to read.
        """
        databases = databases_of(selector)
        if databases is None or len(databases) != 1:
            return cls()
        tables = {table.table for table in selector.plain_names}
        alone = len(tables) == 1 and not selector.patterns
        return cls(databases.pop(), tables.pop() if alone else None)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream. `only` selects collections; if it is empty, `databases` selects databases; if both are
    empty, all events come.

    Patterns are never passed to the server, because its regular expressions differ and might match less. `lean`:
    without any document. `events_max` limits the events of an answer; 0: as many as fit in 16 MiB.
    """

    scope: Scope
    only: tuple[TableId, ...] = ()
    databases: tuple[str, ...] = ()
    images: bool = False
    lean: bool = False
    events_max: int = 0

    def pipeline(self, info: MongoDbServerInfo, *, token: ResumeToken | None, after: int) -> list[Document]:
        """Return the stages of the pipeline.

        The stream begins after `token`, or otherwise after the cluster time `after`.
        """
        stage: Document = {}
        if not self.lean:
            stage["fullDocument"] = "whenAvailable" if self.images else "updateLookup"
        if token is not None and info.version < (4, 2) and token.parts().from_invalidate:
            # Servers before 4.2 cannot resume after an invalidation, so the stream begins at its time.
            after, token = token.cluster_time, None
        if token is not None:
            stage["startAfter" if info.version >= (4, 2) else "resumeAfter"] = token.document()
        else:
            stage["startAtOperationTime"] = bson.Timestamp(*seconds_of(after + 1))
        if self.images and not self.lean:
            stage["fullDocumentBeforeChange"] = "whenAvailable"
        if info.version >= (6, 0):
            stage["showExpandedEvents"] = True
        if self.scope == Scope():
            stage["allChangesForCluster"] = True
        stages: list[Document] = [{"$changeStream": stage}]
        if self.only and self.scope.collection is None:
            stages.append({"$match": {"$or": self._wanted()}})
        elif self.databases and self.scope.database is None:
            wanted = {"$in": list(self.databases)}
            changed = [{"ns.db": wanted}, {"to.db": wanted}, {"operationType": "invalidate"}]
            stages.append({"$match": {"$or": changed}})
        stages.append({"$project": {"updateDescription": 0, **({"fullDocument": 0} if self.lean else {})}})
        if splits_large_events(info):
            stages.append({"$changeStreamSplitLargeEvent": {}})
        return stages

    def _wanted(self) -> list[Document]:
        by_database: dict[str, list[str]] = {}
        for table in self.only:
            by_database.setdefault(table.db, []).append(table.table)
        named = [
            {f"{field}.db": database, f"{field}.coll": {"$in": names}}
            for field in ("ns", "to")
            for database, names in sorted(by_database.items())
        ]
        return [*named, {"operationType": {"$in": ["dropDatabase", "invalidate"]}}]


def stream_options(client: Client, info: MongoDbServerInfo, selector: TableSelector) -> StreamOptions:
    """Return the options for everything that is selected, according to the present collections. Blocks."""
    # Images are used only if all collections keep them, so that all rows before and after changes match.
    tables = discover(client, selector, complete=False) if info.version >= (6, 0) else {}
    images = bool(tables) and keep_images(client, tables)
    only = () if selector.patterns else tuple(selector.plain_names)
    databases = databases_of(selector) or ()
    return StreamOptions(Scope.of(selector), only=only, databases=tuple(sorted(databases)), images=images)


def _batch_size(options: StreamOptions) -> int:
    if not options.lean:
        return options.events_max
    return min(_LEAN_EVENTS_MAX, options.events_max or _LEAN_EVENTS_MAX)


def splits_large_events(info: MongoDbServerInfo) -> bool:
    """Return True if the server can send an event in parts (since 7.0, and 6.0.9)."""
    return info.version >= (7, 0) or (info.version[:2] == (6, 0) and info.version >= (6, 0, 9))


@dataclass(frozen=True, slots=True)
class RawBatch:
    """One answer: concatenated events (empty: none came), the token after them, and a flag that the stream ended.

    `server_time` is the server's cluster time when it answered (0: unknown). A token may be of a future time: the
    requested start of the stream.
    """

    data: bytes
    token: ResumeToken | None
    ended: bool
    server_time: int


class RawStream:
    """An open change stream. One thread; the client is the caller's."""

    def __init__(
        self,
        client: Client,
        info: MongoDbServerInfo,
        options: StreamOptions,
        *,
        token: ResumeToken | None,
        after: int,
    ) -> None:
        """Open the stream. Raises `LogLostError` if the server does not have its beginning, and `SourceError`."""
        self._client = client
        scope = options.scope
        database = client[scope.database or "admin"]
        command: Document = {
            "aggregate": scope.collection or 1,
            "pipeline": options.pipeline(info, token=token, after=after),
            "cursor": {"batchSize": 0},
        }
        if info.version[:2] < (4, 2):
            command["readConcern"] = {"level": "majority"}
            # Without this, the collection's own collation would be required, which is unknown after the collection is
            # dropped.
            command["collation"] = {"locale": "simple"}
        self._session = client.start_session()
        try:
            with _stream_errors(client):
                self._opened: CommandCursor[Any] = database.cursor_command(command, session=self._session)
        except StreamEndedError as refused:
            self._session.end_session()
            raise SourceUnavailableError(str(refused)) from refused
        except BaseException:
            self._session.end_session()
            raise
        # The driver returns undivided batches for collections only, so the server's cursor is wrapped here.
        self._cursor = RawCommandCursor(
            database[scope.collection or "$cmd.aggregate"],
            {"id": self._opened.cursor_id, "ns": _namespace(scope), "firstBatch": []},
            self._opened.address,
            batch_size=_batch_size(options),
            max_await_time_ms=AWAIT_MS,
            session=self._session,
        )

    def next(self) -> RawBatch:
        """Return the next answer; wait up to `AWAIT_MS` for events.

        Raises `StreamEndedError` and the other errors in the module's docstring.
        """
        with _stream_errors(self._client):
            data = self._cursor.try_next()
        token = self._cursor._postbatchresumetoken
        behind = None if token is None else ResumeToken.of(dict(token))
        reached = self._session.operation_time
        server_time = 0 if reached is None else ordinal_of(reached.time, reached.inc)
        return RawBatch(b"" if data is None else bytes(data), behind, not self._cursor.alive, server_time)

    def close(self) -> None:
        self._cursor.close()
        self._session.end_session()


def databases_of(selector: TableSelector) -> set[str] | None:
    """Return the databases with all that is selected; None if they are unknown."""
    named = set(map(_database_of, selector.patterns))
    return None if None in named else {table.db for table in selector.plain_names} | {n for n in named if n is not None}


def _database_of(pattern: str) -> str | None:
    """Return the database that a pattern names literally; None if it may match other databases."""
    named = _DATABASE.match(pattern)
    if "|" in pattern and ("[" in pattern or r"\\" in pattern):
        return None
    depth = 0
    for n, sign in enumerate(pattern):
        escaped = n > 0 and pattern[n - 1] == "\\"
        depth += 0 if escaped else (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            return None
    return named[1] if named else None


def _namespace(scope: Scope) -> str:
    if scope.collection is not None:
        return f"{scope.database}.{scope.collection}"
    return f"{scope.database or 'admin'}.$cmd.aggregate"


@contextmanager
def _stream_errors(client: Client) -> Iterator[None]:
    try:
        with errors(client, "reading its change stream"):
            yield
    except SourceError as known:
        cause = known.__cause__
        if isinstance(cause, OperationFailure):
            _react(client, cause)
        if isinstance(cause, AutoReconnect | ConnectionFailure | CursorNotFound):
            raise StreamEndedError(str(known)) from cause
        raise


def _react(client: Client, cause: OperationFailure) -> None:
    text = (cause.details or {}).get("errmsg") or str(cause)
    where = f"{address_of(client)}, reading its change stream"
    if cause.code in _RESUMABLE or cause.has_error_label(_RESUMABLE_LABEL):
        raise StreamEndedError(f"{where}: {text} (code {cause.code})") from cause
    if cause.code in _LOST or cause.code == _BAD_TOKEN:
        what = "does not know the position" if cause.code == _BAD_TOKEN else "has not all the changes any more"
        raise LogLostError(
            f"{where}: the server {what} from which to continue: {text} (code {cause.code}). Take a new snapshot with "
            'pipeline.on_log_lost = "resnapshot", and let its log reach back further (replSetResizeOplog, '
            "storage.oplogMinRetentionHours)."
        ) from cause
    if cause.code == _TOO_LARGE:
        raise EventTooLargeError(f"{where}: an event is larger than 16 MiB: {text}.") from cause
    if cause.code == _NO_REPLICA_SET:
        raise SourceError(
            f"{where}: {text}. Changes can be followed at a replica set or a sharded cluster; make the server a "
            'replica set of one node, or read it once with source.startup = "snapshot".'
        ) from cause


#: The most events in an answer under a rate limit, because it is unknown how many fit in 16 MiB.
LIMITED_EVENTS_MAX = 50_000


class StreamOpener:
    """The opener of change streams; see the module's docstring. It uses the caller's client, blocks, and keeps no
    stream.

    With `needs_before_images`, changes come with the documents before and after them from collections that keep these,
    even if another collection stopped keeping them. An answer has at most as much as the rate limit `rate_limit` allows
    per fetch.
    """

    def __init__(
        self,
        client: Client,
        selector: TableSelector,
        *,
        needs_before_images: bool = False,
        rate_limit: RateLimit = UNLIMITED,
    ) -> None:
        self._rate_limit = rate_limit
        self._client = client
        self._selector = selector
        self._needs_before_images = needs_before_images

    def open(self, position: StreamPosition, *, lean: bool = False) -> RawStream:
        """Open the stream.

        Raises `LogLostError` if the server never was at `position`, or its log does not reach back to it.
        """
        client = self._client
        info = probe(client)
        require_same_set(info, position.replica_set)
        if position.token is not None and not info.is_mongos and (end := log_end(client)) < position.cluster_time:
            raise LogLostError(
                f"{info.address} is at {seconds_of(end)}, and was read to {seconds_of(position.cluster_time)} before: "
                "it was restored, or is another replica set of the same name. Take a new snapshot with "
                'pipeline.on_log_lost = "resnapshot", or point source.uri at the one that was read.'
            )
        options = replace(stream_options(client, info, self._selector), lean=lean)
        if self._rate_limit.rows_per_s is not None:
            options = replace(options, events_max=self._rate_limit.rows_at_once(LIMITED_EVENTS_MAX))
        if self._needs_before_images:
            # Changes of collections that keep images come with them, even if another collection stopped keeping images.
            options = replace(options, images=True)
        return RawStream(client, info, options, token=position.token, after=position.cluster_time)

    def require_reached(self, position: StreamPosition) -> None:
        """Raise `LogLostError` if the log does not reach back to `position`.

        Servers report that only when the first changes after it are requested.
        """
        stream = self.open(position)
        try:
            with suppress(StreamEndedError, EventTooLargeError):
                stream.next()
        finally:
            stream.close()


def require_same_set(info: MongoDbServerInfo, begun: str) -> None:
    """Raise `SourceError` for a replica set other than that of the state."""
    if begun != info.replica_set:
        raise SourceError(
            f"{info.address} belongs to the replica set {info.replica_set or 'none'!r}, and the pipeline was "
            f"begun with {begun or 'none'!r}. Point source.uri at that one, or {NEW_STATE}."
        )
