"""Rows of staging tables on their way into a target, by statements for the whole set; for every kind of server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raycdc.model import Column, TableId
from raycdc.sinks.jdbc.sql import Dialect, Statements, relation
from raycdc.sinks.origins import CLAIMED, Key
from raycdc.sinks.rows import DELETED


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table of rows that no reader of the target sees yet (the result of `tasks.Load`)."""

    name: str
    rows: int
    deleted: int = 0
    truncated: bool = False


class Staging:
    """The staging tables in the database or schema `home`, in one transaction."""

    def __init__(self, statements: Statements, dialect: Dialect, home: str) -> None:
        self._statements = statements
        self._dialect = dialect
        self._home = home

    def rows(self, name: str) -> int:
        """How many rows a staging table has."""
        count: int = self._statements.rows(f"SELECT COUNT(*) FROM {self._stage(name)}")[0][0]
        return count

    def append(self, target: TableId, columns: Sequence[Column], name: str) -> None:
        """Add the rows of a staging table."""
        self._statements.run(
            f"INSERT INTO {relation(self._dialect, target)} ({self._names(columns)}) "
            f"SELECT {self._values(columns)} FROM {self._stage(name)} s"
        )

    def taken(self, target: TableId, key: Sequence[str], name: str) -> Key | None:
        """The key of a `CLAIMED` row of a staging table that the target has already; None where there is none."""
        names = ", ".join(map(self._dialect.key_value, key))
        found = self._statements.rows(
            f"SELECT {names} FROM {relation(self._dialect, target)} t JOIN {self._stage(name)} s ON {self._match(key)} "
            f"WHERE s.{self._dialect.quote(CLAIMED)} LIMIT 1"
        )
        return dict(zip(key, found[0], strict=True)) if found else None

    def merge(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], gone: Sequence[str], staged: StagedTable
    ) -> None:
        """Upsert and delete the rows of a staging table with `DELETED`; columns `gone` at the source become null."""
        table, stage = relation(self._dialect, target), self._stage(staged.name)
        deleted = f"s.{self._dialect.quote(DELETED)}"
        if staged.deleted:
            self._statements.run(self._dialect.delete_matching(table, stage, self._match(key), deleted))
        self._statements.run(
            f"INSERT INTO {table} ({self._names(columns)}) SELECT {self._values(columns)} FROM {stage} s "
            f"WHERE NOT {deleted} {self._dialect.or_update(columns, key, gone)}"
        )

    def _stage(self, name: str) -> str:
        return self._dialect.quote(self._home, name)

    def _names(self, columns: Sequence[Column]) -> str:
        return ", ".join(self._dialect.quote(column.name) for column in columns)

    def _values(self, columns: Sequence[Column]) -> str:
        return ", ".join(map(self._dialect.staged, columns))

    def _match(self, key: Sequence[str]) -> str:
        quote = self._dialect.quote
        return " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in key)
