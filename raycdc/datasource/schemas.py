"""The schema of a table that Spark is told before a row is read: from the source, and from a stream's state.

A source is asked in the one way that all have: it runs until the first epoch that names the table is sealed, which is
thrown away.

``<state>/datasource.json`` holds the schema of the rows that are committed, because manifests are pruned.
"""

from __future__ import annotations

import time
from pathlib import Path

from raycdc.checkpoint.store import CheckpointStore
from raycdc.datasource.options import ReadOptions
from raycdc.datasource.rows import widened
from raycdc.errors import SourceError
from raycdc.model import TableId, TableSchema

_NAME = "datasource.json"

#: How long a source may take to name a table: a topic need not have a message of it.
FIRST_EPOCH_S = 120.0


def known_schema(store: CheckpointStore, table: TableId) -> TableSchema | None:
    """The columns that hold all rows that are to come or were the last; None when the state knows none."""
    known: TableSchema | None = None
    if (document := store.documents.read(_NAME)) is not None:
        known = TableSchema.from_json(document["schema"]) if document["table"] == str(table) else None
    record = store.last_commit()
    for manifest in store.manifests(record.epoch if record else -1):
        if table in manifest.tables:
            known = widened(table, known, store.schema(manifest.tables[table].schema))
    return known


def remember_schema(store: CheckpointStore, table: TableId, schema: TableSchema) -> None:
    """Keep what `known_schema` will need when the manifests are gone."""
    document = {"table": str(table), "schema": schema.to_json()}
    known = store.documents.read(_NAME)
    if known is None or {name: known.get(name) for name in document} != document:
        store.documents.write(_NAME, document)


def discover_schema(options: ReadOptions, state: Path) -> TableSchema:
    """Run the source into `state` until its first epoch with the table is sealed. `SourceError` when none comes."""
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
