"""Compares a sink with its source, by counts and checksums over all columns, which are computed from Arrow tables of
both.

Called by ``raycdc demo`` and by the kill and end-to-end tests. The source is read with plain SQL through pymysql, never
through raycdc's own connector, so that a fault of the connector cannot hide itself. Differing rows can be listed.

*Contract*: two tables have equal `ServerChecksum`s if they have the same rows the same number of times, in any order.
Every column is included, and each value as an exact text (floats in their shortest round-trip form, instants as
microseconds). The row hashes, of 128 bits, are added, because an exclusive-or would ignore a row that occurs twice.

A changelog is checked, too: each change must occur once, and each before-image must equal the last after-image of its
key. The kill tests do this with the rows of a changelog sink, which must have the metadata columns of
`raycdc.model.batch`. This is the strictest check of the hand-off between snapshot and log, because an upsert sink hides
repeated changes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from raycdc.model.batch import META_COLUMNS

_HASH_BYTES = 16
_NULL = b"\xff"


@dataclass(frozen=True, slots=True)
class ServerChecksum:
    """The number of rows, and the sum of their hashes modulo 2^128."""

    rows: int
    digest: int

    def __str__(self) -> str:
        return f"{self.digest:032x}"


def checksum(table: pa.Table) -> ServerChecksum:
    """Return the checksum of all columns, in the table's column order. Takes about a microsecond per row."""
    total = 0
    for row in row_bytes(table):
        total += int.from_bytes(hashlib.blake2b(row, digest_size=_HASH_BYTES).digest(), "big")
    return ServerChecksum(rows=table.num_rows, digest=total % (1 << 8 * _HASH_BYTES))


def differing_rows(left: pa.Table, right: pa.Table, *, limit: int = 5) -> tuple[list[str], list[str]]:
    """Return up to `limit` rows that only `left` has, and up to `limit` rows that only `right` has, as text.

    A row that occurs several times counts several times.
    """
    counts_left, counts_right = Counter(row_bytes(left)), Counter(row_bytes(right))
    only_left, only_right = counts_left - counts_right, counts_right - counts_left
    return _show(left, only_left, limit), _show(right, only_right, limit)


def row_bytes(table: pa.Table) -> Iterator[bytes]:
    """Return each row as bytes that are equal if and only if all values are equal: ``length:value`` per column."""
    for batch in table.to_batches():
        if batch.num_columns == 0 or batch.num_rows == 0:
            continue
        parts = [part for column in batch.columns for part in _length_and_value(column)]
        nothing = pa.scalar(b"", pa.large_binary())
        joined = pc.binary_join_element_wise(*parts, nothing, null_handling="replace", null_replacement=_NULL)
        yield from joined.to_pylist()


def _length_and_value(column: pa.Array) -> Sequence[pa.Array]:
    text = _exact_text(column)
    length = pc.cast(pc.cast(pc.binary_length(text), pa.string()), pa.large_binary())
    return length, pa.scalar(b":", pa.large_binary()), text


def _exact_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.large_binary())
    return column.cast(pa.large_string()).cast(pa.large_binary())


def _show(table: pa.Table, wanted: Counter[bytes], limit: int) -> list[str]:
    shown: list[str] = []
    left = Counter(wanted)
    for number, row in enumerate(row_bytes(table)):
        if len(shown) == limit:
            break
        if left[row] > 0:
            left[row] -= 1
            shown.append(str(table.slice(number, 1).to_pylist()[0]))
    return shown


@dataclass(frozen=True, slots=True)
class TableDifference:
    """The comparison of one table. `problems` is empty if and only if both sides are equal."""

    table: str
    source: ServerChecksum
    sink: ServerChecksum
    problems: tuple[str, ...] = field(default=())

    @property
    def equal(self) -> bool:
        """Return True if both sides have the same columns and the same rows, each equally often."""
        return not self.problems


def compare_table(connection: Any, database: str, table: str, held: pa.Table) -> TableDifference:
    """Compare `held`, the sink's rows with the table's own columns only, with ``database.table`` at the source."""
    names = [row[0] for row in _columns(connection, database, table)]
    problems: list[str] = []
    if list(held.column_names) != names:
        problems.append(f"columns differ: source {names}, sink {held.column_names}")
        common = [name for name in names if name in held.column_names]
        held = held.select(common)
    source = read_source(connection, database, table, like=held.schema)
    ours, theirs = checksum(source), checksum(held)
    if ours != theirs:
        only_source, only_sink = differing_rows(source, held)
        problems.append(f"rows differ: source {ours.rows}, sink {theirs.rows}")
        problems += [f"only in the source: {row}" for row in only_source]
        problems += [f"only in the sink: {row}" for row in only_sink]
    return TableDifference(f"{database}.{table}", source=ours, sink=theirs, problems=tuple(problems))


