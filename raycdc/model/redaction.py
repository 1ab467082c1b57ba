"""Removes values of rows from texts for people (errors, reasons for parked tables, warnings, events, logs), and from
statements.

Such texts get into terminals, logs, tickets and chats. None of them may have a value of a row or of its key, even if no
mask is configured. A text names the table, the column, the *names* of the key's columns and the position in the log;
whole rows are in the dead letters (``pipeline.on_bad_record``), in files that only their owner can read. A text of a
library or a server, which may quote the refused value, passes through `without_quotations`, or is left out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from raycdc.model.schema import TableSchema

_INSTEAD = "…"
#: A text in quotes, but not a quote within a word (``doesn't``); or a number that is no part of a word or version.
_QUOTED = re.compile(r"(?<!\w)'(?:[^']|''|'(?=\w))*'(?!\w)|\"(?:[^\"]|\"\")*\"")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?(?!\.*\w)")


def row_named(batch: pa.RecordBatch, index: int, schema: TableSchema) -> str:
    """Return a name of the row of `batch` at `index`: its position in the log, if it has one, and the key's columns."""
    at = batch.column("_pos")[index].as_py() if "_pos" in batch.schema.names else ""
    row = f"the row at {at}" if at else "a row of the snapshot" if at is None else "a row"
    return f"{row} with its key in {key_named(schema.primary_key)}" if schema.primary_key else row


def key_named(names: Iterable[str]) -> str:
    """Return a name of a key by its columns: ``(tenant, id)``."""
    return f"({', '.join(names)})"


def without_quotations(text: str) -> str:
    """Return the `text` of a server or library that refuses a value, without its quoted parts and numbers."""
    return _NUMBER.sub(_INSTEAD, _QUOTED.sub(_INSTEAD, text))


#: A text or a number in a statement. Names in backticks are not matched.
_VALUE = re.compile(r"`(?:[^`]|``)*`|('(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|\b[0-9][0-9A-Za-z.]*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
#: A name in backticks; a text, closed or not; or a comment.
_LITERAL = re.compile(
    r"`(?:[^`]|``)*`|'(?:[^'\\]|''|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\"\"|\\.)*(?:\"|\Z)|/\*.*?(?:\*/|\Z)|--\s[^\n]*|#[^\n]*",
    re.DOTALL,
)
#: The beginning of a DDL statement whose comments are replaced.
_DDL = re.compile(r"[\s…]*+(?:CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE)
_STATEMENT_NUMBER = re.compile(r"(?<![\w`])[0-9][0-9A-Za-z.]*")
#: The numbers of a type or of an index's prefix, or any other number.
_SIZED = re.compile(rf"\b(?!(?:DEFAULT|IN|THAN|VALUES)\b)\w+\([\d\s,]*\)|{_STATEMENT_NUMBER.pattern}", re.IGNORECASE)


def without_literals(statement: str) -> str:
    """Return `statement` without its texts and comments, and without its numbers except for those of a DDL statement's
    types.
    """

    def instead(found: re.Match[str]) -> str:
        return found[0] if found[0][0] == "`" or found[0][-1] == ")" else _INSTEAD

    statement = _LITERAL.sub(instead, statement)
    numbers = _SIZED if _DDL.match(statement) else _STATEMENT_NUMBER

    def outside_names(part: str) -> str:
        return part if part.startswith("`") else numbers.sub(instead, part)

    return "".join(map(outside_names, re.split(r"(`(?:[^`]|``)*`)", statement)))


def without_values(text: str, statement: str) -> str:
    """Return `text`, which quotes `statement`, without the values of the statement in any notation."""
    spelled: set[str] = set()
    for value in filter(None, _VALUE.findall(statement)):
        inner = value[1:-1] if value[0] in "'\"" else value
        meant = _ESCAPED.sub(lambda found: found[1] or found[0][0], inner)
        # A single letter would be found in every text, so it is searched for in quotes only.
        alone = {inner, meant} if len(inner) > 1 else set()
        spelled |= {" ".join(value.split()), *(alone if value[0] in "'\"" or len(value) > 1 else ()), repr(meant)}
    for value in sorted(filter(lambda one: len(one) > 1, spelled), key=len, reverse=True):
        text = text.replace(value, _INSTEAD)
    return text
