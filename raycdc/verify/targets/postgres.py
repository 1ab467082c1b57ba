"""Tables of PostgreSQL, read by ADBC in one statement, which sees one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from raycdc.verify.targets.api import NotComparedError


@dataclass(frozen=True, slots=True)
class Login:
    """Where a server is and who asks; ``repr`` has no password."""

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    tls_mode: TlsMode = TlsMode.AUTO
    tls_ca: str | None = None


class PostgresRows:
    """`TargetTable` of the table of `target`'s name in the schema of its database's."""

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

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = ", ".join(map(quote, columns))
        table = f"{quote(self._target.db)}.{quote(self._target.table)}"
        with self._cursor() as cursor:
            cursor.execute(f"SELECT {names} FROM {table}")
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays([_stored(column) for column in batch.columns], names=list(columns))

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """One of a connection of its own."""
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
    """Numbers of any size and JSON come as an extension type over their text."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column
