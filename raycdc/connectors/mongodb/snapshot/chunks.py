"""How a collection is cut: bounds of `_id` in the server's order, for chunks of about equal size.

| strategy | bounds are | falls back when |
|---|---|---|
| sharded | those of the cluster's chunks | the shard key is hashed, or needs what follows and does not have it; \
``config.chunks`` is not readable |
| splitVector | the server's, from its index | behind a ``mongos``, no privilege, or the server lacks the command |
| sample | quantiles of sampled keys | the collection counts no documents |
| single | none: one chunk; always so for a collection with a collation | |

A chunk is read by index bounds (``min``, ``max``), which run across types as the index does; a comparison in a query
would match keys of its own type only. The bounds never decide which documents are read, only by whom: the
first chunk has no lower bound and the last no upper one.

`_id` never changes, so where a shard key begins with `_id` or parts of it, chunks are cut there and each is read as of
its own time: ``{_id: 1, region: 1}`` where its `_id` is, ``{"_id.shop": 1, "_id.n": 1}`` at the `_id` made of both. Any
other shard key may change with each write (4.2 and later let it), and a document whose key did would be read twice, or
not at all. Those chunks (`IndexBound`: all fields of the key) are read by the shard key's index, all as of one cluster
time (`raycdc.source.snapshot.as_of`): servers have such reads since 5.0, keep that time for
``minSnapshotHistoryWindowInSeconds`` (five minutes), and the log stands meanwhile. So only who asks for it gets it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo.errors import OperationFailure

from raycdc.connectors.mongodb.catalog import Size, is_collated, size_of
from raycdc.connectors.mongodb.client import UNAUTHORIZED, Client, ServerInfo, errors
from raycdc.connectors.mongodb.layout import ID
from raycdc.connectors.mongodb.plugin import SnapshotOptions, Strategy
from raycdc.connectors.mongodb.snapshot.keys import IndexBound, sort_key
from raycdc.errors import SourceError
from raycdc.model import TableId

_log = logging.getLogger(__name__)

#: First version that reads as of a cluster time outside of transactions.
VERSION_AS_OF = (5, 0)
#: Chunks of a collection at most, so that state stays small; those of larger collections are larger.
CHUNKS_MAX = 4096
_MIB = 1 << 20
_KEYS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_ORDER = (Strategy.SHARDED, Strategy.SPLIT_VECTOR, Strategy.SAMPLE, Strategy.SINGLE)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ascending, distinct bounds; by which strategy, and why not by those before it."""

    bounds: tuple[Any, ...]
    strategy: Strategy
    passed_over: tuple[str, ...] = ()

    @property
    def as_of_one_time(self) -> bool:
        """Whether the chunks are right only where all of them are read as of one cluster time."""
        return any(isinstance(bound, IndexBound) for bound in self.bounds)


class _NotThisWay(Exception):  # noqa: N818 - no error: the next strategy is tried
    """Why a strategy does not do."""


