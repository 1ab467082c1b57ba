"""The stage tasks of the Iceberg sink: they write data files from segments, and during a commit from other data files.

A `TaskRunner` runs them in a Spark worker or in the driver process. Each task writes files under given names,
completely and synced, and returns their descriptions. No file belongs to a table before a commit names it, so a task
may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import TargetModifiedError
from raycdc.model import key_hashes
from raycdc.model.arrays import python_rows
from raycdc.model.keys import comparable
from raycdc.model.schema import constant
from raycdc.segments.tasks import StageTask
from raycdc.sinks.iceberg.files import (
    IcebergColumn,
    WrittenFile,
    as_stored,
    read_columns,
    read_whole,
    rows_in,
    write_data_file,
)
from raycdc.sinks.iceberg.layout import StoredPartition, write_data_files
from raycdc.sinks.rows import alive
from raycdc.sinks.source_tables import CLAIMED, MergedTarget, same_key
from raycdc.sinks.task_inputs import TableTask
from raycdc.sinks.tasks import ROW_GROUP_ROWS, compacted_merged, compacted_rows, write_parquet
from raycdc.storage.files import FileName, delete

#: The most rows of a data file in memory while it is rewritten (`files.BATCH_BYTES_MAX`).
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class FileDestination:
    """The destination of a task's data files: their path, and the columns and partitions of the table."""

    path: FileName
    columns: tuple[IcebergColumn, ...]
    partitions: tuple[StoredPartition, ...] = ()

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write batches that are `as_stored`, and return the files."""
        return write_data_files(self.path, self.columns, batches, self.partitions)

    def stored(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield `batches` with the table's columns and types."""
        return (as_stored(batch, self.columns) for batch in batches)


@dataclass(frozen=True, slots=True)
class CompactedFiles:
    """The last row of each key: data files with the rows that exist, and the file `keys` with all `rewritten` keys.

    `truncated` is True if no older row of the table remains.
    """

    files: list[WrittenFile]
    keys: FileName
    rewritten: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """The result of rewriting data files.

    `went` has True for each old file that is replaced. `files` are the new files; none if no row is left or no old file
    is replaced. `carried` is the file with the values that removed rows had in other writers' columns.
    """

    went: list[bool]
    files: list[WrittenFile]
    carried: FileName = ""


@dataclass(frozen=True, slots=True)
class WriteRows(TableTask[list[WrittenFile]]):
    """Writes rows unchanged, as events (`changelog`) or with the table's columns (snapshot rows, which are all
    inserts).
    """

    into: FileDestination
    changelog: bool

    def run(self) -> list[WrittenFile]:
        return self.into.write(self.into.stored(self.table.rows(changelog=self.changelog)))


