"""Moves the rows of staging tables into a target, by set-based statements in one transaction.

The statements are the same for all kinds of servers, except for the parts in `SqlDialect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raycdc.model import Column, TableId
from raycdc.sinks.rows import DELETED
from raycdc.sinks.source_tables import CLAIMED, Key


class StatementExecutor(Protocol):
    """Runs statements of one transaction. Raises `SinkError` with the server's message."""

    def run(self, statement: str, *arguments: Any) -> None:
        """Execute one statement."""

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one query and return its rows."""

    def changed(self, statement: str, *arguments: Any) -> int:
        """Execute one UPDATE, and return how many rows it matched."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """The rows of a staging table ``s`` that are written to a table ``t``. They are the rows for which the condition
    `wanted` is true. They have `columns`, which include the `key`. In an existing row, `dropped_columns` become null.
    """

    table: str
    stage: str
    columns: Sequence[Column]
    key: Sequence[str]
    dropped_columns: Sequence[str]
    wanted: str


class SqlDialect(Protocol):
    """The parts of SQL that depend on the kind of server."""

    #: The expression for the present time.
    now: str
    #: The statement that defers constraint checks to the end of the transaction; empty if that is not supported.
    defer: str

    def quote(self, *parts: str) -> str:
        """Return an identifier, its parts joined by dots."""

    def parameters(self, count: int) -> list[str]:
        """Return `count` parameter placeholders."""

    def or_stays(self, column: str) -> str:
        """Return the end of an INSERT that changes nothing if a row with the key exists; `column` is a column of the
        key.
        """

    def key_value(self, column: str) -> str:
        """Return the expression in a SELECT for a key column, as a value that people can read."""

    def staged(self, column: Column) -> str:
        """Return the expression for the value of `column` in the staging table ``s``, with the target's type."""

    def delete_matching(self, table: str, stage: str, match: str, condition: str) -> str:
        """Return the statement that deletes the rows of ``table t`` that `match` a row of ``stage s`` for which
        `condition` is true.
        """

    def upsert(self, rows: Upsert) -> Sequence[str]:
        """Return the statements that write the rows into the table.

        Existing rows are found by the table's key, and by no other index.
        """


def names(dialect: SqlDialect, columns: Sequence[Column]) -> str:
    """Return the names of `columns` for an INSERT."""
    return ", ".join(dialect.quote(column.name) for column in columns)


def values(dialect: SqlDialect, columns: Sequence[Column]) -> str:
    """Return the expressions for the values of `columns` in the staging table ``s``."""
    return ", ".join(map(dialect.staged, columns))


def match(dialect: SqlDialect, key: Sequence[str]) -> str:
    """Return the condition that a row of the table ``t`` has the key of a row of the staging table ``s``."""
    return " AND ".join(f"t.{dialect.quote(name)} = s.{dialect.quote(name)}" for name in key)


def relation(dialect: SqlDialect, target: TableId) -> str:
    """Return the name of the table `target` in SQL."""
    return dialect.quote(target.db, target.table)


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A staging table that a task has loaded (the result of `tasks.LoadStagingTable`)."""

    name: str
    rows: int
    deleted: int = 0
    truncated: bool = False
    #: The columns in which a row that is not a deletion has NULL.
    nulls: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Incoming:
    """The rows of an epoch for `target`, with `columns`, which include the `key`. The rows of the tables in `append`
    are new. The rows of the tables in `merge` may change existing rows. In changed rows, the columns that the source no
    longer has (`dropped_columns`) become null.
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
        """Delete all rows with a changed key from the target, so that unique values cannot collide when the new rows
        are inserted.
        """
        for table in rows.merge:
            self._delete(rows, table)

    def put(self, rows: Incoming, *, deletes_last: bool = False) -> None:
        """Insert the rows.

        Raises `KeyRefusedError` if a unique value collides with another row of the target, and `ReferenceRefusedError`
        for a violated foreign key. If `deletes_last` is True, deletions come last, because rows may refer to each
        other. If the server supports it, constraint checks are deferred to the end of the transaction.
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
            # Existing rows may refer to new ones, which are therefore inserted first.
            for statement in reversed(statements) if deletes_last else statements:
                self._statements.run(statement)
        for table in rows.merge if deletes_last else ():
            if table.deleted:
                self._delete(rows, table, deleted)

    def _delete(self, rows: Incoming, table: StagedTable, condition: str = "TRUE") -> None:
        """Delete the rows of the target that have the key of a row of `table` for which `condition` is true."""
        target, matching = relation(self._dialect, rows.target), match(self._dialect, rows.key)
        self._statements.run(self._dialect.delete_matching(target, self._stage(table.name), matching, condition))

    def taken(self, target: TableId, key: Sequence[str], name: str) -> Key | None:
        """Return the key of a `CLAIMED` row of a staging table that the target already has; None if there is none."""
        shown = ", ".join(map(self._dialect.key_value, key))
        found = self._statements.rows(
            f"SELECT {shown} FROM {relation(self._dialect, target)} t JOIN {self._stage(name)} s "
            f"ON {match(self._dialect, key)} WHERE s.{self._dialect.quote(CLAIMED)} LIMIT 1"
        )
        return dict(zip(key, found[0], strict=True)) if found else None

    def _stage(self, name: str) -> str:
        return self._dialect.quote(self._home, name)
