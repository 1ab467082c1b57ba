"""PostgreSQL as a target: ADBC's binary COPY into staging tables, then set-based statements in one transaction.

Staging tables are unlogged tables of the schema ``raycdc_stage``. A crash of the server empties them, so the commit
checks the number of their rows. DDL is part of the transaction, so a schema change is carried out completely or not at
all.

Idle connections of this process are kept. Opening a connection takes a tenth of a second, because the server checks the
password and ADBC reads the server's catalog. Most epochs of a table take less time.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, ClassVar

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as postgresql
import pyarrow as pa

from raycdc.clients.logins import LOGINS, READ_AGAIN
from raycdc.clients.postgres import certificate_words, connection_url, quote, sends_no_password_as_it_is
from raycdc.core.activity import note_statement
from raycdc.core.connection_attempts import TRIES
from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.model import Column, TableId
from raycdc.model.types import wide_decimal
from raycdc.sinks.jdbc.database import IDLE_TIMEOUT_S, LOCK_TIMEOUT_S, CommitTable
from raycdc.sinks.jdbc.lock_holders import postgres_holders, record_held
from raycdc.sinks.jdbc.plugin import COMMIT_TABLE, STAGE_SCHEMA, Address
from raycdc.sinks.jdbc.postgres_tables import PostgresTables
from raycdc.sinks.jdbc.refusals import advised, postgres_grant, postgres_refusal, postgres_unreached, without_quoted
from raycdc.sinks.jdbc.staging import Staging, Upsert, names, values
from raycdc.sinks.jdbc.types import postgres_type, postgres_unrepresentable
from raycdc.sinks.record import TargetRecord
from raycdc.sinks.targets import check_names

#: The number of idle connections that are kept per database: the most that the threads of the epoch loop and a stage
#: use concurrently.
IDLE_MAX = 8

_idle_lock = threading.Lock()
_idle: dict[tuple[int, Hashable], list[Any]] = {}


def take_connection(key: Hashable, *, alive: Callable[[Any], bool]) -> Any:
    """Return an idle connection for which `alive` is True, or None. The connection belongs to the caller until the
    caller passes it to `keep_connection`.
    """
    while True:
        with _idle_lock:
            # A forked child must not use its parent's connections.
            found = _idle.get((os.getpid(), key))
            if not found:
                return None
            connection = found.pop()
        if alive(connection):
            return connection


def keep_connection(key: Hashable, connection: Any) -> bool:
    """Keep `connection`, which must not be in a transaction.

    Returns False if enough connections are kept; the caller then closes `connection`.
    """
    with _idle_lock:
        kept = _idle.setdefault((os.getpid(), key), [])
        if len(kept) >= IDLE_MAX:
            return False
        kept.append(connection)
        return True


def drain_connections(key: Hashable) -> list[Any]:
    """Return all idle connections, which the caller closes."""
    with _idle_lock:
        return _idle.pop((os.getpid(), key), [])


_RECORD = f'"public"."{COMMIT_TABLE}"'

#: Parts of the server's messages.
_REFUSED = "password authentication failed"

_CREATE_RECORD = f"""
CREATE TABLE IF NOT EXISTS {_RECORD} (
    app_id text NOT NULL,
    target text NOT NULL,
    epoch bigint NOT NULL,
    step bigint NOT NULL,
    generation bigint NOT NULL,
    created boolean NOT NULL,
    columns text NOT NULL,
    key text NOT NULL,
    positions text NOT NULL,
    committed_at timestamp with time zone NOT NULL DEFAULT now(),
    PRIMARY KEY (app_id, target)
)"""


class PostgresDatabase:
    """A PostgreSQL server; see the module's docstring and `database.JdbcDatabase`."""

    kind: ClassVar[str] = "PostgreSQL"
    ignores_case: ClassVar[bool] = False

    def __init__(self, address: Address) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"PostgresDatabase({self._address})"

    @property
    def address(self) -> Address:
        return self._address

    def prepare(self) -> None:
        with self.session() as session:
            # Without the lock, two pipelines that start at the same time would both find no table and try to create it,
            # and one of them would fail.
            session.run("SELECT pg_advisory_xact_lock(728210)")
            session.run('CREATE SCHEMA IF NOT EXISTS "public"')
            session.run(f"CREATE SCHEMA IF NOT EXISTS {quote(STAGE_SCHEMA)}")
            session.run(_CREATE_RECORD)
            session.commit()

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        connection = take_connection(self._address, alive=_alive) or self._connect()
        kept = False
        try:
            with connection.cursor() as cursor:
                yield PostgresSession(connection, cursor, self._address)
            # The transaction is complete. A connection that breaks now is not kept.
            with suppress(adbc_driver_manager.Error):
                connection.rollback()
                kept = keep_connection(self._address, connection)
        finally:
            if not kept:
                _close(connection)

    def close(self) -> None:
        for connection in drain_connections(self._address):
            _close(connection)

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        check_names(self._address.names, target, [column.name for column in columns])

    def retyped(self, old: Column, new: Column, *, key: bool) -> bool:
        return postgres_type(old.type) != postgres_type(new.type)

    def load(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        *,
        flags: Sequence[str],
    ) -> int:
        types = {c.name: "text" if wide_decimal(c.type) else postgres_type(c.type) for c in columns}
        types |= dict.fromkeys(flags, "boolean")
        definitions = ", ".join(f"{quote(column)} {kind}" for column, kind in types.items())
        rows = iter(batches)
        first = next(rows, None)
        with self.session() as session:
            session.run(f"CREATE UNLOGGED TABLE {_stage(name)} ({definitions})")
            count = 0 if first is None else session.copy(name, first.schema, chain([first], rows))
            session.commit()
        return count

    def unrepresentable(self, rows: pa.RecordBatch, columns: Sequence[Column], key: Sequence[str]) -> pa.Array:
        with self.session() as session:
            ((encoding,),) = session.rows("SELECT getdatabaseencoding()::text")
        return postgres_unrepresentable(rows, columns, encoding)

    def drop_stages(self, prefix: str, *, up_to: str) -> None:
        # Another task may still be writing to the table; the next commit removes it.
        with suppress(SinkError), self.session() as session:
            session.run("SET LOCAL lock_timeout = '1s'")
            names = session.rows(
                "SELECT tablename::text FROM pg_tables WHERE schemaname = $1 AND starts_with(tablename::text, $2)",
                STAGE_SCHEMA,
                prefix,
            )
            dropped_columns = [name for (name,) in names if name[: len(up_to)] <= up_to]
            if dropped_columns:
                session.run(f"DROP TABLE {', '.join(map(_stage, dropped_columns))}")
            session.commit()

    def _connect(self) -> Any:
        with TRIES.at(f"{self._address.host}:{self._address.port}"):
            return self._connected()

    def _connected(self) -> Any:
        address = self._address
        options = (
            f"-c TimeZone=UTC -c standard_conforming_strings=on -c lock_timeout={LOCK_TIMEOUT_S}s "
            f"-c idle_in_transaction_session_timeout={IDLE_TIMEOUT_S}s -c statement_timeout=0 "
            # A commit that another driver makes while we wait for its lock must be visible.
            r"-c client_encoding=UTF8 -c default_transaction_isolation=read\ committed"
        )
        server = f"{address.host}:{address.port}"
        try:
            connection = postgresql.connect(connection_url(address, application_name="raycdc", options=options))
        except adbc_driver_manager.Error as cause:
            words = _words(cause)
            if _REFUSED in words and LOGINS.may_change(server, address.user, address.password):
                raise SinkUnavailableError(f"{address}: {words}. {READ_AGAIN}.") from cause
            if 'database "' in words and words.endswith("does not exist"):
                words += f". Create it: CREATE DATABASE {quote(address.database)};"
            if sends_no_password_as_it_is(address) and "cleartext password" in words:
                asked = f"{address} asks for the password as it is, without TLS; it was not sent. Set sink.tls.mode."
                raise SinkError(asked) from None
            if fault := certificate_words(address, str(cause), section="sink"):
                words = f"{words}. {fault}"
            raise postgres_unreached(str(cause))(f"{address} cannot be reached: {words}") from cause
        LOGINS.accepted(server, address.user)
        return connection


