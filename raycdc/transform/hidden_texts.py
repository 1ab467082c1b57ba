"""Texts for people that quote a statement whose values nobody may see. Pure."""

from __future__ import annotations

import re

#: A text or a number of a statement; names in backticks are none.
_VALUE = re.compile(r"`(?:[^`]|``)*`|('(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|\b[0-9][0-9A-Za-z.]*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
_INSTEAD = "…"


def without_values(text: str, statement: str) -> str:
    """`text`, which quotes `statement`, without the values of the statement, however they are spelled."""
    spelled: set[str] = set()
    for value in filter(None, _VALUE.findall(statement)):
        inner = value[1:-1] if value[0] in "'\"" else value
        meant = _ESCAPED.sub(lambda found: found[1] or found[0][0], inner)
        # A letter alone stands in every text; as a value it is in quotes.
        alone = {inner, meant} if len(inner) > 1 else set()
        spelled |= {" ".join(value.split()), *(alone if value[0] in "'\"" or len(value) > 1 else ()), repr(meant)}
    for value in sorted(filter(lambda one: len(one) > 1, spelled), key=len, reverse=True):
        text = text.replace(value, _INSTEAD)
    return text
