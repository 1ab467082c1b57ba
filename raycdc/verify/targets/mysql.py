"""Reads tables of MySQL and MariaDB as a MySQL source does: by one statement over the binary protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from raycdc.clients.mysql import MySqlSettings, connect, quote_name
from raycdc.connectors.mysql.server.catalog import load_tables, table_sizes
from raycdc.connectors.mysql.snapshot.resultset import stream_query
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import SinkError, SourceError
from raycdc.model import TableId
from raycdc.verify.changelog import EMPTIED, KIND
from raycdc.verify.targets.api import NotComparedError, RowFilter

#: The types of columns whose values can be in the condition of a query.
_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")
_TEXTS = ("varchar", "text", "mediumtext", "longtext")


class MySqlRows:
    """The rows of the table `target` in MySQL or MariaDB; a `TargetTable`."""

    #: MariaDB stores only one zero.
    one_zero = True

    def __init__(self, settings: MySqlSettings, target: TableId) -> None:
        self._settings = settings
        self._target = target

    def __repr__(self) -> str:
        return f"MySqlRows({self._target}, {self._settings!r})"

    def columns(self) -> Sequence[str]:
        return [column.name for column in self._described().columns]

    def rows_about(self) -> int:
        with self._connection() as connection:
            sizes = table_sizes(connection, [self._target])
        return sizes[self._target].rows if self._target in sizes else 0

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        table = self._described()
        by_name = {column.name: column for column in table.columns}
        chosen = replace(table, columns=tuple(by_name[name] for name in columns))
        names = ", ".join(map(quote_name, columns))
        sql = f"SELECT {names} FROM {quote_name(self._target.db, self._target.table)}{_where(wanted, by_name)}"
        with self._connection() as connection:
            yield from stream_query(connection, sql, chosen)

    def _described(self) -> MySqlTable:
        with self._connection() as connection:
            found = load_tables(connection, [self._target]).get(self._target)
        if found is None:
            raise NotComparedError(f"there is no table {self._target} at {self._settings.address}")
        return found

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        """Open a connection to the target. Errors are raised as those of a sink."""
        try:
            with closing(connect(self._settings)) as connection:
                yield connection
        except SourceError as cause:
            raise SinkError(str(cause).replace("source.", "sink.")) from cause


def _where(wanted: RowFilter | None, columns: Mapping[str, MySqlColumn]) -> str:
    """Return the condition by which the server skips rows.

    It compares texts by its collation, so it may return more rows.
    """
    parts = []
    for name, values in () if wanted is None else wanted.values.items():
        numbers, texts = columns[name].data_type in _NUMBERS, columns[name].data_type in _TEXTS
        if texts and pa.types.is_string(values.type):
            listed = [f"_utf8mb4 X'{value.encode().hex()}'" for value in values.to_pylist()]
        elif numbers and not pa.types.is_string(values.type):
            listed = [str(value) for value in values.to_pylist()]
        else:
            continue
        parts.append(f"{quote_name(name)} IN ({', '.join(listed)})")
    if not parts or wanted is None:
        return ""
    found = " AND ".join(parts)
    return f" WHERE ({found}) OR {quote_name(KIND)} = '{EMPTIED}'" if wanted.of_changes else f" WHERE {found}"
