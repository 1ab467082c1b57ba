"""Names of tables, and the text of a name.

A table is a pair, and both parts may have dots: of MySQL's ``sec.x`.`t`` and ``sec`.`x.t`` (as its manual quotes
identifiers) either is a table of its own. So the text of a name is DATABASE.TABLE where the database has no dot, and
```DATABASE`.TABLE`` where it has one; the table begins behind the first dot, or behind the quoted database, and is
never quoted. Every place that makes a text of a name (states, messages, configuration keys, targets' records) uses
``str`` and `TableId.parse`. Names that people write to choose tables may be quoted in more ways
(`raycdc.model.rules.selector`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from raycdc.core.typed_codec import JsonText

#: File names have 255 bytes on Linux; this leaves room for the other parts of the name.
FILE_NAME_BYTES = 160
_DIGITS = 32
#: A name between backquotes, those in it doubled.
_QUOTED = r"`(?:[^`]|``)+`"
_QUOTED_DATABASE = re.compile(rf"({_QUOTED})\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class TableId(JsonText):
    """A table (or collection, or topic's table) by database and name, in the source's own spelling."""

    db: str
    table: str

    def __str__(self) -> str:
        """A text that no other table has. It is `dotted`, unless the database has a dot, or begins with a backquote
        in a way that looks quoted.
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
        """Return the inverse of ``str``. ValueError for a text without two parts."""
        if (parts := _quoted(text)) is not None:
            return parts
        db, dot, table = text.partition(".")
        if not dot or not db or not table:
            raise ValueError(f"{text!r} is not DATABASE.TABLE")
        return cls(db, table)


def file_name(text: str) -> str:
    """`text`, made of tables' names, as the name of one file; no two texts have one."""
    shown = text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if len(shown.encode()) <= FILE_NAME_BYTES:
        return shown
    digits = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{shown.encode()[: FILE_NAME_BYTES - _DIGITS - 1].decode(errors='ignore')}%{digits}"


def quoted(name: str) -> str:
    """A part of a table's name between backquotes."""
    return f"`{name.replace('`', '``')}`"


def quoted_parts(text: str, *unquoted: str) -> tuple[str, ...] | None:
    """The parts of a name, joined by dots, of which at least one is quoted; None if none is.

    `unquoted` has, for each part, the regular expression of its texts without quotes.
    """
    whole = r"\.".join(f"({_QUOTED}|{part})" for part in unquoted)
    if "`" not in text or (parts := re.fullmatch(whole, text, re.DOTALL)) is None:
        return None
    quotes = [re.fullmatch(_QUOTED, part) is not None for part in parts.groups()]
    if not any(quotes):
        return None
    return tuple(p[1:-1].replace("``", "`") if q else p for p, q in zip(parts.groups(), quotes, strict=True))


def _quoted(text: str) -> TableId | None:
    """The table whose text begins with its database in quotes. Quotes that the database does not need are a part of
    its name: texts of earlier releases have none but those.
    """
    if (parts := _QUOTED_DATABASE.fullmatch(text)) is None:
        return None
    db = parts[1][1:-1].replace("``", "`")
    return TableId(db, parts[2]) if "." in db or "`" in db else None
