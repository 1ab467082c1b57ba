"""The tasks of the MongoDB sink: segments in, documents out, each transaction behind the task's fence.

A task that runs twice writes the same documents twice; one that outlives its round finds its fence gone and ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from raycdc.model import TableId, TableSchema
from raycdc.sinks.mongodb.commits import Commits
from raycdc.sinks.mongodb.server import Server
from raycdc.sinks.mongodb.writing import Layout, Statement, write
from raycdc.sinks.plan import Input
from raycdc.sinks.rows import changelog_names
from raycdc.sinks.tasks import ROW_GROUP_ROWS, compacted_rows, read_inputs


def statements(layout: Layout, inputs: Sequence[Input], *, merged: bool, node: str, token: str) -> Iterator[Statement]:
    """What writes the rows of `inputs`: the last row of each key where they are `merged`, else every row."""
    if merged:
        found = compacted_rows(inputs, layout.schema, node=node, token=token)
        yield from layout.merges(found.rows.to_batches(max_chunksize=ROW_GROUP_ROWS))
        return
    names = changelog_names(layout.schema) if layout.changelog else [c.name for c in layout.schema.columns]
    for entry in inputs:
        batches: Iterator[pa.RecordBatch] = read_inputs(
            [entry.to_json()], names, node=node, token=token, symbols=layout.changelog
        )
        yield from layout.inserts(batches, split=entry.segment.split_id)


def load(
    inputs: list[dict[str, Any]],
    target: list[str],
    schema: dict[str, Any],
    layout: dict[str, Any],
    merged: bool,
    uri: str,
    record: str,
    app_id: str,
    fence: str,
    node: str,
    token: str,
) -> dict[str, Any]:
    """Write the rows of `inputs` to `target` while `fence` stands."""
    name = TableId(*target)
    server = Server(uri, record)
    commits = Commits(server, app_id)
    shape = Layout(name, TableSchema.from_json(schema), **{**layout, "gone": tuple(layout["gone"])})
    found = statements(shape, list(map(Input.from_json, inputs)), merged=merged, node=node, token=token)
    with server.named(name):
        write(server, name, found, lambda session: commits.pass_fence(session, name, fence))
    return {}
