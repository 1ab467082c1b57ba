"""The existing collections, their sizes, and the columns in a sample of their documents.

`ShardKey` and `ShardedCollection` are the distribution of a collection over the shards, from ``config.collections`` and
``config.chunks``.

`require_masked` checks masks of fields. A mask applies to one column, but a field may be in several: in `WHOLE`, and in
`REST` if its value fits no column or its column was added later. The field is masked only if these columns are masked,
too. A field of a shard key is in the key of each event, and so in the change stream's tokens, which are the state's
positions, and in bounds of chunks: it cannot be masked at all.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, cast
from uuid import UUID

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from raycdc.connectors.mongodb.bson.documents import PLAIN, RAW, Document
from raycdc.connectors.mongodb.layout import (
    COLLECTION,
    ID,
    REST,
    UNFIT_NAME,
    WHOLE,
    CollectionLayout,
    OnTypeMismatch,
    Spelling,
    declared,
    parse_type,
    whole_documents,
    with_metadata,
)
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig, SchemaMode
from raycdc.connectors.mongodb.server.client import (
    VERSION_WITH_CAPPED_EVENTS,
    Client,
    MongoDbServerInfo,
    errors,
    probe,
)
from raycdc.connectors.mongodb.snapshot.selection import CollectionSelection
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model import LogicalType, TableId
from raycdc.model.batch import reserved_column
from raycdc.model.column_names import spark_fold
from raycdc.model.rules.mask import Masks
from raycdc.model.rules.selector import TableSelector

_log = logging.getLogger(__name__)

#: The number of sampled documents for an estimate of a collection's bytes, if the server does not report them.
_SIZED_BY = 100
#: The databases of the server itself.
_INTERNAL = frozenset({"admin", "config", "local"})
_BY_CLASS: Mapping[type, str] = {
    bool: "bool",
    int: "long",
    bson.Int64: "long",
    float: "double",
    str: "string",
    bson.ObjectId: "objectId",
    bson.DatetimeMS: "date",
    bson.Decimal128: "decimal128",
    bytes: "binData(0)",
}


#: The errors of a query that the server does not accept: BadValue, FailedToParse, TypeMismatch, an invalid projection
#: or pipeline operator, a path collision.
_NOT_UNDERSTOOD = frozenset({2, 9, 14, 168, 16410, 31249, 31250, 31254, 31303, 31324, 31325})


@dataclass(frozen=True, slots=True)
class CollectionEntry:
    """One collection, view or time series in the answer of ``listCollections``. Only collections are of the kind
    `COLLECTION`.

    `uuid` is in hexadecimal ("": unknown). `locale` is the language by which keys are ordered, None for the order of
    their bytes. `keeps_images` is True if the server keeps the documents before and after changes. A `capped`
    collection drops its oldest documents.
    """

    table: TableId
    kind: str
    uuid: str
    locale: str | None
    keeps_images: bool
    capped: bool = False

    @classmethod
    def of(cls, database: str, entry: Document) -> CollectionEntry:
        options = entry.get("options") or {}
        kind, collation = entry.get("type", COLLECTION), options.get("collation")
        return cls(
            TableId(database, entry["name"]),
            kind,
            uuid_text(entry.get("info", {}).get("uuid")) if kind == COLLECTION else "",
            collation.get("locale", "simple") if collation else None,
            options.get("changeStreamPreAndPostImages", {}).get("enabled", False),
            bool(options.get("capped")),
        )


@dataclass(frozen=True, slots=True)
class Size:
    """The approximate size of a collection, as the server counts it."""

    documents: int
    bytes: int


def discover(client: Client, selector: TableSelector, *, complete: bool = True) -> dict[TableId, str]:
    """Return the captured collections, with their UUIDs in hexadecimal.

    If the result must be `complete`, raises `SourceError` for a named collection that is missing. Views, time series
    and the server's own collections are left out.
    """
    every = listed(client, selector)
    there = {t: entry.uuid for t, entry in every.items() if entry.kind == COLLECTION and selector.matches(t)}
    problems = [
        f"{table} is a {every[table].kind}, not a collection" if table in every else f"there is no collection {table}"
        for table in selector.plain_names
        if table not in there
    ]
    if problems and complete:
        raise SourceError(
            f"source.collections: {'; '.join(problems)}, or not one that this account sees. Check the spelling, or "
            'grant the role "read" on its database.'
        )
    return dict(sorted(there.items()))


def listed(client: Client, selector: TableSelector) -> dict[TableId, CollectionEntry]:
    """Return all entries of the selected databases, except the server's own collections."""
    with errors(client, "listing collections"):
        databases = {table.db for table in selector.plain_names}
        if selector.patterns:
            databases |= set(client.list_database_names()) - _INTERNAL
        entries = [entry for database in sorted(databases) for entry in entries_of(client, database)]
    return {entry.table: entry for entry in entries if not entry.table.table.startswith("system.")}


