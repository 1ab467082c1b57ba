"""A MongoDB collection as a dimension: queries with ``$in`` of many keys, and raw BSON decoded to Arrow by compiled
loops.

| | |
|---|---|
| read concern | documents acknowledged by a majority of the replica set, by the connection string's read preference |
| equality | integers by value whatever their type, other values by type and bytes; collations are ignored |
| an array field | equals no key, although the server itself would compare its elements |
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from bson import Binary, ObjectId
from pymongo.read_concern import ReadConcern

from raycdc.config import LookupOptions
from raycdc.config.mongodb import parse_type, subtype_of
from raycdc.config.sections.table_rules import ID
from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.layout import CollectionLayout, OnTypeMismatch, Spelling
from raycdc.connectors.mongodb.server.client import Client, connect, errors, probe
from raycdc.delivery.lookup.queries import KEY, LookupResult, canonical
from raycdc.errors import RowRefusedError
from raycdc.model import Column, TableId, lost_values
from raycdc.model.rules.transform import Lookup

_UUID_SUBTYPE = 4


class MongoDbDimension:
    """A `raycdc.delivery.lookup.queries.Dimension` on a collection. The client connects at the first query."""

    def __init__(self, options: LookupOptions, lookup: Lookup, key_type: str) -> None:
        self._lookup = lookup
        self._key_type = key_type
        self._first = options.many == "first"
        self._table = TableId(*options.collection.split(".", 1))
        self._layout = layout_of(options, lookup, key_type)
        self._client: Client = connect(options.uri, key_path=f"{lookup.key_path}.uri")
        self._errors = partial(errors, key_path=f"{lookup.key_path}.uri")

    def __repr__(self) -> str:
        return f"MongoDbDimension({self._table}.{self._lookup.field})"

    def require(self) -> str:
        """Check that the server answers and the collection may be read. Raises `SourceError` otherwise.

        Return a warning, or an empty text.
        """
        probe(self._client, key_path=f"{self._lookup.key_path}.uri")
        with self._errors(self._client, f"reading {self._table}"):
            if self._collection().find_one({}, {ID: 1}) is not None:
                return ""
        key_path = f"{self._lookup.key_path}.collection"
        return f"{key_path}: {self._table} has no document, so nothing is found until it has. Is its name right?"

    def fetch(self, keys: pa.Array) -> LookupResult:
        if not len(keys):
            return LookupResult(self._named(pa.Table.from_batches([], self._layout.schema().arrow())))
        key_path = self._lookup.key_path
        decoder = DocumentDecoder(self._layout, collection=str(self._table), section=key_path)
        batches: list[pa.RecordBatch] = []
        with self._errors(self._client, f"looking up {len(keys)} keys in {self._table}"):
            for raw in self._cursor(keys):
                batches += decoder.decode(raw)
        batches += decoder.flush()
        found = pa.Table.from_batches(batches, self._layout.schema().arrow()).combine_chunks()
        return LookupResult(self._one_each(self._named(found)), sum(map(lost_values, batches)))

    def close(self) -> None:
        self._client.close()

    def _collection(self) -> Any:
        return self._client[self._table.db].get_collection(self._table.table, read_concern=ReadConcern("majority"))

    def _cursor(self, keys: pa.Array) -> Any:
        field = self._lookup.field
        wanted: dict[str, object] = {"$in": _values(keys, self._key_type)}
        query = {field: wanted if field == ID else wanted | {"$not": {"$type": "array"}}}
        fields = [column.name for column in self._layout.columns]
        cursor = self._collection().find_raw_batches(query, fields, batch_size=len(keys) + 1)
        return cursor.sort(ID) if self._first and field != ID else cursor

    def _named(self, documents: pa.Table) -> pa.Table:
        """Return the key, and the columns of the lookup in its order."""
        key = canonical(documents.column(self._lookup.field), self._key_type, key_path=self._lookup.key_path)
        columns = {KEY: key} | {column.name: documents.column(column.field) for column in self._lookup.columns}
        named = pa.table(columns)
        return named.filter(named.column(KEY).is_valid()) if key.null_count else named

    def _one_each(self, documents: pa.Table) -> pa.Table:
        """Return one document for each key. If a key has several documents, return the first one by ``_id`` if the
        lookup allows that, and raise `DataError` otherwise.
        """
        keys = documents.column(KEY)
        if self._lookup.field == ID or pc.count_distinct(keys).as_py() == len(keys):
            return documents
        counted = pc.value_counts(keys)
        if not self._first:
            raise RowRefusedError(
                f"{self._lookup.key_path}: several documents of {self._table} have the same {self._lookup.field}, and "
                "a row gets one. Look up by a field that is unique, or let the first by _id count "
                'with many = "first".'
            )
        return documents.take(pc.index_in(counted.field("values"), value_set=keys.combine_chunks()))


def layout_of(options: LookupOptions, lookup: Lookup, key_type: str) -> CollectionLayout:
    """Return the layout for decoding: ``_id``, the lookup's field if it is another one, and the fields to add."""
    types = {column.field: column.type for column in lookup.columns}
    # The server compares numbers by value, so the field may also be a decimal128.
    types = {lookup.field: parse_type("decimal(38,0)" if key_type == "long" else key_type)} | types
    own = types.pop(ID, parse_type("json"))
    columns = [Column(ID, own, nullable=False), *(Column(name, logical) for name, logical in types.items())]
    return CollectionLayout(tuple(columns), Spelling(options.json_), OnTypeMismatch(options.on_type_mismatch))


def _values(keys: pa.Array, key_type: str) -> list[Any]:
    """Return distinct keys as the values that MongoDB's driver sends."""
    values: list[Any] = keys.to_numpy(zero_copy_only=False).tolist()
    match key_type:
        case "objectId":
            return [ObjectId(text) for text in values]
        case "uuid":
            return [Binary(bytes.fromhex(text.replace("-", "")), _UUID_SUBTYPE) for text in values]
        case "long" | "string":
            return values
        case _:
            subtype = subtype_of(parse_type(key_type))
            return [Binary(data, subtype) for data in values]


def check_index(client: Client, table: TableId, field: str) -> tuple[bool, bool]:
    """Return two truth values: if an index begins with `field`, and if an index makes the values of `field` unique.
    Raises `SourceError`.
    """
    if field == ID:
        return True, True
    with errors(client, f"listing the indexes of {table}"):
        indexes = list(client[table.db][table.table].list_indexes())
    begin = [index for index in indexes if next(iter(index["key"])) == field and "partialFilterExpression" not in index]
    return bool(begin), any(index.get("unique") and len(index["key"]) == 1 for index in begin)


def is_there(client: Client, table: TableId) -> bool:
    """Return True if the collection, or a view of that name, exists."""
    with errors(client, f"looking for {table}"):
        return bool(list(client[table.db].list_collections(filter={"name": table.table})))
