"""Creates, adopts and alters target tables of a MySQL or MariaDB server.

Each change is one statement that leaves a mark (`raycdc.sinks.jdbc.mysql` explains why). The mark is the end of the
table's comment, after other users' text: `` raycdc MARKER`` for a statement of ours, or `` [raycdc]`` if the table was
only adopted. A table with the same name and without a mark is a different table. A mark in the comment is used because
every account may read it, and because it survives a rebuild of the table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from raycdc.clients.mysql import quote_name
from raycdc.errors import TargetExistsError, TargetModifiedError
from raycdc.model import Column, TableId, TypeKind
from raycdc.model.column_names import mysql_fold
from raycdc.sinks.database_columns import DatabasePlan
from raycdc.sinks.jdbc.database import MARKED, JdbcDatabase, Made, short
from raycdc.sinks.jdbc.plugin import STAGE_PREFIX
from raycdc.sinks.jdbc.staging import StatementExecutor
from raycdc.sinks.jdbc.types import mysql_type
from raycdc.sinks.jdbc.unsupported_features import TableRequirements, UnsupportedFeature, column_type, mysql_unsupported

#: Collations that distinguish all texts, including trailing spaces. A server has one of them or none.
EXACT = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")

#: The mark of a table that was adopted.
_ADOPTED = "[raycdc]"
_MARKED = re.compile(r"(?:^| )(?:raycdc (\S+:\S+)|\[raycdc\])$")
_COMMENT_LENGTH_MAX = 2048
#: The types that a TIMESTAMP column may have. The first only covers the years from 1970 to 2038.
_MOMENTS = {"timestamp(6)", "datetime(6)"}


#: How long a change of a table's schema waits for other sessions that use the table.
CHANGE_LOCK_TIMEOUT_S = 2


class MySqlTables:
    """The target tables of a MySQL or MariaDB server; see `database.JdbcTables`.

    `record` is the name of ``raycdc_commit`` in SQL.
    """

    def __init__(self, statements: StatementExecutor, database: JdbcDatabase, record: str) -> None:
        self._statements = statements
        self._run, self._rows = statements.run, statements.rows
        self._database = database
        self._record = record

    def there(self, target: TableId) -> str | None:
        return _identity(self._comment(target), target)

    def folded(self, app_id: str, target: TableId) -> str | None:
        if self._rows("SELECT @@lower_case_table_names") == [(0,)]:
            return None
        rows = self._rows(
            f"SELECT `target` FROM {self._record} "
            "WHERE `app_id` = %s AND `target` <> %s AND LOWER(`target`) = LOWER(%s)",
            app_id,
            str(target),
            str(target),
        )
        return str(rows[0][0]) if rows else None

    def marker(self, target: TableId) -> str | None:
        return _marker(self._comment(target))

    def is_empty(self, target: TableId) -> bool:
        return not self._rows(f"SELECT 1 FROM {_name(target)} LIMIT 1")

    def _change(self, statement: str) -> None:
        """Change a table's schema. While the statement waits for sessions that read the table, new readers of the table
        must wait, too. The statement therefore waits only for a short time, and is retried.
        """
        self._run(f"SET @raycdc = @@lock_wait_timeout, SESSION lock_wait_timeout = {CHANGE_LOCK_TIMEOUT_S}")
        self._run(statement)
        self._run("SET SESSION lock_wait_timeout = @raycdc")

    def create(self, target: TableId, made: Made, marker: str, *, replace: bool) -> None:
        collation = best_collation(self._statements)
        parts = [definition(c, made.key, collation, is_null=c.name not in made.demands) for c in made.columns]
        if made.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote_name, made.key))})")
        # The name includes the target, because two targets of a database may be replaced concurrently.
        digest = hashlib.sha256(str(target).encode()).hexdigest()[:16]
        location = quote_name(target.db, f"{STAGE_PREFIX}new_{digest}") if replace else _name(target)
        statement = (
            f"CREATE TABLE {location} ({', '.join(parts)}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 {_comment('', marker)}"
        )
        if not replace:
            self._run(f"CREATE DATABASE IF NOT EXISTS {quote_name(target.db)}")
            self._run(statement)
            return
        old = quote_name(target.db, f"{STAGE_PREFIX}old_{digest}")
        self._run(f"DROP TABLE IF EXISTS {location}, {old}")
        self._run(statement)
        self._change(f"RENAME TABLE {_name(target)} TO {old}, {location} TO {_name(target)}")
        self._change(f"DROP TABLE {old}")

    def require_adoptable(self, target: TableId) -> None:
        _, unsupported = self._unsupported(target, TableRequirements({}, (), adopts=True))
        if unsupported is not None:
            raise unsupported.taken(target, str(self._database.address))

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        types = self._types(target)
        missing = []
        for column in columns:
            wanted, have = mysql_type(column.type, key=column.name in key), types.get(column.name)
            if have is None:
                missing.append(f"ADD COLUMN {definition(column, key, best_collation(self._statements))}")
            elif have != wanted and not {have, wanted} <= _MOMENTS:
                raise TargetExistsError(
                    f"{target}: column {column.name} is {have} in the table that exists in {self._database.address}, "
                    f"and its values need {wanted}. Change its type, or choose another target."
                )
        _, unsupported = self._unsupported(target, TableRequirements(_made(columns, key), key, adopts=True))
        if unsupported is not None:
            raise unsupported.taken(target, str(self._database.address))
        comment = self._comment(target) or ""
        if not _identity(comment, target):
            missing.append(_comment(comment))
        if missing:
            self._change(f"ALTER TABLE {_name(target)} {', '.join(missing)}")

    def is_ours_alone(self, target: TableId, columns: Sequence[Column]) -> bool:
        references = (
            "SELECT 1 FROM information_schema.KEY_COLUMN_USAGE "
            "WHERE REFERENCED_TABLE_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s LIMIT 1"
        )
        if self._rows(references, target.db, target.table):
            return False
        return {mysql_fold(name) for name in self._types(target)} <= {mysql_fold(column.name) for column in columns}

    def _unsupported(self, target: TableId, demands: TableRequirements) -> tuple[str | None, UnsupportedFeature | None]:
        return mysql_unsupported(self._rows, target, demands, exact=lambda: (best_collation(self._statements), *EXACT))

    def untouched(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> str | None:
        comment, unsupported = self._unsupported(target, TableRequirements(_made(columns, key), key))
        if unsupported is not None:
            raise unsupported.modified_error(target, str(self._database.address))
        return _identity(comment, target)

    def alter(self, target: TableId, present: Made, plan: DatabasePlan, key: Sequence[str], marker: str) -> None:
        if plan.emptied:
            self.empty(target)
        if self.marker(target) != marker:
            clauses = self._clauses(target, present, plan, key)
            clauses.append(_comment(self._comment(target) or "", marker))
            self._change(f"ALTER TABLE {_name(target)} {', '.join(clauses)}")
        same = "".join(f", {quote_name(name)} = {quote_name(name)}" for name in key)
        if plan.copied:
            values = ", ".join(f"{quote_name(name)} = {quote_name(old)}" for name, old in plan.copied)
            self._run(f"UPDATE {_name(target)} SET {values}{same}")
        for column in plan.filled:
            default, value = str(column.default), "%s"
            if column.type.kind is TypeKind.BINARY:
                default, value = default.encode().hex(), "UNHEX(%s)"
            elif mysql_type(column.type, key=False) == "tinyint(1)":
                default = {"true": "1", "false": "0"}.get(default.lower(), default)
            self._run(f"UPDATE {_name(target)} SET {quote_name(column.name)} = {value}{same}", default)

    def has_null(self, target: TableId, column: str) -> bool:
        return bool(self._rows(f"SELECT 1 FROM {_name(target)} WHERE {quote_name(column)} IS NULL LIMIT 1"))

    def loosen(self, target: TableId, columns: Sequence[Column]) -> None:
        collation = best_collation(self._statements)
        parts = ", ".join(f"MODIFY COLUMN {definition(column, (), collation)}" for column in columns)
        self._change(f"ALTER TABLE {_name(target)} {parts}")

    def _clauses(self, target: TableId, present: Made, plan: DatabasePlan, key: Sequence[str]) -> list[str]:
        """Return the clauses of an ALTER TABLE that applies the plan to a table with the columns of its record."""
        there = self._types(target)
        if missing := [c.name for c in present.columns if c.name not in there]:
            raise TargetModifiedError(
                f"{target} in {self._database.address} lacks column {missing[0]}, which its record names: somebody "
                "altered the table. Drop it and take a new snapshot of its source table."
            )
        before = {column.name: column for column in present.columns}
        ours = {mysql_fold(name) for name in before}
        foreign = {mysql_fold(name): name for name in there if mysql_fold(name) not in ours}
        if not plan.emptied and (new := next((p for p in plan.columns if mysql_fold(p.column.name) in foreign), None)):
            theirs = foreign[mysql_fold(new.column.name)]
            raise TargetModifiedError(
                f"{target} in {self._database.address} has the column {theirs} of another writer, and the source has a "
                "column of that name now, which would replace the values there. Nothing was written. Rename or drop "
                "the other writer's column, or route the table to another name."
            )
        collation = best_collation(self._statements)
        columns = {p.origin: p.column for p in plan.columns if p.origin is not None}
        clauses = [f"DROP COLUMN {quote_name(name)}" for name in before if name not in columns]
        for old, column in columns.items():
            retyped = self._database.retyped(before[old], column, key=column.name in key)
            # An older version used another type for timestamps. Without rows, changing it costs nothing.
            retyped |= plan.emptied and {there[old], mysql_type(column.type, key=column.name in key)} == _MOMENTS
            is_null = column.name not in plan.demands
            # Columns of a key have other types, and are NOT NULL.
            if old != column.name or retyped or plan.rekeyed or is_null == (old in present.demands):
                clauses.append(f"CHANGE COLUMN {quote_name(old)} {definition(column, key, collation, is_null=is_null)}")
        for column in (p.column for p in plan.columns if p.origin is None):
            if (name := foreign.get(mysql_fold(column.name))) is not None:
                clauses.append(f"DROP COLUMN {quote_name(name)}")
            is_null = column.name not in plan.demands
            clauses.append(f"ADD COLUMN {definition(column, key, collation, is_null=is_null)}")
        if plan.rekeyed:
            clauses += ["DROP PRIMARY KEY", f"ADD PRIMARY KEY ({', '.join(map(quote_name, key))})"]
        return clauses

    def empty(self, target: TableId) -> None:
        self._run(f"DELETE FROM {_name(target)}")

    def _comment(self, target: TableId) -> str | None:
        rows = self._rows(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'",
            target.db,
            target.table,
        )
        return str(rows[0][0]) if rows else None

    def _types(self, target: TableId) -> dict[str, str]:
        """Return the column types as `mysql_type` spells them, without the display width that older servers add."""
        rows = self._rows(
            "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            target.db,
            target.table,
        )
        return {name: column_type(kind) for name, kind in rows}


def _made(columns: Sequence[Column], key: Sequence[str]) -> dict[str, str]:
    """Return the types that the columns of a target with this `key` were given, by name."""
    return {column.name: mysql_type(column.type, key=column.name in key) for column in columns}


def _marker(comment: str | None) -> str | None:
    """Return the marker in a table's comment; None if there is none."""
    marked = _MARKED.search(comment or "")
    return marked[1] if marked is not None else None


