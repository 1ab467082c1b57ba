"""Reads collections as a MongoDB source does: raw BSON, decoded to the types that the fields must have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa
from pymongo import ASCENDING
from pymongo.errors import PyMongoError

from raycdc.config import Secret
from raycdc.config.mongodb import parse_type
from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.layout import ID, CollectionLayout
from raycdc.connectors.mongodb.server.client import connect
from raycdc.connectors.mongodb.stream.raw_stream import RawFind
from raycdc.errors import DataError, SinkError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.verify.changelog import EMPTIED, KIND, ORDER
from raycdc.verify.targets.api import NotComparedError, RowFilter

_BATCH_DOCUMENTS = 100_000
#: The digits of a Decimal128, and of a second in a date. Values with more digits are stored as text.
_DECIMAL_DIGITS = 34
_DATE_DIGITS = 3


#: ``{$in: values}``.
_OneOf = Mapping[str, Sequence[int | str]]


class MongoDbRows:
    """The rows of the collection TABLE of the database DB, whose documents have the columns of `schema`; a
    `TargetTable`.
    """

    one_zero = False

    def __init__(self, uri: Secret, target: TableId, schema: TableSchema) -> None:
        if invalid := next((c.name for c in schema.columns if c.type.native.startswith("bson")), ""):
            raise NotComparedError(
                f"its column {invalid} holds BSON of any type, which verify does not compare in MongoDB"
            )
        self._uri = uri
        self._target = target
        self._types = {column.name: _stored(column.type) for column in schema.columns}

    def __repr__(self) -> str:
        return f"MongoDbRows({self._target})"

    def columns(self) -> Sequence[str]:
        """Return the columns of the schema: a field that a document lacks is NULL."""
        with connect(self._uri, key_path="sink.uri") as client:
            try:
                there = self._target.table in client[self._target.db].list_collection_names()
            except PyMongoError as cause:
                raise self._unread(cause) from cause
        if not there:
            raise NotComparedError(f"there is no collection {self._target} at the target")
        return list(self._types)

    def rows_about(self) -> int:
        with connect(self._uri, key_path="sink.uri") as client:
            try:
                return int(client[self._target.db][self._target.table].estimated_document_count())
            except PyMongoError as cause:
                raise self._unread(cause) from cause

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        kinds = {KIND: parse_type("string"), ORDER: parse_type("long"), **self._types}
        fields = [Column(name, kinds[name]) for name in columns]
        decoder = DocumentDecoder(
            CollectionLayout((Column(ID, parse_type("json")), *fields)), collection=str(self._target)
        )
        with connect(self._uri, key_path="sink.uri") as client:
            collection = client[self._target.db][self._target.table]
            found = RawFind(collection, self._query(wanted), [ID, *columns], batch_size=_BATCH_DOCUMENTS)
            # The query uses the index. A scan would return a document twice if it is deleted and inserted again
            # meanwhile.
            found.hint([(ID, ASCENDING)])
            try:
                for raw in found:
                    yield from (batch.select(list(columns)) for batch in decoder.decode(cast("bytes", raw)))
                yield from (batch.select(list(columns)) for batch in decoder.flush())
            except PyMongoError as cause:
                raise self._unread(cause) from cause
            except DataError as cause:
                raise NotComparedError(f"a document of {self._target} has a value of another type: {cause}") from cause
            finally:
                found.close()

    def _query(self, wanted: RowFilter | None) -> Mapping[str, _OneOf | Sequence[Mapping[str, _OneOf | str]]]:
        """Return the condition by which the server skips documents.

        Numbers of any width are equal; texts are compared if the field stores texts.
        """
        parts: dict[str, _OneOf] = {}
        for name, values in () if wanted is None else wanted.values.items():
            texts = pa.types.is_string(values.type) and self._types[name] == parse_type("string")
            if texts or pa.types.is_integer(values.type):
                parts[name] = {"$in": values.to_pylist()}
        if not parts or wanted is None:
            return {}
        return {"$or": [parts, {KIND: EMPTIED}]} if wanted.of_changes else parts

    def _unread(self, cause: PyMongoError) -> SinkError:
        return SinkError(
            f"{self._target} cannot be read at sink.uri ({type(cause).__name__}). Check the account's roles."
        )


def _stored(logical: LogicalType) -> LogicalType:
    """Return the type of the field with values of the type `logical`."""
    match logical.kind:
        case TypeKind.BOOLEAN:
            return parse_type("bool")
        case TypeKind.INT8 | TypeKind.INT16 | TypeKind.INT32 | TypeKind.YEAR:
            return parse_type("int")
        case TypeKind.UINT64:
            return parse_type("decimal(20,0)")
        case TypeKind.BIT:
            return parse_type("long" if logical.length <= 63 else "decimal(20,0)")
        case TypeKind.INT64:
            return parse_type("long")
        case TypeKind.FLOAT32 | TypeKind.FLOAT64:
            return parse_type("double")
        case TypeKind.DECIMAL if logical.precision <= _DECIMAL_DIGITS:
            return parse_type(f"decimal({logical.precision},{logical.scale})")
        case TypeKind.DATE:
            return parse_type("day")
        case TypeKind.DATETIME | TypeKind.TIMESTAMP if logical.fsp <= _DATE_DIGITS:
            return parse_type("date")
        case TypeKind.BINARY:
            return parse_type(logical.native if logical.native.startswith("binData") else "binData")
        case TypeKind.STRING if logical.native in ("objectId", "binData(4)"):
            return parse_type("objectId" if logical.native == "objectId" else "uuid")
        case _:
            return parse_type("string")
