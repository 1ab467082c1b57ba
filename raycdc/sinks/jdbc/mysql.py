"""MySQL and MariaDB as a target: multi-row INSERTs into staging tables, then set-based statements in one transaction.

Rows become text column by column (`mysql_text`), and are sent as statements of a few megabytes in strict mode. Every
server permits this. LOAD DATA LOCAL would need ``local_infile``, and it turns errors about values into warnings.

A DDL statement commits implicitly and so releases the lock of the record. The record's lock alone could therefore not
keep a second driver from altering the target. A session first takes a named lock of the target (``GET_LOCK``), then
reads the record, and runs its DDL on the same connection. The named lock survives the implicit commit. It is released
when the connection ends, but not before a running statement has ended. Two drivers therefore never alter one target
concurrently, and a driver that lost its connection cannot alter anything. The server ends a session that is idle for
`IDLE_TIMEOUT_S`, so a suspended driver keeps no locks. Before a DDL statement, the driver writes the schema that the
table will have afterwards to the record. The statement itself puts ``raycdc IDENTITY:TARGET:EPOCH`` into the table's
comment. If the driver dies, its successor compares the record and the comment to find out if the statement was carried
out. Then the default of a new column is written to existing rows, in the same transaction as the final record.

*Galera*: the named lock is local to one node. Rows and record are exact on any node, because the cluster certifies the
record's row. DDL of two drivers excludes each other only if both use the same node, so ``sink.url`` should name one
node, or a proxy that writes to only one node. If ``pxc_strict_mode`` forbids ``GET_LOCK``, the sink stops with the
server's message.

`missing` finds the privileges that an account lacks in a database from the text of ``SHOW GRANTS``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pyarrow as pa
import pymysql

from raycdc.clients.mysql import MySqlSettings, close_quietly, connect, quote_name, sane_answers
from raycdc.core.activity import note_statement
from raycdc.errors import (
    RaycdcError,
    SinkError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
    ValueRefusedError,
)
from raycdc.model import Column, TableId, TypeKind
from raycdc.sinks.jdbc.database import IDLE_TIMEOUT_S, LOCK_TIMEOUT_S, CommitTable
from raycdc.sinks.jdbc.lock_holders import mysql_holders, record_held
from raycdc.sinks.jdbc.mysql_tables import EXACT, MySqlTables, best_collation, definition
from raycdc.sinks.jdbc.mysql_text import ends_in_space, value_lists, widest
from raycdc.sinks.jdbc.plugin import COMMIT_TABLE, Address
from raycdc.sinks.jdbc.refusals import advised, mysql_refusal, without_value
from raycdc.sinks.jdbc.staging import Staging, Upsert, match, names, values
from raycdc.sinks.jdbc.types import mysql_type, mysql_types, mysql_unrepresentable
from raycdc.sinks.record import TargetRecord
from raycdc.sinks.targets import check_names

#: The privileges that the sink needs for its targets and staging tables. Without the last privilege, an account does
#: not see other users' triggers, which may change its rows.
NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "TRIGGER")

_GRANT = re.compile(r"GRANT (?P<what>.+?) ON (?P<where>\S.*?) TO ", re.DOTALL)
_ROLE = re.compile(r"GRANT (?P<role>[`'].+?[`'](?:@[`'].*?[`'])?) TO ", re.DOTALL)


def missing(grants: Sequence[str], database: str) -> list[str] | None:
    """Return the privileges in `NEEDED` that the account lacks in `database`.

    Returns None if the account has privileges on single tables, because these may be enough.
    """
    have: set[str] = set()
    single = False
    for grant in grants:
        found = _GRANT.match(grant)
        if found is None:
            continue
        where = found["where"]
        if where == "*.*" or (where.endswith(".*") and _matches(where[:-2], database)):
            have |= {word.strip().upper() for word in found["what"].split(",")}
        elif _matches(where.partition("`.")[0].strip("`"), database):
            single = True
    lacking = [] if "ALL PRIVILEGES" in have else [name for name in NEEDED if name not in have]
    return None if lacking and single else lacking


def roles(grants: Iterable[str]) -> list[str]:
    """Return the roles that the account has, in the server's notation."""
    return [found["role"] for grant in grants if " ON " not in grant and (found := _ROLE.match(grant))]


def _matches(pattern: str, database: str) -> bool:
    """Return True if the database part of a grant, with ``_`` and ``%`` as in LIKE, matches `database`."""
    text = pattern.strip("`").replace("``", "`")
    parts = re.findall(r"\\[_%]|.", text, re.DOTALL)
    wild = {"_": ".", "%": ".*"}
    expression = "".join(wild.get(part) or re.escape(part.removeprefix("\\")) for part in parts)
    return re.fullmatch(expression, database, re.DOTALL) is not None


#: The size of a statement with rows: large enough that its fixed cost does not matter, and far below any server's
#: limit.
STATEMENT_BYTES = 2 << 20

