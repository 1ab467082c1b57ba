"""The stage tasks of the Iceberg sink: segments in, data files out; and at a commit, data files in and out.

Run by a `TaskRunner` in a Spark worker or in the driver process. Each writes files of the names it is given, whole and
synced, and describes them; none is part of a table before a commit names it, so a task may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycdc.bridge.access import SegmentAccess
from raycdc.model import RowKind, TableSchema, key_hashes
from raycdc.model.constants import constant
from raycdc.model.keys import comparable
from raycdc.sinks.iceberg.files import StoredColumn, as_stored, read_columns
from raycdc.sinks.iceberg.partitions import StoredPartition, write_data_files
from raycdc.sinks.origins import CLAIMED, ORIGIN, last_per_origin, same_key
from raycdc.sinks.plan import Input
from raycdc.sinks.rows import alive, changelog_names
from raycdc.sinks.tasks import ROW_GROUP_ROWS, compacted_rows, read_inputs, write_parquet_file

#: Rows of a data file that are in memory at once while it is written anew.
BATCH_ROWS = 1 << 16


def write_rows(
    inputs: list[dict[str, Any]],
    schema: dict[str, Any],
    columns: list[dict[str, Any]],
    path: str,
    changelog: bool,
    node: str,
    token: str,
    partitions: list[dict[str, Any]],
) -> dict[str, Any]:
    """Rows as they are, as events (`changelog`) or as the table's columns (snapshot rows, which are all inserts)."""
    table = TableSchema.from_json(schema)
    names = changelog_names(table) if changelog else [c.name for c in table.columns]
    into = [StoredColumn.from_json(column) for column in columns]
    batches = read_inputs(inputs, names, access=SegmentAccess(node, token), symbols=changelog)
    return {"files": _written(path, into, (as_stored(batch, into) for batch in batches), partitions)}


