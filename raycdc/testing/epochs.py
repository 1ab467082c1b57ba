"""Scripted epochs: sealed epochs with real segments but without a source, for tests of the stages after the manifest.

`EpochScript` does the work of reader and coordinator: it writes changes of a table as segments, and seals manifests
into a real store. It knows the rows that an upsert target and a changelog target must have afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.model.evolution.events import CreateTableEvent, SchemaChangeEvent
from raycdc.segments import SegmentContents, SegmentWriter, SpoolAddress
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.tables.table_life import Live
from raycdc.state.manifests.manifest import STATE_NODE, STREAM_SPLIT_ID, Manifest, Segment, TableEpoch, seq_base
from raycdc.state.opaque import EnumeratorState, Position, SealedSplit
from raycdc.state.store import CheckpointStore

Row = dict[str, Any]
#: The kind of a row, and the row.
Change = tuple[str, Row]
#: The number of rows of a segment.
Written = list[tuple[RowKind, Row]]


def simple_schema() -> TableSchema:
    """Return the schema ``id BIGINT PRIMARY KEY, name VARCHAR, qty INT``."""
    return TableSchema(
        (
            Column("id", LogicalType(TypeKind.INT64), nullable=False),
            Column("name", LogicalType(TypeKind.STRING)),
            Column("qty", LogicalType(TypeKind.INT32)),
        ),
        ("id",),
    )


@dataclass
class ScriptedTable:
    """One source table: its schema, its rows by key, and every change it ever made."""

    id: TableId
    schema: TableSchema
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    changelog: list[Change] = field(default_factory=list)
    announced: bool = False
    snapshot: Written = field(default_factory=list)
    again: Written = field(default_factory=list)
    log: Written = field(default_factory=list)
    changes: list[SchemaChangeEvent] = field(default_factory=list)

    def key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.schema.primary_key)

    def read(self, rows: Sequence[Row]) -> None:
        """Add snapshot rows of the epoch that is being written."""
        for row in rows:
            self._emit(self.snapshot, RowKind.INSERT, row)
            self.rows[self.key(row)] = row

    def read_again(self, *keys: tuple[Any, ...]) -> None:
        """Add rows of a backfill to the epoch that is being written. Called before the log's changes of this epoch."""
        self.again += [(RowKind.INSERT, dict(self.rows[key])) for key in keys]

    def insert(self, row: Row) -> None:
        self._emit(self.log, RowKind.INSERT, row)
        self.rows[self.key(row)] = row

    def update(self, key: tuple[Any, ...], **changes: Any) -> None:
        before = self.rows.pop(key)
        after = {**before, **changes}
        self._emit(self.log, RowKind.UPDATE_BEFORE, before)
        self._emit(self.log, RowKind.UPDATE_AFTER, after)
        self.rows[self.key(after)] = after

    def delete(self, key: tuple[Any, ...]) -> None:
        self._emit(self.log, RowKind.DELETE, self.rows.pop(key))

    def truncate(self) -> None:
        self._emit(self.log, RowKind.TRUNCATE, {column.name: None for column in self.schema.columns})
        self.rows.clear()

    def contents(self) -> list[Row]:
        """Return the rows that an upsert target must have, in key order."""
        return [self.rows[key] for key in sorted(self.rows)]

    def _emit(self, into: list[tuple[RowKind, Row]], kind: RowKind, row: Row) -> None:
        into.append((kind, dict(row)))
        self.changelog.append((kind.symbol, dict(row)))


