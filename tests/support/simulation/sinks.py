"""Model sinks: what an upsert target and a changelog target hold after each committed epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from raycdc.model import RowKind, TableId, TableSchema
from raycdc.model.evolution.events import (
    AddColumnEvent,
    CreateTableEvent,
    DropTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.state.manifests.manifest import Manifest
from tests.support.simulation.state import MemorySpool

Row = dict[str, Any]

_META = ("_op", "_seq", "_ts_ms", "_pos")
#: A row of a backfill has this.
AGAIN = "_again"


@dataclass(slots=True)
class SimTargetTable:
    """One target table. `vector` is the last epoch it holds, written with the rows. `log` is the changelog target, and
    `sections` are the places in it from which on the source's table had another schema, made as such.
    """

    schema: TableSchema
    vector: int = 0
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    log: list[Row] = field(default_factory=list)
    sections: list[tuple[int, TableSchema]] = field(default_factory=list)
    #: The source's table is no more, and what is left is another one's to take.
    dropped: bool = False

    def begin(self, schema: TableSchema) -> None:
        """The source's table is another one from here on."""
        self.schema, self.dropped = schema, False
        self.sections.append((len(self.log), schema))


class ModelSink:
    """An upsert target and a changelog target per table, both committed in one step with the epoch's number."""

    def __init__(self, spool: MemorySpool) -> None:
        self.targets: dict[TableId, SimTargetTable] = {}
        self._spool = spool
        self._emptied = False

    def holds(self, table: TableId) -> int:
        """The last epoch that `table` holds."""
        target = self.targets.get(table)
        return target.vector if target else 0

    def commit(self, manifest: Manifest, table: TableId, schema: TableSchema) -> None:
        """Make the table's share of the epoch visible at once; a repetition changes nothing."""
        if self.holds(table) >= manifest.epoch:
            return
        self._emptied = False
        for change in manifest.tables[table].changes:
            self._apply(table, change)
        target = self.targets[table]
        if target.sections:
            target.sections[-1] = target.sections[-1][0], target.schema
        assert target.schema.to_json() == schema.to_json(), f"{table}: the changes do not lead to the epoch's schema"
        rows = self._rows(manifest, table, schema)
        assert all(int(row["_seq"]) >> 33 == manifest.epoch for row in rows), "a _seq outside its epoch"
        if schema.primary_key:
            self._upsert(target, rows, schema.primary_key)
        # A changelog has no backfills.
        target.log.extend(row for row in rows if AGAIN not in row)
        target.vector = manifest.epoch

    def _apply(self, table: TableId, change: SchemaChangeEvent) -> None:
        match change:
            case CreateTableEvent(_, schema):
                target = self.targets.setdefault(table, SimTargetTable(schema))
                assert self._emptied or target.dropped or not target.sections, f"{table} was created twice"
                target.begin(schema)
            case AddColumnEvent(_, column):
                target = self.targets[table]
                target.schema = TableSchema((*target.schema.columns, column), target.schema.primary_key)
                default = None if column.default is None else int(column.default)
                for row in target.rows.values():
                    row[column.name] = default
            case TruncateTableEvent():
                # The row in the changelog does it, where it stands.
                self._emptied = True
            case DropTableEvent():
                # So does it here, unless the target is spared the change; what follows is of another table.
                target = self.targets[table]
                target.begin(target.schema)
                target.dropped = True
            case event:
                raise AssertionError(f"the model does not know {event}")

    def _rows(self, manifest: Manifest, table: TableId, schema: TableSchema) -> list[Row]:
        rows: list[Row] = []
        partitions: dict[tuple[Any, ...], int] = {}
        for segment in manifest.segments:
            if segment.table != table:
                continue
            data: pa.Table = self._spool.read(segment.path)
            assert data.num_rows == segment.rows
            assert data.column_names == [*(c.name for c in schema.columns), *_META], "columns are not the schema's"
            again = {AGAIN: True} if segment.kind == "backfill" else {}
            for row in data.to_pylist():
                row |= {"_seq": segment.seq_base + row["_seq"], "_op": RowKind(row["_op"]).symbol, **again}
                identity = tuple(row[name] for name in schema.primary_key)
                if row["_op"] == RowKind.TRUNCATE.symbol:
                    if segment.partition:
                        continue  # It is in every partition.
                elif segment.kind == "log" and schema.primary_key:
                    there = partitions.setdefault(identity, segment.partition)
                    assert there == segment.partition, f"{table}: changes of {identity} are in two partitions"
                rows.append(row)
        rows.sort(key=lambda row: int(row["_seq"]))
        seqs = [row["_seq"] for row in rows]
        assert len(set(seqs)) == len(seqs), f"{table}: two rows of epoch {manifest.epoch} have one _seq"
        return rows

    def _upsert(self, target: SimTargetTable, rows: list[Row], key: tuple[str, ...]) -> None:
        last: dict[tuple[Any, ...], Row] = {}
        for row in rows:
            if row["_op"] == RowKind.TRUNCATE.symbol:
                target.rows.clear()
                last.clear()
                continue
            identity = tuple(row[name] for name in key)
            if row["_pos"] is None and AGAIN not in row:
                assert identity not in target.rows, f"snapshot row {identity} would be appended twice"
            last[identity] = row
        for identity, row in last.items():
            if row["_op"] in ("+I", "+U"):
                target.rows[identity] = {name: value for name, value in row.items() if name not in (*_META, AGAIN)}
            else:
                target.rows.pop(identity, None)
