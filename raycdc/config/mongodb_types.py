"""Types of documents' fields as the configuration names them; what they take and give is in
`raycdc.connectors.mongodb.layout`. Pure.
"""

from __future__ import annotations

import re

from raycdc.model import LogicalType, TypeKind
from raycdc.model.types import DECIMAL_PRECISION_MAX

_SIMPLE = {
    "bool": LogicalType(TypeKind.BOOLEAN, native="bool"),
    "int": LogicalType(TypeKind.INT32, native="int"),
    "long": LogicalType(TypeKind.INT64, native="long"),
    "float": LogicalType(TypeKind.FLOAT32, native="float"),
    "double": LogicalType(TypeKind.FLOAT64, native="double"),
    "decimal128": LogicalType(TypeKind.STRING, native="decimal128"),
    "date": LogicalType(TypeKind.TIMESTAMP, fsp=3, native="date"),
    "day": LogicalType(TypeKind.DATE, native="day"),
    "string": LogicalType(TypeKind.STRING, native="string"),
    "objectId": LogicalType(TypeKind.STRING, native="objectId"),
    # Other databases have a uuid, too.
    "uuid": LogicalType(TypeKind.STRING, native="binData(4)"),
    "json": LogicalType(TypeKind.JSON, native="json"),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_BINARY = re.compile(r"binData(?:\(\s*(\d{1,3})\s*\))?")


def type_names() -> tuple[str, ...]:
    """Every type that the configuration may name, those with parameters once."""
    return (*_SIMPLE, "decimal(12,2)", "binData")


def parse_type(text: str) -> LogicalType:
    """A type as the configuration names it. Raises ValueError with the ones there are."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    if (decimal := _DECIMAL.fullmatch(text)) is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or scale > precision:
            raise ValueError(f'"{text}": at most {DECIMAL_PRECISION_MAX} digits, and no more of them behind the point')
        return LogicalType(TypeKind.DECIMAL, precision=precision, scale=scale, native=f"decimal({precision},{scale})")
    if (binary := _BINARY.fullmatch(text)) is not None and int(binary[1] or 0) <= 255:
        return LogicalType(TypeKind.BINARY, native=f"binData({int(binary[1] or 0)})")
    known = ", ".join([*_SIMPLE, "decimal(p,s)", "binData", "binData(subtype)"])
    raise ValueError(f'"{text}" is none of the types {known}')


def subtype_of(logical: LogicalType) -> int:
    """The subtype that a column of binary data takes."""
    match = _BINARY.fullmatch(logical.native)
    return int(match[1] or 0) if match else 0