class PostgresDialect:
    """The SQL of PostgreSQL; see `staging.SqlDialect`."""

    now = "now()"
    defer = "SET CONSTRAINTS ALL DEFERRED"

    def quote(self, *parts: str) -> str:
        return quote(*parts)

    def parameters(self, count: int) -> list[str]:
        return [f"${number}" for number in range(1, count + 1)]

    def or_stays(self, column: str) -> str:
        return "ON CONFLICT DO NOTHING"

    def key_value(self, column: str) -> str:
        return f"t.{quote(column)}::text"

    def staged(self, column: Column) -> str:
        value = f"s.{quote(column.name)}"
        return f"CAST({value} AS {postgres_type(column.type)})" if wide_decimal(column.type) else value

    def delete_matching(self, table: str, stage: str, match: str, condition: str) -> str:
        return f"DELETE FROM {table} t USING {stage} s WHERE {match} AND {condition}"

    def upsert(self, rows: Upsert) -> Sequence[str]:
        sets = [f"{quote(c.name)} = EXCLUDED.{quote(c.name)}" for c in rows.columns if c.name not in rows.key]
        sets += [f"{quote(name)} = NULL" for name in rows.dropped_columns]
        action = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
        insert = f"INSERT INTO {rows.table} ({names(self, rows.columns)}) SELECT {values(self, rows.columns)}"
        conflict = f"ON CONFLICT ({', '.join(map(quote, rows.key))}) DO {action}"
        return (f"{insert} FROM {rows.stage} s WHERE {rows.wanted} {conflict}",)


