"""Cuts a collection: finds bounds of `_id` in the server's order, for chunks of about equal size.

| strategy | bounds | falls back when |
|---|---|---|
| sharded | bounds of the cluster's chunks | the shard key is hashed, or may change and is not configured (see below); \
``config.chunks`` is not readable |
| splitVector | bounds from the server's index | behind a ``mongos``, no privilege, or the server lacks the command |
| sample | quantiles of sampled keys | the collection counts no documents |
| single | none: one chunk; always so for a collection with a collation | |

A chunk is read by index bounds (``min``, ``max``), which span all types as the index does. A comparison in a query
would match keys of its own type only. The bounds do not change which documents are read, but only in which chunk each
of them is read: the first chunk has no lower bound, and the last one has no upper bound.

`_id` never changes. If a shard key begins with `_id` or parts of it, chunks are therefore cut by `_id`, and each chunk
is read as of a different time. A bound of ``{_id: 1, region: 1}`` becomes its `_id`, and a bound of ``{"_id.shop": 1,
"_id.n": 1}`` becomes the `_id` made of both values. Any other shard key may change with each write (since 4.2), and a
document whose key changed would be read twice, or not at all. Such chunks are read by the shard key's index, all as of
one cluster time (`raycdc.source.snapshot.handoff.as_of`). Their bounds have all fields of the key (`IndexBound`).
Servers have such reads since 5.0, and can read as of that time for ``minSnapshotHistoryWindowInSeconds`` (five
minutes). Meanwhile the log reader waits. Cuts by such a shard key are therefore made only if configured.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import bson
from pymongo.errors import OperationFailure

from raycdc.connectors.mongodb.bson.documents import PLAIN, Document
from raycdc.connectors.mongodb.layout import ID
from raycdc.connectors.mongodb.plugin import MongoDbChunkStrategy, MongoDbSnapshotOptions
from raycdc.connectors.mongodb.server.catalog import LowerBound, ShardKey, Size, is_collated, sharded, size_of
from raycdc.connectors.mongodb.server.client import UNAUTHORIZED, Client, MongoDbServerInfo, errors
from raycdc.connectors.mongodb.snapshot.keys import Bound, IdBound, IndexBound, sort_key
from raycdc.errors import SourceError
from raycdc.model import TableId

_log = logging.getLogger(__name__)

#: The first version that reads as of a cluster time outside of transactions.
VERSION_AS_OF = (5, 0)
#: The most chunks of a collection, so that the state stays small; a larger collection has larger chunks.
CHUNKS_MAX = 4096
_ORDER = (
    MongoDbChunkStrategy.SHARDED,
    MongoDbChunkStrategy.SPLIT_VECTOR,
    MongoDbChunkStrategy.SAMPLE,
    MongoDbChunkStrategy.SINGLE,
)


@dataclass(frozen=True, slots=True)
class Cuts:
    """The bounds (ascending, distinct), their strategy, and why earlier strategies were not used.

    `documents` is the server's count, if all documents are read and the count was queried.
    """

    bounds: tuple[Bound, ...]
    strategy: MongoDbChunkStrategy
    passed_over: tuple[str, ...] = ()
    documents: int | None = None

    @property
    def as_of_one_time(self) -> bool:
        """Return True if the chunks are correct only when all are read as of one cluster time."""
        return any(isinstance(bound, IndexBound) for bound in self.bounds)


class _NotThisWay(Exception):  # noqa: N818 - no error: the next strategy is tried
    """The reason why a strategy cannot be used."""


def cut(client: Client, info: MongoDbServerInfo, table: TableId, options: MongoDbSnapshotOptions) -> Cuts:
    """Return bounds for the present collection. Blocks; raises `SourceError`."""
    wanted = options.strategy_of(table)
    if wanted is MongoDbChunkStrategy.SINGLE:
        return Cuts((), wanted)
    if options.selection_of(table).limit:
        return Cuts(
            (),
            MongoDbChunkStrategy.SINGLE,
            (f"{wanted}: a collection with a limit is one chunk, which counts exactly",),
        )
    if is_collated(client, table):
        reason = "the collection has a collation, whose order of keys only the server knows"
        _log.info("%s is not cut: %s", table, reason)
        return Cuts((), MongoDbChunkStrategy.SINGLE, (f"{wanted}: {reason}",))
    size = size_of(client, table)
    documents = None if options.selection_of(table).filter else size.documents or None
    chunk_bytes = max(options.chunk_size, -(-size.bytes // CHUNKS_MAX))
    if wanted is MongoDbChunkStrategy.AUTO and size.bytes <= chunk_bytes:
        return Cuts((), MongoDbChunkStrategy.SINGLE, documents=documents)
    cutting = _Cutting(client, info, table, options, size, chunk_bytes)
    passed_over: list[str] = []
    for strategy in _ORDER[0 if wanted is MongoDbChunkStrategy.AUTO else _ORDER.index(wanted) :]:
        try:
            bounds = cutting.bounds(strategy)
        except _NotThisWay as reason:
            passed_over.append(f"{strategy}: {reason}")
            _log.info("%s is not cut by %s: %s", table, strategy, reason)
            continue
        return Cuts(_thinned(bounds), strategy, tuple(passed_over), documents)
    raise AssertionError("the last strategy always works")


@dataclass(frozen=True, slots=True)
class _Cutting:
    """A collection to be cut into chunks of about `chunk_bytes`, and its server."""

    client: Client
    info: MongoDbServerInfo
    table: TableId
    options: MongoDbSnapshotOptions
    size: Size
    chunk_bytes: int

    def bounds(self, strategy: MongoDbChunkStrategy) -> Sequence[Bound]:
        """Return the bounds in any order. Raises `_NotThisWay` and `SourceError`."""
        match strategy:
            case MongoDbChunkStrategy.SHARDED:
                return self._sharded()
            case MongoDbChunkStrategy.SPLIT_VECTOR:
                return self._split_vector()
            case MongoDbChunkStrategy.SAMPLE:
                return self._sampled()
            case _:
                return ()

    def _sharded(self) -> list[Bound]:
        try:
            with errors(self.client, f"reading config.chunks for {self.table}"):
                collection = sharded(self.client, self.table)
                if collection is None:
                    here = "it is not sharded" if self.info.is_mongos else "the server is no mongos of a cluster"
                    raise _NotThisWay(here)
                key = collection.key
                parts = key.parts_of_id()
                index = () if parts else self._shard_index(key)
                lower = collection.lower_bounds(self.client)
        except SourceError as cause:
            role = 'the role "clusterMonitor", or read on config.collections and config.chunks'
            raise _privilege(cause, role) from cause
        if index:
            return [_bound_by_index(index, bound) for bound in lower if not bound.is_least(key.names)]
        return [_bound_by_id(parts, bound) for bound in lower if not bound.is_least(parts)]

    def _shard_index(self, key: ShardKey) -> tuple[tuple[str, int], ...]:
        """Return the index to read chunks of a changeable shard key. It begins with all fields of the key.

        Raises `_NotThisWay` if these chunks cannot be read.
        """
        named = f"its shard key is {key}"
        if not key.ordered:
            raise _NotThisWay(f"{named}, and documents cannot be read in the order of hashes")
        why = (
            f"{named} and does not begin with _id by its value, which alone never changes; its chunks can only be read"
        )
        if self.info.version < VERSION_AS_OF:
            text = self.info.version_text
            raise _NotThisWay(f"{why} as of one time, and MongoDB {text} has no such reads (5.0 has)")
        if self.options.strategy_of(self.table) is not MongoDbChunkStrategy.SHARDED:
            raise _NotThisWay(
                f"{why} as of one time, which the server keeps for minutes and the change stream waits for, so only "
                f'where source.snapshot asks for it: strategy = "{MongoDbChunkStrategy.SHARDED}"'
            )
        # If no index has exactly the shard key's fields, a longer one serves as well.
        indexes = self.client[self.table.db][self.table.table].list_indexes()
        for index in sorted(indexes, key=lambda index: len(index["key"])):
            fields = tuple((name, order) for name, order in index["key"].items())
            plain = not index.get("sparse") and "partialFilterExpression" not in index and "collation" not in index
            ordered = all(isinstance(order, int | float) and order in (1, -1) for _, order in fields)
            begins = fields[: len(key.fields)] == key.fields
            if plain and ordered and not index.get("hidden") and begins:
                return tuple((name, int(order)) for name, order in fields)
        raise _NotThisWay(f"{named}, and there is no index that begins with it and has all documents in order")

    def _split_vector(self) -> list[Bound]:
        if self.info.is_mongos:
            raise _NotThisWay("a mongos does not know the command")
        # The server cuts chunks of half the given size.
        size = 2 * self.chunk_bytes
        command = {"splitVector": self.table.dotted, "keyPattern": {ID: 1}, "maxChunkSizeBytes": size, "force": False}
        try:
            with errors(self.client, f"splitVector of {self.table}"):
                answer = self.client.admin.command(command, codec_options=PLAIN)
        except SourceError as cause:
            role = "the action splitVector on the collection (role clusterManager)"
            raise _privilege(cause, role) from cause
        return [IdBound(key[ID]) for key in answer["splitKeys"]]

    def _sampled(self) -> list[Bound]:
        size, per_chunk = self.size, self.options.samples_per_chunk
        if size.documents == 0 or size.bytes == 0:
            raise _NotThisWay("the server counts no documents in it")
        chunks = min(-(-size.bytes // self.chunk_bytes), size.documents, CHUNKS_MAX)
        if chunks < 2:
            return []
        stages = [{"$sample": {"size": chunks * per_chunk}}, {"$project": {ID: 1}}]
        collection = self.client[self.table.db].get_collection(self.table.table, codec_options=PLAIN)
        with errors(self.client, f"sampling keys of {self.table}"):
            keys = [document[ID] for document in collection.aggregate(stages, allowDiskUse=True)]
        keys.sort(key=sort_key)
        return [IdBound(key) for key in keys[per_chunk::per_chunk]]


def _bound_by_index(index: Sequence[tuple[str, int]], bound: LowerBound) -> IndexBound:
    """Return a bound of the cluster as a bound in an index that may have more fields.

    The bound comes before all values of these additional fields.
    """
    least = {1: bson.MinKey(), -1: bson.MaxKey()}
    more = [least[order] for _, order in index[len(bound.values) :]]
    return IndexBound(tuple(index), (*bound.values, *more))


def _bound_by_id(parts: Sequence[str], bound: LowerBound) -> IdBound:
    """Return the `_id` nearest to a bound of the cluster. Fields that are not part of `_id` do not matter.

    Parts of `_id` are combined in the order of the shard key. If documents have them in another order, only the sizes
    of chunks are affected.
    """
    if parts[0] == ID:
        return IdBound(bound.values[0])
    made: Document = {}
    for part, value in zip(parts, bound.values, strict=False):
        inside = made
        *path, last = part.split(".")[1:]
        for name in path:
            inside = inside.setdefault(name, {})
        inside[last] = value
    return IdBound(made)


def _privilege(cause: SourceError, fix: str) -> Exception:
    """Return the error of a failed query. A missing privilege or command leads to another strategy."""
    refused = cause.__cause__
    if not isinstance(refused, OperationFailure):
        return cause
    if refused.code == UNAUTHORIZED:
        return _NotThisWay(f"the account lacks {fix}")
    # 59 CommandNotFound, 115 CommandNotSupported, 8000 AtlasError (not allowed on that tier).
    if refused.code in (59, 115, 8000):
        return _NotThisWay("the server does not have the command")
    return cause


def _thinned(bounds: Sequence[Bound]) -> tuple[Bound, ...]:
    """Return the distinct bounds in order, at most as many as the limit of chunks allows."""
    distinct = {sort_key(bound): bound for bound in bounds}
    ordered = [distinct[key] for key in sorted(distinct)]
    step = -(-(len(ordered) + 1) // CHUNKS_MAX)
    return tuple(ordered[step - 1 :: step] if step > 1 else ordered)
