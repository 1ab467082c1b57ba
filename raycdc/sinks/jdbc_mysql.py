"""MySQL and MariaDB as a target: multi-row INSERTs into staging tables, then set-based statements in one transaction.

Rows become text column by column (`mysql_text`) and go as statements of a few megabytes in strict mode: the one way
that every server permits (LOAD DATA LOCAL needs ``local_infile`` and turns wrong values into warnings).

DDL commits by itself here. A statement runs on a connection of its own while the session holds the lock on the target's
record, and leaves ``raycdc IDENTITY:EPOCH`` as the table's comment in the same step: whoever finds the comment knows
that the statement was carried out, although no record says so. What rows need (the default of a new column) is in the
transaction of the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pyarrow as pa
import pymysql

from raycdc.connectors.mysql.connection import MySqlSettings, TlsMode, close_quietly, connect, quote_name
from raycdc.errors import RaycdcError, SinkError
from raycdc.model import Column, TableId
from raycdc.sinks.jdbc_columns import Plan
from raycdc.sinks.jdbc_database import COMMIT_TABLE, STAGE_PREFIX, Held, StagedTable
from raycdc.sinks.jdbc_plugin import Address
from raycdc.sinks.jdbc_types import mysql_type
from raycdc.sinks.mysql_text import ends_in_space, value_lists
from raycdc.sinks.rows import DELETED

#: Size of a statement with rows: large enough that parsing one row more is all it costs, far below any server's limit.
STATEMENT_BYTES = 2 << 20

#: Collations that tell apart all texts, trailing spaces included, best first; servers have one of them or none.
_EXACT = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")

_MARK = "raycdc "
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
    "SET SESSION innodb_lock_wait_timeout = 60, lock_wait_timeout = 60, character_set_results = utf8mb4",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)


class MySqlDatabase:
    """See the module's docstring and `jdbc_database.Database`."""

    kind: ClassVar[str] = "MySQL"

    def __init__(self, address: Address) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"MySqlDatabase({self._address})"

    def prepare(self) -> None:
        name = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
        with self.session() as session:
            session.run(f"CREATE DATABASE IF NOT EXISTS {quote_name(self._address.database)}")
            session.run(
                f"CREATE TABLE IF NOT EXISTS {session.record} (`app_id` {name}, `target` {name}, "
                "`epoch` BIGINT NOT NULL, `step` BIGINT NOT NULL, `generation` BIGINT NOT NULL, "
                "`created` BOOLEAN NOT NULL, `columns` LONGTEXT CHARACTER SET utf8mb4 NOT NULL, "
                "`key` LONGTEXT CHARACTER SET utf8mb4 NOT NULL, `positions` LONGTEXT CHARACTER SET utf8mb4 NOT NULL, "
                "`committed_at` DATETIME(6) NOT NULL, PRIMARY KEY (`app_id`, `target`)) ENGINE=InnoDB"
            )

    @contextmanager
    def session(self) -> Iterator[MySqlSession]:
        connection = self._connect()
        try:
            yield MySqlSession(connection, self)
        finally:
            close_quietly(connection)

    def close(self) -> None:
        """No connection is kept."""

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        for column in columns:
            try:
                mysql_type(column.type, key=column.name in key)
            except ValueError as cause:
                raise SinkError(f"{target}: column {column.name} {cause}") from cause
        if (target.db, target.table) == (self._address.database, COMMIT_TABLE):
            raise SinkError(f"{target} is a name that raycdc needs in the target. Exclude the table.")

    def retyped(self, old: Column, new: Column) -> bool:
        return mysql_type(old.type, key=False) != mysql_type(new.type, key=False)

    def load(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        *,
        compacted: bool,
    ) -> int:
        with self.session() as session:
            collation = session.collation()
            parts = [session.definition(column, key, collation) for column in columns]
            parts += [f"{quote_name(DELETED)} BOOLEAN NOT NULL"] if compacted else []
            table = quote_name(self._address.database, name)
            session.run(f"CREATE TABLE {table} ({', '.join(parts)}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4")
            count = 0
            for batch in batches:
                if collation not in _EXACT and ends_in_space([batch.column(k) for k in key]):
                    raise SinkError(
                        f"A key of {', '.join(key)} ends in a space, which {self._address} takes for the key without "
                        "it. Use MySQL 8.0.17 or newer, or MariaDB."
                    )
                names = ", ".join(map(quote_name, batch.schema.names))
                for values in value_lists(batch, bytes_max=STATEMENT_BYTES):
                    session.run(f"INSERT INTO {table} ({names}) VALUES ".encode() + values)
                count += batch.num_rows
            session.commit()
        return count

    def drop_stages(self, prefix: str, *, up_to: str) -> None:
        # A task may be writing to one; it is removed by the next commit.
        with suppress(SinkError), self.session() as session:
            session.run("SET SESSION lock_wait_timeout = 1")
            names = session.rows(
                "SELECT TABLE_NAME FROM information_schema.TABLES "
                "WHERE TABLE_SCHEMA = %s AND LEFT(TABLE_NAME, %s) = %s",
                self._address.database,
                len(prefix),
                prefix,
            )
            for (name,) in names:
                if name[: len(up_to)] <= up_to:
                    session.run(f"DROP TABLE {quote_name(self._address.database, name)}")

    @property
    def address(self) -> Address:
        """Where it is."""
        return self._address

    def run_alone(self, *statements: str) -> None:
        """Run statements that commit by themselves, on a connection of their own."""
        with self.session() as session:
            for statement in statements:
                session.run(statement)
            session.commit()

    def _connect(self) -> Any:
        a = self._address
        settings = MySqlSettings(a.host, a.port, a.user, a.password, TlsMode(a.tls_mode), a.tls_ca)
        try:
            connection = connect(settings)
        except RaycdcError as cause:
            raise SinkError(f"{a}: {str(cause).replace('source.', 'sink.')}") from cause
        try:
            with connection.cursor() as cursor:
                for statement in _SESSION:
                    cursor.execute(statement)
                # Deleting by a join needs one; it is not there before `prepare`.
                with suppress(pymysql.err.OperationalError):
                    cursor.execute(f"USE {quote_name(a.database)}")
            connection.autocommit(value=False)
        except pymysql.Error as cause:
            close_quietly(connection)
            raise SinkError(f"{a}: {cause.args[-1]}") from cause
        return connection


