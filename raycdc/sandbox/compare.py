"""Whether a sink holds what the source holds: counts and checksums over all columns, computed from Arrow on both sides.

Called by ``raycdc demo`` and by the kill and end-to-end tests. The source is read with plain SQL through pymysql, never
through raycdc's own connector, so that a fault of the connector cannot hide itself.

Order-independent checksums of Arrow tables, and the rows in which two of them differ.

Called by `compare` and the kill tests. *Contract*: two tables have equal `ServerChecksum`s when they hold the same rows
the same number of times, whatever the order; every column takes part, each value in an exact text (floats by their
shortest round-trip form, instants as microseconds). The sum of 128-bit row hashes is what tells multisets apart: an
exclusive-or would not see a row that is there twice.

Whether a changelog is one: each change once, each before-image what the last change of its key left behind.

Called by the kill tests on what a changelog sink holds. The rows must come with the metadata columns of
`raycdc.model.batch`. This is the strictest thing that can be asked of the hand-off between snapshot and log; an upsert
sink forgives what this does not.
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
    """Number of rows and the sum of their hashes modulo 2^128."""

    rows: int
    digest: int

    def __str__(self) -> str:
        return f"{self.digest:032x}"


def checksum(table: pa.Table) -> ServerChecksum:
    """The checksum of all columns, in the table's column order. Costs about a microsecond a row."""
    total = 0
    for row in row_bytes(table):
        total += int.from_bytes(hashlib.blake2b(row, digest_size=_HASH_BYTES).digest(), "big")
    return ServerChecksum(rows=table.num_rows, digest=total % (1 << 8 * _HASH_BYTES))


def differing_rows(left: pa.Table, right: pa.Table, *, limit: int = 5) -> tuple[list[str], list[str]]:
    """Up to `limit` rows that only `left` holds, and that only `right` holds, as text.

    A row counts as often as it is there.
    """
    counts_left, counts_right = Counter(row_bytes(left)), Counter(row_bytes(right))
    only_left, only_right = counts_left - counts_right, counts_right - counts_left
    return _show(left, only_left, limit), _show(right, only_right, limit)


def row_bytes(table: pa.Table) -> Iterator[bytes]:
    """Each row as bytes that are equal exactly when all its values are: ``length:value`` per column."""
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
    """One table, both sides. `problems` is empty exactly when they are equal."""

    table: str
    source: ServerChecksum
    sink: ServerChecksum
    problems: tuple[str, ...] = field(default=())

    @property
    def equal(self) -> bool:
        """Return True if both have the same columns and the same rows, each equally often."""
        return not self.problems


def compare_table(connection: Any, database: str, table: str, held: pa.Table) -> TableDifference:
    """Compare `held` (what the sink holds, the table's own columns only) with ``database.table`` at the source."""
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
    """`compare_table` for Delta tables in ``lake/DATABASE/TABLE`` (upsert mode)."""
    return [
        compare_table(connection, database, table, read_delta(lake / database / table)) for database, table in tables
    ]


def read_delta(path: Path) -> pa.Table:
    """All rows of a Delta table, read by delta-rs; an empty table without columns when there is none yet."""
    if not DeltaTable.is_deltatable(str(path)):
        return pa.table({})
    return pa.table(DeltaTable(str(path)).to_pyarrow_table())


def read_source(connection: Any, database: str, table: str, *, like: pa.Schema) -> pa.Table:
    """The rows of a table as Arrow columns of the types in `like`, in the order of `like`'s columns."""
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
    """The select list with which the text protocol loses nothing."""
    column = f"`{name.replace('`', '``')}`"
    match data_type:
        case "float":
            return f"{column} + 0e0"  # printed as FLOAT it would have six digits
        case "bit" | "year":
            return f"{column} + 0"
        case "time":
            return f"CAST({column} AS CHAR)"  # a duration, beyond what Python's time holds
        case _:
            return column


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value of pymysql as pyarrow takes it for a column of `kind`."""
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
    """The committed files: those whose path has no part that starts with a dot or an underscore."""
    return sorted(
        file
        for file in path.rglob(f"*{suffix}")
        if file.stat().st_size > 0 and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
