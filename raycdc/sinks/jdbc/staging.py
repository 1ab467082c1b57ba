"""Rows of staging tables on their way into a target, by statements for the whole set; for every kind of server.

The parts of statements that are the same for all kinds of servers but for how each writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raycdc.model import Column, TableId
from raycdc.sinks.rows import DELETED
from raycdc.sinks.source_tables import CLAIMED, Key


class StatementExecutor(Protocol):
    """Statements of one transaction; `SinkError` with the server's words."""

    def run(self, statement: str, *arguments: Any) -> None:
        """Execute one statement."""

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one query and return its rows."""

    def changed(self, statement: str, *arguments: Any) -> int:
        """Execute one UPDATE; returns how many rows it found."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows of a staging table ``s`` to be written to a table ``t``: those for which `wanted` is true.

    They have `columns`, some of which are the `key`. In an existing row, the columns `dropped_columns` become null.
    """

    table: str
    stage: str
    columns: Sequence[Column]
    key: Sequence[str]
    dropped_columns: Sequence[str]
    wanted: str


class SqlDialect(Protocol):
    """How a kind of server writes the same things."""

    #: The moment of now.
    now: str
    #: The statement that defers constraint checks to the end of the transaction; empty if that is not supported.
    defer: str

    def quote(self, *parts: str) -> str:
        """An identifier, its parts joined by dots."""

    def parameters(self, count: int) -> list[str]:
        """Return `count` parameter placeholders."""

    def or_stays(self, column: str) -> str:
        """Return the end of an INSERT that changes nothing if a row has the key; `column` is one of the key."""

    def key_value(self, column: str) -> str:
        """A column of a key in a SELECT, as a value that people can read."""

    def staged(self, column: Column) -> str:
        """The value of a `column` of the staging table ``s``, as the target has it."""

    def delete_matching(self, table: str, stage: str, match: str, condition: str) -> str:
        """The statement that deletes the rows of ``table t`` that `match` those of ``stage s`` with the `condition`."""

    def upsert(self, rows: Upsert) -> Sequence[str]:
        """The statements that put the rows into the table, by its key alone: no other index says which row is meant."""


def names(dialect: SqlDialect, columns: Sequence[Column]) -> str:
    """The names of `columns`, as an INSERT has them."""
    return ", ".join(dialect.quote(column.name) for column in columns)


def values(dialect: SqlDialect, columns: Sequence[Column]) -> str:
    """The values of `columns` in the staging table ``s``."""
    return ", ".join(map(dialect.staged, columns))


def match(dialect: SqlDialect, key: Sequence[str]) -> str:
    """Return the condition that a row of the table ``t`` has the key of one of the staging table ``s``."""
    return " AND ".join(f"t.{dialect.quote(name)} = s.{dialect.quote(name)}" for name in key)


def relation(dialect: SqlDialect, target: TableId) -> str:
    """The table `target` as SQL writes it."""
    return dialect.quote(target.db, target.table)


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table of rows that no reader of the target sees yet (the result of `tasks.Load`)."""

    name: str
    rows: int
    deleted: int = 0
    truncated: bool = False
    #: The columns in which a row has NULL that is not deleted.
    nulls: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Incoming:
    """The rows of an epoch for `target`, with `columns`, some of which are the `key`.

    The rows of `append` are new; those of `merge` change existing ones, whose columns `dropped_columns` at the source
    become null.
    """

    target: TableId
    columns: Sequence[Column]
    key: Sequence[str]
    dropped_columns: Sequence[str]
    append: Sequence[StagedTable]
    merge: Sequence[StagedTable]


class Staging:
    """The staging tables in the database or schema `home`, in one transaction."""

    def __init__(self, statements: StatementExecutor, dialect: SqlDialect, home: str) -> None:
        self._statements = statements
        self._dialect = dialect
        self._home = home

    def rows(self, name: str) -> int:
        """Return the number of rows of a staging table."""
        count: int = self._statements.rows(f"SELECT COUNT(*) FROM {self._stage(name)}")[0][0]
        return count

    def take_out(self, rows: Incoming) -> None:
        """Delete all changed rows of the target first, so that unique values cannot collide."""
        for table in rows.merge:
            self._delete(rows, table)

    def put(self, rows: Incoming, *, deletes_last: bool = False) -> None:
        """Insert the rows.

        Raises `KeyRefusedError` if a unique value collides with another row of the target, and `ReferenceRefusedError`
        for a violated foreign key. With `deletes_last`, rows of the table may refer to each other, and checks are
        deferred to the end of the transaction if the server can.
        """
        dialect = self._dialect
        if deletes_last and dialect.defer:
            self._statements.run(dialect.defer)
        for table in rows.append:
            self._statements.run(
                f"INSERT INTO {relation(dialect, rows.target)} ({names(dialect, rows.columns)}) "
                f"SELECT {values(dialect, rows.columns)} FROM {self._stage(table.name)} s"
            )
        deleted = f"s.{dialect.quote(DELETED)}"
        for table in rows.merge:
            if table.deleted and not deletes_last:
                self._delete(rows, table, deleted)
            upsert = Upsert(
                relation(dialect, rows.target),
                self._stage(table.name),
                rows.columns,
                rows.key,
                rows.dropped_columns,
                f"NOT {deleted}",
            )
            statements = dialect.upsert(upsert)
            # Rows that were there may refer to new ones, which come first then.
            for statement in reversed(statements) if deletes_last else statements:
                self._statements.run(statement)
        for table in rows.merge if deletes_last else ():
            if table.deleted:
                self._delete(rows, table, deleted)

    def _delete(self, rows: Incoming, table: StagedTable, condition: str = "TRUE") -> None:
        """Delete the rows of the target that have keys of `table` for which the `condition` is true."""
        target, matching = relation(self._dialect, rows.target), match(self._dialect, rows.key)
        self._statements.run(self._dialect.delete_matching(target, self._stage(table.name), matching, condition))

    def taken(self, target: TableId, key: Sequence[str], name: str) -> Key | None:
        """The key of a `CLAIMED` row of a staging table that the target has already; None if there is none."""
        shown = ", ".join(map(self._dialect.key_value, key))
        found = self._statements.rows(
            f"SELECT {shown} FROM {relation(self._dialect, target)} t JOIN {self._stage(name)} s "
            f"ON {match(self._dialect, key)} WHERE s.{self._dialect.quote(CLAIMED)} LIMIT 1"
        )
        return dict(zip(key, found[0], strict=True)) if found else None

    def _stage(self, name: str) -> str:
        return self._dialect.quote(self._home, name)
