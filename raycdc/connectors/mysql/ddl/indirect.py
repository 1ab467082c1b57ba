"""Tables that a statement may change beside those it names: by triggers, views and stored functions.

Asked by `history` where such a statement is in the log instead of the rows it changed. Names are compared as words,
whatever their database: too many found is a table read again, too few would be rows lost in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.ddl.statement_text import names
from raycdc.model import TableId

#: Name by which a statement gets there, and the text that runs then. An account sees only what it has a privilege on.
_OBJECTS = (
    "SELECT EVENT_OBJECT_TABLE, ACTION_STATEMENT FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA <> 'sys'",
    "SELECT TABLE_NAME, VIEW_DEFINITION FROM information_schema.VIEWS WHERE TABLE_SCHEMA <> 'sys'",
    "SELECT ROUTINE_NAME, ROUTINE_DEFINITION FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA <> 'sys'",
)
_CHANGES_ROWS = re.compile(
    r"\s*(?:/\*.*?\*/\s*)*(INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|WITH|SELECT|DO)\b", re.IGNORECASE | re.DOTALL
)
_WORD = re.compile(r"[\w$]+")


def is_change_of_rows(statement: str) -> bool:
    """Whether a statement of the log changes rows, which should be there as rows."""
    return _CHANGES_ROWS.match(statement) is not None


def tables_reached(
    statement: str, led_to: Callable[[str], str | None] | None, tables: Iterable[TableId]
) -> list[TableId]:
    """Those of `tables` that a change of rows, or what it leads to, names; all where that cannot be known."""
    texts = "" if led_to is None else led_to(statement)
    return [table for table in tables if texts is None or names(f"{statement}\n{texts}", table)]


class IndirectChanges:
    """`connect` opens a connection to the server whose log it is."""

    def __init__(self, connect: Callable[[], Connection[Any]]) -> None:
        self._connect = connect

    def __call__(self, statement: str) -> str | None:
        """All texts that the statement leads to, one after the other, as the server has them now.

        None where the account may not see one of them: it may lead anywhere.
        """
        with closing(self._connect()) as connection:
            objects = [
                (_text(name).casefold(), _text(body)) for sql in _OBJECTS for name, body in query(connection, sql)
            ]
        return reached(statement, objects)


def reached(statement: str, objects: list[tuple[str, str]]) -> str | None:
    """The texts of the `objects` (name, text) that a statement names, and of those that these name.

    None where one of them has no text.
    """
    left, found, words = objects, [statement], _words(statement)
    while met := [each for each in left if each[0] in words]:
        left = [each for each in left if each[0] not in words]
        found += [text for _, text in met]
        if not all(text for _, text in met):
            return None
        words = set().union(*(_words(text) for _, text in met))
    return "\n".join(found[1:])


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
