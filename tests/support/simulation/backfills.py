"""Backfills that users request while a simulated job runs, and damage to its targets that is repaired by them."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa

from raycdc.model import TableId, TableSchema
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.rereading.backfill_keys import text_of_keys
from raycdc.source.split import BackfillRows
from raycdc.source.tables.parking import RowsRequest
from raycdc.source.tables.table_life import Behind, Live
from raycdc.source.tables.table_requests import backfills_over
from raycdc.state.manifests.manifest import Manifest
from tests.support.simulation.chunk_source import all_chunks
from tests.support.simulation.database import KEYS, RowKey, SimDatabase
from tests.support.simulation.sinks import ModelSink
from tests.support.simulation.state import MemoryState

#: The number of backfills that are requested at a time. Each takes long if the visibility of a SELECT is unknown.
ASKED_MAX = 2


class SimBackfills:
    """Requests backfills of tables that have a primary key. `outcomes` has the ended ones, with their results."""

    def __init__(self, database: SimDatabase, state: MemoryState, sink: ModelSink, chance: random.Random) -> None:
        self._database, self._state, self._sink, self._random = database, state, sink, chance
        self.outcomes: dict[str, str] = {}
        #: The keys of damaged targets, and the backfill that repairs each.
        self._damaged: dict[TableId, set[RowKey]] = {}
        self._repairs: dict[str, TableId] = {}
        self._number = 0

    def __repr__(self) -> str:
        return f"SimBackfills({self.outcomes}, damaged={self._damaged}, repairs={self._repairs})"

    def saw(self, manifest: Manifest) -> None:
        """Note a manifest that became durable."""
        for command, backfill in backfills_over(manifest).items():
            self.outcomes[command] = backfill.over or ""

    def ask_for_some(self, stream: StreamState) -> None:
        """Request a backfill of any table by a predicate."""
        present = [table for table in stream.followed if table in self._database.tables]
        tables = [table for table in present if self._schema(table).primary_key]
        if tables and len(self._state.requests.rows) < ASKED_MAX:
            self._ask(RowsRequest(self._name(), self._random.choice(tables), self._random.choice(["0", "1"])))

    def damage(self, stream: StreamState) -> None:
        """Lose, change and add rows of targets whose tables are not in their snapshot."""
        for table, state in stream.followed.items():
            target, schema = self._sink.targets.get(table), self._schema(table)
            if target is None or not schema.primary_key or not isinstance(state, Live | Behind):
                continue
            for identity in list(target.rows):
                if self._random.random() < 0.3:
                    self._damaged.setdefault(table, set()).add(identity)
                    if self._random.random() < 0.5:
                        del target.rows[identity]
                    else:
                        target.rows[identity] = {**target.rows[identity], "val": -1}
            for value in range(KEYS):
                identity = (value,) * len(schema.primary_key)
                if identity not in target.rows and self._random.random() < 0.2:
                    self._damaged.setdefault(table, set()).add(identity)
                    nothing = {column.name: None for column in target.schema.columns}
                    target.rows[identity] = nothing | dict(zip(schema.primary_key, identity, strict=True))
        self.repair()

    def repair(self) -> bool:
        """Request backfills of damaged rows that have none yet. Return True if there were any."""
        for command, why in self.outcomes.items():
            table = self._repairs.pop(command, None)
            if table is not None and not why:
                self._damaged.pop(table, None)
        waiting = [table for table in self._damaged if table not in self._repairs.values()]
        for table in waiting:
            name = self._name()
            self._repairs[name] = table
            keys, schema = sorted(self._damaged[table]), self._schema(table)
            columns = zip(schema.primary_key, zip(*keys, strict=True), strict=True)
            listed = text_of_keys(pa.table({part: pa.array(values, pa.int64()) for part, values in columns}))
            whole = replace(all_chunks(self._database.shapes[table])[0], key=None, lower=None, upper=None)
            whole = replace(whole, only_null=False, includes_null=True, again=BackfillRows(name, keys=listed))
            self._ask(RowsRequest(name, table, parts=(whole,)))
        return bool(waiting)

    def _ask(self, request: RowsRequest) -> None:
        requests = self._state.requests
        self._state.requests = replace(requests, rows={**requests.rows, request.backfill: request})

    def _name(self) -> str:
        self._number += 1
        return f"backfill{self._number}"

    def _schema(self, table: TableId) -> TableSchema:
        return self._database.shapes[table].schema
