"""Whether a changelog is one: each change once, each before-image what the last change of its key left behind.

Called by the kill tests on what a changelog sink holds. The rows must come with the metadata columns of
`raycdc.model.batch`. This is the strictest thing that can be asked of the hand-off between snapshot and log; an upsert
sink forgives what this does not.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raycdc.model.batch import META_COLUMNS
from raycdc.testing.compare import read_delta

_PROBLEMS_MAX = 10

Row = Mapping[str, Any]


def read_changelog(path: Path, sink: str) -> list[dict[str, Any]]:
    """The rows of a changelog target folder of a `delta`, `parquet` or `jsonl` sink, in no particular order."""
    match sink:
        case "delta":
            return _dicts(read_delta(path))
        case "parquet":
            return [row for file in _visible(path, ".parquet") for row in _dicts(pq.ParquetFile(file).read())]
        case "jsonl":
            lines = (line for file in _visible(path, ".jsonl") for line in file.read_text().splitlines())
            return [json.loads(line) for line in lines if line]
        case _:
            raise ValueError(f"{sink} is no changelog sink that can be read back")


def check_changelog(
    rows: Iterable[Row], key: Sequence[str], *, added_columns: Mapping[str, Any] | None = None
) -> list[str]:
    """Errors of a table's changelog, at most ten findings; empty when there are none.

    Per key and in the order of `_seq`: an insert (or the after-half of an update) only where there is no row, a delete
    (or the before-half) only where there is one and with exactly its values. Per log row: (`_pos`, `_op`) once.
    `added_columns` names columns that an ALTER TABLE added meanwhile, with the value that older rows got there.
    """
    defaults = added_columns or {}
    ordered = sorted(rows, key=lambda row: int(row["_seq"]))
    problems = [
        f"{count} times ({position}, {op})"
        for (position, op), count in Counter((row["_pos"], row["_op"]) for row in ordered if row["_pos"]).items()
        if count > 1
    ]
    present: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in ordered:
        if len(problems) >= _PROBLEMS_MAX:
            break
        problem = _advance(present, row, key, defaults)
        if problem:
            problems.append(f"{problem} at _seq {row['_seq']}, _pos {row['_pos']}")
    return problems[:_PROBLEMS_MAX]


def final_rows(rows: Iterable[Row], key: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The table that a changelog adds up to; `schema` is that of the table's own columns."""
    present: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda each: int(each["_seq"])):
        _advance(present, row, key, {})
    return pa.Table.from_pylist(list(present.values()), schema=schema)


def _advance(
    present: dict[tuple[Any, ...], dict[str, Any]], row: Row, key: Sequence[str], defaults: Mapping[str, Any]
) -> str | None:
    """Apply one row to `present`; returns what was wrong with it."""
    identity = tuple(row[name] for name in key)
    values = {name: value for name, value in row.items() if name not in META_COLUMNS}
    there = present.get(identity)
    match row["_op"]:
        case "+I" | "+U":
            present[identity] = values
            return None if there is None else f"{row['_op']} of key {identity}, which is there already"
        case "-U" | "-D":
            present.pop(identity, None)
            if there is None:
                return f"{row['_op']} of key {identity}, which is not there"
            changed = {
                name: (there.get(name), value)
                for name, value in values.items()
                if not _same(there.get(name), value)
                and not (there.get(name) is None and name in defaults and _same(defaults[name], value))
            }
            return f"{row['_op']} of key {identity} does not undo the last image: {changed}" if changed else None
        case "T":
            present.clear()
            return None
        case other:
            return f"unknown _op {other!r}"


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def _dicts(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _visible(path: Path, suffix: str) -> list[Path]:
    """The committed files: those whose path has no part that starts with a dot or an underscore."""
    return sorted(
        file
        for file in path.rglob(f"*{suffix}")
        if file.stat().st_size > 0 and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
