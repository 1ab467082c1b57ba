"""The parts of statements that are the same for all kinds of servers but for how each writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raycdc.model import Column, TableId


class Statements(Protocol):
    """Statements of one transaction; `SinkError` with the server's words."""

    def run(self, statement: str, *arguments: Any) -> None:
        """Execute one statement."""

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one query and fetch what it finds."""

    def changed(self, statement: str, *arguments: Any) -> int:
        """Execute one UPDATE; returns how many rows it found."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows of a staging table ``s`` that are to be in a table ``t``: those for which `wanted` is true, with `columns`,
    of which some are the `key`. In a row that is there already columns `gone` become null.
    """

    table: str
    stage: str
    columns: Sequence[Column]
    key: Sequence[str]
    gone: Sequence[str]
    wanted: str


class Dialect(Protocol):
    """How a kind of server writes the same things."""

    #: The moment of now.
    now: str
    #: The statement by which constraints that can be are looked at when the transaction ends; empty: none can.
    defer: str

    def quote(self, *parts: str) -> str:
        """An identifier, its parts joined by dots."""

    def parameters(self, count: int) -> list[str]:
        """The places of so many arguments."""

    def or_stays(self, column: str) -> str:
        """The end of an INSERT that changes nothing where there is a row with the key; `column` is one of the key."""

    def key_value(self, column: str) -> str:
        """A column of a key in a SELECT, as a value that people can read."""

    def staged(self, column: Column) -> str:
        """The value of a `column` of the staging table ``s``, as the target has it."""

    def delete_matching(self, table: str, stage: str, match: str, condition: str) -> str:
        """The statement that deletes the rows of ``table t`` that `match` those of ``stage s`` with the `condition`."""

    def upsert(self, rows: Upsert) -> Sequence[str]:
        """The statements that put the rows into the table, by its key alone: no other index says which row is meant."""


def names(dialect: Dialect, columns: Sequence[Column]) -> str:
    """The names of `columns`, as an INSERT has them."""
    return ", ".join(dialect.quote(column.name) for column in columns)


def values(dialect: Dialect, columns: Sequence[Column]) -> str:
    """The values of `columns` in the staging table ``s``."""
    return ", ".join(map(dialect.staged, columns))


def match(dialect: Dialect, key: Sequence[str]) -> str:
    """The condition that a row of the table ``t`` has the key of one of the staging table ``s``."""
    return " AND ".join(f"t.{dialect.quote(name)} = s.{dialect.quote(name)}" for name in key)


def relation(dialect: Dialect, target: TableId) -> str:
    """The table `target` as SQL writes it."""
    return dialect.quote(target.db, target.table)
