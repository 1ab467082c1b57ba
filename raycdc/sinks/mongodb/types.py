"""Maps logical types to BSON types. Every value arrives unchanged, or is refused with an error.

| kind | BSON | note |
|---|---|---|
| BOOLEAN | bool | |
| INT8, INT16, INT32, YEAR | int32 | |
| INT64, BIT(1 … 63) | int64 | |
| UINT64, BIT(64) | int64, from 2^63 on Decimal128 | MongoDB compares numbers of all types by value |
| FLOAT32, FLOAT64 | double | including NaN, infinities and −0.0 |
| DECIMAL(p, s), p ≤ 34 | Decimal128 with exactly s digits after the point | |
| … with more digits | string of all digits | Decimal128 has 34 |
| STRING, ENUM, SET, TIME, JSON | string | JSON as the source's text: a document could not keep its numbers and keys |
| … of a MongoDB source: objectId, uuid | objectId, binary of subtype 4 | text of another form is an error |
| BINARY | binary, subtype 0 | |
| … of a MongoDB source: binData(n), bson | binary, subtype n; the value itself | |
| … "bson document" | the document's own fields, next to the columns; in a changelog a document | |
| DATE | date, at midnight UTC | |
| DATETIME(0 … 3), TIMESTAMP(0 … 3) | date | a local time is stored as if it were UTC |
| DATETIME(4 … 6), TIMESTAMP(4 … 6) | string ``2024-02-29 12:00:00.000001``, in UTC | a BSON date has milliseconds |
| null | null | a missing field means null, too: an added column leaves old documents unchanged |
| … next to a "bson document" | no field | the document has the nulls |

The type of the column decides about the BSON type, and never the value (except for UINT64), so a field has one type in
all documents. A computed column of a time type has no declared fractional digits; a value with microseconds in it is an
error. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from raycdc.model import Column, TableId, TableSchema
from raycdc.model.rules.names import NAMES
from raycdc.model.types import LogicalType, TypeKind, wide_decimal
from raycdc.sinks.targets import check_names

#: The number of digits that Decimal128 can hold.
DECIMAL_DIGITS_MAX = 34
#: The fractional digits of a second that a BSON date can hold.
DATE_DIGITS = 3
#: A document's size limit, the same on all servers.
DOCUMENT_BYTES_MAX = 16 << 20
ID = "_id"


class BsonForm(Enum):
    """The BSON form of a column's values."""

    BOOL = "bool"
    INT32 = "int"
    INT64 = "long"
    UINT64 = "long | decimal"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DIGITS = "string of a decimal"
    OBJECT_ID = "objectId"
    UUID = "binData of a uuid"
    VALUE = "any"
    FIELDS = "object"
    TEXT = "string"
    BINARY = "binData"
    DAY = "date of a day"
    DATE = "date"
    MOMENT = "string of a moment"

    @property
    def bson(self) -> str:
        """Return MongoDB's alias of the type."""
        return self.value.partition(" of ")[0]


def form_of(logical: LogicalType) -> BsonForm:
    """Return the BSON form of a column of this type."""
    match logical.kind:
        case TypeKind.DECIMAL:
            return BsonForm.DECIMAL if logical.precision <= DECIMAL_DIGITS_MAX else BsonForm.DIGITS
        case TypeKind.DATETIME | TypeKind.TIMESTAMP:
            return BsonForm.DATE if logical.fsp <= DATE_DIGITS else BsonForm.MOMENT
        case TypeKind.BIT:
            return BsonForm.INT64 if logical.length <= 63 else BsonForm.UINT64
        case TypeKind.STRING | TypeKind.BINARY if logical.native in _OWN[logical.kind]:
            return _OWN[logical.kind][logical.native]
        case kind:
            return _FORMS.get(kind, BsonForm.TEXT)


def subtype_of(logical: LogicalType) -> int:
    """Return the binary subtype for a BINARY column of this type."""
    match = _BINARY.fullmatch(logical.native)
    return int(match[1]) if match and logical.kind is TypeKind.BINARY else 0


