"""Rows of staging tables on their way into a target, by statements for the whole set; for every kind of server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raycdc.model import Column, TableId
from raycdc.sinks.jdbc.sql import Dialect, Statements, Upsert, match, names, relation, values
from raycdc.sinks.origins import CLAIMED, Key
from raycdc.sinks.rows import DELETED


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
    """The rows of an epoch on their way into `target`, with `columns`, of which some are the `key`: those of `append`
    are new, those of `merge` change what is there, where columns `gone` at the source become null.
    """

    target: TableId
    columns: Sequence[Column]
    key: Sequence[str]
    gone: Sequence[str]
    append: Sequence[StagedTable]
    merge: Sequence[StagedTable]


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

    def take_out(self, rows: Incoming) -> None:
        """Delete all rows of the target that change, so that none has a unique value that another one gets."""
        for table in rows.merge:
            self._delete(rows, table)

    def put(self, rows: Incoming, *, deletes_last: bool = False) -> None:
        """Put the rows in. `KeyRefusedError` where one has a unique value that another one of the target has,
        `ReferenceRefusedError` where one refers to a row that is not there, or the other way round; with `deletes_last`
        rows of the table may refer to each other, and what the server can look at later it looks at when the
        transaction ends.
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
                rows.gone,
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
        """The key of a `CLAIMED` row of a staging table that the target has already; None where there is none."""
        shown = ", ".join(map(self._dialect.key_value, key))
        found = self._statements.rows(
            f"SELECT {shown} FROM {relation(self._dialect, target)} t JOIN {self._stage(name)} s "
            f"ON {match(self._dialect, key)} WHERE s.{self._dialect.quote(CLAIMED)} LIMIT 1"
        )
        return dict(zip(key, found[0], strict=True)) if found else None

    def _stage(self, name: str) -> str:
        return self._dialect.quote(self._home, name)