def cut(client: Client, info: ServerInfo, table: TableId, options: SnapshotOptions) -> Cuts:
    """Bounds for the collection as it is now. Blocks; raises `SourceError`."""
    wanted = options.strategy_of(table)
    if wanted is Strategy.SINGLE:
        return Cuts((), wanted)
    if options.selection_of(table).limit:
        return Cuts((), Strategy.SINGLE, (f"{wanted}: a collection with a limit is one chunk, which counts exactly",))
    if is_collated(client, table):
        reason = "the collection has a collation, whose order of keys only the server knows"
        _log.info("%s is not cut: %s", table, reason)
        return Cuts((), Strategy.SINGLE, (f"{wanted}: {reason}",))
    size = size_of(client, table)
    chunk_bytes = max(options.chunk_mb * _MIB, -(-size.bytes // CHUNKS_MAX))
    if wanted is Strategy.AUTO and size.bytes <= chunk_bytes:
        return Cuts((), Strategy.SINGLE)
    passed_over: list[str] = []
    for strategy in _ORDER[0 if wanted is Strategy.AUTO else _ORDER.index(wanted) :]:
        try:
            bounds = _bounds(client, info, table, strategy, size=size, chunk_bytes=chunk_bytes, options=options)
        except _NotThisWay as reason:
            passed_over.append(f"{strategy}: {reason}")
            _log.info("%s is not cut by %s: %s", table, strategy, reason)
            continue
        return Cuts(_thinned(bounds), strategy, tuple(passed_over))
    raise AssertionError("the last strategy always does")


def _bounds(
    client: Client,
    info: ServerInfo,
    table: TableId,
    strategy: Strategy,
    *,
    size: Size,
    chunk_bytes: int,
    options: SnapshotOptions,
) -> list[Any]:
    match strategy:
        case Strategy.SHARDED:
            return _sharded(client, info, table, asked=options.strategy_of(table) is Strategy.SHARDED)
        case Strategy.SPLIT_VECTOR:
            return _split_vector(client, info, table, chunk_bytes)
        case Strategy.SAMPLE:
            return _sampled(client, table, size, chunk_bytes=chunk_bytes, per_chunk=options.samples_per_chunk)
        case _:
            return []


def _sharded(client: Client, info: ServerInfo, table: TableId, *, asked: bool) -> list[Any]:
    config = client.get_database("config", codec_options=_KEYS)
    try:
        with errors(client, f"reading config.chunks for {table}"):
            known = config["collections"].find_one({"_id": str(table), "dropped": {"$ne": True}})
            if known is None:
                raise _NotThisWay("it is not sharded" if info.is_mongos else "the server is no mongos of a cluster")
            parts = _parts_of_id(known["key"])
            index = () if parts else _shard_index(client, info, table, known["key"], asked=asked)
            # Chunks name their collection by its UUID since 5.0, by its name before.
            of_it = {"$or": [{"ns": str(table)}, *([{"uuid": known["uuid"]}] if "uuid" in known else [])]}
            chunks = list(config["chunks"].find(of_it, {"min": 1}))
    except SourceError as cause:
        raise _privilege(cause, 'the role "clusterMonitor", or read on config.collections and config.chunks') from cause
    if index:
        bounds = [chunk["min"] for chunk in chunks]
        some = [bound for bound in bounds if not all(isinstance(value, bson.MinKey) for value in bound.values())]
        return [_bound_by_index(index, bound) for bound in some]
    bounds = [_bound_by_id(parts, chunk["min"]) for chunk in chunks]
    return [bound for bound in bounds if not isinstance(bound, bson.MinKey)]


def _shard_index(
    client: Client, info: ServerInfo, table: TableId, key: Mapping[str, Any], *, asked: bool
) -> tuple[tuple[str, int], ...]:
    """The index by which chunks of a shard key that may change are read; it begins with all fields of the key."""
    named = f"its shard key is {{{', '.join(f'{name}: {order}' for name, order in key.items())}}}"
    if not all(order in (1, 1.0) for order in key.values()):
        raise _NotThisWay(f"{named}, and documents cannot be read in the order of hashes")
    why = f"{named} and does not begin with _id by its value, which alone never changes; its chunks can only be read"
    if info.version < VERSION_AS_OF:
        raise _NotThisWay(f"{why} as of one time, and MongoDB {info.version_text} has no such reads (5.0 has)")
    if not asked:
        raise _NotThisWay(
            f"{why} as of one time, which the server keeps for minutes and the change stream waits for, so only "
            f'where source.snapshot asks for it: strategy = "{Strategy.SHARDED}"'
        )
    # A longer one serves where there is none of the shard key's fields alone.
    for index in sorted(client[table.db][table.table].list_indexes(), key=lambda index: len(index["key"])):
        fields = tuple((name, order) for name, order in index["key"].items())
        plain = not index.get("sparse") and "partialFilterExpression" not in index and "collation" not in index
        ordered = all(isinstance(order, int | float) and order in (1, -1) for _, order in fields)
        if plain and ordered and not index.get("hidden") and fields[: len(key)] == tuple((name, 1) for name in key):
            return tuple((name, int(order)) for name, order in fields)
    raise _NotThisWay(f"{named}, and there is no index that begins with it and has all documents in order")


def _bound_by_index(index: Sequence[tuple[str, int]], bound: Mapping[str, Any]) -> IndexBound:
    """A bound of the cluster's in an index that may have more fields: before all that they can be."""
    least = {1: bson.MinKey(), -1: bson.MaxKey()}
    return IndexBound(tuple(index), tuple(bound.get(name, least[order]) for name, order in index))


def _parts_of_id(shard_key: Mapping[str, Any]) -> list[str]:
    """The fields with which a shard key begins that are `_id`, or parts of it, by their values; there may be none."""
    orders = takewhile(lambda entry: entry[0].split(".")[0] == ID and entry[1] in (1, 1.0), shard_key.items())
    return [name for name, _ in orders]


def _bound_by_id(parts: Sequence[str], bound: Mapping[str, Any]) -> Any:
    """The `_id` next to a bound of the cluster's: what else the bound has does not matter.

    Of parts of `_id` it makes the `_id` that has them in the order of the shard key. Where documents have them in
    another order, the bound is as good as any, and only how even the chunks are depends on it.
    """
    if parts[0] == ID:
        return bound[ID]
    if all(isinstance(bound[part], bson.MinKey) for part in parts):
        return bson.MinKey()
    made: dict[str, Any] = {}
    for part in parts:
        inside = made
        *path, last = part.split(".")[1:]
        for name in path:
            inside = inside.setdefault(name, {})
        inside[last] = bound[part]
    return made


def _split_vector(client: Client, info: ServerInfo, table: TableId, chunk_bytes: int) -> list[Any]:
    if info.is_mongos:
        raise _NotThisWay("a mongos does not know the command")
    # The server cuts at half of the size it is given.
    command = {"splitVector": str(table), "keyPattern": {ID: 1}, "maxChunkSizeBytes": 2 * chunk_bytes, "force": False}
    try:
        with errors(client, f"splitVector of {table}"):
            answer = client.admin.command(command, codec_options=_KEYS)
    except SourceError as cause:
        raise _privilege(cause, "the action splitVector on the collection (role clusterManager)") from cause
    return [key[ID] for key in answer["splitKeys"]]


def _sampled(client: Client, table: TableId, size: Size, *, chunk_bytes: int, per_chunk: int) -> list[Any]:
    if size.documents == 0 or size.bytes == 0:
        raise _NotThisWay("the server counts no documents in it")
    chunks = min(-(-size.bytes // chunk_bytes), size.documents, CHUNKS_MAX)
    if chunks < 2:
        return []
    stages = [{"$sample": {"size": chunks * per_chunk}}, {"$project": {ID: 1}}]
    collection = client[table.db].get_collection(table.table, codec_options=_KEYS)
    with errors(client, f"sampling keys of {table}"):
        keys = [document[ID] for document in collection.aggregate(stages, allowDiskUse=True)]
    keys.sort(key=sort_key)
    return keys[per_chunk::per_chunk]


def _privilege(cause: SourceError, fix: str) -> Exception:
    """The error of a failed question; a missing privilege or command is a reason for another strategy."""
    refused = cause.__cause__
    if not isinstance(refused, OperationFailure):
        return cause
    if refused.code == UNAUTHORIZED:
        return _NotThisWay(f"the account lacks {fix}")
    # 59 CommandNotFound, 115 CommandNotSupported, 8000 AtlasError (not allowed on that tier).
    if refused.code in (59, 115, 8000):
        return _NotThisWay("the server does not have the command")
    return cause


def _thinned(bounds: list[Any]) -> tuple[Any, ...]:
    """In order, each once, and at most as many as there may be chunks."""
    distinct = {sort_key(bound): bound for bound in bounds}
    ordered = [distinct[key] for key in sorted(distinct)]
    step = -(-(len(ordered) + 1) // CHUNKS_MAX)
    return tuple(ordered[step - 1 :: step] if step > 1 else ordered)
