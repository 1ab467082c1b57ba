"""Each table of the server against the changelog that raycdc wrote of it: played to its end, row for row.

Tables of the suite often have no key and many equal rows, so that a row is looked for as a whole, and one from before a
change of columns by the columns that it has.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql

from tests.blackbox.compare import BINARY, MOMENTS, PRINTED, TEXT, WHOLE, Held, Printed, differences, print_table
from tests.blackbox.targets import METADATA, _number

KNOWN_TYPES = WHOLE | BINARY | TEXT | MOMENTS | PRINTED | {"decimal", "float", "double", "json"}


def table_differences(
    connection: Any, changelog: Path, database: str, table: str, *, came_back: Collection[str] = ()
) -> list[str]:
    """How the target's table differs from the source's; empty if it does not. For the rest see `played`."""
    try:
        source = print_table(connection, database, table)
    except (pymysql.Error, UnicodeDecodeError) as error:
        # A generated column that fails, a name that is no UTF-8.
        return [f"NOT READABLE {error}"]
    if source is None:
        return []
    held, problems = played(lines_of(changelog), came_back=came_back)
    if held is None:
        return ["there is no target"] if source.rows else []
    # A line has the columns of its time; those of the last one may be from before the last change.
    names = tuple(source.types)
    # It prints U+FFFD itself for a few bytes of tis620.
    rows = tuple(tuple(value and value.replace("\ufffd", "?") for value in row) for row in source.rows)
    return problems + differences(_valid(Printed(source.types, rows)), _printable(replace(held, columns=names)))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a changelog, in order."""
    lines: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.jsonl")):
        lines += [json.loads(line, parse_int=_number) for line in file.read_text().split("\n") if line]
    return sorted(lines, key=lambda line: int(line["_seq"]))


def played(lines: Iterable[Mapping[str, Any]], *, came_back: Collection[str] = ()) -> tuple[Held | None, list[str]]:
    """The rows that a changelog leaves, and where a line does not follow from those before it.

    `came_back` are columns that went, and came again. No line tells that: in rows from before they are NULL.
    """
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    problems: list[str] = []
    anything = False
    for line in lines:
        anything = True
        row = {name: value for name, value in line.items() if name not in METADATA}
        match line["_op"]:
            case "T":
                rows.clear()
            case "+I" | "+U":
                rows[_text(row)].append(row)
            case "-U" | "-D":
                place = _place(rows, row) or (_emptied(rows, row, came_back) if came_back else None)
                if place is None:
                    problems.append(f"{line['_op']} of a row that is not there: {json.dumps(line)[:300]}")
                else:
                    rows[place].pop()
                    if not rows[place]:
                        del rows[place]
            case other:
                problems.append(f"a line of the kind {other}")
    left = tuple(row for rows_alike in rows.values() for row in rows_alike)
    return (Held((), left, parsed=True) if anything else None), problems[:5]


def _place(rows: Mapping[str, list[Mapping[str, Any]]], row: Mapping[str, Any]) -> str | None:
    exact = _text(row)
    if exact in rows:
        return exact
    for place, alike in rows.items():
        common = row.keys() & alike[0].keys()
        # A row that has the same columns would have been found.
        if common and row.keys() != alike[0].keys() and all(row[name] == alike[0][name] for name in common):
            return place
    return None


def _emptied(
    rows: Mapping[str, list[Mapping[str, Any]]], row: Mapping[str, Any], came_back: Collection[str]
) -> str | None:
    """The row of the same columns that is `row` but for those that came back, which are NULL there."""
    for place, alike in rows.items():
        known = alike[0]
        if row.keys() == known.keys() and all(
            row[name] == known[name] or (name in came_back and row[name] is None) for name in row
        ):
            return place
    return None


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def _printable(held: Held) -> Held:
    """Bytes that are no characters are U+FFFD in the target; the server prints a question mark for them."""
    rows = tuple(
        {name: value.replace("\ufffd", "?") if isinstance(value, str) else value for name, value in row.items()}
        for row in held.rows
    )
    return replace(held, rows=rows)


def _valid(source: Printed) -> Printed:
    """A date that is none is NULL in the target, as the default of ``invalid_dates`` says."""
    places = [place for place, kind in enumerate(source.types.values()) if kind in ("date", "datetime", "timestamp")]
    if not places:
        return source
    rows = tuple(
        tuple(None if place in places and not _is_date(value) else value for place, value in enumerate(row))
        for row in source.rows
    )
    return Printed(source.types, rows)


def _is_date(value: str | None) -> bool:
    if value is None:
        return True
    year, month, day = (int(part) for part in value[:10].split("-"))
    if not 1 <= month <= 12 or day == 0:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
