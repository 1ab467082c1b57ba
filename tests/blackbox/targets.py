"""What a target holds, read by clients that are not raycdc's: delta-rs, JSON, PostgreSQL.

A changelog is played: every line must follow from those before it, and what is left at its end are the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from raycdc.sandbox.servers import PostgresServer
from tests.blackbox.compare import Held

METADATA = ("_op", "_seq", "_ts_ms", "_db", "_table", "_pos")


class Target(Protocol):
    """One sink of a pipeline."""

    @property
    def toml(self) -> str:
        """The section ``[sink]``."""
        ...

    def read(self, database: str, table: str, key: Sequence[str]) -> tuple[Held | None, list[str]]:
        """What it holds of a table (None: nothing is there), and what is wrong with how it got there."""
        ...

    def emptied(self, database: str, table: str) -> int | None:
        """How often the table's rows were taken away as a whole; None where that cannot be seen."""
        ...


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """A lake, upserts."""

    folder: Path

    @property
    def toml(self) -> str:
        return f'type = "delta"\npath = "{self.folder}"\nwrite = "upsert"'

    def read(self, database: str, table: str, key: Sequence[str]) -> tuple[Held | None, list[str]]:
        path = str(self.folder / database / table)
        if not DeltaTable.is_deltatable(path):
            return None, []
        rows = DeltaTable(path).to_pyarrow_table()
        for number, field in enumerate(rows.schema):
            # As text, because Python has no year 0.
            if pa.types.is_temporal(field.type):
                rows = rows.set_column(number, field.name, rows.column(number).cast(pa.string()))
        return Held(tuple(rows.column_names), tuple(rows.to_pylist())), []

    def emptied(self, database: str, table: str) -> int | None:
        return None


@dataclass(frozen=True, slots=True)
class JsonlTarget:
    """Files of a changelog."""

    folder: Path

    @property
    def toml(self) -> str:
        return f'type = "jsonl"\npath = "{self.folder}"'

    def read(self, database: str, table: str, key: Sequence[str]) -> tuple[Held | None, list[str]]:
        lines = list(self._lines(database, table))
        if not lines:
            return None, []
        rows, problems = played(lines, key)
        names = tuple(name for name in lines[-1] if name not in METADATA)
        newest = lines[-1] if lines[-1]["_op"] in ("+I", "+U") else None
        return Held(names, tuple(rows), newest, parsed=True), problems

    def emptied(self, database: str, table: str) -> int | None:
        return sum(str(line["_op"]) == "T" for line in self._lines(database, table))

    def _lines(self, database: str, table: str) -> Iterator[dict[str, Any]]:
        files = sorted((self.folder / database / table).glob("*.jsonl"))
        lines = [json.loads(line, parse_int=_number) for file in files for line in file.read_text().split("\n") if line]
        yield from sorted(lines, key=lambda line: int(line["_seq"]))


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """A database, upserts. Every value is read as PostgreSQL prints it."""

    server: PostgresServer
    name: str

    @property
    def toml(self) -> str:
        url = f"jdbc:{self.server.url(self.name)}"
        return f'type = "jdbc"\nurl = "{url}"\nuser = "postgres"\npassword = "${{env:SINK_PASSWORD}}"\nwrite = "upsert"'

    def read(self, database: str, table: str, key: Sequence[str]) -> tuple[Held | None, list[str]]:
        place = f"table_schema = '{database}' AND table_name = '{table.replace(chr(39), chr(39) * 2)}'"
        found = self.server.execute(
            f"SELECT column_name FROM information_schema.columns WHERE {place} ORDER BY ordinal_position",
            database=self.name,
        )
        if not found:
            return None, []
        names = tuple(str(name) for (name,) in found)
        columns = ", ".join(f"{_quoted(name)}::text" for name in names)
        rows = self.server.execute(f"SELECT {columns} FROM {_quoted(database)}.{_quoted(table)}", database=self.name)
        return Held(names, tuple(dict(zip(names, row, strict=True)) for row in rows)), []

    def emptied(self, database: str, table: str) -> int | None:
        return None


def _number(text: str) -> int | float:
    """A whole number; Python's have no negative zero."""
    return -0.0 if text == "-0" else int(text)


def played(lines: Sequence[Mapping[str, Any]], key: Sequence[str]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The rows that a changelog leaves, and where a line does not follow from those before it."""
    rows: dict[tuple[str, ...], Mapping[str, Any]] = {}
    problems = []
    for line in lines:
        row = {name: value for name, value in line.items() if name not in METADATA}
        place = tuple(json.dumps(row.get(name), sort_keys=True) for name in key or sorted(row))
        match line["_op"]:
            case "T":
                rows.clear()
            case "+I" | "+U":
                if place in rows:
                    problems.append(f"{line['_op']} of a row that is there: {line}")
                rows[place] = row
            case "-U" | "-D":
                before = rows.pop(place, None)
                if before is None:
                    problems.append(f"{line['_op']} of a row that is not there: {line}")
                elif any(before[name] != row[name] for name in before if name in row):
                    problems.append(f"{line['_op']} of another row than {before}: {line}")
            case other:
                problems.append(f"a line of the kind {other}: {line}")
    return list(rows.values()), problems[:5]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
