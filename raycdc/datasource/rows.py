"""Rows in the form that Spark gets: a table's columns, the columns of a changelog, and two derived columns. Pure Arrow.

| column | type | is |
|---|---|---|
| `_op`, `_seq`, `_ts_ms`, `_db`, `_table`, `_pos` | | as in a changelog target |
| `_sign` | int | 1 for ``+I`` and ``+U``, -1 for ``-U`` and ``-D``: ``sum(weight * _sign)`` is the sum over the table |
| `_watermark_ms` | bigint | an event time in Unix milliseconds; log rows of later epochs are not older |

Streams and bounded reads have the same columns, so a query works with both. In a bounded read, present rows have the
`_op` ``+I`` and the `_sign` 1.

Called on the driver for schemas, and inside Spark's tasks for rows, which never become Python objects.

Spark needs the schema of a table before a row is read. It comes from the source, and from a stream's state. To get it
from a source, the source side runs until the first epoch with the table is sealed; this epoch is then dropped. Every
source supports this.

``<state>/datasource.json`` has the schema of committed rows, because their manifests are deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from raycdc.datasource.options import ReadOptions
from raycdc.errors import DataError, SchemaError, SourceError
from raycdc.model import META_COLUMNS, RowKind, TableId, TableSchema
from raycdc.model.batch import SYMBOLS
from raycdc.model.column_names import mysql_fold, spark_fold
from raycdc.model.evolution.events import DropColumnEvent, RenameColumnEvent, SchemaChangeEvent
from raycdc.model.evolution.merge import merge_schemas
from raycdc.model.view import RowView
from raycdc.segments import ANYWHERE, SegmentAccess, read_segment
from raycdc.sinks.rows import META_TYPES
from raycdc.sinks.task_inputs import Input
from raycdc.state.manifests.manifest import Segment
from raycdc.state.store import CheckpointStore

SIGN = "_sign"
WATERMARK = "_watermark_ms"

#: The columns that are added to the table's own.
ADDED = (*META_COLUMNS, SIGN, WATERMARK)

#: The sign of each `RowKind`. A truncation has none, because the removed rows are not known.
_SIGNS = (1, -1, 1, -1, None)


def changelog_ddl(schema: TableSchema) -> str:
    """Return the columns of a stream as Spark SQL.

    Raises `SchemaError` if the table has a column with one of the added names.
    """
    clashes = {spark_fold(column.name) for column in schema.columns} & {SIGN, WATERMARK}
    if clashes:
        raise SchemaError(f"Column {min(clashes)} of the table has the name of one that the data source adds.")
    meta = ", ".join(f"`{name}` {META_TYPES[name].spark()}" for name in META_COLUMNS)
    return f"{schema.spark_ddl()}, {meta}, `{SIGN}` int, `{WATERMARK}` bigint"


def as_rows(rows: pa.RecordBatch, names: Sequence[str], *, watermark_ms: int | None) -> pa.RecordBatch:
    """Return present rows of the table with the columns `names`, in the form of changes."""
    constant = {
        "_op": pa.scalar(RowKind.INSERT.symbol, pa.string()),
        SIGN: pa.scalar(1, pa.int32()),
        WATERMARK: pa.scalar(watermark_ms, pa.int64()),
    }
    arrays = [pa.repeat(constant[n], rows.num_rows) if n in constant else rows.column(n) for n in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def stored_names(names: Sequence[str]) -> list[str]:
    """Return the columns of a segment that must be read for `names`."""
    return [name for name in names if name not in (SIGN, WATERMARK, "_op")]


def column_types(schema: TableSchema) -> dict[str, str]:
    """Return each column's type in Spark SQL."""
    return {column.name: column.type.spark() for column in schema.columns}


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """The columns that Spark expects of a table, in order, with their types in Spark SQL.

    If `given` is True, the user named them with ``.schema("…")``; otherwise they are those of the table when the
    DataFrame was loaded.
    """

    table: TableId
    types: Mapping[str, str]
    given: bool

    def require_types(self, schema: TableSchema) -> None:
        """Raise `SchemaError` if rows with `schema` lack a column, or have another type in it."""
        have = column_types(schema)
        added = {name: META_TYPES[name].spark() for name in META_COLUMNS} | {SIGN: "int", WATERMARK: "bigint"}
        kinds = {**have, **added}
        other = {name: kinds.get(name, "") for name, kind in self.types.items() if kinds.get(name) != kind}
        if other and not self.given:
            raise self.changed(other)
        if other:
            faults = "; ".join(
                f"{name} is {kind} in the table and {self.types[name]} in the schema"
                if kind
                else f"the table has no column {name}"
                for name, kind in other.items()
            )
            columns = ", ".join(f"{name} {kind}" for name, kind in have.items())
            raise SchemaError(
                f"The schema that was given does not fit {self.table}: {faults}. Choose among the columns of the "
                f"table ({columns}) and those that the data source adds ({', '.join(ADDED)}), or leave the schema out."
            )

    def require_kept(self, schema: TableSchema, changes: Iterable[SchemaChangeEvent]) -> None:
        """Raise `SchemaError` if the table has lost a column, which would be null in all or some of the rows.

        `schema` is that of the last rows, and `changes` are the schema changes among all rows.
        """
        there = {mysql_fold(column.name) for column in schema.columns}
        gone = {change.name for change in changes if isinstance(change, DropColumnEvent | RenameColumnEvent)}
        wanted = [name for name in self.types if name not in ADDED]
        if lost := [name for name in wanted if name in gone or mysql_fold(name) not in there]:
            raise self.changed(lost)

    def require_not_renamed(self, changes: Iterable[SchemaChangeEvent]) -> None:
        """Raise `SchemaError` if a column was renamed to a name that is not expected, which has its values now."""
        for change in changes:
            if (
                isinstance(change, RenameColumnEvent)
                and change.name in self.types
                and change.new_name not in self.types
            ):
                raise SchemaError(
                    f"{self.table}: column {change.name} is called {change.new_name} now. Add {change.new_name} to the "
                    "schema of the query, and start the query with the same checkpointLocation: no row was lost."
                )

    def changed(self, names: Iterable[str]) -> SchemaError:
        """Return the error for columns that are not the same any more."""
        again = "Correct the schema that was given, and load" if self.given else "Load"
        return SchemaError(f"{self.table} changed its columns: {', '.join(names)}. {again} the DataFrame again.")