_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, lock_wait_timeout = {LOCK_TIMEOUT_S}",
    "SET SESSION character_set_results = utf8mb4",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)


class MySqlDatabase:
    """A MySQL or MariaDB server; see the module's docstring and `database.JdbcDatabase`."""

    kind: ClassVar[str] = "MySQL"
    ignores_case: ClassVar[bool] = True

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
        """Do nothing, because no connection is kept."""

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        check_names(self._address.names, target, [column.name for column in columns])
        mysql_types(target, columns, key)

    def retyped(self, old: Column, new: Column, *, key: bool) -> bool:
        return mysql_type(old.type, key=key) != mysql_type(new.type, key=key)

    def load(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        *,
        flags: Sequence[str],
    ) -> int:
        with self.session() as session:
            collation = best_collation(session)
            parts = [definition(column, key, collation) for column in columns]
            parts += [f"{quote_name(flag)} BOOLEAN NOT NULL" for flag in flags]
            table = quote_name(self._address.database, name)
            session.run(f"CREATE TABLE {table} ({', '.join(parts)}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4")
            ((packet_bytes,),) = session.rows("SELECT @@max_allowed_packet")
            count = 0
            for batch in batches:
                if collation not in EXACT and ends_in_space([batch.column(k) for k in key]):
                    raise ValueRefusedError(
                        f"A key of {', '.join(key)} ends in a space, which {self._address} takes for the key without "
                        "it. Use MySQL 8.0.17 or newer, or MariaDB."
                    )
                names = ", ".join(map(quote_name, batch.schema.names))
                start = f"INSERT INTO {table} ({names}) VALUES ".encode()
                # The server's limit includes the byte of the command.
                values_bytes = packet_bytes - len(start) - 1
                for values in value_lists(batch, bytes_max=min(STATEMENT_BYTES, values_bytes)):
                    if len(values) > values_bytes:
                        column, size = widest(batch, bytes_max=values_bytes)
                        raise ValueRefusedError(
                            f"A row has {size} bytes in column {column}, and as a statement {len(values)} in all; "
                            f"{self._address} takes {packet_bytes}. Raise max_allowed_packet there."
                        )
                    session.run(start + values)
                count += batch.num_rows
            session.commit()
        return count

    def unrepresentable(self, rows: pa.RecordBatch, columns: Sequence[Column], key: Sequence[str]) -> pa.Array:
        with self.session() as session:
            ((packet_bytes,),) = session.rows("SELECT @@max_allowed_packet")
        return mysql_unrepresentable(rows, columns, key, bytes_max=packet_bytes)

    def drop_stages(self, prefix: str, *, up_to: str) -> None:
        # A task may still be writing to the table; the next commit removes it.
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
        """Return the server's address."""
        return self._address

    def _connect(self) -> Any:
        a = self._address
        settings = MySqlSettings(a.host, a.port, a.user, a.password, a.tls_mode, a.tls_ca, a.allow_public_key_retrieval)
        try:
            connection = connect(settings)
        except RaycdcError as cause:
            kind = SinkUnavailableError if isinstance(cause, SourceUnavailableError) else SinkError
            raise kind(f"{a}: {str(cause).replace('source.', 'sink.')}") from cause
        try:
            with connection.cursor() as cursor:
                for statement in _SESSION:
                    cursor.execute(statement)
                cursor.execute(f"SET SESSION wait_timeout = {IDLE_TIMEOUT_S}")
                # A DELETE with a join needs a default database, which may not exist before `prepare`.
                with suppress(pymysql.err.OperationalError):
                    cursor.execute(f"USE {quote_name(a.database)}")
            connection.autocommit(value=False)
        except pymysql.Error as cause:
            close_quietly(connection)
            raise mysql_refusal(cause.args[0])(f"{a}: {cause.args[-1]}") from cause
        return connection


class MySqlDialect:
    """The SQL of MySQL and MariaDB; see `staging.SqlDialect`."""

    now = "UTC_TIMESTAMP(6)"
    defer = ""

    def quote(self, *parts: str) -> str:
        return quote_name(*parts)

    def parameters(self, count: int) -> list[str]:
        return ["%s"] * count

    def or_stays(self, column: str) -> str:
        return f"ON DUPLICATE KEY UPDATE {quote_name(column)} = VALUES({quote_name(column)})"

    def key_value(self, column: str) -> str:
        return f"t.{quote_name(column)}"

    def staged(self, column: Column) -> str:
        return f"s.{quote_name(column.name)}"

    def delete_matching(self, table: str, stage: str, match: str, condition: str) -> str:
        return f"DELETE t FROM {table} t JOIN {stage} s ON {match} WHERE {condition}"

    def upsert(self, rows: Upsert) -> Sequence[str]:
        # ON DUPLICATE KEY UPDATE would also update a row that has the same value in another unique index.
        matching = match(self, rows.key)
        # A TIMESTAMP of the key is set, too, because the server might set it otherwise.
        sets = [
            f"t.{quote_name(c.name)} = s.{quote_name(c.name)}"
            for c in rows.columns
            if c.name not in rows.key or c.type.kind is TypeKind.TIMESTAMP
        ]
        sets += [f"t.{quote_name(name)} = NULL" for name in rows.dropped_columns]
        joined = f"{rows.stage} s STRAIGHT_JOIN {rows.table} t ON {matching}"
        update = f"UPDATE {joined} SET {', '.join(sets)} WHERE {rows.wanted}"
        insert = (
            f"INSERT INTO {rows.table} ({names(self, rows.columns)}) SELECT {values(self, rows.columns)} "
            f"FROM {rows.stage} s LEFT JOIN {rows.table} t ON {matching} "
            f"WHERE {rows.wanted} AND t.{quote_name(rows.key[0])} IS NULL"
        )
        return (update, insert) if sets else (insert,)