@dataclass(frozen=True, slots=True)
class CompactToDataFiles(TableTask[CompactedFiles]):
    """Writes the last row of each key: data files with the rows that exist, and the file `keys` with all keys.

    If the target is `merged`, `keys` also marks the keys that the target must not have yet.
    """

    into: FileDestination
    keys: FileName
    merged: MergedTarget | None = None

    def run(self) -> CompactedFiles:
        if self.merged is not None:
            compacted = compacted_merged(self.table, self.merged)
            claims = compacted.rows.column(CLAIMED)
        else:
            compacted = compacted_rows(self.table)
            claims = pa.array(np.zeros(compacted.rows.num_rows, np.bool_))
        changed = compacted.rows
        there = alive(changed).to_batches(max_chunksize=ROW_GROUP_ROWS)
        written = self.into.write(self.into.stored(there))
        key = [column for column in self.into.columns if column.name in self.table.schema.primary_key]
        rewritten = pa.table({column.name: changed.column(column.name).cast(column.arrow) for column in key})
        rewritten = rewritten.append_column(CLAIMED, claims)
        write_parquet(self.keys, rewritten.schema, rewritten.to_batches(max_chunksize=ROW_GROUP_ROWS))
        return CompactedFiles(written, self.keys, changed.num_rows, compacted.truncated)


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column of a rewritten file.

    `origin` is the field id of its values in the old file; None if its values are a `constant` or null.
    """

    column: IcebergColumn
    origin: int | None
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """The keys of the rows to remove from data files of `target`. They are in `files`, which `CompactToDataFiles`
    wrote. `alone` is True if all rows are of one source table. Data files whose paths (as texts) are in `small_files`
    are rewritten even if no row is removed.
    """

    key: tuple[str, ...]
    files: tuple[FileName, ...]
    target: str
    alone: bool
    small_files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Carry:
    """An order to save values of changed rows in other writers' columns, that is, in columns that the source never had.
    The values are written with the `key` to the file `path`, in the table's staging folder.
    """

    path: FileName
    key: tuple[str, ...]
    columns: tuple[IcebergColumn, ...]

    def write(
        self, files: Sequence[FileName], columns: Sequence[IcebergColumn], deleted: Sequence[np.ndarray]
    ) -> FileName:
        """Write the values of the `deleted` rows of data `files` with `columns`; return the path."""
        theirs = {column.id for column in self.columns}
        wanted = [column for column in columns if column.name in self.key or column.id in theirs]
        schema = pa.schema([column.field() for column in wanted])
        batches = (
            batch
            for file, rows in zip(files, deleted, strict=True)
            for batch in _kept(iter(read_columns(file, wanted, rows=BATCH_ROWS, only=True)), rows)
        )
        write_parquet(self.path, schema, batches)
        return self.path


@dataclass(frozen=True, slots=True)
class Rewrite(StageTask[RewrittenFiles]):
    """Rewrites the data files `paths`, of `size` bytes in total, with the `columns` and without `changed` rows.

    The remaining rows of all files are written in order to one file, or to one file for each partition. A file without
    a row to remove is kept, unless it is in `small_files`. The values of removed rows in the columns of `carry` are
    saved. Raises `DataError` if a row has a key that is marked as new, because that row belongs to another source table
    or to another source row. If the table lists a file several times, `paths` contains its path as often.
    """

    paths: tuple[FileName, ...]
    size: int
    into: FileName
    columns: tuple[WantedColumn, ...]
    partitions: tuple[StoredPartition, ...] = ()
    changed: Changed | None = None
    carry: Carry | None = None

    @property
    def input_bytes(self) -> int:
        return self.size

    def run(self) -> RewrittenFiles:
        into = FileDestination(self.into, tuple(wanted.column for wanted in self.columns), self.partitions)
        # These are lists, because a table may contain a data file, and so its rows, several times.
        if self.changed is None:
            whole = [(path, np.ones(rows_in(path), np.bool_)) for path in self.paths]
            return RewrittenFiles([True] * len(self.paths), self._written(into, whole))
        rewritten = _ChangedKeys(self.changed, into.columns)
        stays = [(path, rewritten.without(path)) for path in self.paths]
        went = [str(path) in self.changed.small_files or not rows.all() for path, rows in stays]
        going = list(compress(stays, went))
        if not going:
            return RewrittenFiles(went, [])
        written = self._written(into, going)
        deleted = [~rows for _, rows in going]
        carries = self.carry if any(rows.any() for rows in deleted) else None
        carried = carries.write([path for path, _ in going], into.columns, deleted) if carries is not None else ""
        return RewrittenFiles(went, written, carried)

    def _written(self, into: FileDestination, stays: Sequence[tuple[FileName, np.ndarray]]) -> list[WrittenFile]:
        """Write the rows that stay. Raises `TargetModifiedError` if their number is not as expected."""
        batches = (batch for path, rows in stays for batch in _kept(_converted(path, self.columns), rows))
        written = into.write(batches)
        wanted, there = sum(int(rows.sum()) for _, rows in stays), sum(file.rows for file in written)
        if wanted != there:
            delete(file.path for file in written)
            raise TargetModifiedError(
                f"Of {len(stays)} data files, the first one {stays[0][0]}, {wanted} rows are to stay, but {there} were "
                "written anew: somebody changed a file meanwhile. No file was taken out of the table. Start again."
            )
        return written


@dataclass(frozen=True, slots=True)
class Together(StageTask[WrittenFile | None]):
    """Combines data files of one `partition`, of `size` bytes in total, into a single file with the `columns`.

    The rows stay in order, file by file. Returns None if there is no row.
    """

    paths: tuple[FileName, ...]
    size: int
    into: FileName
    columns: tuple[IcebergColumn, ...]
    partition: tuple[Any, ...] = ()

    @property
    def input_bytes(self) -> int:
        return self.size

    def run(self) -> WrittenFile | None:
        wanted = [WantedColumn(column, column.id) for column in self.columns]
        rows = (batch for path in self.paths for batch in _converted(path, wanted))
        written = write_data_file(self.into, self.columns, rows)
        return None if written is None else replace(written, partition=self.partition)


@dataclass(frozen=True, slots=True)
class CarriedInto(StageTask[list[WrittenFile]]):
    """Rewrites a data file of new rows. In other writers' columns, the rows get the values of the table's earlier rows,
    from the files `carried` that `Rewrite` wrote. Rows with a new key get null.
    """

    file: WrittenFile
    columns: tuple[IcebergColumn, ...]
    into: FileDestination
    key: tuple[str, ...]
    carried: tuple[FileName, ...]

    @property
    def input_bytes(self) -> int:
        return self.file.size

    def run(self) -> list[WrittenFile]:
        given = {column.id for column in self.columns}
        theirs = [column for column in self.into.columns if column.id not in given]
        numbers, names = [f"k{at}" for at in range(len(self.key))], [f"v{at}" for at in range(len(theirs))]
        known = pa.concat_tables([read_whole(path) for path in self.carried])
        keys = comparable(known, self.key).rename_columns(numbers)
        # If other writers wrote a key twice, the first row is used.
        first = keys.append_column("#", pa.array(np.arange(len(keys)))).group_by(numbers, use_threads=False)
        chosen = first.aggregate([("#", "min")]).column("#_min")
        values = known.select([column.name for column in theirs]).rename_columns(names)
        known = pa.table([*keys.columns, *values.columns], [*numbers, *names]).take(chosen)

        def whole() -> Iterator[pa.RecordBatch]:
            schema = pa.schema([column.field() for column in self.into.columns])
            for batch in read_columns(self.file.path, self.columns, rows=BATCH_ROWS):
                mine = comparable(pa.Table.from_batches([batch]), self.key).rename_columns(numbers)
                asked = mine.append_column("#", pa.array(np.arange(batch.num_rows)))
                reported = asked.join(known, keys=numbers, join_type="left outer", use_threads=False).sort_by("#")
                columns = [*batch.columns, *(reported.column(name).combine_chunks() for name in names)]
                yield from pa.table(columns, schema=schema).to_batches()

        return self.into.write(whole())


def _converted(path: FileName, wanted: Sequence[WantedColumn]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([one.column.field() for one in wanted])
    # Columns are named by their position, because one column may be read twice.
    sources = [IcebergColumn(one.origin or 0, str(at), one.column.type) for at, one in enumerate(wanted)]
    for batch in read_columns(path, sources, rows=BATCH_ROWS):
        arrays = [
            pa.repeat(constant(one.constant, one.column.arrow), batch.num_rows)
            if one.origin is None and one.constant is not None
            else batch.column(at)
            for at, one in enumerate(wanted)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _kept(batches: Iterator[pa.RecordBatch], kept: np.ndarray) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        mask = kept[at : at + batch.num_rows]
        yield batch if mask.all() else batch.filter(pa.array(mask))
        at += batch.num_rows


class _ChangedKeys:
    """The keys of rows to remove from data files, held in memory."""

    def __init__(self, changed: Changed, columns: Sequence[IcebergColumn]) -> None:
        self._changed = changed
        self._key = [column for column in columns if column.name in changed.key]
        self._names = [column.name for column in self._key]
        self._numbers = [f"k{number}" for number in range(len(self._names))]
        rewritten = pa.concat_tables([read_whole(file, [*self._names, CLAIMED]) for file in changed.files])
        self._claimed = rewritten.column(CLAIMED)
        self._keys = comparable(rewritten, self._names).rename_columns(self._numbers)
        self._hashes = self._hashes_of(self._keys)
        self._known = np.unique(self._hashes)

    def without(self, path: FileName) -> np.ndarray:
        """Return for each row of a data file, as one byte, if its key is none of the keys."""
        batches = read_columns(path, self._key, rows=BATCH_ROWS, only=True)
        return np.concatenate([np.zeros(0, np.bool_), *map(self._stays, batches)])

    def _stays(self, batch: pa.RecordBatch) -> np.ndarray:
        mine = comparable(pa.Table.from_batches([batch]), self._names).rename_columns(self._numbers).combine_chunks()
        own = self._hashes_of(mine)
        stays = np.ones(batch.num_rows, np.bool_)
        indexes = np.flatnonzero(np.isin(own, self._known))
        if indexes.size:
            # Different keys rarely have equal hashes; the join compares the keys themselves.
            candidates = mine.take(pa.array(indexes)).append_column("#", pa.array(indexes))
            likely = pa.array(np.isin(self._hashes, own[indexes]))
            found = candidates.join(self._keys.filter(likely), keys=self._numbers, join_type="left semi")
            stays[found.column("#").to_numpy()] = False
            self._require_known(candidates, self._keys.filter(pc.and_(likely, self._claimed)))
        return stays

    def _require_known(self, rows: pa.Table, new: pa.Table) -> None:
        """Raise `DataError` if one of the `rows` has a key that the target must not have yet."""
        if new.num_rows and (taken := rows.join(new, keys=self._numbers, join_type="left semi")).num_rows:
            (first,) = python_rows(taken.select(self._numbers).slice(0, 1))
            values = dict(zip(self._names, first.values(), strict=True))
            raise same_key(self._changed.target, values, alone=self._changed.alone)

    def _hashes_of(self, keys: pa.Table) -> np.ndarray:
        hashes = [key_hashes(batch, self._numbers) for batch in keys.to_batches()]
        return np.concatenate([np.zeros(0, np.uint64), *hashes])