def widened(table: TableId, known: TableSchema | None, schema: TableSchema) -> TableSchema:
    """Return `known`, widened so that it can hold rows of the table with `schema`.

    Raises `SchemaError` if its key changed.
    """
    return schema if known is None else merge_schemas(table, known, table, schema)


def seen_as(segment: Segment, own: TableSchema, target: TableSchema) -> Segment:
    """Return the segment with the columns of `target`, which include all columns of the segment.

    Columns that the segment lacks are null.
    """
    return segment if own.arrow().equals(target.arrow()) else replace(segment, view=RowView(own, target))


def changelog_batches(
    entry: Input, names: Sequence[str], *, watermark_ms: int | None, truncate: str
) -> Iterator[pa.RecordBatch]:
    """Yield batches with the columns `names`. Raises `DataError` at a truncation, unless `truncate` is ``row``."""
    anywhere = SegmentAccess(ANYWHERE)
    for batch in read_segment(entry.segment, [*stored_names(names), "_op"], access=anywhere, part=entry.part):
        ops = batch.column("_op")
        if truncate == "fail" and bool(np.any(ops.to_numpy() == RowKind.TRUNCATE)):
            raise DataError(
                f"{entry.segment.table} was emptied or resnapshotted, and its changes have no rows that would "
                "subtract the earlier ones from sums. Begin with a new checkpoint and another option state, or set "
                "truncate = \"row\" and treat rows with _op = 'T' yourself."
            )
        columns: Mapping[str, pa.Array] = {
            "_op": pa.array(SYMBOLS, pa.string()).take(ops),
            SIGN: pa.array(_SIGNS, pa.int32()).take(ops),
            WATERMARK: pa.repeat(pa.scalar(watermark_ms, pa.int64()), batch.num_rows),
        }
        arrays = [columns[name] if name in columns else batch.column(name) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))


_NAME = "datasource.json"

#: Seconds within which the source must deliver a change of the table. A topic may have no message of it.
FIRST_EPOCH_S = 120.0


def known_schema(store: CheckpointStore, table: TableId) -> TableSchema | None:
    """Return columns that hold the last committed rows and all rows that remain; None if the state does not know
    them.
    """
    known: TableSchema | None = None
    if (document := store.documents.read(_NAME)) is not None:
        known = TableSchema.from_json(document["schema"]) if document["table"] == str(table) else None
    record = store.last_commit()
    for manifest in store.manifests(record.epoch if record else -1):
        if table in manifest.tables:
            known = widened(table, known, store.schema(manifest.tables[table].schema))
    return known


def remember_schema(store: CheckpointStore, table: TableId, schema: TableSchema) -> None:
    """Store the schema, which `known_schema` needs after the manifests are pruned."""
    document = {"table": str(table), "schema": schema.to_json()}
    known = store.documents.read(_NAME)
    if known is None or {name: known.get(name) for name in document} != document:
        store.documents.write(_NAME, document)


def discover_schema(options: ReadOptions, state: Path) -> TableSchema:
    """Run the source into `state` until its first epoch with the table is sealed.

    Raises `SourceError` if none comes.
    """
    pipeline = options.pipeline(state)
    deadline_s = time.monotonic() + FIRST_EPOCH_S
    with pipeline.ledger(in_flight_max=1 << 30) as ledger:
        epoch = ledger.acknowledged
        while time.monotonic() < deadline_s:
            manifest = ledger.next_after(epoch)
            if manifest is None:
                continue
            if options.table in manifest.tables:
                return ledger.store.schema(manifest.tables[options.table].schema)
            epoch = manifest.epoch
    raise SourceError(
        f"The source of {options.config} named no table {options.table} within {FIRST_EPOCH_S:.0f} s. Is the option "
        "table DATABASE.TABLE as the source has it? Of a topic without messages the columns are not known."
    )