class MySqlSession:
    """See `jdbc_database.Session`."""

    def __init__(self, connection: Any, database: MySqlDatabase) -> None:
        self._connection = connection
        self._database = database
        self._home = database.address.database
        self.record = quote_name(self._home, COMMIT_TABLE)

    # -- statements

    def run(self, statement: str | bytes, *arguments: Any) -> None:
        """Execute one statement. `SinkError` with the server's words."""
        self.rows(statement, *arguments)

    def rows(self, statement: str | bytes, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one statement and fetch what it finds."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, arguments or None)
                return list(cursor.fetchall())
        except pymysql.Error as cause:
            raise SinkError(f"{self._database.address}: {cause.args[-1]} (error {cause.args[0]})") from cause

    def commit(self) -> None:
        self.run("COMMIT")

    # -- the record

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> Held | None:
        found = self.rows(
            f"SELECT {', '.join(f'`{name}`' for name in Held.NAMES)} FROM {self.record} "
            f"WHERE `app_id` = %s AND `target` = %s{' FOR UPDATE' if lock else ''}",
            app_id,
            str(target),
        )
        if not found:
            return None
        return Held.from_row(found[0])

    def hold(self, app_id: str, target: TableId, held: Held, positions: Mapping[str, Any]) -> None:
        names = (*Held.NAMES, "positions")
        sets = ", ".join(f"`{name}` = VALUES(`{name}`)" for name in names)
        self.run(
            f"INSERT INTO {self.record} (`app_id`, `target`, {', '.join(f'`{name}`' for name in names)}, "
            f"`committed_at`) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6)) "
            f"ON DUPLICATE KEY UPDATE {sets}, `committed_at` = VALUES(`committed_at`)",
            app_id,
            str(target),
            *held.row(),
            json.dumps(dict(positions)),
        )

    def forget_others(self, app_id: str, target: TableId) -> None:
        self.run(f"DELETE FROM {self.record} WHERE `target` = %s AND `app_id` <> %s", str(target), app_id)

    # -- the target

    def exists(self, target: TableId) -> bool:
        return self._comment(target) is not None

    def made_by(self, target: TableId, marker: str) -> bool:
        return (self._comment(target) or "").startswith(f"{_MARK}{marker.partition(':')[0]}:")

    def create(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], marker: str, *, replace: bool
    ) -> None:
        collation = self.collation()
        parts = [self.definition(column, key, collation) for column in columns]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote_name, key))})")
        made = quote_name(target.db, f"{STAGE_PREFIX}new") if replace else _name(target)
        statement = (
            f"CREATE TABLE {made} ({', '.join(parts)}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='{_MARK}{marker}'"
        )
        if not replace:
            self._database.run_alone(f"CREATE DATABASE IF NOT EXISTS {quote_name(target.db)}", statement)
            return
        old = quote_name(target.db, f"{STAGE_PREFIX}old")
        self._database.run_alone(
            f"DROP TABLE IF EXISTS {made}, {old}",
            statement,
            f"RENAME TABLE {_name(target)} TO {old}, {made} TO {_name(target)}",
            f"DROP TABLE {old}",
        )

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        types = self._types(target)
        missing = []
        for column in columns:
            wanted, have = mysql_type(column.type, key=column.name in key), types.get(column.name)
            if have is None:
                missing.append(f"ADD COLUMN {self.definition(column, key, self.collation())}")
            elif have != wanted:
                raise SinkError(
                    f"{target}: column {column.name} is {have} in the table that exists in {self._database.address}, "
                    f"and its values need {wanted}. Change its type, or choose another target."
                )
        indexes = self.rows(
            "SELECT GROUP_CONCAT(COLUMN_NAME ORDER BY COLUMN_NAME SEPARATOR '\x1f') FROM information_schema.STATISTICS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 GROUP BY INDEX_NAME",
            target.db,
            target.table,
        )
        if key and [names for (names,) in indexes] != ["\x1f".join(sorted(key))]:
            raise SinkError(
                f"{target} exists in {self._database.address} with other unique indexes than one on "
                f"({', '.join(key)}), by which rows are merged. Give it this one alone, or choose another target."
            )
        if missing:
            self._database.run_alone(f"ALTER TABLE {_name(target)} {', '.join(missing)}")

    def alter(self, target: TableId, present: Sequence[Column], plan: Plan, key: Sequence[str], marker: str) -> None:
        if plan.emptied:
            self._database.run_alone(f"DELETE FROM {_name(target)}")
        comment = self._comment(target)
        if comment != f"{_MARK}{marker}":
            clauses = self._clauses(target, present, plan, key)
            clauses.append(f"COMMENT = '{_MARK}{marker}'")
            self._database.run_alone(f"ALTER TABLE {_name(target)} {', '.join(clauses)}")
        for column in plan.filled:
            default = column.default
            if mysql_type(column.type, key=False) == "tinyint(1)":
                default = {"true": "1", "false": "0"}.get(str(default).lower(), default)
            self.run(f"UPDATE {_name(target)} SET {quote_name(column.name)} = %s", default)

    def _clauses(self, target: TableId, present: Sequence[Column], plan: Plan, key: Sequence[str]) -> list[str]:
        """The one ALTER that carries the plan out on a table that has the columns of its record."""
        there = self._types(target).keys()
        if missing := [c.name for c in present if c.name not in there]:
            raise SinkError(
                f"{target} in {self._database.address} lacks column {missing[0]}, which its record names: a change "
                "was interrupted and its epoch dropped, or somebody altered the table. Take a new snapshot with "
                'pipeline.on_existing = "replace" and a new pipeline.state.'
            )
        collation = self.collation()
        before = {column.name: column for column in present}
        kept = {p.origin: p.column for p in plan.columns if p.origin is not None}
        clauses = [f"DROP COLUMN {quote_name(name)}" for name in before if name not in kept]
        for old, column in kept.items():
            if old != column.name or self._database.retyped(before[old], column):
                clauses.append(f"CHANGE COLUMN {quote_name(old)} {self.definition(column, key, collation)}")
        for column in (p.column for p in plan.columns if p.origin is None):
            if column.name in there and column.name not in before:
                clauses.append(f"DROP COLUMN {quote_name(column.name)}")
            clauses.append(f"ADD COLUMN {self.definition(column, key, collation)}")
        return clauses

    def empty(self, target: TableId) -> None:
        self.run(f"DELETE FROM {_name(target)}")

    def definition(self, column: Column, key: Sequence[str], collation: str) -> str:
        """The column as a CREATE or ALTER statement has it."""
        kind = mysql_type(column.type, key=column.name in key)
        text = f" CHARACTER SET utf8mb4 COLLATE {collation}" if kind.startswith(("varchar", "longtext")) else ""
        # TIMESTAMP without NULL would get a default of its own.
        return f"{quote_name(column.name)} {kind}{text}{' NOT NULL' if column.name in key else ' NULL'}"

    def collation(self) -> str:
        """The server's best collation for telling texts apart."""
        found = self.rows(
            "SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE COLLATION_NAME IN (%s, %s)", *_EXACT
        )
        return str(found[0][0]) if found else "utf8mb4_bin"

    def _comment(self, target: TableId) -> str | None:
        found = self.rows(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'",
            target.db,
            target.table,
        )
        return str(found[0][0]) if found else None

    def _types(self, target: TableId) -> dict[str, str]:
        """Column types as `mysql_type` spells them, without the display width that older servers add."""
        found = self.rows(
            "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            target.db,
            target.table,
        )
        return {
            name: kind if kind == "tinyint(1)" else re.sub(r"^((?:tiny|small|big)?int)\(\d+\)", r"\1", kind)
            for name, kind in found
        }

    # -- rows

    def staged_rows(self, name: str) -> int:
        count: int = self.rows(f"SELECT COUNT(*) FROM {quote_name(self._home, name)}")[0][0]
        return count

    def append(self, target: TableId, columns: Sequence[Column], name: str) -> None:
        names = ", ".join(quote_name(column.name) for column in columns)
        self.run(f"INSERT INTO {_name(target)} ({names}) SELECT {names} FROM {quote_name(self._home, name)}")

    def merge(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], gone: Sequence[str], staged: StagedTable
    ) -> None:
        table, stage = _name(target), quote_name(self._home, staged.name)
        names = ", ".join(quote_name(column.name) for column in columns)
        if staged.deleted:
            match = " AND ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in key)
            self.run(f"DELETE t FROM {table} t JOIN {stage} s ON {match} WHERE s.{quote_name(DELETED)}")
        sets = [f"{quote_name(c.name)} = VALUES({quote_name(c.name)})" for c in columns if c.name not in key]
        sets += [f"{quote_name(name)} = NULL" for name in gone]
        sets = sets or [f"{quote_name(key[0])} = VALUES({quote_name(key[0])})"]
        self.run(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {stage} WHERE NOT {quote_name(DELETED)} "
            f"ON DUPLICATE KEY UPDATE {', '.join(sets)}"
        )


def _name(target: TableId) -> str:
    return quote_name(target.db, target.table)
