"""Reads one chunk of a collection: raw batches of BSON in a range of `_id`, decoded into inserts. Blocks.

It also has the query for the documents that a backfill reads again (`raycdc.source.split.BackfillRows`): a predicate is
a filter in Extended JSON, as for ``find``. The server parses the filter before the backfill begins, so that an invalid
one changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import pyarrow as pa
from bson import json_util
from pymongo import ASCENDING
from pymongo.client_session import ClientSession
from pymongo.errors import ExecutionTimeout, OperationFailure

from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.bson.documents import CANONICAL
from raycdc.connectors.mongodb.large_documents import LargeDocuments
from raycdc.connectors.mongodb.layout import ID, CollectionLayout
from raycdc.connectors.mongodb.server.catalog import found
from raycdc.connectors.mongodb.server.client import Client, errors
from raycdc.connectors.mongodb.snapshot.keys import as_bson, bound_from_json
from raycdc.connectors.mongodb.snapshot.selection import CollectionSelection, require_filter
from raycdc.connectors.mongodb.stream.causal import (
    MAJORITY,
    TIME_LOST,
    AtClusterTimeReadConcern,
    log_end,
    seen_by,
    session_after,
)
from raycdc.connectors.mongodb.stream.events import filled
from raycdc.connectors.mongodb.stream.raw_stream import RawFind
from raycdc.connectors.mongodb.stream.resume_token import StreamPosition, position_of
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError, TableChangedError
from raycdc.model import TableId, as_inserts, changelog_schema
from raycdc.model.rules.rate_limit import UNLIMITED, RateLimit
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.reader.reading import HighWatermark
from raycdc.source.snapshot.rereading.backfill_keys import keys_of_text
from raycdc.source.split import BackfillRows, OpenedAt, SnapshotSplit

#: The length limit of a filter, because it is in the state, and in each of its chunks.
WHERE_MAX = 16_384
#: How long the server may search for a first document when the filter is tested.
ASKED_MS = 1_000


def with_rows(
    selection: CollectionSelection, layout: CollectionLayout, again: BackfillRows | None
) -> CollectionSelection:
    """Return `selection` combined with the condition for the documents to read again."""
    if again is None:
        return selection
    parts = [part for part in (selection.filter, again.where) if part]
    if again.keys:
        logical = layout.columns[0].type
        values = keys_of_text(again.keys).column(0).to_pylist()
        wanted = {ID: {"$in": [as_bson(value, logical) for value in values]}}
        parts.append(json_util.dumps(wanted, json_options=CANONICAL))
    return replace(selection, filter=parts[0] if len(parts) == 1 else f'{{"$and": [{", ".join(parts)}]}}')


def require_rows(client: Client, table: TableId, layout: CollectionLayout, again: BackfillRows) -> None:
    """Raise `ConfigError` unless the server accepts the filter for these documents. Blocks."""
    if len(again.where) > WHERE_MAX:
        raise ConfigError(f"The filter has {len(again.where):,} characters, and at most {WHERE_MAX:,} can be taken.")
    try:
        if again.where:
            require_filter(again.where)
        query = with_rows(CollectionSelection(), layout, again).query()
    except ValueError as cause:
        raise ConfigError(f"{cause}. Nothing was begun.") from cause
    try:
        with errors(client, f"asking for documents of {table}"):
            next(client[table.db][table.table].find(query).limit(1).max_time_ms(ASKED_MS), None)
    except SourceError as cause:
        if isinstance(cause.__cause__, ExecutionTimeout):
            return  # The server accepted the filter, but found no document in time.
        if isinstance(cause, SourceUnavailableError) or not isinstance(cause.__cause__, OperationFailure):
            raise
        raise ConfigError(
            f"The server takes {again.where!r} for no filter of {table} ({_said(cause.__cause__)}). Write a filter as "
            f"for find; nothing was begun."
        ) from cause


def _said(cause: OperationFailure) -> str:
    """Return the server's message, without the query that it repeats."""
    return str((cause.details or {}).get("errmsg", cause))


#: The number of documents requested at once; the server ends a batch at 16 MiB earlier.
_BATCH_DOCUMENTS = 100_000
#: The ordinal of a source without a log.
NO_LOG = 0


