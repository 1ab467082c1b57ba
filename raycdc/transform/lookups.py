"""Lookups of a table whose columns are known: the key column, the type of the documents' field, and the added columns.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raycdc.errors import SchemaError
from raycdc.model import META_COLUMNS, LogicalType, TypeKind
from raycdc.model.lookup import LookedUpColumn, Lookup
from raycdc.transform.columns import ResolvedColumn

#: The beginning of the names of added columns in a joined segment.
LOOKED_UP = "_raycdc_looked_up_"

_WHOLE = frozenset({TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64, TypeKind.UINT64, TypeKind.YEAR})
#: The meaning of MongoDB's texts by their native types; nothing equals those of a decimal128.
_OWN = {"objectId": "objectId", "binData(4)": "uuid", "decimal128": ""}
#: Bytes that are BSON of any type.
_MIXED = frozenset({"bson", "bson document"})
_TEXT = frozenset({TypeKind.STRING, TypeKind.ENUM, TypeKind.SET})


@dataclass(frozen=True, slots=True)
class ResolvedLookup:
    """A lookup for rows of one table. `key` is its key column, as the result of the table's transform has it,
    `key_type` the type of the documents' field, and `first` the number of its first column among the added ones.
    """

    lookup: Lookup
    key: str
    key_type: str
    first: int

    def stored(self) -> Iterator[tuple[str, LookedUpColumn]]:
        """The columns as segments have them."""
        for number, column in enumerate(self.lookup.columns, start=self.first):
            yield f"{LOOKED_UP}{number}", column


def resolved_lookups(where: str, lookups: Sequence[Lookup], columns: Sequence[ResolvedColumn]) -> list[ResolvedLookup]:
    """`lookups` for rows with `columns`. `SchemaError` for one that has no usable key column."""
    there = {column.name.casefold(): column for column in columns}
    found: list[ResolvedLookup] = []
    first = 0
    for lookup in lookups:
        at = f"{where}: {lookup.place}.on"
        column = there.get(lookup.key.casefold())
        if column is None:
            known = ", ".join(one.name for one in columns)
            raise SchemaError(f"{at}: there is no column {lookup.key!r}. The table's rows have {known}.")
        if column.stored in META_COLUMNS or not (column.stored or column.sql):
            raise SchemaError(f"{at}: {column.name!r} is no column of the table, and nothing is looked up by it.")
        key_type = _key_type(column.type, lookup.key_type)
        if not key_type:
            asked = f" as {lookup.key_type}" if lookup.key_type else ""
            raise SchemaError(
                f"{at}: {column.name!r}, a column of type {column.type.kind}, cannot be looked up by{asked}. Whole "
                "numbers, texts and bytes can; a text is a string, an objectId or a uuid (key_type)."
            )
        found.append(ResolvedLookup(lookup, column.name, key_type, first))
        first += len(lookup.columns)
    return found


def _key_type(logical: LogicalType, asked: str) -> str:
    """The type of the field that equals a column of type `logical`; empty where none does."""
    if logical.kind in _WHOLE or (logical.kind is TypeKind.BIT and logical.length <= 63):
        return "long" if asked in ("", "long") else ""
    if logical.kind in _TEXT:
        known = asked or _OWN.get(logical.native, "string")
        return known if known != "long" else ""
    if logical.kind is TypeKind.BINARY and not asked and logical.native not in _MIXED:
        return logical.native if logical.native.startswith("binData(") else "binData(0)"
    return ""
