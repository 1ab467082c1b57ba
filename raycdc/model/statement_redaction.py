"""Removes values from SQL statements, and from texts that quote a statement (`raycdc.model.redaction`).

Pure.
"""

from __future__ import annotations

import re

#: A text or a number in a statement; names in backticks are neither.
_VALUE = re.compile(r"`(?:[^`]|``)*`|('(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|\b[0-9][0-9A-Za-z.]*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
_INSTEAD = "…"
#: A name in backticks; a text, closed or not; or a comment.
_LITERAL = re.compile(
    r"`(?:[^`]|``)*`|'(?:[^'\\]|''|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\"\"|\\.)*(?:\"|\Z)|/\*.*?(?:\*/|\Z)|--\s[^\n]*|#[^\n]*",
    re.DOTALL,
)
_DDL = re.compile(r"(?:[\s…]|/\*.*?\*/)*(?:CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w`])[0-9][0-9A-Za-z.]*")
#: The numbers of a type or of an index's prefix, or any other number.
_SIZED = re.compile(rf"\b(?!(?:DEFAULT|IN|THAN|VALUES)\b)\w+\([\d\s,]*\)|{_NUMBER.pattern}", re.IGNORECASE)


def without_literals(statement: str) -> str:
    """Return `statement` without its texts and comments, and without its numbers except for those of a DDL statement's
    types.
    """
    numbers = _SIZED if _DDL.match(statement) else _NUMBER

    def instead(found: re.Match[str]) -> str:
        return found[0] if found[0][0] == "`" or found[0][-1] == ")" else _INSTEAD

    def outside_names(part: str) -> str:
        return part if part.startswith("`") else numbers.sub(instead, part)

    return "".join(map(outside_names, re.split(r"(`(?:[^`]|``)*`)", _LITERAL.sub(instead, statement))))


def without_values(text: str, statement: str) -> str:
    """Return `text`, which quotes `statement`, without the values of the statement in any notation."""
    spelled: set[str] = set()
    for value in filter(None, _VALUE.findall(statement)):
        inner = value[1:-1] if value[0] in "'\"" else value
        meant = _ESCAPED.sub(lambda found: found[1] or found[0][0], inner)
        # A single letter would be found in every text; as a value it is in quotes.
        alone = {inner, meant} if len(inner) > 1 else set()
        spelled |= {" ".join(value.split()), *(alone if value[0] in "'\"" or len(value) > 1 else ()), repr(meant)}
    for value in sorted(filter(lambda one: len(one) > 1, spelled), key=len, reverse=True):
        text = text.replace(value, _INSTEAD)
    return text
