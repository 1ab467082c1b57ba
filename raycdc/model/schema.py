"""The schema of a table as raycdc carries it from source to sink.

Constants of a schema as values: the default that rows which exist get in an added column.

The text is the one a `Column` carries as its default: what its type shows, TIMESTAMP in UTC, BINARY as UTF-8.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NotRequired, TypedDict

import pyarrow as pa

from raycdc.model.types import LogicalType, TypeJson


class ColumnJson(TypedDict):
    """A `Column` in state files."""

    name: str
    type: TypeJson
    nullable: bool
    default: str | None
    hidden: NotRequired[bool]


class SchemaJson(TypedDict):
    """A `TableSchema` in state files."""

    columns: list[ColumnJson]
    primary_key: list[str]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `default` is the constant an added column gives to rows that existed before, as text, or None.

    `hidden`: it is what a mask leaves of that constant, to stand in rows that are masked already.
    """

    name: str
    type: LogicalType
    nullable: bool = True
    default: str | None = None
    hidden: bool = False

    def to_json(self) -> ColumnJson:
        document = ColumnJson(name=self.name, type=self.type.to_json(), nullable=self.nullable, default=self.default)
        return {**document, "hidden": True} if self.hidden else document

    @classmethod
    def from_json(cls, data: ColumnJson) -> Column:
        known = (data["name"], LogicalType.from_json(data["type"]), data["nullable"], data["default"])
        return cls(*known, hidden=data.get("hidden", False))


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns in table order and the primary key's column names in key order (empty: no primary key)."""

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()

    def arrow(self) -> pa.Schema:
        """Arrow schema of the table's columns alone. Every field is nullable: a before-image or a sink may need it."""
        return pa.schema([pa.field(c.name, c.type.arrow()) for c in self.columns])

    def spark_ddl(self) -> str:
        """The columns as a Spark SQL column list, names quoted."""
        return ", ".join(f"`{c.name.replace('`', '``')}` {c.type.spark()}" for c in self.columns)

    def column(self, name: str) -> Column:
        """The column called exactly `name`; KeyError when there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def fingerprint(self) -> str:
        """16 hex digits that name this schema version in manifests, segments and the schema store."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> SchemaJson:
        return {"columns": [c.to_json() for c in self.columns], "primary_key": list(self.primary_key)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        """One object for many tables of one schema: tenants have tables by the ten thousand."""
        return _schema_of(json.dumps({"columns": data["columns"], "primary_key": data["primary_key"]}))


@lru_cache(maxsize=1024)
def _schema_of(text: str) -> TableSchema:
    data: SchemaJson = json.loads(text)
    return TableSchema(tuple(Column.from_json(column) for column in data["columns"]), tuple(data["primary_key"]))


def constant(text: str, arrow: pa.DataType) -> pa.Scalar:
    """`text` as a value of `arrow`. Raises `pa.ArrowException` where it is none."""
    scalar = pa.scalar(text)
    # A moment is read without a zone first: Arrow wants one in the text of a type that has one.
    return scalar.cast(pa.timestamp("us")).cast(arrow) if pa.types.is_timestamp(arrow) else scalar.cast(arrow)