def entries_of(client: Client, database: str) -> list[CollectionEntry]:
    """Return all entries of a database. Raises the errors of the driver."""
    return [CollectionEntry.of(database, dict(entry)) for entry in client[database].list_collections()]


def entry_of(client: Client, table: TableId, *, doing: str) -> CollectionEntry | None:
    """Return the present entry of a name; None if it does not exist. `doing` names the action in errors."""
    with errors(client, f"{doing} {table}"):
        entries = list(client[table.db].list_collections(filter={"name": table.table}))
    return CollectionEntry.of(table.db, dict(entries[0])) if entries else None


def require_followable(client: Client, tables: Iterable[TableId]) -> None:
    """Raise `SourceError` for a collection whose keys are ordered by a language, because that order is unknown here."""
    for table in tables:
        entry = entry_of(client, table, doing="looking at")
        if entry is not None and entry.locale not in (None, "simple"):
            raise SourceError(
                f"{table} has the collation {entry.locale!r}, by which its keys are ordered; changes can be "
                "followed only where they are ordered by their bytes. Leave it out (source.exclude), or read it once "
                'with source.startup = "snapshot".'
            )


def silently_capped(client: Client, info: MongoDbServerInfo, tables: Iterable[TableId]) -> dict[TableId, str]:
    """Return the capped collections whose server does not report the documents that it drops, each with a text."""
    if info.version >= VERSION_WITH_CAPPED_EVENTS:
        return {}
    entries = ((table, entry_of(client, table, doing="looking at")) for table in tables)
    return {
        table: f"{table} is a capped collection. MongoDB {info.version_text} reports no change if it drops the oldest "
        "documents of such a collection, so that they stay in the target."
        for table, entry in entries
        if entry is not None and entry.capped
    }


def warn_of_capped(client: Client, tables: Iterable[TableId]) -> None:
    """Write a warning to the log for each collection of `silently_capped`."""
    for text in silently_capped(client, probe(client), tables).values():
        _log.warning("%s Upgrade to 5.0 or later, or leave it out (source.exclude).", text)


def require_selectable(client: Client, table: TableId, selection: CollectionSelection) -> None:
    """Raise `ConfigError` for a filter, or fields, that the server does not accept. No document is read."""
    if not selection.filter and not selection.fields:
        return
    name = f"source.snapshot.filter, source.snapshot.fields: {table}"
    try:
        query = selection.query()
    except ValueError as cause:
        raise ConfigError(f"{name}: {cause}") from cause
    try:
        with errors(client, f"asking about {table}"):
            cursor = client[table.db][table.table].find(query, list(selection.fields) or None)
            # The query reads only the empty range at the end of the index.
            list(cursor.hint([(ID, 1)]).min([(ID, cast("Any", bson.MaxKey()))]).limit(1))
    except SourceError as cause:
        if isinstance(cause.__cause__, OperationFailure) and cause.__cause__.code in _NOT_UNDERSTOOD:
            raise ConfigError(f"{name}: {cause}") from cause
        raise


def keep_images(client: Client, tables: Iterable[TableId]) -> bool:
    """Return True if the server keeps images of all these collections (6.0 and later).

    Images are the documents before and after changes.
    """
    entries = (entry_of(client, table, doing="looking at") for table in tables)
    return all(entry is not None and entry.keeps_images for entry in entries)


def found(client: Client, table: TableId) -> str | None:
    """Return the UUID of a collection in hexadecimal ("": unknown), or None if there is no such collection."""
    entry = entry_of(client, table, doing="looking for")
    return entry.uuid if entry is not None and entry.kind == COLLECTION else None


def is_collated(client: Client, table: TableId) -> bool:
    """Return True if the keys of a collection are ordered by a language, not by their bytes."""
    entry = entry_of(client, table, doing="looking for")
    return entry is not None and entry.locale is not None


def uuid_text(uuid: bytes | UUID | None) -> str:
    """Return a collection's UUID in hexadecimal; empty if the server gives none."""
    if uuid is None:
        return ""
    return uuid.hex() if isinstance(uuid, bytes) else uuid.hex


def size_of(client: Client, table: TableId) -> Size:
    """Return count and bytes of a collection, over all shards.

    The bytes are estimated from a sample if the server gives only the count.
    """
    with errors(client, f"asking for the size of {table}"):
        shards = list(client[table.db][table.table].aggregate([{"$collStats": {"storageStats": {}}}]))
    stats = [shard["storageStats"] for shard in shards]
    documents, size = sum(int(s.get("count", 0)) for s in stats), sum(int(s.get("size", 0)) for s in stats)
    if documents and not size:
        sampled = sample_of(client, table, _SIZED_BY, ())
        size = documents * sum(len(document.raw) for document in sampled) // max(len(sampled), 1)
    return Size(documents, size)


