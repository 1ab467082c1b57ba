"""One Delta table as this pipeline uses it: its commit vector, and the few kinds of commit we make, through delta-rs.

Called by `sink`, by one thread at a time per table. Every commit carries an app transaction of the
pipeline whose version holds (epoch, step, generation), so the vector is part of the same atomic commit as the rows.
delta-rs refuses a *concurrent* commit of the same app but not a repeated version: each commit method therefore looks
at the vector of the very snapshot it commits against.

A handle does not see its own commits until it is refreshed; `refresh` comes before everything else.

These things are done here, because delta-rs does not do them:

* It sees no conflict between replacing all rows and another writer's commit meanwhile (an OPTIMIZE would bring the old
  rows back), so those commits are for the very next version or fail, and are tried again.
* It keeps minima and maxima of decimals as 64-bit floats. Our tables have none (`raycdc.sinks.statistics`), and a merge
  by a key of more than `EXACT_DIGITS` digits looks at every file, whoever made the table.
* It syncs nothing: what a commit wrote is on the disk before the commit counts.
* A RESTORE takes rows away and leaves the vector as it was: it is looked for, and refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    TableFeatures,
    Transaction,
    write_deltalake,
)
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from raycdc.errors import SinkError, TargetGoneError, TargetTouchedError
from raycdc.model import TableId, key_hashes
from raycdc.model.layout import ANY_LAYOUT, TableLayout
from raycdc.sinks.absence import is_absent
from raycdc.sinks.api import CommitVector
from raycdc.sinks.delta.layout import ABSENT, set_by_us
from raycdc.sinks.delta.log import LogWatch
from raycdc.sinks.delta.reading import Rewritten, key_batches, rewritten_batches
from raycdc.sinks.delta.rewrite import rewrite
from raycdc.sinks.library_errors import raised_in
from raycdc.sinks.origins import Key
from raycdc.sinks.rows import DELETED
from raycdc.sinks.statistics import for_table, properties
from raycdc.sinks.steps import Stamp, holds
from raycdc.sinks.targets import is_of_pipeline
from raycdc.sinks.tasks import DataFile

#: Table property that says which pipeline created (or emptied) the table, so that plain appends are right.
CREATED_BY = "raycdc.created_by"

#: How often a commit that lost against another writer of the table (OPTIMIZE, say) is tried again.
CONFLICT_RETRIES = 5

#: Decimals of so many digits survive becoming a 64-bit float.
EXACT_DIGITS = 15

_STEP_BITS = 3
_GENERATION_BITS = 30


def vector_to_version(vector: CommitVector) -> int:
    """The vector as one int64 that grows with (epoch, step, generation): 30, 3 and 30 bits."""
    assert 0 <= vector.step < 1 << _STEP_BITS
    assert 0 <= vector.generation < 1 << _GENERATION_BITS
    return ((vector.epoch << _STEP_BITS) | vector.step) << _GENERATION_BITS | vector.generation


def version_to_vector(version: int) -> CommitVector:
    """Inverse of `vector_to_version`."""
    generation = version & ((1 << _GENERATION_BITS) - 1)
    rest = version >> _GENERATION_BITS
    return CommitVector(rest >> _STEP_BITS, rest & ((1 << _STEP_BITS) - 1), generation)


class DeltaTarget:
    """See the module's docstring. Errors of delta-rs become `SinkError` naming the table."""

    def __init__(self, path: Path, name: TableId, app_id: str) -> None:
        self.path = path
        self.name = name
        self.app_id = app_id
        self._table: DeltaTable | None = None
        self._log = LogWatch(path, app_id)
        self._vector: tuple[int, CommitVector | None] | None = None
        #: Whether nothing was tried since the last refresh: then there is nothing newer that a commit must know of.
        self._fresh = False

    def refresh(self) -> bool:
        """Bring the handle to the newest version; False when there is no Delta table.

        What is new since the last time is on the disk afterwards. `SinkError` when a RESTORE is among it.
        """
        try:
            if self._table is not None:
                self._table.update_incremental()
                if not self._has_newest(self._table.version()):
                    # Deleted, or made anew: delta-rs goes on with what it read of the table that was.
                    self._table, self._vector, self._log = None, None, LogWatch(self.path, self.app_id)
            if self._table is None:
                if not DeltaTable.is_deltatable(str(self.path)):
                    return False
                self._table = DeltaTable(str(self.path))
            restored = self._log.look(self._table)
        except TableNotFoundError:
            self._table = None
            return False
        except (DeltaError, OSError) as cause:
            raise self._error("cannot be read", cause) from cause
        self._fresh = True
        if restored and self.vector() is not None:
            raise TargetGoneError(
                f"The Delta table {self.path} ({self.name}) was restored to an older version after this pipeline had "
                "written to it: rows are missing that will not come again. Delete the folder, and read its source "
                "table anew."
            )
        return True

    def _has_newest(self, version: int) -> bool:
        """Whether the log has the version that is taken for its newest: as a commit, or in a checkpoint of it."""
        log = self.path / "_delta_log"
        return (log / f"{version:020d}.json").exists() or any(log.glob(f"{version:020d}.checkpoint*"))

    @property
    def table(self) -> DeltaTable:
        assert self._table is not None, f"{self.name} was not refreshed"
        return self._table

    def vector(self) -> CommitVector | None:
        """The vector of this pipeline in the snapshot of the last `refresh`."""
        snapshot = self.table.version()
        if self._vector is None or self._vector[0] != snapshot:
            version = self.table.transaction_version(self.app_id)
            self._vector = snapshot, None if version is None else version_to_vector(version)
        return self._vector[1]

    def created_by_us(self) -> bool:
        """Whether this pipeline created or emptied the table, so that a snapshot row cannot be in it yet."""
        return self.table.metadata().configuration.get(CREATED_BY) == self.app_id

    def left_empty(self) -> bool:
        """Whether the table is an earlier start's of this pipeline, with another state, which wrote no row."""
        created_by = str(self.table.metadata().configuration.get(CREATED_BY) or "")
        return is_of_pipeline(created_by, self.app_id) and not self.table.file_uris()

    def arrow(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    @property
    def partition_columns(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    def check_layout(self, layout: TableLayout) -> None:
        """`SinkError` when the table has other partitions than those asked for."""
        if layout.partitions and (there := self.partition_columns) != list(layout.columns):
            raise TargetTouchedError(
                f"The Delta table {self.path} ({self.name}) is partitioned by {_listed(there)}, and partition_by asks "
                f"for {_listed(layout.columns)}: a table keeps the partitions that it was made with. Take partition_by "
                "back, or delete the table and take a new snapshot of its source table."
            )

    def first_of(self, keys: pa.Table) -> Key | None:
        """One of `keys` that a row of the table has, as its columns and values; None when no row has any.

        Reads the key columns of the files whose statistics do not rule them out.
        """
        if not keys.num_rows:
            return None
        names = keys.column_names
        least, most = pc.min_max(keys.column(0)).values()
        within = (ds.field(names[0]) >= least) & (ds.field(names[0]) <= most)
        hashes = np.concatenate([key_hashes(batch, names) for batch in keys.to_batches()])
        for batch in key_batches(self.table, names, within):
            found = np.flatnonzero(np.isin(key_hashes(batch, names), hashes))
            if found.size:
                # Equal hashes are equal keys but for one in billions.
                wanted = {tuple(row.values()) for row in keys.to_pylist()}
                rows: list[Key] = batch.take(pa.array(found)).to_pylist()
                if same := next((row for row in rows if tuple(row.values()) in wanted), None):
                    return same
        return None

    # -- commits ----------------------------------------------------------------------------------------------------

    def create(
        self, schema: pa.Schema, stamp: Stamp, layout: TableLayout = ANY_LAYOUT, *, replace: bool = False
    ) -> None:
        """Make an empty table of `schema`; with `replace` what was there is removed in the same commit."""

        def run() -> None:
            self._table = DeltaTable.create(
                str(self.path),
                schema=schema,
                mode="overwrite" if replace else "error",
                partition_by=list(layout.columns),
                configuration={**set_by_us(layout), **self._configuration(schema, layout.columns)},
                raise_if_key_not_exists=False,
                commit_properties=self._properties(stamp, next_version=True),
            )

        self._guarded("cannot be created", run)
        self.refresh()

    def add_columns(self, fields: Sequence[pa.Field], stamp: Stamp) -> None:
        """Add nullable columns at the end. Commits without a vector: whoever is interrupted here simply adds what is
        still missing, and the vector is written when all of the change is done.
        """
        zoneless = any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in fields)

        def run() -> None:
            features = self.table.protocol().writer_features or []
            if zoneless and "timestampNtz" not in features:
                self.table.alter.add_feature(
                    TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
                )
                self.refresh()
            added = list(DeltaSchema.from_arrow(pa.schema(fields)).fields)
            note = CommitProperties(custom_metadata={"userMetadata": stamp.text(self.app_id)})
            self.table.alter.add_columns(added, commit_properties=note)

        self._guarded("cannot get new columns", run)
        self.refresh()

    def lacking(self, options: Mapping[str, str]) -> dict[str, str]:
        """Those of the properties that the table has not."""
        there = self.table.metadata().configuration
        return {name: value for name, value in options.items() if there.get(name, ABSENT.get(name)) != value}

    def set_options(self, options: Mapping[str, str]) -> None:
        """Give the table these properties, if it has others, in a commit of their own that says nothing of epochs."""
        if changed := self.lacking(options):
            self._guarded(
                f"cannot have the properties {', '.join(changed)}",
                lambda: self.table.alter.set_table_properties(changed, raise_if_not_exists=False),
            )
            self.refresh()

    def fill(self, defaults: Mapping[str, str], stamp: Stamp) -> None:
        """Give each column (just added, null everywhere) its value, as SQL by column name, in one commit."""
        values = {quote(column): sql for column, sql in defaults.items()}
        empty = " AND ".join(f"{column} IS NULL" for column in values)
        self._committed(
            stamp,
            f"cannot be filled with the default of {', '.join(defaults)}",
            lambda: self.table.update(values, predicate=empty, commit_properties=self._properties(stamp)),
        )

    def rewrite(self, columns: Sequence[Rewritten], stamp: Stamp, *, empty: bool) -> None:
        """Write the table anew with `columns`, batch by batch, in one commit; with `empty` without its rows."""

        def run() -> None:
            schema = pa.schema([column.field for column in columns])
            batches = iter(()) if empty else rewritten_batches(self.table, columns)
            write_deltalake(
                self.table,
                pa.RecordBatchReader.from_batches(schema, batches),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=self.partition_columns or None,
                configuration=self._configuration(schema, self.partition_columns) if self.created_by_us() else None,
                commit_properties=self._properties(stamp, next_version=True),
            )

        self._committed(stamp, "cannot be written with its new columns", run)

    def append(self, files: Sequence[DataFile], stamp: Stamp) -> None:
        """Add staged Parquet files; none is an empty commit."""
        if files:
            self._check_plain()
            self._check_partitions(files)
        configuration = self.table.metadata().configuration
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=os.path.relpath(file.path, self.path),
                size=file.size,
                partition_values=dict(file.partition),
                modification_time=time.time_ns() // 1_000_000,
                data_change=True,
                stats=for_table(file.statistics, configuration),
            )
            for file in files
        ]
        self._committed(
            stamp,
            "cannot take an append",
            lambda: self.table.create_write_transaction(
                actions,
                mode="append",
                schema=self.table.schema(),
                partition_by=self.partition_columns,
                commit_properties=self._properties(stamp),
            ),
        )

    def merge(self, source: pa.Table, key: Sequence[str], stamp: Stamp, *, order_by: str = "") -> None:
        """Upsert and delete compacted rows (`rows.last_per_key`) held in memory.

        With `order_by` a row of the table with a greater value of that column stays as it is.
        """
        columns = [name for name in source.column_names if name != DELETED]
        values = {quote(name): f"s.{quote(name)}" for name in columns}
        # A column for which the source has no value any more is null, in changed rows as in new ones.
        updates = values | {quote(name): "NULL" for name in self.arrow().names if name not in columns}
        alive = f"NOT s.{quote(DELETED)}"
        by = quote(order_by)
        newer = f"{alive} AND (t.{by} IS NULL OR s.{by} >= t.{by})" if order_by else alive

        def run() -> None:
            actions = None if order_by else rewrite(self.table, self.path, source, key)
            if actions is not None:
                self.table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=self.table.schema(),
                    partition_by=self.partition_columns,
                    commit_properties=self._properties(stamp, next_version=True),
                )
                return
            merger = self.table.merge(
                source,
                predicate=" AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in key),
                source_alias="s",
                target_alias="t",
                # Keys in memory let it skip files by their statistics, where those can be trusted.
                streamed_exec=any(_is_wide(source.schema.field(name).type) for name in key),
                commit_properties=self._properties(stamp),
            )
            merger = merger.when_matched_delete(f"s.{quote(DELETED)}")
            merger = merger.when_matched_update(updates, predicate=newer)
            merger.when_not_matched_insert(values, predicate=alive).execute()

        self._committed(stamp, "cannot be merged into", run)

    def add_rows(self, rows: pa.Table, stamp: Stamp) -> None:
        """Append rows held in memory; columns that they lack are null."""
        whole = self._whole(rows)
        self._committed(
            stamp,
            "cannot take an append",
            lambda: write_deltalake(self.table, whole, mode="append", commit_properties=self._properties(stamp)),
        )

    def overwrite(self, rows: pa.Table, stamp: Stamp) -> None:
        """Replace all rows by `rows` in one commit: a truncation and what came after it. Columns that they lack, as the
        table kept them (lenient), are null.
        """
        whole = self._whole(rows)
        self._committed(
            stamp,
            "cannot be overwritten",
            lambda: write_deltalake(
                self.table,
                whole,
                mode="overwrite",
                schema_mode=None,
                commit_properties=self._properties(stamp, next_version=True),
            ),
        )

    def mark(self, stamp: Stamp) -> None:
        """Commit nothing but the vector, unless the table is there already."""
        self.refresh()
        if not self._holds(stamp):
            self.append([], stamp)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _whole(self, rows: pa.Table) -> pa.Table:
        """`rows` with the table's columns in their order."""
        wanted = self.arrow()
        arrays = [
            rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
            for field in wanted
        ]
        return pa.table(arrays, schema=wanted)

    def _check_plain(self) -> None:
        """`SinkError` when the table's files are not simply its columns, as those of a stage task are."""
        if self.table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            raise TargetTouchedError(
                f"The Delta table {self.path} ({self.name}) maps its columns, and files of rows cannot be "
                f"added to it. Delete the folder and read its source table anew, or route the table to another name."
            )

    def _check_partitions(self, files: Sequence[DataFile]) -> None:
        """`SinkError` when files were written for other partitions than the table has by now."""
        if odd := next((file for file in files if [*file.partition] != self.partition_columns), None):
            raise TargetTouchedError(
                f"The Delta table {self.path} ({self.name}) is partitioned by {_listed(self.partition_columns)}, and "
                f"rows were written by {_listed([*odd.partition])}: somebody made the table anew. Start "
                "again."
            )

    def _committed(self, stamp: Stamp, what: str, run: Callable[[], Any]) -> None:
        """Run a commit until it is in the table, unless its vector is already; a lost race is tried again.

        What comes between the snapshot and the commit is found by delta-rs: also another commit of this pipeline.
        """
        for attempt in range(CONFLICT_RETRIES + 1):
            if not self._fresh:
                self.refresh()
            if self._holds(stamp):
                return
            try:
                self._fresh = False
                run()
                break
            except CommitFailedError as cause:
                if attempt == CONFLICT_RETRIES:
                    raise self._error(f"{what}: other writers were faster {attempt + 1} times", cause) from cause
            except Exception as cause:
                if not is_the_tables(cause):
                    raise
                raise self._error(what, cause) from cause
        self.refresh()
        if not self._holds(stamp):
            # A merge or update that changes nothing commits nothing; the vector must be written all the same.
            self.append([], stamp)

    def _holds(self, stamp: Stamp) -> bool:
        return holds(self.vector(), stamp.vector, self.name)

    def _guarded(self, what: str, run: Callable[[], Any]) -> None:
        try:
            run()
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            raise self._error(what, cause) from cause

    def _configuration(self, schema: pa.Schema, partition_by: Sequence[str]) -> dict[str, str]:
        """Properties of a table that we make."""
        return {CREATED_BY: self.app_id, **properties(schema, partition_by)}

    def _properties(self, stamp: Stamp, *, next_version: bool = False) -> CommitProperties:
        """With `next_version` the commit fails where another one came between the snapshot and it."""
        return CommitProperties(
            max_commit_retries=0 if next_version else None,
            app_transactions=[Transaction(self.app_id, vector_to_version(stamp.vector))],
            custom_metadata={"userMetadata": stamp.text(self.app_id)},
        )

    def _error(self, what: str, cause: Exception) -> SinkError:
        kind = SinkError if is_absent(cause) else TargetTouchedError
        return kind(f"The Delta table {self.path} ({self.name}) {what}: {cause}")


def is_the_tables(error: Exception) -> bool:
    """Whether it is about the table and no bug of ours; for some of its errors delta-rs has no class at all."""
    if type(error) is Exception or isinstance(error, DeltaError | OSError):
        return True
    # Arrow reads the files of a table, which somebody may have damaged; its computing is our own.
    libraries = ("deltalake", "pyarrow.parquet", "pyarrow.dataset")
    return isinstance(error, pa.ArrowException | ValueError) and raised_in(error, *libraries)


def _is_wide(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(arrow)) and int(arrow.precision) > EXACT_DIGITS


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns) if columns else "nothing"


def quote(name: str) -> str:
    """An identifier in delta-rs's SQL."""
    return '"' + name.replace('"', '""') + '"'
