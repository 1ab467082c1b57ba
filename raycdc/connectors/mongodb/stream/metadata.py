"""Columns that say of a row where and when its change was made: the fields there are, and their values.

| field | column | rows of the snapshot |
|---|---|---|
| database, collection | STRING | the same |
| op_time | TIMESTAMP(3): the wall time, or else the seconds of the cluster time | NULL |
| cluster_time | BIGINT: its seconds × 2³², and its increment | NULL |
| wall_time | TIMESTAMP(3); NULL where the server does not tell it (before 6.0) | NULL |
| txn_number | BIGINT: that of the transaction in its session; NULL outside of one | NULL |

The row before a change has that change's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.layout import METADATA, Layout
from raycdc.model import TableId, TypeKind

Events = npt.NDArray[np.int64]


def filled(batch: pa.RecordBatch, layout: Layout, table: TableId, events: Events | None = None) -> pa.RecordBatch:
    """`batch`, decoded by `layout`, with its metadata: of the event of each row, or without any of the snapshot."""
    for at, column in enumerate(layout.columns):
        if not column.type.native.startswith(METADATA):
            continue
        field = column.type.native.removeprefix(METADATA)
        if field in ("database", "collection"):
            name = table.db if field == "database" else table.table
            array = pa.repeat(pa.scalar(name, batch.schema.types[at]), batch.num_rows)
        elif events is None:
            continue
        else:
            values, missing = _OF_EVENTS[field](events)
            array = pa.array(values, mask=missing)
            if column.type.kind is TypeKind.TIMESTAMP:
                array = array.cast(pa.timestamp("ms"))
            array = array.cast(batch.schema.types[at])
        batch = batch.set_column(at, batch.schema.field(at), array)
    return batch


def op_time_ms(events: Events) -> Events:
    """When each change was made, in Unix milliseconds."""
    walls = events[:, codes.E_WALL]
    found: Events = np.where(walls >= 0, walls, (events[:, codes.E_TIME] >> 32) * 1000)
    return found


def _plain(column: int) -> Callable[[Events], tuple[Events, npt.NDArray[np.bool_]]]:
    """The values of a column of events; below zero there is none."""
    return lambda events: (events[:, column], events[:, column] < 0)


_OF_EVENTS: Mapping[str, Callable[[Events], tuple[Events, npt.NDArray[np.bool_]]]] = {
    "op_time": lambda events: (op_time_ms(events), np.zeros(len(events), np.bool_)),
    "cluster_time": _plain(codes.E_TIME),
    "wall_time": _plain(codes.E_WALL),
    "txn_number": _plain(codes.E_TXN),
}