def compare_lake(connection: Any, lake: Path, tables: Sequence[tuple[str, str]]) -> list[TableDifference]:
    """Compare the Delta tables in ``lake/DATABASE/TABLE`` (upsert mode) with the source."""
    return [
        compare_table(connection, database, table, read_delta(lake / database / table)) for database, table in tables
    ]


def read_delta(path: Path) -> pa.Table:
    """Return all rows of a Delta table, read by delta-rs; an empty table without columns if there is no table yet."""
    if not DeltaTable.is_deltatable(str(path)):
        return pa.table({})
    return pa.table(DeltaTable(str(path)).to_pyarrow_table())


def read_source(connection: Any, database: str, table: str, *, like: pa.Schema) -> pa.Table:
    """Return the rows of a table as Arrow columns, with the types and the order of the columns in `like`."""
    selected = [
        (name, expression)
        for name, data_type in _columns(connection, database, table)
        if name in like.names
        for expression in [_expression(name, data_type)]
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        if not selected:
            cursor.execute(f"SELECT COUNT(*) FROM `{database}`.`{table}`")
            return pa.table({}) if cursor.fetchone()[0] == 0 else pa.table({"": pa.nulls(1)})
        cursor.execute(f"SELECT {', '.join(expression for _, expression in selected)} FROM `{database}`.`{table}`")
        rows = cursor.fetchall()
    columns = zip(*rows, strict=True) if rows else [()] * len(selected)
    arrays = {
        name: pa.array([_value(value, like.field(name).type) for value in values], like.field(name).type)
        for (name, _), values in zip(selected, columns, strict=True)
    }
    return pa.table({name: arrays[name] for name in like.names if name in arrays})


def _columns(connection: Any, database: str, table: str) -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            (database, table),
        )
        return [(str(name), str(data_type).lower()) for name, data_type in cursor.fetchall()]


def _expression(name: str, data_type: str) -> str:
    """Return an expression of the select list whose text has the exact value of the column."""
    column = f"`{name.replace('`', '``')}`"
    match data_type:
        case "float":
            return f"{column} + 0e0"  # Printed as FLOAT, the value would have only six digits.
        case "bit" | "year":
            return f"{column} + 0"
        case "time":
            return f"CAST({column} AS CHAR)"  # The value is a duration, which may exceed the range of Python's time.
        case _:
            return column


def _value(value: Any, kind: pa.DataType) -> Any:
    """Convert a value of pymysql to one that pyarrow accepts for a column of `kind`."""
    match value:
        case None:
            return None
        case dt.datetime() if pa.types.is_timestamp(kind) and kind.tz is not None:
            return value.replace(tzinfo=dt.UTC)
        case int() if pa.types.is_decimal(kind):
            return decimal.Decimal(value)
        case int() if pa.types.is_boolean(kind):
            return bool(value)
        case str() if pa.types.is_binary(kind):
            return value.encode()
        case bytes() if pa.types.is_string(kind):
            return value.decode()
        case _:
            return value


_PROBLEMS_MAX = 10

Row = Mapping[str, Any]


def read_changelog(path: Path, sink: str) -> list[dict[str, Any]]:
    """Return the rows of a changelog target folder of a `delta`, `parquet` or `jsonl` sink, in no particular order."""
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
    """Return the errors of a table's changelog, at most ten; empty if there are none.

    The changes of each key are examined in the order of `_seq`. An insert, or the after-half of an update, must find no
    row with the key. A delete, or the before-half of an update, must find a row with exactly the same values. Each pair
    (`_pos`, `_op`) of a log row must occur once. `added_columns` has the columns that an ALTER TABLE added meanwhile,
    with the value that older rows got in them.
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
    """Return the table that results from a changelog. `schema` has the table's own columns."""
    present: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda each: int(each["_seq"])):
        _advance(present, row, key, {})
    return pa.Table.from_pylist(list(present.values()), schema=schema)


def _advance(
    present: dict[tuple[Any, ...], dict[str, Any]], row: Row, key: Sequence[str], defaults: Mapping[str, Any]
) -> str | None:
    """Apply one row to `present`; return the problem with it."""
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
    """Return the committed files: those without a part of their path that starts with a dot or an underscore."""
    return sorted(
        file
        for file in path.rglob(f"*{suffix}")
        if file.stat().st_size > 0 and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
