"""The selection of the tables that a pipeline captures, by names and regular expressions of ``source.tables`` and
``source.exclude``.

A text is a *plain name*, which matches one table, in two cases: it has no metacharacter of regular expressions except
one dot, or it is DATABASE.TABLE with one or both parts in backquotes. Any character may stand in backquotes; a
backquote itself is doubled. Every other text is a regular expression that must match the whole of ``DATABASE.TABLE``,
written without quotes. It therefore matches both of two tables whose names differ only in the separating dot, such as
table ``b.c`` of database ``a`` and table ``c`` of database ``a.b``. Matching is case-sensitive, in the source's own
spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from raycdc.errors import ConfigError
from raycdc.model.table import TableId, quoted, quoted_parts

#: The first dot of a pattern, if the name before it is plain and no quantifier follows the dot.
_BARE_DOT = re.compile(r"([^\\^$*+?{}\[\]|().]+)\.(?![*+?{])(.+)", re.DOTALL)
#: A name with one of these characters is a regular expression.
METACHARACTERS = frozenset("\\^$*+?{}[]|()")
#: A part of a plain name that is not quoted.
UNQUOTED = r"[^`.\\^$*+?{}\[\]|()]+"


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A plain name or a regular expression that selects tables.

    `table` is the table of a plain name, and None for a regular expression. `NamePattern.of` makes a pattern.
    """

    table: TableId | None
    regex: re.Pattern[str]

    @classmethod
    def of(cls, text: str) -> NamePattern:
        """Return the pattern of a `text` that `check_pattern` accepted."""
        table = plain_table(text)
        return cls(table, re.compile(text if table is None else re.escape(table.dotted)))

    def match(self, table: TableId) -> re.Match[str] | None:
        """Return the match if the pattern selects `table`. The match of a plain name has no groups."""
        return self.regex.fullmatch(table.dotted) if self.table in (None, table) else None


class TableSelector:
    """Decides which tables are captured.

    Immutable; built once from the configuration, and used by discovery, the log reader and DDL handling.
    """

    __slots__ = ("_cache", "_exclude", "_include", "exclude", "include")

    def __init__(self, include: Iterable[str], exclude: Iterable[str] = (), *, key_path: str = "source") -> None:
        """Make a selector.

        Raises `ConfigError` with every bad entry, named as ``{place}.tables[i]`` or ``{place}.exclude[i]``.
        """
        self.include = tuple(include)
        self.exclude = tuple(exclude)
        problems: list[str] = []
        self._include = _compile(self.include, f"{key_path}.tables", problems)
        self._exclude = _compile(self.exclude, f"{key_path}.exclude", problems)
        if problems:
            raise ConfigError(*problems)
        self._cache: dict[TableId, bool] = {}

    @property
    def plain_names(self) -> tuple[TableId, ...]:
        """Return the included plain names that are not excluded.

        These tables must exist; otherwise the configuration is wrong.
        """
        names = (one.table for one in self._include if one.table is not None)
        return tuple(dict.fromkeys(name for name in names if self.matches(name)))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the included regular expressions. A regular expression that matches no table causes only a warning."""
        return tuple(text for text in self.include if not is_plain_name(text))

    def matches(self, table: TableId) -> bool:
        """Return True if `table` is captured.

        The answer is remembered for each table, because the log names a table in every transaction.
        """
        known = self._cache.get(table)
        if known is None:
            known = self._cache[table] = self._matches(table)
        return known

    def _matches(self, table: TableId) -> bool:
        return any(p.match(table) for p in self._include) and not any(p.match(table) for p in self._exclude)

    def __repr__(self) -> str:
        return f"TableSelector(include={list(self.include)!r}, exclude={list(self.exclude)!r})"


def plain_table(text: str) -> TableId | None:
    """Return the table that a plain name names; None for a regular expression, and for an invalid text."""
    if (parts := quoted_parts(text, UNQUOTED, UNQUOTED)) is not None:
        return TableId(*parts)
    db, dot, table = text.partition(".")
    if db and dot and table and "." not in table and not METACHARACTERS & set(text):
        return TableId(db, table)
    return None


def is_plain_name(text: str) -> bool:
    """Return True if `text` names one table."""
    return plain_table(text) is not None


def plain_name(table: TableId) -> str:
    """Return a plain name of `table`, without quotes if possible."""
    return table.dotted if plain_table(table.dotted) == table else f"{quoted(table.db)}.{quoted(table.table)}"


def bare_dot(text: str) -> str:
    """Return `text` with its dot between database and table escaped, if it is a regular expression that probably means
    that.

    An unescaped dot matches any character. Returns an empty text if `text` is not suspicious.
    """
    if is_plain_name(text) or (found := _BARE_DOT.match(text)) is None:
        return ""
    return f"{found[1]}\\.{found[2]}"


def check_pattern(text: str) -> str:
    """Return `text` if it is a plain name or a regular expression that can match a table.

    Raises ValueError otherwise.
    """
    if is_plain_name(text):
        return text
    if not set(text) & (METACHARACTERS | {"."}):
        raise ValueError(f"'{text}' can match no table: it needs DATABASE.TABLE, e.g. 'shop.orders'")
    try:
        re.compile(text)
    except re.error as error:
        at = f" at character {error.pos + 1}" if error.pos is not None else ""
        raise ValueError(f"'{text}' is not a regular expression: {error.msg}{at}") from error
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"'{text[:40]}…' is not a regular expression: {error}") from error
    return text


def _compile(texts: tuple[str, ...], key_path: str, problems: list[str]) -> tuple[NamePattern, ...]:
    patterns: list[NamePattern] = []
    for index, text in enumerate(texts):
        try:
            check_pattern(text)
        except ValueError as error:
            problems.append(f"{key_path}[{index}]: {error}")
        else:
            patterns.append(NamePattern.of(text))
    return tuple(patterns)
