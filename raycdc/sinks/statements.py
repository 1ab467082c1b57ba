"""The statement by which a sink makes a target, as ``raycdc plan`` shows it: what sinks share. Pure."""

from __future__ import annotations

from raycdc.model import Column, TableId, TableSchema
from raycdc.model.layout import ANY_LAYOUT, TableLayout
from raycdc.sinks.api import CHANGELOG, TargetShape
from raycdc.sinks.rows import META_TYPES


def shape_of(write: str, target: TableId, schema: TableSchema, layout: TableLayout = ANY_LAYOUT) -> TargetShape:
    """The target that rows of `schema` get, where ``sink.write`` is `write`."""
    changelog = write == CHANGELOG
    more = (Column(name, kind) for name, kind in META_TYPES.items() if changelog)
    return TargetShape(target, (*schema.columns, *more), () if changelog else schema.primary_key, layout)


def spark_statement(shape: TargetShape, using: str, root: str = "") -> str:
    """A CREATE TABLE of Spark's SQL for a table of files in the format `using`, below the folder `root` if that is not
    the catalog's to say.
    """
    columns = [f"{quoted(column.name, '`')} {column.type.spark().upper()}" for column in shape.columns]
    name = f"{quoted(shape.name.db, '`')}.{quoted(shape.name.table, '`')}"
    statement = f"CREATE TABLE {name} ({', '.join(columns)}) USING {using}"
    if shape.layout.partitions:
        statement += f" PARTITIONED BY ({', '.join(field.sql() for field in shape.layout.partitions)})"
    if root:
        statement += f" LOCATION '{root.rstrip('/')}/{shape.name.db}/{shape.name.table}'"
    if shape.layout.options:
        pairs = (f"{_text(key)} = {_text(value)}" for key, value in shape.layout.options)
        statement += f" TBLPROPERTIES ({', '.join(pairs)})"
    return statement


def quoted(name: str, quote: str) -> str:
    """A name between quotes, those in it doubled."""
    return quote + name.replace(quote, quote * 2) + quote


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