def _identity(comment: str | None, target: TableId) -> str | None:
    """Return the identity of a table from its comment, as `database.JdbcTables.there` does; None if there is no
    comment.

    A table that was made for a target of another name has another identity. Older marks do not name a target.
    """
    if comment is None:
        return None
    marked = _MARKED.search(comment)
    if marked is None:
        return ""
    parts = (marked[1] or "").split(":")
    return MARKED if len(parts) < 3 or parts[1] == short(str(target)) else f"{MARKED} as {parts[1]}"


def _comment(before: str, marker: str = "") -> str:
    """Return the clause that adds a mark to the comment `before` of a table.

    The existing text is cut if the comment would be too long.
    """
    mark = f"raycdc {marker}" if marker else _ADOPTED
    words = _MARKED.sub("", before)[: _COMMENT_LENGTH_MAX - len(mark) - 1]
    # In our sessions, a backslash is no escape.
    text = f"{words} {mark}".strip().replace("'", "''")
    return f"COMMENT = '{text}'"


def definition(column: Column, key: Sequence[str], collation: str, *, is_null: bool = True) -> str:
    """Return the column's definition for a CREATE or ALTER statement."""
    kind = mysql_type(column.type, key=column.name in key)
    text = f" CHARACTER SET utf8mb4 COLLATE {collation}" if kind.startswith(("varchar", "longtext")) else ""
    # On older servers, a TIMESTAMP column that is NOT NULL and has no default is set to the time of each update
    # (explicit_defaults_for_timestamp).
    moment = " DEFAULT '2000-01-01 00:00:00'" if kind.startswith("timestamp") else ""
    takes = f" NOT NULL{moment}" if column.name in key or not is_null else " NULL"
    return f"{quote_name(column.name)} {kind}{text}{takes}"


def best_collation(statements: StatementExecutor) -> str:
    """Return the server's best collation for distinguishing texts."""
    rows = statements.rows(
        "SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE COLLATION_NAME IN (%s, %s)", *EXACT
    )
    return str(rows[0][0]) if rows else "utf8mb4_bin"


def _name(target: TableId) -> str:
    return quote_name(target.db, target.table)
