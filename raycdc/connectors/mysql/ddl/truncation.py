"""The changelog row that says that all rows of a table are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.offset import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import RowKind, changelog_schema
from raycdc.source.snapshot.hand_off import LogRows


def truncation(item: DdlItem, table: MySqlTable, *, seq: int) -> LogRows:
    """Null in every column, at the place of the statement that emptied the table."""
    meta = {
        "_op": int(RowKind.TRUNCATE),
        "_seq": seq,
        "_ts_ms": item.ts_ms,
        "_pos": f"{item.position.file}:{item.position.pos}:0",
    }
    return emptied(table, meta, item.position)


def emptied(table: MySqlTable, meta: Mapping[str, Any], position: BinlogOffset) -> LogRows:
    """Null in every column but the metadata columns `meta`; it stands at `position`."""
    schema = changelog_schema(table.schema())
    arrays = [pa.array([meta[field.name]] if field.name in meta else [None], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return LogRows(table.id, batch, np.array([ordinal_of(position)], np.int64))
