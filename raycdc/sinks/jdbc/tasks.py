"""The stage task of the database sink: segments in, one staging table out.

A task that runs twice makes two tables under names of their own, and the commit takes the one it was told of; others
are removed by a later commit of the target.
"""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge.access import SegmentAccess
from raycdc.errors import SinkError
from raycdc.model import RowKind, TableSchema
from raycdc.sinks.jdbc.database import open_database
from raycdc.sinks.jdbc.plugin import Address
from raycdc.sinks.origins import CLAIMED, ORIGIN, last_per_origin
from raycdc.sinks.rows import DELETED, changelog_names, last_per_key
from raycdc.sinks.tasks import ROW_GROUP_ROWS, read_inputs


def load(
    inputs: list[dict[str, Any]],
    target: str,
    schema: dict[str, Any],
    prefix: str,
    address: dict[str, Any],
    mode: str,
    node: str,
    token: str,
    origins: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Rows as they are (`mode` ``"append"``), as events (``"changelog"``), or the last of each key (``"merge"``).

    `target` is for errors alone. `origins`, arguments of `last_per_origin`, is for rows to merge that come from several
    tables, or from one under another key.
    """
    try:
        return _load(inputs, schema, prefix, address, mode, node, token, origins)
    except SinkError as cause:
        raise type(cause)(f"{target}: {cause}") from cause


def _load(
    inputs: list[dict[str, Any]],
    schema: dict[str, Any],
    prefix: str,
    address: dict[str, Any],
    mode: str,
    node: str,
    token: str,
    origins: dict[str, Any] | None,
) -> dict[str, Any]:
    from raycdc.sinks.jdbc.target import target_columns

    table = TableSchema.from_json(schema)
    database = open_database(Address.of_task(address))
    columns = target_columns(table, changelog=mode == "changelog")
    name = f"{prefix}{uuid.uuid4().hex[:8]}"
    if mode != "merge":
        names = changelog_names(table) if mode == "changelog" else [c.name for c in table.columns]
        batches = read_inputs(inputs, names, access=SegmentAccess(node, token), symbols=mode == "changelog")
        key = table.primary_key if mode == "append" else ()
        rows = database.load(name, columns, key, batches, flags=())
        return {"name": name, "rows": rows, "deleted": 0, "truncated": False}
    names = [c.name for c in table.columns]
    wanted = [*names, "_op", "_seq", *(ORIGIN if origins else ())]
    read = pa.Table.from_batches(list(read_inputs(inputs, wanted, access=SegmentAccess(node, token), symbols=False)))
    if origins:
        flags, merged = [DELETED, CLAIMED], last_per_origin(read, table.primary_key, names, **origins)
        emptied = origins["alone"] and RowKind.TRUNCATE in read.column("_op").unique().to_pylist()
    else:
        flags, compacted = [DELETED], last_per_key(read, table.primary_key, names)
        merged, emptied = compacted.rows, compacted.truncated
    batches = iter(merged.to_batches(max_chunksize=ROW_GROUP_ROWS))
    rows = database.load(name, columns, table.primary_key, batches, flags=flags)
    deleted = pc.sum(merged.column(DELETED)).as_py() or 0
    return {"name": name, "rows": rows, "deleted": deleted, "truncated": emptied}
