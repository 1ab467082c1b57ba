"""PostgreSQL as a target: ADBC's binary COPY into staging tables, then set-based statements in one transaction.

Staging tables are unlogged tables of the schema ``raycdc_stage``. A server that crashes empties them; the commit
counts their rows before it believes them. DDL is part of the transaction, so a schema change is done or it is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, ClassVar
from urllib.parse import quote as percent

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as postgresql
import pyarrow as pa

from raycdc.config.tls import TlsMode
from raycdc.errors import FencedError, NameRefusedError, SinkError, TargetTakenError
from raycdc.model import Column, TableId, TypeKind
from raycdc.model.names import NAMES
from raycdc.model.types import wide_decimal
from raycdc.sinks.columns import Plan
from raycdc.sinks.jdbc import pool
from raycdc.sinks.jdbc.adopt import check_postgres
from raycdc.sinks.jdbc.database import COMMIT_TABLE, StagedTable
from raycdc.sinks.jdbc.plugin import Address
from raycdc.sinks.jdbc.refusals import postgres_refusal
from raycdc.sinks.jdbc.types import postgres_type
from raycdc.sinks.origins import CLAIMED
from raycdc.sinks.record import PLACE, Held
from raycdc.sinks.rows import DELETED
from raycdc.sinks.targets import check_names

STAGE_SCHEMA = "raycdc_stage"
_RECORD = f'"public"."{COMMIT_TABLE}"'

#: How long to wait for another session that holds a lock we need: a driver that was replaced may be in its last commit.
_LOCK_TIMEOUT_S = 60

_SSL_MODES = {
    TlsMode.DISABLED: "disable",
    TlsMode.REQUIRED: "require",
    TlsMode.VERIFY_CA: "verify-ca",
    TlsMode.VERIFY_IDENTITY: "verify-full",
}

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
    """See the module's docstring and `database.Database`."""

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
            # Two pipelines that start at once would both find nothing and one would fail.
            session.run("SELECT pg_advisory_xact_lock(728210)")
            session.run('CREATE SCHEMA IF NOT EXISTS "public"')
            session.run(f"CREATE SCHEMA IF NOT EXISTS {quote(STAGE_SCHEMA)}")
            session.run(_CREATE_RECORD)
            session.commit()

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        connection = pool.take(self._address, alive=_alive) or self._connect()
        kept = False
        try:
            with connection.cursor() as cursor:
                yield PostgresSession(connection, cursor, self._address)
            # The work is done; a connection that breaks only now is simply not kept.
            with suppress(adbc_driver_manager.Error):
                connection.rollback()
                kept = pool.give_back(self._address, connection)
        finally:
            if not kept:
                _close(connection)

    def close(self) -> None:
        for connection in pool.drain(self._address):
            _close(connection)

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        check_names(NAMES["postgresql"], target, [column.name for column in columns])
        if (target.db, target.table) == ("public", COMMIT_TABLE) or target.db == STAGE_SCHEMA:
            raise NameRefusedError(f"{target} is a name that raycdc needs in the target. Exclude the table.")

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

    def drop_stages(self, prefix: str, *, up_to: str) -> None:
        # Another task may be writing to one; it is removed by the next commit.
        with suppress(SinkError), self.session() as session:
            session.run("SET LOCAL lock_timeout = '1s'")
            names = session.rows(
                "SELECT tablename::text FROM pg_tables WHERE schemaname = $1 AND starts_with(tablename::text, $2)",
                STAGE_SCHEMA,
                prefix,
            )
            gone = [name for (name,) in names if name[: len(up_to)] <= up_to]
            if gone:
                session.run(f"DROP TABLE {', '.join(map(_stage, gone))}")
            session.commit()

    def _connect(self) -> Any:
        address = self._address
        mode = address.tls_mode.resolved(address.host)
        parameters = {
            "sslmode": _SSL_MODES[mode],
            "connect_timeout": "10",
            "application_name": "raycdc",
            "options": f"-c TimeZone=UTC -c standard_conforming_strings=on -c lock_timeout={_LOCK_TIMEOUT_S}s "
            # The commit of another driver while we waited for its lock must be seen.
            r"-c client_encoding=UTF8 -c default_transaction_isolation=read\ committed",
        }
        if mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY):
            parameters["sslrootcert"] = address.tls_ca or "system"
        user = f"{percent(address.user, safe='')}:{percent(address.password, safe='')}"
        host = f"[{address.host}]" if ":" in address.host else address.host
        text = "&".join(f"{key}={percent(value, safe='')}" for key, value in parameters.items())
        try:
            return postgresql.connect(
                f"postgresql://{user}@{host}:{address.port}/{percent(address.database, safe='')}?{text}"
            )
        except adbc_driver_manager.Error as cause:
            raise SinkError(f"{address} cannot be reached: {_words(cause)}") from cause


