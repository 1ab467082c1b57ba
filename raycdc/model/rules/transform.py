"""The values of ``[[transform]]`` and ``[[lookup]]``, and the parser that splits a transform's projection into items.

Pure. A projection is a list of items with commas between them, each an expression of Spark SQL:

| item | gives |
|---|---|
| ``*`` | all columns of the table, also those that it gets later |
| ``* EXCEPT (a, b)`` | all columns except the named ones |
| ``column``, ``column AS name`` | a column, under its own name or under `name` |
| ``1 AS one``, ``'text' AS origin``, ``true AS new`` | a constant |
| ``_db``, ``_table``, ``_op``, ``_seq``, ``_ts_ms``, ``_pos`` with ``AS name`` | where a row comes from |
| any other ``expression AS name`` | a column that Spark computes |

All kinds except the last are *plain*: they need no Spark, because stored rows are only viewed differently
(`raycdc.segments.reading`). Names are compared without regard to case, as Spark does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from raycdc.model.rules.layout import ANY_LAYOUT, TableLayout
from raycdc.model.rules.selector import NamePattern, check_pattern, plain_table
from raycdc.model.table import TableId
from raycdc.model.types import LogicalType


@dataclass(frozen=True, slots=True)
class LookupColumn:
    """The field `field` of a document, added as the column `name`."""

    field: str
    name: str
    type: LogicalType


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The `number`-th ``[[lookup]]``, for the tables that `table` names by a name or by a regular expression in full.

    The document of `dimension` whose `field` equals the row's column `key` supplies `columns`. `key_type` is the type
    of the field, empty if the column's type determines it. If `drop` is True, a row without a document is left out.
    `rules` are the other keys of the configuration that affect the result. It lacks the keys that only decide if the
    run ends (many, on_type_mismatch): users may change these keys, as the messages at the end of the run advise.
    """

    number: int
    table: str
    dimension: str
    key: str
    field: str
    columns: tuple[LookupColumn, ...]
    key_type: str = ""
    drop: bool = False
    rules: tuple[str, ...] = ()

    @property
    def key_path(self) -> str:
        """Return the location of the lookup in the configuration, for messages."""
        return f"lookup[{self.number}]"

    @property
    def plain_table(self) -> TableId | None:
        """Return the one table that the lookup names; None for a regular expression."""
        return plain_table(self.table)

    def pattern(self) -> NamePattern:
        return NamePattern.of(self.table)

    def identity(self) -> list[Any]:
        """Return everything that affects the joined rows, to detect changes."""
        columns = [[column.field, column.name, column.type.native] for column in self.columns]
        return [self.dimension, self.key, self.field, self.key_type, columns, self.drop, self.rules]


#: The column that marks deleted rows, unless ``deleted_column`` names another.
DELETED_COLUMN = "is_deleted"