def layout_of(client: Client, config: MongoDbSourceConfig, table: TableId, uuid: str) -> CollectionLayout:
    """Return the layout of a collection: configured, or inferred from a sample."""
    layout = with_metadata(_layout(client, config, table), config.metadata)
    return replace(layout, uuid=uuid, asked=config.asked_of(table))


def _layout(client: Client, config: MongoDbSourceConfig, table: TableId) -> CollectionLayout:
    options = config.schema_
    types = config.declared_types(table)
    if options.mode is SchemaMode.DOCUMENT:
        return whole_documents(types[ID] if types else None, json=config.spelling)
    if types is not None:
        return declared(types, json=config.spelling, on_type_mismatch=config.on_type_mismatch)
    if options.mode is SchemaMode.DECLARED:
        raise ConfigError(f'source.columns: {table} is captured, and schema = "declared" wants its columns.')
    exact = config.spelling is Spelling.BSON
    sample = sample_of(client, table, options.sample, config.snapshot.selection_of(table).fields)
    types = inferred(sample, fields_max=options.fields_max, exact=exact)
    taken = {spark_fold(name) for name in config.metadata.values()}
    types = {name: type_ for name, type_ in types.items() if spark_fold(name) not in taken}
    return declared(types, json=config.spelling, on_type_mismatch=OnTypeMismatch.REST)


def inferred(documents: Sequence[RawBSONDocument], *, fields_max: int, exact: bool = False) -> dict[str, LogicalType]:
    """Return the columns for the fields of a sample, in the order of appearance. If there are too many, the most
    frequent stay.

    A field with values of several types, with nested values or with only nulls is JSON. A mix of int and long is long,
    and a mix with double is double. Names that targets cannot have are left out. If `exact`, a column's values have
    exactly its type, and a numeric key is JSON.
    """
    kinds: dict[str, set[str]] = {ID: set()}
    counts: Counter[str] = Counter()
    for document in documents:
        for name, value in document.items():
            counts[name] += 1
            met = kinds.setdefault(name, set())
            if value is not None:
                met.add("int" if exact and type(value) is int else kind_of(value))
    taken: set[str] = {ID}
    chosen: set[str] = {ID}
    for name in sorted(kinds, key=lambda name: -counts[name]):
        if len(chosen) == fields_max or spark_fold(name) in taken or not is_fit(name):
            continue
        taken.add(spark_fold(name))
        chosen.add(name)
    return {
        name: parse_type(common_type(met, key=name == ID, exact=exact)) for name, met in kinds.items() if name in chosen
    }


def sample_of(client: Client, table: TableId, size: int, fields: Sequence[str] = ()) -> list[RawBSONDocument]:
    """Return a random sample of a collection's documents, or some fields of them."""
    collection = client[table.db].get_collection(table.table, codec_options=RAW)
    stages: list[Document] = [{"$sample": {"size": size}}]
    if fields:
        stages.append({"$project": dict.fromkeys(fields, 1)})
    with errors(client, f"sampling {table}"):
        sampled = list(collection.aggregate(stages))
    return cast("list[RawBSONDocument]", sampled)


def is_fit(name: str) -> bool:
    """Return True if every target can have a column of that name."""
    return bool(name) and UNFIT_NAME.search(name) is None and not reserved_column([name]) and name != "_rest"


def kind_of(value: object) -> str:
    """Return the name of the column type for a single value."""
    if isinstance(value, Binary):
        fits = value.subtype == UUID_SUBTYPE and len(value) == 16
        return "uuid" if fits else f"binData({value.subtype})"
    return _BY_CLASS.get(type(value), "json")


def common_type(kinds: set[str], *, key: bool, exact: bool = False) -> str:
    """Return the name of the column type for values of these types.

    A key of doubles is JSON, because equal numbers are then the same text in any target.
    """
    if kinds == {"long", "double"} and not key and not exact:
        return "double"
    if len(kinds) != 1 or (key and kinds & {"double", "decimal128", "bool", *(("int", "long") if exact else ())}):
        return "json"
    return next(iter(kinds))


