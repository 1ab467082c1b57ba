"""The suite's own comparison: what a server prints of a table against what a target holds, value by value, as text.

Both sides become the same canonical text, by the source's type of the column. The server does its part in SQL, so that
nothing of a client's conversion is between: text and bytes as hexadecimal, numbers and times as it prints them.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

WHOLE = {"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"}
BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
BINARY |= {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
BINARY |= {"geometrycollection", "geomcollection"}
TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}
MOMENTS = {"date", "datetime", "timestamp", "time"}
PRINTED = {"uuid", "inet4", "inet6"}

#: A canonical value: None is SQL NULL.
Value = str | None
Row = tuple[Value, ...]


class _Missing:
    """A value that a line of JSON does not have, as it was written before its column came."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Held:
    """What a target has: rows by column name; a `MISSING` value is none to compare."""

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    #: The row of the newest line of a changelog, unless that deletes one.
    newest: Mapping[str, Any] | None = None
    #: Values of JSON columns are documents instead of their text.
    parsed: bool = False

    def canonical(self, kind: str, value: Any) -> Any:
        """A value of it as `canonical` has it; a missing one stays that."""
        if value is MISSING:
            return value
        return canonical(kind, json.dumps(value) if self.parsed and kind == "json" and value is not None else value)


@dataclass(frozen=True, slots=True)
class Printed:
    """What the server has of a table: its columns with their types, and canonical rows."""

    types: Mapping[str, str]
    rows: tuple[Row, ...]

    def renamed(self, names: Mapping[str, str]) -> Printed:
        """The same with other names of columns."""
        return Printed({names.get(name, name): kind for name, kind in self.types.items()}, self.rows)

    def with_column(self, name: str, kind: str, values: Mapping[int, Any]) -> Printed:
        """The same with one more column, which has these values in the rows with these ids, and null in the others."""
        place = list(self.types).index("id")
        known = {str(number): canonical(kind, value) for number, value in values.items()}
        rows = tuple((*row, known.get(str(row[place]))) for row in self.rows)
        return Printed({**self.types, name: kind}, rows)


def print_table(connection: Any, database: str, table: str) -> Printed | None:
    """The table as the server prints it; None if there is none."""
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', SESSION sql_mode = ''")
        cursor.execute(
            "SELECT COLUMN_NAME, LOWER(DATA_TYPE) FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            (database, table),
        )
        types = {str(name): str(kind) for name, kind in cursor.fetchall()}
        if not types:
            return None
        columns = ", ".join(_expression(_quoted(name), kind) for name, kind in types.items())
        cursor.execute(f"SELECT {columns} FROM {_quoted(database)}.{_quoted(table)}")
        rows = tuple(
            tuple(canonical(kind, value) for kind, value in zip(types.values(), row, strict=True))
            for row in cursor.fetchall()
        )
    return Printed(types, rows)


def differences(source: Printed, held: Held) -> list[str]:
    """How the target differs from the source; empty if it does not."""
    problems = []
    if sorted(source.types) != sorted(held.columns):
        problems.append(f"columns differ: source {sorted(source.types)}, target {sorted(held.columns)}")
    names = [name for name in source.types if name in held.columns]
    theirs = [tuple(row[list(source.types).index(name)] for name in names) for row in source.rows]
    ours = [tuple(held.canonical(source.types[name], row.get(name, MISSING)) for name in names) for row in held.rows]
    left = _unmatched(theirs, ours)
    if left != ([], []):
        problems.append(f"rows differ: source has {len(theirs)}, target has {len(ours)}; columns {names}")
        problems += [f"only in the source: {_short(row)}" for row in left[0][:5]]
        problems += [f"only in the target: {_short(row)}" for row in left[1][:5]]
    return problems


def untold(source: Printed, held: Held, key: Sequence[str]) -> list[str]:
    """What a changelog does not tell of the source: keys that differ, and a newest line that is not its row."""
    keys = Printed({name: source.types[name] for name in key}, _columns(source, key))
    problems = differences(keys, Held(tuple(key), held.rows))
    if held.newest is not None:
        newest = tuple(held.canonical(kind, held.newest.get(name, MISSING)) for name, kind in source.types.items())
        if newest not in source.rows:
            problems.append(f"the newest line is no row of the source: {_short(newest)}")
    return problems


def canonical(kind: str, value: Any) -> Value:
    """A value of a column of this type, from the server or from a target, as text that is equal if the values are."""
    if value is None:
        return None
    if isinstance(value, Mapping) and list(value) == ["$binary"] and kind != "json":
        value = base64.b64decode(value["$binary"])
    if kind in WHOLE:
        return _whole(value)
    if kind == "decimal":
        return f"{Decimal(value):f}"
    if kind == "float":
        return struct.pack(">f", float(value)).hex()
    if kind == "double":
        return struct.pack(">d", float(value)).hex()
    if kind in MOMENTS:
        return _moment(value)
    if kind == "json":
        return json.dumps(json.loads(value), sort_keys=True)
    if kind in PRINTED:
        return str(value).lower()
    if kind in BINARY:
        # PostgreSQL prints bytes as \x and hexadecimal digits; the server as digits.
        return value.hex() if isinstance(value, bytes) else str(value).removeprefix("\\x").lower()
    assert kind in TEXT, f"the comparison knows no {kind}"
    return str(value)


def _columns(source: Printed, names: Sequence[str]) -> tuple[Row, ...]:
    places = [list(source.types).index(name) for name in names]
    return tuple(tuple(row[place] for place in places) for row in source.rows)


def _unmatched(theirs: Sequence[Row], ours: Sequence[tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
    """Rows of either side without a partner; a row with missing values is matched by one that has the others."""
    left = Counter(theirs) - Counter(ours)
    right = Counter(ours) - Counter(theirs)
    over, mine = list(left.elements()), []
    for row in right.elements():
        partner = next((other for other in over if _matches(row, other)), None) if MISSING in row else None
        if partner is None:
            mine.append(row)
        else:
            over.remove(partner)
    return over, mine


def _matches(row: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(ours is MISSING or ours == theirs for ours, theirs in zip(row, other, strict=True))


def _expression(column: str, kind: str) -> str:
    """What to select so that nothing is lost on the way."""
    if kind in BINARY:
        return f"HEX({column})"
    if kind in TEXT:
        return f"CONVERT({column} USING utf8mb4)"
    if kind in ("float", "double"):
        # As they are declared they would be printed with fewer digits than they have.
        return f"{column} * 1e0"
    # A BIT would be printed as bytes.
    return f"CAST({column}{' + 0' if kind in ('bit', 'year') else ''} AS CHAR)"


def _whole(value: Any) -> str:
    match value:
        case bytes():
            return str(int.from_bytes(value, "big"))
        case str() if value in ("true", "false"):
            return str(int(value == "true"))
        case _:
            return str(int(value))


def _moment(value: Any) -> str:
    match value:
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(" ")
        case dt.date():
            text = value.isoformat()
        case _:
            text = str(value)
            if text.startswith("0001-") and text.endswith(" BC"):
                # So PostgreSQL prints the year 0.
                text = "0000" + text[4:].removesuffix(" BC")
            text = text.replace("T", " ").removesuffix("Z").removesuffix("+00:00").removesuffix("+00")
    whole, dot, part = text.partition(".")
    part = part.rstrip("0")
    return f"{whole}{dot}{part}" if part else whole


def _short(row: Sequence[Any]) -> str:
    return ", ".join(repr(value)[:80] for value in row)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