class MongoDbChunkReader:
    """The reader of one chunk's documents, a `raycdc.source.snapshot.reader.reading.ChunkReader`.

    Used by one thread, except for `wake_up`.

    It reads only data that a majority of the replica set has acknowledged. Each document of the chunk is read exactly
    once, because `_id` never changes, or because all chunks are read as of one cluster time. Each chunk has its own
    cursor. `selection_of` returns which part of a collection is read. Raises `SourceError` if, before or after the
    read, the name belongs to a different collection than the planned one.
    """

    def __init__(
        self,
        client: Client,
        large: LargeDocuments | None = None,
        *,
        selection_of: Callable[[TableId], CollectionSelection] = lambda _: CollectionSelection(),
        rate_limit: RateLimit = UNLIMITED,
    ) -> None:
        self._client = client
        self._batch_documents = rate_limit.rows_at_once(_BATCH_DOCUMENTS)
        self._large = large or LargeDocuments()
        self._selection_of = selection_of
        self._high = HighWatermark(NO_LOG, exact=True, log_end=NO_LOG)

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        layout = CollectionLayout.from_document(document)
        schema = changelog_schema(layout.schema())
        decoder = DocumentDecoder(layout, collection=str(split.table))
        read_ms = time.time_ns() // 1_000_000
        position = position_of(opened_at.position)
        opened = position if isinstance(position, StreamPosition) else None
        self._require_same(split.table, layout, followed=opened is not None)
        rows = 0
        as_of = opened_at.as_of
        if as_of is not None and opened is not None:
            self._high = HighWatermark(as_of, exact=True, log_end=as_of)
        after = None if opened is None or as_of is not None else opened.cluster_time
        with nullcontext() if after is None else session_after(self._client, after) as session:
            for raw in self._raw_batches(split, layout, session, as_of):
                self._large.count(split.table, raw)
                for batch in decoder.decode(raw):
                    yield as_inserts(filled(batch, layout, split.table), schema, first=rows, read_ms=read_ms)
                    rows += batch.num_rows
            for batch in decoder.flush():
                yield as_inserts(filled(batch, layout, split.table), schema, first=rows, read_ms=read_ms)
            if opened is not None and session is not None:
                seen = seen_by(self._client, session, split.table)
                high = max(seen, opened.cluster_time)
                self._high = HighWatermark(high, exact=False, log_end=high)
        self._require_same(split.table, layout, followed=opened is not None)

    def high_watermark(self) -> HighWatermark:
        return self._high

    def log_end(self, opened_at: OpenedAt) -> HighWatermark:
        end = log_end(self._client)
        return HighWatermark(end, exact=False, log_end=end)

    def wake_up(self) -> None:
        self._client.close()

    def close(self) -> None:
        self._client.close()

    def _raw_batches(
        self, split: SnapshotSplit, layout: CollectionLayout, session: ClientSession | None, as_of: int | None
    ) -> Iterator[bytes]:
        database = self._client[split.table.db]
        read_concern = MAJORITY if as_of is None else AtClusterTimeReadConcern(as_of)
        collection = database.get_collection(split.table.table, read_concern=read_concern)
        selection = with_rows(self._selection_of(split.table), layout, split.again)
        named = None if layout.rest or layout.whole else [column.name for column in layout.fields]
        wanted = list(selection.fields) or named
        size = self._batch_documents
        cursor = RawFind(collection, selection.query(), wanted, limit=selection.limit, batch_size=size, session=session)
        # The index is always used, because a scan would meet a document twice if it is deleted and inserted again
        # meanwhile.
        lower, upper = (None if raw is None else bound_from_json(raw) for raw in (split.lower, split.upper))
        bounds = [bound for bound in (lower, upper) if bound is not None]
        cursor.hint(list(bounds[0].index) if bounds else [(ID, ASCENDING)])
        if lower is not None:
            cursor.min(lower.named())
        if upper is not None:
            cursor.max(upper.named())
        try:
            while True:
                with errors(self._client, f"reading {split.table}"):
                    raw = next(cursor, None)
                if raw is None:
                    return
                yield cast("bytes", raw)
        except SourceError as refused:
            cause = refused.__cause__
            if split.again is not None and not isinstance(refused, SourceUnavailableError):
                # The server refuses the filter of the backfill. This ends the backfill, and does not concern the
                # collection.
                raise TableChangedError(str(refused)) from cause
            if as_of is None or not isinstance(cause, OperationFailure) or cause.code not in TIME_LOST:
                raise
            self._require_same(split.table, layout, followed=self._high.ordinal != NO_LOG)
            raise _too_late(split.table, refused) from cause
        finally:
            cursor.close()

    def _require_same(self, table: TableId, layout: CollectionLayout, *, followed: bool) -> None:
        """Raise `SourceError` if the collection was dropped or created again, because chunks would mix two collections.

        If `followed`, raise `TableChangedError` instead: the change stream has the explanation.
        """
        now = found(self._client, table)
        if now is None or (layout.uuid and now and now != layout.uuid):
            what = "dropped or renamed" if now is None else "created again under its name"
            if followed:
                raise TableChangedError(f"{table} was {what} while it was read.")
            raise SourceError(
                f"{table} was {what} since its snapshot began, so that the rows read are of no single collection. "
                f"Read it again with: raycdc tables resnapshot CONFIG {table}; or leave it out (source.exclude)."
            )


def _too_late(table: TableId, cause: SourceError) -> SourceError:
    """Return the error if the cluster time of all chunks is lost, which makes the chunks read so far useless."""
    return SourceError(
        f"{cause}. The chunks of {table} are read as of one time, and the server no longer has it. Raise the server's "
        'minSnapshotHistoryWindowInSeconds (300 s by default) above what reading takes, or set strategy = "sample" for '
        f"it in source.snapshot.per_collection. Then read it again with: raycdc tables resnapshot CONFIG {table}"
    )
