"""Reads tables of PostgreSQL by ADBC in one statement, as of one moment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as postgresql
import pyarrow as pa

from raycdc.clients.postgres import connection_url, quote
from raycdc.config.tls import TlsMode
from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.verify.changelog import EMPTIED, KIND
from raycdc.verify.targets.api import NotComparedError, RowFilter


@dataclass(frozen=True, slots=True)
class Login:
    """The address of a server, and the account; ``repr`` shows no password."""

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    tls_mode: TlsMode = TlsMode.AUTO
    tls_ca: str | None = None


#: The types of columns whose values can be in the condition of a query, with the type to which values are cast.
_ASKED = {"smallint": "bigint", "integer": "bigint", "bigint": "bigint", "numeric": "numeric"}
_TEXTS = ("text", "character varying")


class PostgresRows:
    """The rows of the table of `target`'s name, in the schema that is named like its database; a `TargetTable`."""

    one_zero = False

    def __init__(self, login: Login, target: TableId) -> None:
        self._login = login
        self._target = target

    def __repr__(self) -> str:
        return f"PostgresRows({self._target}, {self._login!r})"

    def columns(self) -> Sequence[str]:
        sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2"
        with self._cursor() as cursor:
            cursor.execute(sql, (self._target.db, self._target.table))
            names = [str(row[0]) for row in cursor.fetchall()]
        if not names:
            raise NotComparedError(f"there is no table {self._target} in the target's database, or it may not be read")
        return names

    def rows_about(self) -> int:
        sql = (
            "SELECT reltuples::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relname = $2"
        )
        with self._cursor() as cursor:
            cursor.execute(sql, (self._target.db, self._target.table))
            row = cursor.fetchone()
        return max(0, int(row[0])) if row else 0

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        names = ", ".join(map(quote, columns))
        table = f"{quote(self._target.db)}.{quote(self._target.table)}"
        with self._cursor() as cursor:
            where, values = ("", ()) if wanted is None else _where(wanted, self._types(cursor))
            cursor.execute(f"SELECT {names} FROM {table}{where}", values)
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays([_stored(column) for column in batch.columns], names=list(columns))

    def _types(self, cursor: Any) -> Mapping[str, str]:
        sql = (
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2"
        )
        cursor.execute(sql, (self._target.db, self._target.table))
        return {str(name): str(kind) for name, kind in cursor.fetchall()}

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Yield a cursor of a new connection."""
        try:
            with closing(self._connect()) as connection, connection.cursor() as cursor:
                yield cursor
        except adbc_driver_manager.Error as cause:
            raise SinkError(f"{self._target} cannot be read at {self._where} ({type(cause).__name__}).") from cause

    @property
    def _where(self) -> str:
        return f"postgresql://{self._login.host}:{self._login.port}/{self._login.database}"

    def _connect(self) -> Any:
        options = "-c TimeZone=UTC -c client_encoding=UTF8 -c extra_float_digits=3"
        try:
            return postgresql.connect(connection_url(self._login, application_name="raycdc verify", options=options))
        except adbc_driver_manager.Error as cause:
            raise SinkError(f"{self._where} cannot be reached. Check sink.url, sink.user and sink.password.") from cause


def _stored(column: pa.Array) -> pa.Array:
    """Return the stored values.

    Numbers of any size and JSON come from the library as an extension type over their text.
    """
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _where(wanted: RowFilter, types: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the condition by which the server skips rows, and its parameters: one list of values each, as JSON."""
    parts: list[str] = []
    lists: list[str] = []
    for name, values in wanted.values.items():
        is_text = pa.types.is_string(values.type)
        kind = ("text" if types[name] in _TEXTS else "") if is_text else _ASKED.get(types[name], "")
        if not kind:
            continue
        lists.append(json.dumps([str(value) for value in values.to_pylist()]))
        asked = f"SELECT json_array_elements_text(${len(lists)}::text::json)"
        parts.append(f"{quote(name)} = ANY (ARRAY({asked})::{kind}[])")
    if not parts:
        return "", ()
    found = " AND ".join(parts)
    return (f" WHERE ({found}) OR {quote(KIND)} = '{EMPTIED}'" if wanted.of_changes else f" WHERE {found}"), (*lists,)