class EpochScript:
    """Seals scripted epochs; see the module's docstring. `seal` writes the changes since the last seal as one epoch."""

    def __init__(self, store: CheckpointStore, *, node: str = STATE_NODE, flight: str = "", seed: int = 0) -> None:
        self.store = store
        self.tables: dict[TableId, ScriptedTable] = {}
        self.generation = store.generations.next()
        self.random = random.Random(seed)
        self._node = node
        self._flight = flight

    def table(self, name: str, schema: TableSchema | None = None) -> ScriptedTable:
        """Return the table called `name`; a new one is created with `schema` (default: `simple_schema`)."""
        table_id = TableId.parse(name)
        if table_id not in self.tables:
            self.tables[table_id] = ScriptedTable(table_id, schema or simple_schema())
        return self.tables[table_id]

    def seal(self, *, final: bool = False, incarnations: Mapping[str, int] | None = None) -> Manifest:
        """Write the segments of all tables that changed, and the manifest.

        If `incarnations` is True, the state of the log has the number of each table's snapshot, as for a source that
        has a log.
        """
        epoch = self.store.next_epoch()
        segments: list[Segment] = []
        parts: dict[TableId, TableEpoch] = {}
        for table in self.tables.values():
            if not table.announced:
                table.changes.insert(0, CreateTableEvent(table.id, table.schema))
                table.announced = True
            if not (table.snapshot or table.again or table.log or table.changes):
                continue
            fingerprint = self.store.put_schema(table.schema)
            for kind, rows in (("snapshot", table.snapshot), ("backfill", table.again), ("log", table.log)):
                if rows:
                    segments.append(self._segment(table, kind, rows, epoch, fingerprint))
            parts[table.id] = TableEpoch(fingerprint, snapshot=bool(table.snapshot), changes=tuple(table.changes))
            table.snapshot, table.again, table.log, table.changes = [], [], [], []
        manifest = Manifest(
            epoch=epoch,
            generation=self.generation,
            created_ms=1_700_000_000_000 + epoch,
            from_splits={},
            to_splits={"log": SealedSplit.from_json({"position": {"file": "binlog.000001", "pos": epoch}})}
            if incarnations is None
            else {STREAM_SPLIT_ID: self._stream(epoch, incarnations)},
            enumerator=EnumeratorState.from_json({}),
            segments=tuple(segments),
            tables=parts,
            final=final,
        )
        self.store.write_manifest(manifest)
        return manifest

    def random_epoch(self, *, operations: int, keys: int = 50) -> None:
        """Make some inserts, updates (also of keys) and deletes on every table."""
        for table in self.tables.values():
            for number in range(operations):
                key = (self.random.randrange(keys),)
                if key not in table.rows:
                    table.insert({"id": key[0], "name": f"n{number}", "qty": number})
                elif self.random.random() < 0.3:
                    table.delete(key)
                elif self.random.random() < 0.2 and (moved := (self.random.randrange(keys),)) not in table.rows:
                    table.update(key, id=moved[0])
                else:
                    table.update(key, name=f"u{number}", qty=None)

    def _segment(
        self, table: ScriptedTable, kind: str, rows: list[tuple[RowKind, Row]], epoch: int, fingerprint: str
    ) -> Segment:
        spool = SpoolAddress(Path(self.store.spool), self._node, self._flight)
        contents = SegmentContents(table.id, fingerprint, "split", kind)
        writer = SegmentWriter(spool, contents, name=f"{epoch:010d}-{table.id}-{kind}.arrow")
        values = [
            {**row, "_op": int(op), "_seq": i, "_ts_ms": 1_700_000_000_000, "_pos": f"{kind}:{epoch}:{i}"}
            for i, (op, row) in enumerate(rows)
        ]
        writer.append(pa.RecordBatch.from_pylist(values, schema=changelog_schema(table.schema)))
        return writer.finish(seq_base=seq_base(epoch, log=kind == "log"))

    def _stream(self, epoch: int, incarnations: Mapping[str, int]) -> SealedSplit:
        followed = {}
        for name, number in incarnations.items():
            table = self.table(name)
            followed[table.id] = Live(self.store.put_schema(table.schema), announced=True, incarnation=number)
        return StreamState(Position.from_json({"pos": epoch}), epoch, followed).sealed()