class PostgresSession:
    """See `database.Session`."""

    transactional_ddl: ClassVar[bool] = True

    def __init__(self, connection: Any, cursor: Any, address: Address) -> None:
        self._connection = connection
        self._cursor = cursor
        self._address = address

    # -- statements

    def run(self, statement: str, *arguments: Any) -> None:
        """Execute one statement. `SinkError` with the server's words."""
        try:
            self._cursor.execute(statement, arguments or None)
        except adbc_driver_manager.Error as cause:
            raise self._error(cause) from cause

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one query and fetch what it finds."""
        self.run(statement, *arguments)
        found: list[tuple[Any, ...]] = self._cursor.fetchall()
        return found

    def copy(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        """Stream rows into a staging table by binary COPY; returns how many."""
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
        # A schema that is not there is made, and then belongs to who made it.
        return statements + ([f'GRANT CREATE ON SCHEMA "public" TO {quote(user)};'] if on_public is False else [])

    def commit(self) -> None:
        try:
            self._connection.commit()
        except adbc_driver_manager.Error as cause:
            raise self._error(cause) from cause

    # -- the record

    def is_prepared(self) -> bool:
        return self.exists(TableId("public", COMMIT_TABLE))

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> Held | None:
        select = f"SELECT {', '.join(Held.NAMES)} FROM {_RECORD} WHERE app_id = $1 AND target = $2"
        found = self.rows(f"{select}{' FOR UPDATE' if lock else ''}", app_id, str(target))
        if lock and not found:
            # A row that is not there cannot be locked: whoever comes second waits here for the first.
            self.run(
                f"INSERT INTO {_RECORD} (app_id, target, {', '.join(Held.NAMES)}, positions) "
                "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '{}') ON CONFLICT DO NOTHING",
                app_id,
                str(target),
                *PLACE,
            )
            found = self.rows(f"{select} FOR UPDATE", app_id, str(target))
        return Held.from_row(found[0]) if found else None

    def hold(self, app_id: str, target: TableId, held: Held, positions: Mapping[str, Any]) -> None:
        sets = ", ".join(f"{name} = ${number}" for number, name in enumerate((*Held.NAMES, "positions"), start=3))
        written = self.rows(
            f"UPDATE {_RECORD} SET {sets}, committed_at = now() WHERE app_id = $1 AND target = $2 "
            "AND generation <= $5 AND (epoch, step) <= ($3, $4) RETURNING 1",
            app_id,
            str(target),
            *held.row(),
            json.dumps(dict(positions)),
        )
        if not written:
            raise FencedError(f"The record of {target} was written by a newer driver.")

    def owners(self, target: TableId) -> dict[str, bool]:
        found = self.rows(f"SELECT app_id, created FROM {_RECORD} WHERE target = $1", str(target))
        return {str(app_id): bool(created) for app_id, created in found}

    def forget_others(self, app_id: str, target: TableId) -> None:
        self.run(f"DELETE FROM {_RECORD} WHERE target = $1 AND app_id <> $2", str(target), app_id)

    # -- the target

    def exists(self, target: TableId) -> bool:
        return bool(
            self.rows("SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = $2", target.db, target.table)
        )

    def folded(self, app_id: str, target: TableId) -> str | None:
        return None

    def marker(self, target: TableId) -> str | None:
        return None  # table and record are made in one transaction

    def is_empty(self, target: TableId) -> bool:
        return not self.rows(f"SELECT 1 FROM {quote(target.db, target.table)} LIMIT 1")

    def create(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], marker: str, *, replace: bool
    ) -> None:
        self.run(f"CREATE SCHEMA IF NOT EXISTS {quote(target.db)}")
        if replace:
            self.run(f"DROP TABLE {quote(target.db, target.table)}")
        parts = [f"{quote(c.name)} {postgres_type(c.type)}" for c in columns]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
        self.run(f"CREATE TABLE {quote(target.db, target.table)} ({', '.join(parts)})")

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        types = dict(
            self.rows(
                "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a "
                "WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped",
                quote(target.db, target.table),
            )
        )
        for column in columns:
            wanted, have = postgres_type(column.type), types.get(column.name)
            if have is None:
                self.run(f"ALTER TABLE {quote(target.db, target.table)} ADD COLUMN {quote(column.name)} {wanted}")
            elif have != wanted:
                raise TargetTakenError(
                    f"{target}: column {column.name} is {have} in the table that exists in {self._address}, and its "
                    f"values need {wanted}. Change its type, or choose another target."
                )
        check_postgres(self.rows, target, key, relation=quote(target.db, target.table), where=str(self._address))

    def alter(self, target: TableId, present: Sequence[Column], plan: Plan, key: Sequence[str], marker: str) -> None:
        table = quote(target.db, target.table)
        if plan.emptied:
            self.empty(target)
        before = {column.name: column for column in present}
        kept = {p.origin: p.column for p in plan.columns if p.origin is not None}
        if plan.rekeyed:
            self._drop_key(target)
        for name in before.keys() - kept.keys():
            self.run(f"ALTER TABLE {table} DROP COLUMN {quote(name)}")
        # In two steps: two columns may have exchanged their names.
        moved = [(old, column.name) for old, column in kept.items() if old != column.name]
        for number, (old, _) in enumerate(moved):
            self.run(f"ALTER TABLE {table} RENAME COLUMN {quote(old)} TO {quote(f'raycdc_rename_{number}')}")
        for number, (_, new) in enumerate(moved):
            self.run(f"ALTER TABLE {table} RENAME COLUMN {quote(f'raycdc_rename_{number}')} TO {quote(new)}")
        for old, column in kept.items():
            old_type, new_type = postgres_type(before[old].type), postgres_type(column.type)
            if old_type != new_type:
                using = f"NULL::{new_type}" if plan.emptied else f"{quote(column.name)}::{new_type}"
                self.run(f"ALTER TABLE {table} ALTER COLUMN {quote(column.name)} TYPE {new_type} USING {using}")
        for column in (p.column for p in plan.columns if p.origin is None):
            self.run(f"ALTER TABLE {table} ADD COLUMN {quote(column.name)} {postgres_type(column.type)}")
        if plan.rekeyed:
            self.run(f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(map(quote, key))})")
        for column in plan.filled:
            default, value = str(column.default), f"CAST($1::text AS {postgres_type(column.type)})"
            if column.type.kind is TypeKind.BINARY:
                default, value = default.encode().hex(), "decode($1::text, 'hex')"
            self.run(f"UPDATE {table} SET {quote(column.name)} = {value}", default)

    def _drop_key(self, target: TableId) -> None:
        """The primary key goes; its columns may be null, as any other."""
        table = quote(target.db, target.table)
        found = self.rows(
            "SELECT c.conname::text, a.attname::text FROM pg_constraint c JOIN pg_attribute a "
            "ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey) "
            "WHERE c.conrelid = to_regclass($1) AND c.contype = 'p'",
            table,
        )
        for name in {name for name, _ in found}:
            self.run(f"ALTER TABLE {table} DROP CONSTRAINT {quote(name)}")
        for _, column in found:
            self.run(f"ALTER TABLE {table} ALTER COLUMN {quote(column)} DROP NOT NULL")

    def empty(self, target: TableId) -> None:
        self.run(f"DELETE FROM {quote(target.db, target.table)}")

    # -- rows

    def staged_rows(self, name: str) -> int:
        count: int = self.rows(f"SELECT count(*) FROM {_stage(name)}")[0][0]
        return count

    def append(self, target: TableId, columns: Sequence[Column], name: str) -> None:
        names, values = _names(columns), _values(columns)
        self.run(f"INSERT INTO {quote(target.db, target.table)} ({names}) SELECT {values} FROM {_stage(name)} s")

    def taken(self, target: TableId, key: Sequence[str], name: str) -> dict[str, Any] | None:
        match = " AND ".join(f"t.{quote(column)} = s.{quote(column)}" for column in key)
        names = ", ".join(f"t.{quote(column)}::text" for column in key)
        found = self.rows(
            f"SELECT {names} FROM {quote(target.db, target.table)} t JOIN {_stage(name)} s ON {match} "
            f"WHERE s.{quote(CLAIMED)} LIMIT 1"
        )
        return dict(zip(key, found[0], strict=True)) if found else None

    def merge(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], gone: Sequence[str], staged: StagedTable
    ) -> None:
        table, stage = quote(target.db, target.table), _stage(staged.name)
        sets = [f"{quote(c.name)} = EXCLUDED.{quote(c.name)}" for c in columns if c.name not in key]
        sets += [f"{quote(name)} = NULL" for name in gone]
        action = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
        if staged.deleted:
            match = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in key)
            self.run(f"DELETE FROM {table} t USING {stage} s WHERE {match} AND s.{quote(DELETED)}")
        self.run(
            f"INSERT INTO {table} ({_names(columns)}) SELECT {_values(columns)} FROM {stage} s "
            f"WHERE NOT s.{quote(DELETED)} ON CONFLICT ({', '.join(map(quote, key))}) DO {action}"
        )

    def _error(self, cause: adbc_driver_manager.Error) -> SinkError:
        return postgres_refusal(cause.sqlstate or "")(f"{self._address}: {_words(cause)}")


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
    """Rolls back what was not committed; a connection in error has nothing to say about it."""
    with suppress(adbc_driver_manager.Error):
        connection.close()


def quote(*parts: str) -> str:
    """SQL identifier, each part in double quotes, joined by dots."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def _stage(name: str) -> str:
    return quote(STAGE_SCHEMA, name)


def _names(columns: Sequence[Column]) -> str:
    return ", ".join(quote(column.name) for column in columns)


def _values(columns: Sequence[Column]) -> str:
    """The staged columns as the target's types."""
    return ", ".join(
        f"CAST(s.{quote(c.name)} AS {postgres_type(c.type)})" if wide_decimal(c.type) else f"s.{quote(c.name)}"
        for c in columns
    )


def _words(cause: adbc_driver_manager.Error) -> str:
    """The server's message in one line, and the column that COPY was at; never DETAIL and CONTEXT, which quote rows."""
    text = str(cause)
    found = re.search(r"(?:ERROR|FATAL|PANIC):\s+(.*?)(?=\n\s*[A-Z]+:|\Z)", text, re.DOTALL)
    at = re.search(r"^CONTEXT:.*?(COPY [^\n]*?, line \d+, column [^\n:]+)", text, re.DOTALL | re.MULTILINE)
    message = re.sub(r"\s+", " ", found[1] if found else text).strip()
    return f"{message} ({at[1]})" if at else message
