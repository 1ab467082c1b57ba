"""Statements as text: shown to people, and searched for names where nothing better is known of them."""

from __future__ import annotations

import re

from raycdc.model import TableId

_SHOWN_MAX = 500


def shown(statement: str) -> str:
    """The statement on one line, cut where it is long."""
    text = " ".join(statement.split())
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def names(statement: str, table: TableId) -> bool:
    """Whether the table's name, of whatever database, is a word of the statement."""
    return bool(re.search(rf"(?<![\w$]){re.escape(table.table)}(?![\w$])", statement, re.IGNORECASE))
