"""Statements as text: shown to people, and searched for names where nothing better is known of them."""

from __future__ import annotations

import re

from raycdc.model import TableId

_SHOWN_MAX = 500
_FIRST_WORD = re.compile(r"\s*(?:/\*.*?\*/\s*)*(\w+)", re.DOTALL)
#: Words of statements that may bring or remove rows; where one of them is not understood, no shape tells what it did.
_MOVES_ROWS = re.compile(r"\b(PARTITION|TABLESPACE|VERSIONING|PERIOD|IGNORE|TRUNCATE|REPLACE)\b", re.IGNORECASE)


def shown(statement: str) -> str:
    """The statement on one line, cut where it is long."""
    text = " ".join(statement.split())
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def names(statement: str, table: TableId) -> bool:
    """Whether the table's name, of whatever database, is a word of the statement."""
    return bool(re.search(rf"(?<![\w$]){re.escape(table.table)}(?![\w$])", statement, re.IGNORECASE))


def begins_with(word: str, statement: str) -> bool:
    """Whether `word`, in capitals, is the statement's first one."""
    first = _FIRST_WORD.match(statement)
    return first is not None and first[1].upper() == word


def may_move_rows(statement: str) -> bool:
    """Whether an ALTER that is not understood may do more than change columns."""
    return _MOVES_ROWS.search(statement) is not None
