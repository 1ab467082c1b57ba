"""The values that all packages use: tables, types, schemas, row kinds and the columns of a changelog batch."""

from __future__ import annotations

from raycdc.model.batch import (
    META_COLUMNS,
    META_FIELDS,
    RowKind,
    as_inserts,
    changelog_schema,
    lost_values,
    part_of,
    with_lost_values,
)
from raycdc.model.keys import key_hashes
from raycdc.model.schema import Column, TableSchema
from raycdc.model.table import TableId
from raycdc.model.types import LogicalType, TypeKind

__all__ = [
    "META_COLUMNS",
    "META_FIELDS",
    "Column",
    "LogicalType",
    "RowKind",
    "TableId",
    "TableSchema",
    "TypeKind",
    "as_inserts",
    "changelog_schema",
    "key_hashes",
    "lost_values",
    "part_of",
    "with_lost_values",
]