def compact(
    inputs: list[dict[str, Any]],
    schema: dict[str, Any],
    columns: list[dict[str, Any]],
    path: str,
    keys: str,
    node: str,
    token: str,
    partitions: list[dict[str, Any]],
    merged: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The last row of each key: those that are there as data files by the name `path`, and all keys as `keys`.

    `merged` is given for rows of several source tables, or of one under another key: what `last_per_origin` wants
    to know of the target; keys that the target must not have yet are then marked in `keys`.
    """
    table = TableSchema.from_json(schema)
    into = [StoredColumn.from_json(column) for column in columns]
    names = [c.name for c in table.columns]
    if merged:
        batches = read_inputs(
            inputs, [*names, "_op", "_seq", *ORIGIN], access=SegmentAccess(node, token), symbols=False
        )
        origin = [(name, pa.string()) for name in ORIGIN]
        given = pa.schema([*table.arrow(), ("_op", pa.int8()), ("_seq", pa.int64()), *origin])
        rows = pa.Table.from_batches((pa.RecordBatch.from_arrays(b.columns, schema=given) for b in batches), given)
        changed = last_per_origin(rows, table.primary_key, names, **merged)
        claims = changed.column(CLAIMED)
        emptied = pc.any(pc.equal(rows.column("_op"), pa.scalar(RowKind.TRUNCATE, pa.int8()))).as_py()
        truncated = bool(merged["alone"] and emptied)
    else:
        compacted = compacted_rows(map(Input.from_json, inputs), table, access=SegmentAccess(node, token))
        changed, truncated = compacted.rows, compacted.truncated
        claims = pa.array(np.zeros(changed.num_rows, np.bool_))
    there = alive(changed).to_batches(max_chunksize=ROW_GROUP_ROWS)
    written = _written(path, into, (as_stored(batch, into) for batch in there), partitions)
    key = [column for column in into if column.name in table.primary_key]
    touched = pa.table({column.name: changed.column(column.name).cast(column.arrow) for column in key})
    touched = touched.append_column(CLAIMED, claims)
    write_parquet_file(Path(keys), touched.schema, touched.to_batches(max_chunksize=ROW_GROUP_ROWS))
    return {"files": written, "keys": keys, "touched": changed.num_rows, "truncated": truncated}


def rewrite(
    path: str,
    into: str,
    columns: list[dict[str, Any]],
    key: list[str] | None = None,
    keys: list[str] | None = None,
    target: str = "",
    alone: bool = False,
    partitions: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The data file `path` written anew as `into`, without the rows that have one of `keys` (files of `compact`).

    A column may be another one under another id (``"from"``) or a `constant` (``"constant"``). Returns how many rows
    went, and the new files, none when nothing is left; where no row goes and keys were asked for, nothing is written.
    Raises `DataError` when a row has a key that was marked as new: it is another source table's, or another row's
    (`alone`).
    """
    wanted = [_Wanted.from_json(column) for column in columns]
    kept: np.ndarray | None = None
    if keys is not None:
        found = [column.column for column in wanted if column.column.name in (key or ())]
        kept = _without(Path(path), found, keys, target, alone=alone)
        if kept.all():
            return {"gone": 0, "files": []}
    batches = _kept(_converted(Path(path), wanted), kept)
    written = _written(into, [column.column for column in wanted], batches, partitions)
    return {"gone": 0 if kept is None else int(len(kept) - np.count_nonzero(kept)), "files": written}


def _written(
    path: str, columns: Sequence[StoredColumn], batches: Iterable[pa.RecordBatch], partitions: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    return write_data_files(path, columns, batches, list(map(StoredPartition.from_json, partitions)))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A column of a rewritten file; `origin` is the id it has in the old one, None for a `constant` or nulls."""

    column: StoredColumn
    origin: int | None
    constant: str | None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> _Wanted:
        return cls(StoredColumn.from_json(data), data["from"], data.get("constant"))


def _converted(path: Path, wanted: Sequence[_Wanted]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([one.column.field() for one in wanted])
    # Under the position as its name, as one column may be read twice.
    sources = [StoredColumn(one.origin or 0, str(at), one.column.type) for at, one in enumerate(wanted)]
    for batch in read_columns(path, sources, rows=BATCH_ROWS):
        arrays = [
            pa.repeat(constant(one.constant, one.column.arrow), batch.num_rows)
            if one.origin is None and one.constant is not None
            else batch.column(at)
            for at, one in enumerate(wanted)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _kept(batches: Iterator[pa.RecordBatch], kept: np.ndarray | None) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        yield batch if kept is None else batch.filter(pa.array(kept[at : at + batch.num_rows]))
        at += batch.num_rows


def _without(path: Path, key: Sequence[StoredColumn], files: Sequence[str], target: str, *, alone: bool) -> np.ndarray:
    """Which rows of a data file have none of the keys in `files`. Holds the keys and a byte per row in memory."""
    names = [column.name for column in key]
    touched = pa.concat_tables([pq.read_table(file, columns=[*names, CLAIMED]) for file in files])
    claimed = touched.column(CLAIMED)
    numbers = [f"k{number}" for number in range(len(names))]
    keys = comparable(touched, names).rename_columns(numbers)
    hashes = np.concatenate([np.zeros(0, np.uint64), *(key_hashes(batch, numbers) for batch in keys.to_batches())])
    known = np.unique(hashes)
    kept: list[np.ndarray] = [np.zeros(0, np.bool_)]
    for batch in read_columns(path, key, rows=BATCH_ROWS, only=True):
        mine = comparable(pa.Table.from_batches([batch]), names).rename_columns(numbers).combine_chunks()
        own = np.concatenate([np.zeros(0, np.uint64), *(key_hashes(part, numbers) for part in mine.to_batches())])
        stays = np.ones(batch.num_rows, np.bool_)
        places = np.flatnonzero(np.isin(own, known))
        if places.size:
            # Equal hashes are equal keys but for one in billions: the join decides.
            candidates = mine.take(pa.array(places)).append_column("#", pa.array(places))
            likely = pa.array(np.isin(hashes, own[places]))
            found = candidates.join(keys.filter(likely), keys=numbers, join_type="left semi")
            stays[found.column("#").to_numpy()] = False
            new = keys.filter(pc.and_(likely, claimed))
            if new.num_rows and (taken := candidates.join(new, keys=numbers, join_type="left semi")).num_rows:
                (first,) = taken.select(numbers).slice(0, 1).to_pylist()
                raise same_key(target, dict(zip(names, first.values(), strict=True)), alone=alone)
        kept.append(stays)
    return np.concatenate(kept)