@dataclass(frozen=True, slots=True)
class ShardKey:
    """The shard key: the names of its fields, each with its order: 1, or ``hashed``."""

    fields: tuple[tuple[str, str | float], ...]

    def __str__(self) -> str:
        return f"{{{', '.join(f'{name}: {order}' for name, order in self.fields)}}}"

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.fields]

    @property
    def ordered(self) -> bool:
        """Return True if documents are distributed by the values of all fields, and not by a hash."""
        return all(order == 1 for _, order in self.fields)

    def parts_of_id(self) -> list[str]:
        """Return the leading fields of the shard key that are `_id` or parts of it, by value; possibly none."""
        own = takewhile(lambda field: field[0].split(".")[0] == ID and field[1] == 1, self.fields)
        names = [name for name, _ in own]
        return [ID] if names[:1] == [ID] else names


@dataclass(frozen=True, slots=True)
class ShardedCollection:
    """The sharding of a collection. `uuid` is None if the cluster does not report it."""

    table: TableId
    key: ShardKey
    uuid: Binary | None

    def lower_bounds(self, client: Client) -> list[LowerBound]:
        """Return the lower bounds of the cluster's chunks. Raises the driver's errors."""
        # Since 5.0, chunks refer to their collection by its UUID, before by its name.
        own = {"$or": [{"ns": self.table.dotted}, *([] if self.uuid is None else [{"uuid": self.uuid}])]}
        chunks = client.get_database("config", codec_options=PLAIN)["chunks"].find(own, {"min": 1})
        return [LowerBound(tuple(chunk["min"][name] for name in self.key.names)) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class LowerBound:
    """The lower bound of one of the cluster's chunks: a value of any BSON type for each field of the shard key."""

    values: tuple[Any, ...]

    def is_least(self, fields: Sequence[str]) -> bool:
        """Return True if this is the least bound by `fields`, the first fields of the key."""
        return all(isinstance(value, bson.MinKey) for value in self.values[: len(fields)])


def sharded(client: Client, table: TableId) -> ShardedCollection | None:
    """Return the sharding of the collection; None if it is not sharded, or the server is no router.

    Raises the errors of the driver.
    """
    entries = client.get_database("config", codec_options=PLAIN)["collections"]
    entry = entries.find_one({"_id": table.dotted, "dropped": {"$ne": True}})
    return None if entry is None else ShardedCollection(table, ShardKey(tuple(entry["key"].items())), entry.get("uuid"))


def require_masked(client: Client, config: MongoDbSourceConfig, tables: Collection[TableId], masks: Masks) -> None:
    """Raise `ConfigError` if a masked field could be read in another column. Queries samples."""
    for table in tables if masks else ():
        if shown := [name for name in _shard_key(client, table) if masks.of(table, name) is not None]:
            raise ConfigError(
                f"mask: {', '.join(shown)} of {table} belongs to the shard key, which the server puts into the change "
                "stream's positions: the state would have its values. Name the other fields in mask.columns, or leave "
                "the collection out (source.exclude)."
            )
        everything = _with_all_fields(config, table)
        if everything is None or masks.of(table, everything) is not None:
            continue
        fields = {plain[1] for mask in masks.all if (plain := mask.plain) is not None and plain[0] == table}
        fields |= {name for name in _shown(client, config, table) if masks.of(table, name) is not None}
        masked = sorted(fields - {ID, everything})
        if masked:
            raise ConfigError(
                f"mask: {', '.join(masked[:5])} of {table} would be masked as a column only, and be readable in the "
                f"column {everything}. Mask {table}.{everything}, too, or declare the collection's columns "
                "(source.columns), whose other fields are left out."
            )


def _with_all_fields(config: MongoDbSourceConfig, table: TableId) -> str | None:
    """Return the column that may hold any field of a document, if there is one."""
    if config.schema_.mode is SchemaMode.DOCUMENT:
        return WHOLE
    return REST if config.infers(table) or config.on_type_mismatch is OnTypeMismatch.REST else None


def _shard_key(client: Client, table: TableId) -> list[str]:
    """Return the top-level fields of the shard key.

    Raises `SourceError` if a cluster does not permit reading it.
    """
    try:
        with errors(client, f"reading config.collections for {table}, which masks are about"):
            collection = sharded(client, table)
    except SourceUnavailableError:
        raise
    except SourceError:
        # Without a router there are no shards, and the account need not have this privilege.
        if probe(client).is_mongos:
            raise
        return []
    names = [] if collection is None else [name.partition(".")[0] for name in collection.key.names]
    return [name for name in dict.fromkeys(names) if name != ID]


def _shown(client: Client, config: MongoDbSourceConfig, table: TableId) -> list[str]:
    """Return the fields of sampled documents, and the configured ones."""
    inferring = config.schema_.model_copy(update={"mode": SchemaMode.INFERRED})
    sampled = layout_of(client, config.model_copy(update={"schema_": inferring, "columns": {}}), table, "")
    return [*(column.name for column in sampled.fields), *config.columns.get(str(table), ())]
