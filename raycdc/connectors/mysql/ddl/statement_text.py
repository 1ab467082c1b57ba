"""Statements as text: shown to people, and searched for names where nothing better is known of them."""

from __future__ import annotations

import re

from raycdc.model import TableId
from raycdc.transform.hidden_texts import without_literals

_SHOWN_MAX = 500
_FIRST_WORD = re.compile(r"\s*(?:/\*.*?\*/\s*)*(\w+)", re.DOTALL)
#: Words of statements that may bring or remove rows; where one of them is not understood, no shape tells what it did.
_MOVES_ROWS = re.compile(r"\b(PARTITION|TABLESPACE|VERSIONING|PERIOD|IGNORE|TRUNCATE|REPLACE)\b", re.IGNORECASE)
_COMMENT = re.compile(r"/\*(?!M?!).*?\*/", re.DOTALL)
_CASCADES = re.compile(
    r"\bREFERENCES\b.*?\bON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|SET\s+(?:NULL|DEFAULT))\b", re.IGNORECASE | re.DOTALL
)
#: Why a table with such a key is not followed where the server does not log what it does.
CASCADES = (
    "a foreign key changes rows of this table by cascade, which the server does not write to the log: the target would "
    "keep rows that are gone. Drop the key (let the application or a trigger change these rows) and take a new "
    'snapshot of the table, or accept it with source.on_cascade = "accept"'
)


def shown(statement: str) -> str:
    """The statement without its values, on one line, cut where it is long."""
    text = " ".join(without_literals(statement).split())
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


def adds_cascade(statement: str) -> bool:
    """Whether the statement's table gets a foreign key that changes its rows where others change."""
    return _CASCADES.search(_COMMENT.sub(" ", statement)) is not None
