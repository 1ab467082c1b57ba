"""Which tables a pipeline captures: names and regular expressions from ``source.tables`` and ``source.exclude``.

A text without any regular-expression metacharacter except one dot is a *plain name* and matches that table only;
everything else is a regular expression that must match the whole of ``DATABASE.TABLE``. Matching is case-sensitive,
in the source's own spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from raycdc.errors import ConfigError
from raycdc.model.table import TableId

#: The first dot of a pattern, where the name before it is plain and no quantifier behind it says what it repeats.
_BARE_DOT = re.compile(r"([^\\^$*+?{}\[\]|().]+)\.(?![*+?{])(.+)", re.DOTALL)
_METACHARACTERS = frozenset("\\^$*+?{}[]|()")


class TableSelector:
    """Immutable; built once from the configuration, asked by discovery, the log reader and the DDL watcher."""

    __slots__ = ("_cache", "_exclude", "_include", "exclude", "include")

    def __init__(self, include: Iterable[str], exclude: Iterable[str] = (), *, place: str = "source") -> None:
        """Raises `ConfigError` with every bad entry, named as ``{place}.tables[i]`` or ``{place}.exclude[i]``."""
        self.include = tuple(include)
        self.exclude = tuple(exclude)
        problems: list[str] = []
        self._include = _compile(self.include, f"{place}.tables", problems)
        self._exclude = _compile(self.exclude, f"{place}.exclude", problems)
        if problems:
            raise ConfigError(*problems)
        self._cache: dict[TableId, bool] = {}

    @property
    def plain_names(self) -> tuple[TableId, ...]:
        """Included plain names that are not excluded: these tables must exist, or the configuration is wrong."""
        names = (TableId.parse(text) for text in self.include if is_plain_name(text))
        return tuple(dict.fromkeys(name for name in names if self.matches(name)))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Included regular expressions; one that matches nothing yet is worth a warning only."""
        return tuple(text for text in self.include if not is_plain_name(text))

    def matches(self, table: TableId) -> bool:
        """Whether `table` is captured. Remembered per table, because the log names a table in every transaction."""
        known = self._cache.get(table)
        if known is None:
            known = self._matches(str(table))
            self._cache[table] = known
        return known

    def _matches(self, name: str) -> bool:
        return any(p.fullmatch(name) for p in self._include) and not any(p.fullmatch(name) for p in self._exclude)

    def __repr__(self) -> str:
        return f"TableSelector(include={list(self.include)!r}, exclude={list(self.exclude)!r})"


def is_plain_name(text: str) -> bool:
    """True when `text` names one table: DATABASE.TABLE without any other regular-expression metacharacter."""
    db, dot, table = text.partition(".")
    return bool(db and dot and table) and "." not in table and not _METACHARACTERS & set(text)


def bare_dot(text: str) -> str:
    """A regular expression that says what `text` seems to mean, where its dot between database and table stands for
    any character; empty where nothing is odd about it.
    """
    if is_plain_name(text) or (found := _BARE_DOT.match(text)) is None:
        return ""
    return f"{found[1]}\\.{found[2]}"


def check_pattern(text: str) -> str:
    """`text`, if it is a plain name or a regular expression that can match a table. Raises ValueError otherwise."""
    if not set(text) & (_METACHARACTERS | {"."}):
        raise ValueError(f"'{text}' can match no table: it needs DATABASE.TABLE, e.g. 'shop.orders'")
    try:
        re.compile(text)
    except re.error as error:
        at = f" at character {error.pos + 1}" if error.pos is not None else ""
        raise ValueError(f"'{text}' is not a regular expression: {error.msg}{at}") from error
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"'{text[:40]}…' is not a regular expression: {error}") from error
    return text


def _compile(texts: tuple[str, ...], place: str, problems: list[str]) -> tuple[re.Pattern[str], ...]:
    patterns: list[re.Pattern[str]] = []
    for index, text in enumerate(texts):
        try:
            check_pattern(text)
        except ValueError as error:
            problems.append(f"{place}[{index}]: {error}")
        else:
            patterns.append(re.compile(re.escape(text) if is_plain_name(text) else text))
    return tuple(patterns)
