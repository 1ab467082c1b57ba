"""The schema of a table, with which its rows pass from source to sink.

A `Column` has its default as text, in the form that its type prints: TIMESTAMP in UTC, BINARY as UTF-8. Existing rows
get the default of an added column; `constant` converts it to a value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from raycdc.core.typed_codec import JsonObject, read, stored
from raycdc.model.types import LogicalType


@dataclass(frozen=True, slots=True)
class Column(JsonObject):
    """One column.

    `default` is the constant that existing rows get when the column is added, as text, or None.

    `masked` is True if `default` is already the masked form of the constant, because a mask applies to the column.
    """

    name: str
    type: LogicalType
    nullable: bool = True
    default: str | None = None
    masked: bool = field(default=False, metadata=stored("hidden", left_out=True))

    def with_name(self, name: str) -> Column:
        """Return the column with another name."""
        return replace(self, name=name)

    def with_type(self, new: LogicalType) -> Column:
        """Return the column with another type."""
        return replace(self, type=new)


@dataclass(frozen=True, slots=True)
class TableSchema(JsonObject):
    """Columns in table order and the primary key's column names in key order (empty: no primary key)."""

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema of the table's own columns.

        Every field is nullable, because a before-image or a sink may need null.
        """
        return pa.schema([pa.field(c.name, c.type.arrow()) for c in self.columns])

    def spark_ddl(self) -> str:
        """Return the columns as a Spark SQL column list, with quoted names."""
        return ", ".join(f"`{c.name.replace('`', '``')}` {c.type.spark()}" for c in self.columns)

    def column(self, name: str) -> Column:
        """Return the column called exactly `name`. Raises KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def fingerprint(self) -> str:
        """Return 16 hex digits that identify this schema version in manifests, segments and the schema store."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        """Return the schema of this JSON.

        Tables with the same schema share one object, because databases of tenants may have tens of thousands of such
        tables.
        """
        return _schema_of(json.dumps({"columns": data["columns"], "primary_key": data["primary_key"]}))


@lru_cache(maxsize=1024)
def _schema_of(text: str) -> TableSchema:
    schema: TableSchema = read(TableSchema, json.loads(text))
    return schema


def constant(text: str, arrow: pa.DataType) -> pa.Scalar:
    """Return `text` as a value of the type `arrow`. Raises `pa.ArrowException` if it is none."""
    scalar = pa.scalar(text)
    # Arrow parses a text to a type with a time zone only if the text has a zone. This text has none, so it is parsed to
    # a type without a zone first.
    return scalar.cast(pa.timestamp("us")).cast(arrow) if pa.types.is_timestamp(arrow) else scalar.cast(arrow)
