"""Handles statements as text: prints them for users, and searches them for names if they cannot be parsed."""

from __future__ import annotations

import re

from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
from raycdc.model.statement_redaction import without_literals

_SHOWN_MAX = 500
#: The longest database name, with quotes and spaces.
_QUALIFIER_MAX = 200
_FIRST_WORD = re.compile(r"\s*(?:/\*.*?\*/\s*)*(\w+)", re.DOTALL)
#: Words in statements that may add or remove rows. If such a statement is not understood, the table's schema does not
#: show its effect.
_MOVES_ROWS = re.compile(r"\b(PARTITION|TABLESPACE|VERSIONING|PERIOD|IGNORE|TRUNCATE|REPLACE)\b", re.IGNORECASE)
_ENGINE = re.compile(r"\bENGINE\b", re.IGNORECASE)
_COMMENT = re.compile(r"/\*(?!M?!).*?\*/", re.DOTALL)
_CASCADES = re.compile(
    r"\bREFERENCES\b.*?\bON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|SET\s+(?:NULL|DEFAULT))\b", re.IGNORECASE | re.DOTALL
)
#: The reason why a table with such a key is not followed if the server does not log cascades.
CASCADES = (
    "a foreign key changes rows of this table by cascade, which the server does not write to the log: the target would "
    "keep rows that are gone. Drop the key (let the application or a trigger change these rows) and take a new "
    'snapshot of the table, or accept it with source.on_cascade = "accept"'
)


def shown(statement: str) -> str:
    """Return the statement without its values, on one line, shortened if it is long."""
    text = " ".join(without_literals(statement).split())
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


#: A qualifier before a name, which names the database.
_QUALIFIER = re.compile(r"(?:`([^`]+)`|\"([^\"]+)\"|([\w$]+))(\s*)\.\s*[`\"]?\Z", re.DOTALL)


def mentions(text: str, table: TableId, *, db: str) -> bool:
    """Return True if the text, whose unqualified names are of `db`, names the table.

    A word in a literal or comment counts as well, and so does an ambiguous one.
    """
    for found in re.finditer(rf"(?<![\w$]){re.escape(table.table)}(?![\w$])", text, re.IGNORECASE):
        before = text[max(0, found.start() - _QUALIFIER_MAX) : found.start()]
        qualifier = _QUALIFIER.search(before)
        if qualifier is not None:
            quoted, also_quoted, bare, space = qualifier.groups()
            # A table of the session's database may be written with only a dot in front of it.
            if mysql_fold(quoted or also_quoted or bare) == mysql_fold(table.db) or (bare and space):
                return True
        elif before.rstrip('`" \t\r\n').endswith((".", "*/")) or not db or mysql_fold(db) == mysql_fold(table.db):
            return True
    return False


def begins_with(word: str, statement: str) -> bool:
    """Return True if `word`, in capitals, is the first word of the statement."""
    first = _FIRST_WORD.match(statement)
    return first is not None and first[1].upper() == word


def may_move_rows(statement: str) -> bool:
    """Return True if an ALTER that is not understood may do more than change columns."""
    return _MOVES_ROWS.search(statement) is not None


def adds_cascade(statement: str) -> bool:
    """Return True if the statement's table gets a foreign key that changes its rows when others change."""
    return _CASCADES.search(_COMMENT.sub(" ", statement)) is not None


def may_end_logging(statement: str) -> bool:
    """Return True if the statement may create a table or change its engine: some engines' rows are not logged."""
    return begins_with("CREATE", statement) or _ENGINE.search(statement) is not None