class MySqlSession:
    """A session on MySQL or MariaDB; see `database.DatabaseSession`."""

    transactional_ddl: ClassVar[bool] = False

    def __init__(self, connection: Any, database: MySqlDatabase) -> None:
        self._connection = connection
        self._database = database
        home, dialect = database.address.database, MySqlDialect()
        self.record = quote_name(home, COMMIT_TABLE)
        self.commits = CommitTable(self, dialect, self.record)
        self.tables = MySqlTables(self, database, self.record)
        self.staging = Staging(self, dialect, home)

    def run(self, statement: str | bytes, *arguments: Any) -> None:
        """Execute one statement. Raises `SinkError` with the server's message."""
        self.rows(statement, *arguments)

    def rows(self, statement: str | bytes, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one statement and return its rows."""
        return self._execute(statement, arguments)[0]

    def changed(self, statement: str, *arguments: Any) -> int:
        """Execute one UPDATE, and return how many rows it matched."""
        return self._execute(statement, arguments)[1]

    def _execute(self, statement: str | bytes, arguments: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        """Return the rows of a statement, and how many it matched or changed."""
        if isinstance(statement, str):
            note_statement(statement)
        try:
            with sane_answers(str(self._database.address)), self._connection.cursor() as cursor:
                cursor.execute(statement, arguments or None)
                return list(cursor.fetchall()), cursor.rowcount
        except SourceError as cause:
            raise SinkError(str(cause)) from cause
        except pymysql.Error as cause:
            code, text = cause.args[0], without_value(str(cause.args[-1]), cause.args[0])
            words = f"{self._database.address}: {text} (error {code})"
            shown = statement if isinstance(statement, str) else ""
            raise advised(mysql_refusal(code), words, code=code, statement=shown) from cause

    def lacking(self, databases: Sequence[str]) -> list[str] | None:
        ((user,),) = self.rows("SELECT CURRENT_USER()")
        account = "@".join(f"'{part}'" for part in str(user).rsplit("@", 1))
        grants = [str(row[0]) for row in self.rows("SHOW GRANTS FOR CURRENT_USER()")]
        for role in roles(grants):
            # MySQL lists the privileges of a role together with the account's, MariaDB lists them for the role.
            for question in (f"SHOW GRANTS FOR {account} USING {role}", f"SHOW GRANTS FOR {role}"):
                with suppress(SinkError):
                    grants += [str(row[0]) for row in self.rows(question)]
        wanted = {name: missing(grants, name) for name in dict.fromkeys([self._database.address.database, *databases])}
        if any(lacks is None for lacks in wanted.values()):
            return None
        return [
            f"GRANT {', '.join(NEEDED)} ON {quote_name(name)}.* TO {account};"
            for name, lacks in wanted.items()
            if lacks
        ]

    def is_prepared(self) -> bool:
        return self.tables.there(TableId(self._database.address.database, COMMIT_TABLE)) is not None

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> TargetRecord | None:
        if not lock:
            return self.commits.held(app_id, target, marker=self.tables.marker)
        self._lock(app_id, target)
        return self.commits.locked(app_id, target, marker=self.tables.marker)

    def _lock(self, app_id: str, target: TableId) -> None:
        """Take the target's named lock, which this connection keeps until it ends."""
        name = f"raycdc:{hashlib.sha256(f'{app_id} {target}'.encode()).hexdigest()[:40]}"
        if self.rows("SELECT GET_LOCK(%s, %s)", name, LOCK_TIMEOUT_S) != [(1,)]:
            raise SinkUnavailableError(
                f"{target}: another session in {self._database.address} has had the lock {name} for more than "
                f"{LOCK_TIMEOUT_S} seconds: a statement of a driver that was replaced is still at work, or waits for a "
                "reader of the table. Look at SHOW PROCESSLIST there, and end it"
            )

    def holders(self, app_id: str, target: TableId, *, wholly: bool) -> str:
        self.run("SET SESSION innodb_lock_wait_timeout = 1")
        free = self.commits.is_free(app_id, target)
        self.rollback()
        if not free:
            return record_held("KILL")
        return mysql_holders(self, target, wholly=wholly)

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        self.run("ROLLBACK")
