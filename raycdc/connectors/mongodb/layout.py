"""Layouts: the columns of a collection's documents with their types, and the treatment of values that fit no column.

A layout is decided when a collection is first read and kept in its schema document, so that all chunks of the
collection are read in the same way, even after a change of the configuration.

| type in the configuration | BSON | column |
|---|---|---|
| bool | bool | BOOLEAN |
| int, long | int, long, whole double | INT32, INT64 |
| double, float | double, int, long | FLOAT64, FLOAT32 |
| decimal(p,s) | decimal128, int, long, whole double | DECIMAL |
| decimal128 | decimal128 | STRING: digits and exponent unchanged |
| date | date | TIMESTAMP(3) |
| day | date at midnight UTC | DATE |
| string | string, symbol | STRING |
| objectId, uuid | objectId; binData of subtype 4 | STRING |
| binData, binData(n) | binData of subtype 0, n | BINARY |
| json | any | JSON: Extended JSON |

With `Spelling.BSON`, columns of JSON and of decimal128 are BINARY, and hold BSON: the byte of the value's type, and the
value's bytes in the document. Together with `_rest`, such a layout holds every document exactly: all other columns take
only values of their own type, and NULL means a missing field. A field that is null, undefined or of a different type is
in `_rest`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from raycdc.config.mongodb import parse_type, subtype_of
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.tables.resnapshots import TableVersion

__all__ = [
    "COLLECTION", "FIELDS", "ID", "METADATA_FIELDS", "REST", "UNFIT_NAME", "VALUE", "WHOLE", "CollectionLayout",
    "OnTypeMismatch", "Spelling", "declared", "parse_type", "subtype_of", "whole_documents", "with_metadata",
]  # fmt: skip

#: The kind of collections that are read, and the message noun for any kind; the server has views and time series, too.
COLLECTION = "collection"
#: The key column of every collection.
ID = "_id"
#: The column with the whole document, in the mode ``document``.
WHOLE = "document"
#: The column with all fields that have no column, as one document; NULL if there are none.
REST = "_rest"


class Spelling(StrEnum):
    """The form of BSON values in JSON columns: Extended JSON v2, or BSON itself."""

    RELAXED = "relaxed"
    CANONICAL = "canonical"
    BSON = "bson"


class OnTypeMismatch(StrEnum):
    """The treatment of a value that its column cannot hold exactly."""

    FAIL = "fail"
    NULL = "null"
    REST = "rest"


class OnConflict(StrEnum):
    """The treatment of a value that the inferred column of its field cannot hold."""

    UNION = "union"
    TEXT = "text"
    REST = "rest"


#: The type of a column with any BSON value, and of a column with a document's fields, in `Spelling.BSON`.
VALUE = LogicalType(TypeKind.BINARY, native="bson")
FIELDS = LogicalType(TypeKind.BINARY, native="bson document")
#: The prefix of types of metadata columns, which are filled from the event and not from a document.
METADATA = "metadata "
#: The fields of events that metadata columns can have (`raycdc.connectors.mongodb.stream.events`).
METADATA_FIELDS: Mapping[str, LogicalType] = {
    "database": LogicalType(TypeKind.STRING),
    "collection": LogicalType(TypeKind.STRING),
    "op_time": LogicalType(TypeKind.TIMESTAMP, fsp=3),
    "cluster_time": LogicalType(TypeKind.INT64),
    "wall_time": LogicalType(TypeKind.TIMESTAMP, fsp=3),
    "txn_number": LogicalType(TypeKind.INT64),
}
#: Characters that a column name must not have in some target (Delta Lake allows the fewest).
UNFIT_NAME = re.compile(r"[ ,;{}()\n\t=.`$\0]")
#: The number of digits of a decimal128.
_DIGITS_MAX = 34


@dataclass(frozen=True, slots=True)
class CollectionLayout:
    """The layout of a collection: its columns in order, `ID` first and never NULL.

    `rest`, `whole` and `others` name the columns that are no field.

    `others` are pairs of a field and the additional JSON column for values that the field's column cannot hold. `uuid`
    is the collection's UUID in hexadecimal ("": not known). A new UUID means a new collection of the same name. `asked`
    is the configuration of the collection as text, for display and comparison.
    """

    columns: tuple[Column, ...]
    json: Spelling = Spelling.RELAXED
    on_type_mismatch: OnTypeMismatch = OnTypeMismatch.FAIL
    whole: bool = False
    uuid: str = ""
    asked: str = ""
    others: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert self.columns[0].name == ID
        assert not self.whole or self.columns[-1].name == WHOLE

    @property
    def rest(self) -> bool:
        """Return True if a column holds the fields without a column."""
        return self.on_type_mismatch is OnTypeMismatch.REST and not self.whole

    @property
    def rest_at(self) -> int:
        """Return the index of the rest column, or -1; columns added later follow it."""
        return [column.name for column in self.columns].index(REST) if self.rest else -1

    def overflow_at(self) -> list[int]:
        """Return for each column the index of the one for values that it cannot hold, or -1."""
        overflow = dict(self.others)
        names = [column.name for column in self.columns]
        return [names.index(overflow[name]) if name in overflow else -1 for name in names]

    @property
    def fields(self) -> tuple[Column, ...]:
        """Return the columns that are fields of the documents."""
        none = {other for _, other in self.others} | ({REST} if self.rest else set())
        none |= {column.name for column in self.columns if column.type.native.startswith(METADATA)}
        if self.whole:
            none.add(WHOLE)
        return tuple(column for column in self.columns if column.name not in none)

    def schema(self) -> TableSchema:
        return TableSchema(self.columns, (ID,))

    def version(self) -> TableVersion:
        """Return the columns with the schema document."""
        return TableVersion(self.schema(), self.document())

    def document(self) -> SchemaDocument:
        """Return the schema document; `from_document` is its inverse.

        Its fingerprint covers the whole document, so two collections with the same columns have different fingerprints.
        """
        others = {"others": dict(self.others)} if self.others else {}
        how = {"json": self.json.value, "on_misfit": self.on_type_mismatch.value, "whole": self.whole, **others}
        body = {**self.schema().to_json(), "mongodb": how, "uuid": self.uuid, "asked": self.asked}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return SchemaDocument.from_json({**body, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16]})

    @classmethod
    def from_document(cls, document: SchemaDocument) -> CollectionLayout:
        """Return the inverse of `document`."""
        how = document.own("mongodb")
        columns = document.schema.columns
        json_, mismatch = Spelling(how["json"]), OnTypeMismatch(how["on_misfit"])
        others = tuple(how.get("others", {}).items())
        return cls(columns, json_, mismatch, how["whole"], document.own("uuid"), document.own("asked"), others)


def declared(types: dict[str, LogicalType], *, json: Spelling, on_type_mismatch: OnTypeMismatch) -> CollectionLayout:
    """Return the layout of the configured columns, `ID` among them, with the rest column if that is kept."""
    names = [ID, *(name for name in types if name != ID)]
    columns = [Column(name, _spelled(types[name], json), nullable=name != ID) for name in names]
    if on_type_mismatch is OnTypeMismatch.REST:
        columns.append(Column(REST, FIELDS if json is Spelling.BSON else parse_type("json")))
    return CollectionLayout(tuple(columns), json, on_type_mismatch)


def whole_documents(key: LogicalType | None, *, json: Spelling) -> CollectionLayout:
    """Return the layout of the mode ``document``: the key, and the document as text or as BSON."""
    ident = _spelled(key or parse_type("json"), json)
    whole = FIELDS if json is Spelling.BSON else parse_type("json")
    columns = (Column(ID, ident, nullable=False), Column(WHOLE, whole, nullable=False))
    return CollectionLayout(columns, json, OnTypeMismatch.FAIL, whole=True)


def with_metadata(layout: CollectionLayout, wanted: Mapping[str, str]) -> CollectionLayout:
    """Return `layout` with a column for each of the `wanted` fields, given with the names of their columns.

    They follow the key, so that columns added later come after them.
    """
    columns = [Column(name, replace(METADATA_FIELDS[field], native=METADATA + field)) for field, name in wanted.items()]
    return replace(layout, columns=(layout.columns[0], *columns, *layout.columns[1:]))


def _spelled(logical: LogicalType, json: Spelling) -> LogicalType:
    """Return the type of a column in this spelling: BSON if text or a decimal could lose something."""
    wide = logical.kind is TypeKind.DECIMAL and logical.precision > _DIGITS_MAX
    text = logical.kind is TypeKind.JSON or logical.native == "decimal128"
    return VALUE if json is Spelling.BSON and (wide or text) else logical
