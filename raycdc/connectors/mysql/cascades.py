"""Foreign keys that change rows by cascade, on servers that do not log that: their tables cannot be followed.

Such a table parks at whatever comes first: the look before its snapshot, the statement that adds the key, or a start
that finds the key (`unfollowable`; the key may have come by a swap, or while nobody read the log).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import query_raw, quote_name
from raycdc.connectors.mysql.client import ServerInfo, probe
from raycdc.connectors.mysql.ddl.statement_text import CASCADES
from raycdc.errors import SchemaError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.checks import CheckResult
from raycdc.source.parking import Refusal
from raycdc.source.snapshot.stream_state import StreamState

_CASCADE = re.compile(
    r"FOREIGN KEY \(.*?\) REFERENCES .*? ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)", re.IGNORECASE
)


def logs_cascades(info: ServerInfo) -> bool:
    """Whether what a foreign key changes by cascade is in the log.

    MySQL 9.7 carries foreign keys out above the engine, unless told otherwise.
    """
    native = info.variables.get("innodb_native_foreign_keys", "").upper() in {"ON", "1"}
    return not info.is_mariadb and info.version >= (9, 7, 0) and not native


def has_cascade(connection: Connection[Any], table: TableId) -> bool:
    """Whether a foreign key changes rows of the table where others change."""
    # Not REFERENTIAL_CONSTRAINTS: it hides the keys from users who may only SELECT.
    try:
        rows = query_raw(connection, f"SHOW CREATE TABLE {quote_name(table.db, table.table)}")
    except SourceUnavailableError:
        raise
    except SourceError:
        return False
    return any(_CASCADE.search(statement.decode("utf-8", "replace")) for _, statement, *_ in rows)


def refusal_of(connection: Connection[Any], info: ServerInfo, table: TableId) -> str:
    """Why the table cannot be followed; empty where it can."""
    return f"{table}: {CASCADES}." if not logs_cascades(info) and has_cascade(connection, table) else ""


def check_cascades(
    connection: Connection[Any], info: ServerInfo, tables: Iterable[TableId], *, accepted: bool
) -> list[CheckResult]:
    """A result for each table with such a key: it is parked, or the user `accepted` what is lost."""
    return [
        CheckResult(f"table {table}", why, error=SchemaError, required=not accepted, parks=not accepted)
        for table in sorted(tables)
        if (why := refusal_of(connection, info, table))
    ]


def unfollowable(connection: Connection[Any], stream: StreamState, followed: Iterable[TableId]) -> list[Refusal]:
    """The `followed` tables of a sealed log state that have such a key by now: they are parked where it stands."""
    info, now_ms = probe(connection), time.time_ns() // 1_000_000
    return [
        Refusal(table, stream.followed[table].incarnation, why, stream.position, now_ms)
        for table in sorted(followed)
        if (why := refusal_of(connection, info, table))
    ]
