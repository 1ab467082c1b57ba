"""The rows that a backfill reads again (`raycdc.source.split.BackfillRows`), as a condition of SQL.

A predicate is sent to the server as the user wrote it, in parentheses and in a read-only session. The server plans it
before the backfill begins, so that an invalid one changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import is_of_locked_table, query, quote_name
from raycdc.connectors.mysql.server.locks import PLANNING_WAIT_S, connect_briefly, locked_error
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.keys import KeyKind, KeyValue
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError, RaycdcError, SourceError, SourceUnavailableError
from raycdc.model.column_names import mysql_fold
from raycdc.source.snapshot.rereading.backfill_keys import keys_of_text
from raycdc.source.split import BackfillRows
from raycdc.transform.masks import Masking

#: The statement that makes the rest of the session read-only.
READ_ONLY = "SET SESSION TRANSACTION READ ONLY"
#: The length limit of a predicate, because it is in the state, and in each of its chunks.
WHERE_MAX = 16_384

#: The parts of a predicate that matter: texts and quoted names with any content, comments, and characters that
#: structure it.
_PARTS = re.compile(
    r"'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|`(?:[^`]|``)*`|(?P<comment>--|#|/\*)|(?P<sign>[();'\"`])",
    re.DOTALL,
)
_KINDS = (KeyKind.INTEGER, KeyKind.TEXT, KeyKind.BYTES, KeyKind.EXACT, KeyKind.DATE)


def with_rows(condition: str | None, table: MySqlTable, again: BackfillRows) -> str | None:
    """Return `condition` combined with the condition for the rows to read again."""
    parts = [condition] if condition else []
    if again.where:
        parts.append(again.where)
    if again.keys:
        parts.append(_of_keys(table, keys_of_text(again.keys)))
    return " AND ".join(f"({part}\n)" for part in parts) or None


def is_refusal(cause: RaycdcError) -> bool:
    """Return True if the server refused a statement, and would refuse it again."""
    return not isinstance(cause, SourceUnavailableError) and isinstance(cause.__cause__, pymysql.Error)


def require_rows(
    connect: Callable[[], Connection[Any]], table: MySqlTable, again: BackfillRows, masking: Masking
) -> None:
    """Raise `ConfigError` unless the server can select these rows, and `TableLockedError` if the table is locked.

    Blocks for a moment: a run may be waiting meanwhile.
    """
    if again.where:
        _require_one_condition(again.where)
        _require_nothing_masked(table, again.where, masking)
    condition = with_rows(None, table, again) or "1 = 1"
    try:
        with closing(connect_briefly(connect, seconds=PLANNING_WAIT_S)) as connection:
            query(connection, READ_ONLY)
            query(connection, f"EXPLAIN SELECT 1 FROM {quote_name(table.id.db, table.id.table)} WHERE {condition}")
    except SourceError as cause:
        if is_of_locked_table(cause.__cause__):
            raise locked_error(table.id) from cause
        if is_refusal(cause) and cause.__cause__ is not None:
            reason = ": ".join(map(str, cause.__cause__.args[:2]))
            raise ConfigError(
                f"The server takes {again.where!r} for no condition of {table.id} (error {reason}). Write the "
                f"condition as after WHERE in a SELECT of that table; nothing was begun."
            ) from cause
        raise


def _require_one_condition(where: str) -> None:
    """Raise `ConfigError` for a text that ends its parentheses, or has comments or several statements."""
    if len(where) > WHERE_MAX:
        raise ConfigError(f"The predicate has {len(where):,} characters, and at most {WHERE_MAX:,} can be taken.")
    depth = 0
    for part in _PARTS.finditer(where):
        if part["comment"]:
            raise ConfigError(f"A predicate has no comments: {part['comment']!r} begins one. Leave it out.")
        match part["sign"]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case ";":
                raise ConfigError("A predicate is one condition, as after WHERE, without ';'.")
            case None:
                continue
            case quote:
                raise ConfigError(f"The text that {quote} begins in {where!r} has no end.")
        if depth < 0:
            break
    if depth:
        raise ConfigError(f"The parentheses of {where!r} do not match.")
    if not where.strip():
        raise ConfigError("The predicate is empty. For all rows of the table: raycdc tables resnapshot.")


def _require_nothing_masked(table: MySqlTable, where: str, masking: Masking) -> None:
    """Raise `ConfigError` if the predicate names a masked column: its values would be in the state."""
    words = {mysql_fold(word) for word in re.findall(r"\w+", where)}
    named = [c.name for c in table.columns if mysql_fold(c.name) in words and masking.masks_any(table.id, [c.name])]
    if named:
        raise ConfigError(
            f"The predicate names {', '.join(named)}, which a [[mask]] hides, and the state would have its value. Name "
            "the rows by another column."
        )


def _of_keys(table: MySqlTable, listed: pa.Table) -> str:
    """Return the condition for rows with one of the `listed` keys.

    Raises `ConfigError` for types without exact literals.
    """
    columns = [keys.column_named(table, name) for name in listed.column_names]
    texts = [_literals(column, listed.column(column.name)) for column in columns]
    names = ", ".join(quote_name(column.name) for column in columns)
    if len(columns) == 1:
        return f"{names} IN ({', '.join(texts[0])})"
    rows = (", ".join(key) for key in zip(*texts, strict=True))
    return f"({names}) IN ({', '.join(f'({row})' for row in rows)})"


def _literals(column: MySqlColumn, values: pa.ChunkedArray) -> list[str]:
    kind = keys.key_kind(column)
    if kind not in _KINDS:
        raise ConfigError(f"Keys that are {column.column_type} ({column.name}) cannot be selected one by one.")

    def exact(value: Any) -> KeyValue:
        return value if isinstance(value, int | bytes) else str(value)

    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp(values.type.unit)).cast(pa.string())
    return [keys.literal(column, exact(value)) for value in values.to_pylist()]