def spread(columns: Sequence[Column]) -> bool:
    """Return True if documents have fields in addition to those of `columns`. In such documents, NULL is written as a
    missing field.
    """
    return any(form_of(column.type) is BsonForm.FIELDS for column in columns)


def any_key(schema: TableSchema) -> bool:
    """Return True if keys may be of any type. For the server, different keys of the source may then be equal, such as 1
    and 1.0.
    """
    return any(form_of(schema.column(name).type) is BsonForm.VALUE for name in schema.primary_key)


def same_form(old: LogicalType, new: LogicalType) -> bool:
    """Return True if values written as `old` have the same BSON type as when written as `new`."""
    one, other = form_of(old), form_of(new)
    if one is BsonForm.BINARY and other is BsonForm.BINARY:
        return subtype_of(old) == subtype_of(new)
    return one is other or {one, other} <= _INTEGERS or {one, other} <= _EXACT


def same_key(old: LogicalType, new: LogicalType) -> bool:
    """Return True if a key written by the type `old` equals the same key written by the type `new`. Both types have the
    same BSON form. For example, a time as a text with more fractional digits is a different key.
    """
    return form_of(old) not in _TEXTS or _digits(old) == _digits(new)


def key_pattern(logical: LogicalType) -> str | None:
    """Return the pattern of all texts of a key column of this type; None if they are no texts, or may be any text."""
    digits = _digits(logical)
    if form_of(logical) not in _TEXTS or digits is None:
        return None
    fraction = rf"\.[0-9]{{{digits}}}" if digits else ""
    whole = "-?[0-9]+" if logical.kind in (TypeKind.DECIMAL, TypeKind.STRING) else "[-+]?[0-9][-0-9 :]*"
    return f"^{whole}{fraction}$"


def _digits(logical: LogicalType) -> int | None:
    """Return the number of fractional digits in every text of this type; None if it is no number and no time."""
    if logical.kind in (TypeKind.DATETIME, TypeKind.TIMESTAMP, TypeKind.TIME):
        return logical.fsp
    if logical.kind is TypeKind.DECIMAL:
        return logical.scale
    wide = wide_decimal(logical) if logical.kind is TypeKind.STRING else None
    return wide and wide[1]


def check_columns(target: TableId, columns: Sequence[Column], key: Sequence[str], *, upsert: bool) -> None:
    """Raise `SinkError` for column names that MongoDB cannot hold."""
    check_names(NAMES["mongodb"], target, [column.name for column in columns], key, upsert=upsert)


def check_name(target: TableId) -> None:
    """Raise `SinkError` for a table whose name is not valid for a database and a collection."""
    check_names(NAMES["mongodb"], target, ())


_FORMS = {
    TypeKind.BOOLEAN: BsonForm.BOOL,
    TypeKind.INT8: BsonForm.INT32,
    TypeKind.INT16: BsonForm.INT32,
    TypeKind.INT32: BsonForm.INT32,
    TypeKind.YEAR: BsonForm.INT32,
    TypeKind.INT64: BsonForm.INT64,
    TypeKind.UINT64: BsonForm.UINT64,
    TypeKind.FLOAT32: BsonForm.DOUBLE,
    TypeKind.FLOAT64: BsonForm.DOUBLE,
    TypeKind.BINARY: BsonForm.BINARY,
    TypeKind.DATE: BsonForm.DAY,
}
#: Native types of a MongoDB source that are written as MongoDB's own types.
_OWN = {
    TypeKind.STRING: {"objectId": BsonForm.OBJECT_ID, "binData(4)": BsonForm.UUID},
    TypeKind.BINARY: {"bson": BsonForm.VALUE, "bson document": BsonForm.FIELDS},
}
_BINARY = re.compile(r"binData\((\d{1,3})\)")
_INTEGERS = {BsonForm.INT32, BsonForm.INT64}
_TEXTS = {BsonForm.DIGITS, BsonForm.MOMENT, BsonForm.TEXT}
_EXACT = {BsonForm.UINT64, BsonForm.DECIMAL}