_NAME = r"(?:[^\W\d]\w*|`(?:[^`]|``)+`)"
_STAR = re.compile(rf"\*(?:\s+EXCEPT\s*\((?P<names>\s*{_NAME}\s*(?:,\s*{_NAME}\s*)*)\))?", re.IGNORECASE)
_PLAIN = re.compile(
    rf"(?:(?P<column>{_NAME})|(?P<number>\d{{1,9}})|'(?P<text>[^'\\]*)')(?:\s+(?:AS\s+)?(?P<name>{_NAME}))?",
    re.IGNORECASE,
)
_ANY_NAME = re.compile(_NAME)
#: Words that are not column names if they stand alone.
_WORDS = frozenset({"null", "current_date", "current_timestamp", "current_user", "current_time", "user", "session_user",
                    "localtimestamp"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Star:
    """``*``: all columns, except for the named ones."""

    left_out: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """The column `column` of the table, or of the row's metadata, under the name `name`."""

    column: str
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant, the same for all rows."""

    value: int | str | bool
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that only Spark can evaluate."""

    sql: str
    at: int


Item = Star | Renamed | Constant | Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A ``[[transform]]``, for the tables that `table` names by a name or by a regular expression in full.

    `udfs` are the names and import paths of functions that the expressions use. `layout` is the target's layout.
    `lookups` are joined with the resulting rows; a table may have lookups without a ``[[transform]]``. Raises
    ValueError for a projection that is no list of items. The items themselves are checked later, against a table's
    columns.
    """

    table: str
    projection: str = "*"
    filter: str = ""
    primary_keys: tuple[str, ...] = ()
    on_delete: Literal["delete", "soft"] = "delete"
    deleted_column: str = DELETED_COLUMN
    udfs: tuple[tuple[str, str], ...] = ()
    layout: TableLayout = ANY_LAYOUT
    lookups: tuple[Lookup, ...] = ()

    def __post_init__(self) -> None:
        check_pattern(self.table)
        items_of(self.projection)

    @property
    def items(self) -> tuple[Item, ...]:
        return items_of(self.projection)

    @property
    def soft(self) -> bool:
        return self.on_delete == "soft"

    @property
    def plain_table(self) -> TableId | None:
        """Return the one table that the transform names; None for a regular expression."""
        return plain_table(self.table)

    def pattern(self) -> NamePattern:
        return NamePattern.of(self.table)

    def identity(self) -> str:
        """Return 16 hex digits that differ if the resulting rows would differ. Commit records store them.

        The target's layout has no effect on them.
        """
        parts = [self.projection, self.filter, self.primary_keys, self.on_delete, self.udfs]
        if self.soft:
            parts.append(self.deleted_column)
        if self.lookups:
            parts.append([lookup.identity() for lookup in self.lookups])
        return _hash(parts)


def _hash(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


#: The identity of a transform that leaves rows unchanged.
UNCHANGED = _hash(["*", "", (), "delete", ()])


class Transforms:
    """The transforms of a pipeline. The first one that matches a table is applied to it, with all
    lookups that match.
    """

    def __init__(self, transforms: Sequence[Transform] = (), lookups: Sequence[Lookup] = ()) -> None:
        self.all = tuple(transforms)
        self.lookups = tuple(lookups)
        self._patterns = [transform.pattern() for transform in self.all]
        self._known: dict[TableId, Transform | None] = {}

    def __bool__(self) -> bool:
        """Return True if there is any transform or lookup."""
        return bool(self.all or self.lookups)

    def of(self, table: TableId) -> Transform | None:
        """Return the transform of `table`; None if its rows stay unchanged."""
        if table not in self._known:
            index = self.index(table)
            transform = None if index is None else self.all[index]
            if lookups := tuple(one for one in self.lookups if one.pattern().match(table)):
                transform = replace(transform or Transform(table=lookups[0].table), lookups=lookups)
            self._known[table] = transform
        return self._known[table]

    def index(self, table: TableId) -> int | None:
        """Return the number of the table's ``[[transform]]``; None if it has none."""
        return next((i for i, pattern in enumerate(self._patterns) if pattern.match(table)), None)

    def key_path(self, table: TableId) -> str:
        """Return the location of the transform of `table` in the configuration, for messages."""
        found, index = self.of(table), self.index(table)
        assert found is not None, table
        return found.lookups[0].key_path if index is None else f"transform[{index}]"


def items_of(projection: str) -> tuple[Item, ...]:
    """Return the items of `projection`. Raises ValueError with the position of an invalid item."""
    items = tuple(_item(text, at) for text, at in _split(projection))
    if sum(isinstance(item, Star) for item in items) > 1:
        raise ValueError("* stands in it more than once")
    return items


def _item(text: str, at: int) -> Item:
    if star := _STAR.fullmatch(text):
        return Star(tuple(map(unquoted, _ANY_NAME.findall(star["names"] or ""))), at)
    if text.startswith("*"):
        raise ValueError(f"character {at + 1}: {text!r} is neither * nor * EXCEPT (column, …)")
    matched = _PLAIN.fullmatch(text)
    if matched is None or (matched["column"] or "").casefold() in _WORDS:
        return Expression(text, at)
    name = unquoted(matched["name"]) if matched["name"] else ""
    if matched["column"] is None:
        value: int | str = int(matched["number"]) if matched["number"] else matched["text"]
        # If an expression has no name, Spark makes one and reports problems with it.
        in_range = not isinstance(value, int) or value < 1 << 31
        return Constant(value, name, at) if name and in_range else Expression(text, at)
    if matched["column"].casefold() in ("true", "false"):
        return Constant(matched["column"].casefold() == "true", name, at) if name else Expression(text, at)
    column = unquoted(matched["column"])
    return Renamed(column, name or column, at)


def unquoted(name: str) -> str:
    """Return an identifier without its backticks."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def quoted(name: str) -> str:
    """Return an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def check_balanced(text: str) -> None:
    """Raise ValueError if `text` is empty, or leaves a quote or bracket open."""
    if len(list(_split(text, separator=""))) != 1:
        raise ValueError("it is empty")


def _split(text: str, separator: str = ",") -> Iterator[tuple[str, int]]:
    """Return the parts between commas outside of quotes and brackets, each with its position."""
    begin = at = 0
    opened: list[tuple[str, int]] = []
    while at < len(text):
        character = text[at]
        if character in "'\"`":
            at = _closing(text, at)
        elif text.startswith(("--", "/*"), at):
            raise ValueError(f"character {at + 1}: comments cannot be in it")
        elif character in "([":
            opened.append((character, at))
        elif character in ")]":
            if not opened or opened.pop()[0] != {")": "(", "]": "["}[character]:
                raise ValueError(f"character {at + 1}: nothing is open that {character} closes")
        elif character == separator and not opened:
            yield _stripped(text, begin, at)
            begin = at + 1
        at += 1
    if opened:
        raise ValueError(f"character {opened[-1][1] + 1}: {opened[-1][0]} is never closed")
    yield _stripped(text, begin, len(text))


def _stripped(text: str, begin: int, end: int) -> tuple[str, int]:
    part = text[begin:end]
    if not part.strip():
        raise ValueError(f"character {begin + 1}: an expression is missing")
    return part.strip(), begin + len(part) - len(part.lstrip())


def _closing(text: str, at: int) -> int:
    """Return the position of the closing quote.

    A backslash escapes the next character, except in names and raw texts.
    """
    quote = text[at]
    raw = quote == "`" or re.search(r"\b[rR]$", text[:at]) is not None
    key_path = at + 1
    while key_path < len(text):
        if text[key_path] == "\\" and not raw:
            key_path += 1
        elif text[key_path] == quote:
            return key_path
        key_path += 1
    raise ValueError(f"character {at + 1}: {quote} is never closed")
