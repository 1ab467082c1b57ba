"""How a collection is cut: bounds of `_id` in the server's order, for chunks of about equal size.

| strategy | bounds are | falls back when |
|---|---|---|
| sharded | those of the cluster's chunks, by their `_id` | the shard key does not begin with `_id`, or a part of it, by
  value; ``config.chunks`` is not readable |
| splitVector | the server's, from its index | behind a ``mongos``, no privilege, or the server lacks the command |
| sample | quantiles of sampled keys | the collection counts no documents |
| single | none: one chunk; always so for a collection with a collation | |

A chunk is read by index bounds (``min``, ``max``), which run across types as the index does; a comparison in a query
would match keys of its own type only. What bounds there are never decides which documents are read, only by whom: the
first chunk has no lower bound and the last no upper one. Only `_id` cuts, because it never changes: a document whose
shard key changes meanwhile (4.2 and later let it) would be read twice, or not at all. So the cluster's bounds on
``{_id: 1, region: 1}`` cut where their `_id` is, those on ``{"_id.shop": 1, "_id.n": 1}`` at the `_id` made of both,
and those on ``{region: 1, _id: 1}`` or on hashes of `_id` not at all. Reading all chunks of such a key at one cluster
time would be exact, too, but servers keep that time for five minutes (minSnapshotHistoryWindowInSeconds).
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
from raycdc.connectors.mongodb.keys import sort_key
from raycdc.connectors.mongodb.layout import ID
from raycdc.connectors.mongodb.plugin import SnapshotOptions, Strategy
from raycdc.errors import SourceError
from raycdc.model import TableId

_log = logging.getLogger(__name__)

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
            return _sharded(client, info, table)
        case Strategy.SPLIT_VECTOR:
            return _split_vector(client, info, table, chunk_bytes)
        case Strategy.SAMPLE:
            return _sampled(client, table, size, chunk_bytes=chunk_bytes, per_chunk=options.samples_per_chunk)
        case _:
            return []


def _sharded(client: Client, info: ServerInfo, table: TableId) -> list[Any]:
    config = client.get_database("config", codec_options=_KEYS)
    try:
        with errors(client, f"reading config.chunks for {table}"):
            known = config["collections"].find_one({"_id": str(table), "dropped": {"$ne": True}})
            if known is None:
                raise _NotThisWay("it is not sharded" if info.is_mongos else "the server is no mongos of a cluster")
            parts = _parts_of_id(known["key"])
            if not parts:
                fields = ", ".join(f"{name}: {order}" for name, order in known["key"].items())
                raise _NotThisWay(
                    f"its shard key is {{{fields}}} and does not begin with _id by its value, which alone never changes"
                )
            # Chunks name their collection by its UUID since 5.0, by its name before.
            of_it = {"$or": [{"ns": str(table)}, *([{"uuid": known["uuid"]}] if "uuid" in known else [])]}
            chunks = list(config["chunks"].find(of_it, {"min": 1}))
    except SourceError as cause:
        raise _privilege(cause, 'the role "clusterMonitor", or read on config.collections and config.chunks') from cause
    bounds = [_bound_by_id(parts, chunk["min"]) for chunk in chunks]
    return [bound for bound in bounds if not isinstance(bound, bson.MinKey)]


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
    """What a failed question means: no privilege, or no such command, is a reason for another strategy."""
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