class PostgresSession:
    """A session on PostgreSQL; see `database.DatabaseSession`."""

    transactional_ddl: ClassVar[bool] = True

    def __init__(self, connection: Any, cursor: Any, address: Address) -> None:
        self._connection = connection
        self._cursor = cursor
        self._address = address
        dialect = PostgresDialect()
        self.commits = CommitTable(self, dialect, _RECORD)
        self.tables = PostgresTables(self, address)
        self.staging = Staging(self, dialect, STAGE_SCHEMA)

    def run(self, statement: str, *arguments: Any) -> None:
        """Execute one statement. Raises `SinkError` with the server's message."""
        note_statement(statement)
        try:
            self._cursor.execute(statement, arguments or None)
        except adbc_driver_manager.Error as cause:
            raise self._error(cause, statement) from cause

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one query and return its rows."""
        self.run(statement, *arguments)
        found: list[tuple[Any, ...]] = self._cursor.fetchall()
        return found

    def changed(self, statement: str, *arguments: Any) -> int:
        """Execute one UPDATE, and return how many rows it matched."""
        return len(self.rows(f"{statement} RETURNING 1", *arguments))

    def copy(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        """Stream rows into a staging table by binary COPY, and return their number."""
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        try:
            count: int = self._cursor.adbc_ingest(name, reader, mode="append", db_schema_name=STAGE_SCHEMA)
        except adbc_driver_manager.Error as cause:
            raise self._error(cause) from cause
        return count

    def lacking(self, databases: Sequence[str]) -> list[str] | None:
        ((user, on_database, on_public),) = self.rows(
            "SELECT current_user::text, has_database_privilege(current_database(), 'CREATE'), "
            "(SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = 'public')"
        )
        database = quote(self._address.database)
        statements = [] if on_database else [f"GRANT CREATE ON DATABASE {database} TO {quote(user)};"]
        # A missing schema is created, and then belongs to this account.
        return statements + ([f'GRANT CREATE ON SCHEMA "public" TO {quote(user)};'] if on_public is False else [])

    def commit(self) -> None:
        try:
            self._connection.commit()
        except adbc_driver_manager.Error as cause:
            raise self._error(cause, "COMMIT") from cause

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except adbc_driver_manager.Error as cause:
            raise self._error(cause) from cause

    def is_prepared(self) -> bool:
        return self.tables.there(TableId("public", COMMIT_TABLE)) is not None

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> TargetRecord | None:
        read = self.commits.locked if lock else self.commits.held
        return read(app_id, target, marker=self.tables.marker)

    def holders(self, app_id: str, target: TableId, *, wholly: bool) -> str:
        self.run("SET LOCAL lock_timeout = '1s'")
        free = self.commits.is_free(app_id, target)
        self.rollback()
        if not free:
            return record_held("SELECT pg_terminate_backend(pid)")
        return postgres_holders(self, target, wholly=wholly)

    def _error(self, cause: adbc_driver_manager.Error, statement: str = "") -> SinkError:
        sqlstate, words = cause.sqlstate or "", _words(cause)
        words += postgres_grant(sqlstate, words, quote(self._address.user)) if self._address.user else ""
        kind = postgres_refusal(sqlstate, str(cause))
        return advised(kind, f"{self._address}: {words}", code=sqlstate, statement=statement if sqlstate else "")


def _alive(connection: Any) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()
        connection.rollback()
    except adbc_driver_manager.Error:
        _close(connection)
        return False
    return True


def _close(connection: Any) -> None:
    """Close the connection, which rolls back uncommitted changes, and ignore errors."""
    with suppress(adbc_driver_manager.Error):
        connection.close()


def _stage(name: str) -> str:
    return quote(STAGE_SCHEMA, name)


def _words(cause: adbc_driver_manager.Error) -> str:
    """Return the server's message in one line, and the column at which COPY failed.

    Leaves out DETAIL and CONTEXT, which quote rows, and the statement.
    """
    text = str(cause)
    found = re.search(r"(?:ERROR|FATAL|PANIC):\s+(.*?)(?=\n\s*[A-Z]+(?: \d+)?:|\s*\. SQLSTATE:|\Z)", text, re.DOTALL)
    at = re.search(r"^CONTEXT:.*?(COPY [^\n]*?, line \d+, column [^\n:]+)", text, re.DOTALL | re.MULTILINE)
    message = without_quoted(cause.sqlstate or "", re.sub(r"\s+", " ", found[1] if found else text).strip())
    return f"{message} ({at[1]})" if at else message
