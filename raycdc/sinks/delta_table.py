"""One Delta table as this pipeline uses it: its commit vector, and the few kinds of commit we make, through delta-rs.

Called by `raycdc.sinks.delta`, by one thread at a time per table. Every commit carries an app transaction of the
pipeline whose version holds (epoch, step, generation), so the vector is part of the same atomic commit as the rows.
delta-rs refuses a *concurrent* commit of the same app but not a repeated version: each commit method therefore looks
at the vector of the very snapshot it commits against.

A handle does not see its own commits until it is refreshed; `refresh` comes before everything else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.api import CommitVector
from raycdc.sinks.rows import DELETED

#: Table property that says which pipeline created (or emptied) the table, so that plain appends are right.
CREATED_BY = "raycdc.created_by"

#: How often a commit that lost against another writer of the table (OPTIMIZE, say) is tried again.
CONFLICT_RETRIES = 5

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


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit carries besides its rows: the vector, and the source positions for people to see."""

    vector: CommitVector
    positions: Mapping[str, Any]

    def text(self, app_id: str) -> str:
        return json.dumps(
            {
                "pipeline": app_id,
                "epoch": self.vector.epoch,
                "step": self.vector.step,
                "generation": self.vector.generation,
                "positions": dict(self.positions),
            }
        )


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A column of a table that is written anew; its values are those of `origin`, else `constant`, else null."""

    field: pa.Field
    origin: str | None
    constant: pa.Scalar | None = None

    def expression(self) -> Any:
        if self.origin is None:
            return pc.scalar(self.constant if self.constant is not None else pa.scalar(None, self.field.type))
        # A value that does not fit the new type ends the commit.
        return ds.field(self.origin).cast(self.field.type, safe=True)


class DeltaTarget:
    """See the module's docstring. Errors of delta-rs become `SinkError` naming the table."""

    def __init__(self, path: Path, name: TableId, app_id: str) -> None:
        self.path = path
        self.name = name
        self.app_id = app_id
        self._table: DeltaTable | None = None

    def refresh(self) -> bool:
        """Bring the handle to the newest version; False when there is no Delta table."""
        try:
            if self._table is None:
                if not DeltaTable.is_deltatable(str(self.path)):
                    return False
                self._table = DeltaTable(str(self.path))
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
            return False
        except (DeltaError, OSError) as cause:
            raise self._error("cannot be read", cause) from cause
        return True

    @property
    def table(self) -> DeltaTable:
        assert self._table is not None, f"{self.name} was not refreshed"
        return self._table

    def vector(self) -> CommitVector | None:
        """What the snapshot of the last `refresh` holds of this pipeline."""
        version = self.table.transaction_version(self.app_id)
        return None if version is None else version_to_vector(version)

    def created_by_us(self) -> bool:
        """Whether this pipeline created or emptied the table, so that a snapshot row cannot be in it yet."""
        return self.table.metadata().configuration.get(CREATED_BY) == self.app_id

    def arrow(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    # -- commits ----------------------------------------------------------------------------------------------------

    def create(self, schema: pa.Schema, stamp: Stamp, *, replace: bool = False) -> None:
        """Make an empty table of `schema`; with `replace` what was there is removed in the same commit."""

        def run() -> None:
            self._table = DeltaTable.create(
                str(self.path),
                schema=schema,
                mode="overwrite" if replace else "error",
                configuration={CREATED_BY: self.app_id},
                raise_if_key_not_exists=False,
                commit_properties=self._properties(stamp),
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

    def fill(self, defaults: Mapping[str, str], stamp: Stamp) -> None:
        """Give each column (just added, null everywhere) its value, as SQL by column name, in one commit."""
        values = {quote(column): sql for column, sql in defaults.items()}
        empty = " AND ".join(f"{column} IS NULL" for column in values)
        self._committed(
            stamp,
            "cannot be filled with the default of a new column",
            lambda: self.table.update(values, predicate=empty, commit_properties=self._properties(stamp)),
        )

    def rewrite(self, columns: Sequence[Rewritten], stamp: Stamp, *, empty: bool) -> None:
        """Write the table anew with `columns`, batch by batch, in one commit; with `empty` without its rows."""

        def run() -> None:
            schema = pa.schema([column.field for column in columns])
            rows = self.table.to_pyarrow_dataset().scanner(columns={c.field.name: c.expression() for c in columns})
            batches = iter(()) if empty else (_named(batch, schema) for batch in rows.to_batches())
            write_deltalake(
                self.table,
                pa.RecordBatchReader.from_batches(schema, batches),
                mode="overwrite",
                schema_mode="overwrite",
                configuration={CREATED_BY: self.app_id} if self.created_by_us() else None,
                commit_properties=self._properties(stamp),
            )

        self._committed(stamp, "cannot be written with its new columns", run)

    def append(self, files: Sequence[Mapping[str, Any]], stamp: Stamp) -> None:
        """Add staged Parquet files (results of `tasks.write_parquet`); none is an empty commit."""
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=os.path.relpath(file["path"], self.path),
                size=file["size"],
                partition_values={},
                modification_time=time.time_ns() // 1_000_000,
                data_change=True,
                stats=file["statistics"],
            )
            for file in files
        ]
        self._committed(
            stamp,
            "cannot take an append",
            lambda: self.table.create_write_transaction(
                actions, mode="append", schema=self.table.schema(), commit_properties=self._properties(stamp)
            ),
        )

    def merge(self, source: pa.Table, key: Sequence[str], stamp: Stamp, *, order_by: str = "") -> None:
        """Upsert and delete compacted rows (`rows.last_per_key`) held in memory.

        With `order_by` a row of the table with a greater value of that column stays as it is.
        """
        columns = [name for name in source.column_names if name != DELETED]
        values = {quote(name): f"s.{quote(name)}" for name in columns}
        # What the source has no value for any more is null, in changed rows as in new ones.
        updates = values | {quote(name): "NULL" for name in self.arrow().names if name not in columns}
        alive = f"NOT s.{quote(DELETED)}"
        by = quote(order_by)
        newer = f"{alive} AND (t.{by} IS NULL OR s.{by} >= t.{by})" if order_by else alive

        def run() -> None:
            merger = self.table.merge(
                source,
                predicate=" AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in key),
                source_alias="s",
                target_alias="t",
                # Keys in memory let it skip files by their statistics.
                streamed_exec=False,
                commit_properties=self._properties(stamp),
            )
            merger = merger.when_matched_delete(f"s.{quote(DELETED)}")
            merger = merger.when_matched_update(updates, predicate=newer)
            merger.when_not_matched_insert(values, predicate=alive).execute()

        self._committed(stamp, "cannot be merged into", run)

    def overwrite(self, rows: pa.Table, stamp: Stamp) -> None:
        """Replace all rows by `rows` in one commit: a truncation and what came after it."""
        self._committed(
            stamp,
            "cannot be overwritten",
            lambda: write_deltalake(
                self.table,
                rows,
                mode="overwrite",
                schema_mode=None,
                commit_properties=self._properties(stamp),
            ),
        )

    def mark(self, stamp: Stamp) -> None:
        """Commit nothing but the vector, unless the table is there already."""
        self.refresh()
        held = self.vector()
        if held is None or (held.epoch, held.step) < (stamp.vector.epoch, stamp.vector.step):
            self.append([], stamp)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _committed(self, stamp: Stamp, what: str, run: Callable[[], Any]) -> None:
        """Run a commit until it is in the table, unless its vector is already; a lost race is tried again."""
        for attempt in range(CONFLICT_RETRIES + 1):
            self.refresh()
            if self._holds(stamp):
                return
            try:
                run()
                break
            except CommitFailedError as cause:
                if attempt == CONFLICT_RETRIES:
                    raise self._error(f"{what}: other writers were faster {attempt + 1} times", cause) from cause
            except (DeltaError, pa.ArrowException, OSError, ValueError) as cause:
                raise self._error(what, cause) from cause
        self.refresh()
        if not self._holds(stamp):
            # A merge or update that changes nothing commits nothing; the vector must be written all the same.
            self.append([], stamp)

    def _holds(self, stamp: Stamp) -> bool:
        held = self.vector()
        return held is not None and (held.epoch, held.step) >= (stamp.vector.epoch, stamp.vector.step)

    def _guarded(self, what: str, run: Callable[[], Any]) -> None:
        try:
            run()
        except (DeltaError, pa.ArrowException, OSError, ValueError) as cause:
            raise self._error(what, cause) from cause

    def _properties(self, stamp: Stamp) -> CommitProperties:
        return CommitProperties(
            app_transactions=[Transaction(self.app_id, vector_to_version(stamp.vector))],
            custom_metadata={"userMetadata": stamp.text(self.app_id)},
        )

    def _error(self, what: str, cause: Exception) -> SinkError:
        return SinkError(f"The Delta table {self.path} ({self.name}) {what}: {cause}")


def _named(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def quote(name: str) -> str:
    """An identifier in delta-rs's SQL."""
    return '"' + name.replace('"', '""') + '"'
