"""The statement by which a sink makes a target, as ``raycdc plan`` shows it. Pure.

Servers and table formats may get it in other words (through their own interfaces, with the settings of raycdc's own
bookkeeping); columns, types and key are those that the target gets.
"""

from __future__ import annotations

import json

from raycdc.config import SinkConfig
from raycdc.model import Column, LogicalType, TableId, TableSchema
from raycdc.model.layout import ANY_LAYOUT, TableLayout
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.sinks.jdbc.types import mysql_type, postgres_type
from raycdc.sinks.mongodb.plugin import MongoDbSinkConfig
from raycdc.sinks.mongodb.types import ID, form_of
from raycdc.sinks.rows import META_TYPES

#: Sinks whose targets are tables of files, and what Spark calls their format.
_FORMATS = {"delta": "DELTA", "iceberg": "ICEBERG", "parquet": "PARQUET", "jsonl": "JSON"}


def create_statement(sink: SinkConfig, target: TableId, schema: TableSchema, layout: TableLayout = ANY_LAYOUT) -> str:
    """A CREATE TABLE for `target`; empty where the sink has nothing like it."""
    changelog = sink.write == "changelog"
    columns = [*schema.columns, *(Column(name, kind) for name, kind in META_TYPES.items() if changelog)]
    key = () if changelog else schema.primary_key
    if isinstance(sink, JdbcSinkConfig):
        quote = '"' if sink.address().kind == "postgresql" else "`"
        parts = [f"{_quoted(c.name, quote)} {_type(sink, c.type, key=c.name in key)}" for c in columns]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(_quoted(name, quote) for name in key)})")
        return f"CREATE TABLE {_quoted(target.db, quote)}.{_quoted(target.table, quote)} ({', '.join(parts)})"
    if isinstance(sink, MongoDbSinkConfig):
        return _collection(target, columns, key)
    if sink.type not in _FORMATS:
        return ""
    parts = [f"{_quoted(column.name, '`')} {column.type.spark().upper()}" for column in columns]
    name = f"{_quoted(target.db, '`')}.{_quoted(target.table, '`')}"
    statement = f"CREATE TABLE {name} ({', '.join(parts)}) USING {_FORMATS[sink.type]}"
    if layout.partitions:
        statement += f" PARTITIONED BY ({', '.join(field.sql() for field in layout.partitions)})"
    if sink.type != "iceberg":
        statement += f" LOCATION '{str(getattr(sink, 'path', '')).rstrip('/')}/{target.db}/{target.table}'"
    if layout.options:
        pairs = (f"{_text(key)} = {_text(value)}" for key, value in layout.options)
        statement += f" TBLPROPERTIES ({', '.join(pairs)})"
    return statement


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _collection(target: TableId, columns: list[Column], key: tuple[str, ...]) -> str:
    """A collection's making, and what its documents look like."""
    fields = [f"{column.name}: {form_of(column.type).bson}" for column in columns if column.name != ID]
    ident = key[0] if len(key) == 1 else "{" + ", ".join(key or ("_seq", "split")) + "}"
    create = f"db.getSiblingDB({json.dumps(target.db)}).createCollection({json.dumps(target.table)})"
    return f"{create} // {{{ID}: {', '.join([ident, *fields])}}}"


def _type(sink: JdbcSinkConfig, kind: LogicalType, *, key: bool) -> str:
    return postgres_type(kind) if sink.address().kind == "postgresql" else mysql_type(kind, key=key)


def _quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, quote * 2) + quote
