"""Transforms that only choose, rename and add columns, resolved without Spark. Pure."""

from __future__ import annotations

from typing import assert_never

from raycdc.errors import ConfigError
from raycdc.model import TableId, TableSchema
from raycdc.model.transform import Constant, Expression, Renamed, Star, Transform
from raycdc.model.view import constant_type
from raycdc.schema.apply import find_column
from raycdc.transform.columns import ResolvedColumn
from raycdc.transform.resolved import (
    META_LOGICAL,
    ResolvedTransform,
    Uses,
    finished,
    star_columns,
    unknown_column,
)


def is_plain(transform: Transform) -> bool:
    """Whether the transform needs no Spark."""
    return not transform.filter and not any(isinstance(item, Expression) for item in transform.items)


def needs_spark(transform: Transform) -> bool:
    """Whether a run without Spark cannot carry the transform out."""
    return not is_plain(transform) or bool(transform.udfs)


class PlainResolver:
    """A `Resolver` for plain transforms; others are a `ConfigError`, with the way out."""

    def resolve(self, table: TableId, transform: Transform, schema: TableSchema, place: str) -> ResolvedTransform:
        if not is_plain(transform):
            raise ConfigError(
                f"{place}: Spark computes its columns and filters, and --local runs without it. Run it without --local."
            )
        where = f"{place}: {table}"
        columns: list[ResolvedColumn] = []
        used: set[str] = set()
        for item in transform.items:
            assert not isinstance(item, Expression), item
            if isinstance(item, Star):
                columns += star_columns(where, item, schema)
                used |= {name.casefold() for name in item.left_out}
            else:
                columns.append(plain_column(where, item, schema))
                used.add(columns[-1].stored.casefold())
        uses = Uses(frozenset(used - META_LOGICAL.keys() - {""}), frozenset(used & META_LOGICAL.keys()))
        return finished(table, transform, schema, columns, uses=uses, place=place)


def plain_column(where: str, item: Renamed | Constant, schema: TableSchema) -> ResolvedColumn:
    """The column that `item` gives. `SchemaError` where the table lacks it."""
    match item:
        case Constant(value, name):
            return ResolvedColumn(name, constant_type(value), nullable=False, constant=value)
        case Renamed(column, name) if column.casefold() in META_LOGICAL:
            there = column.casefold()
            return ResolvedColumn(name, META_LOGICAL[there], stored=there)
        case Renamed(column, name, at):
            index = find_column(schema, column)
            if index is None:
                raise unknown_column(where, column, at, schema)
            found = schema.columns[index]
            # A column that is named without AS keeps its own spelling.
            return ResolvedColumn(found.name if name == column else name, found.type, found.nullable, found.name)
        case _:
            assert_never(item)
