"""Names of tables, and the text of a name.

A name is a pair of database and table, and both may have dots. For example, table ``t`` of database ``sec.x`` and table
``x.t`` of database ``sec`` are two different tables. Therefore the text of a name is DATABASE.TABLE if the database has
no dot, and ```DATABASE`.TABLE`` if it has one. The table begins after the first dot, or after the quoted database, and
is never quoted. States, messages, configuration keys and targets' records all use ``str`` and `TableId.parse`. In names
that people write to select tables, the table may be quoted, too (`raycdc.model.rules.selector`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from raycdc.core.typed_codec import JsonText

#: File names have 255 bytes on Linux; this leaves room for the other parts of the name.
FILE_NAME_BYTES = 160
_DIGITS = 32
#: A name in backquotes; a backquote in the name is doubled.
_QUOTED = r"`(?:[^`]|``)+`"
_QUOTED_DATABASE = re.compile(rf"({_QUOTED})\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class TableId(JsonText):
    """A table (or collection, or topic's table) by database and name, in the source's own spelling."""

    db: str
    table: str

    def __str__(self) -> str:
        """Return the name as a text that no other table has.

        The text is `dotted`, except in two cases in which the database is quoted: it has a dot, or it begins with a
        backquote, so that it would look quoted.
        """
        dotted = self.dotted
        if "." in self.db or (dotted[:1] == "`" and _quoted(dotted) is not None):
            return f"{quoted(self.db)}.{self.table}"
        return dotted

    @property
    def dotted(self) -> str:
        """Return DATABASE.TABLE, the text that regular expressions match; another table may have the same text."""
        return f"{self.db}.{self.table}"

    @classmethod
    def parse(cls, text: str) -> TableId:
        """Return the inverse of ``str``. Raises ValueError for a text without two parts."""
        if (parts := _quoted(text)) is not None:
            return parts
        db, dot, table = text.partition(".")
        if not dot or not db or not table:
            raise ValueError(f"{text!r} is not DATABASE.TABLE")
        return cls(db, table)


def file_name(text: str) -> str:
    """Return a file name for `text`, which consists of names of tables. Different texts have different file names."""
    shown = text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if len(shown.encode()) <= FILE_NAME_BYTES:
        return shown
    digits = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{shown.encode()[: FILE_NAME_BYTES - _DIGITS - 1].decode(errors='ignore')}%{digits}"


def quoted(name: str) -> str:
    """Return a part of a table's name in backquotes."""
    return f"`{name.replace('`', '``')}`"


def quoted_parts(text: str, *unquoted: str) -> tuple[str, ...] | None:
    """Return the parts of a name, between its separating dots, if at least one part is quoted; otherwise None.

    `unquoted` has one regular expression for each part; a part without quotes must match it.
    """
    whole = r"\.".join(f"({_QUOTED}|{part})" for part in unquoted)
    if "`" not in text or (parts := re.fullmatch(whole, text, re.DOTALL)) is None:
        return None
    quotes = [re.fullmatch(_QUOTED, part) is not None for part in parts.groups()]
    if not any(quotes):
        return None
    return tuple(p[1:-1].replace("``", "`") if q else p for p, q in zip(parts.groups(), quotes, strict=True))


def _quoted(text: str) -> TableId | None:
    """Return the table whose text begins with its database in quotes.

    If the database's name needs no quotes, the quotes in the text are a part of the name, because earlier releases did
    not quote.
    """
    if (parts := _QUOTED_DATABASE.fullmatch(text)) is None:
        return None
    db = parts[1][1:-1].replace("``", "`")
    return TableId(db, parts[2]) if "." in db or "`" in db else None
