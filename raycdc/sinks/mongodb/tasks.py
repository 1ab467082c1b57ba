"""The tasks of the MongoDB sink: segments in, documents out, each transaction behind the task's fence.

A task that runs twice writes the same documents twice; one that outlives its round finds its fence gone and ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from raycdc.bridge.access import SegmentAccess
from raycdc.errors import SinkError
from raycdc.model import TableId, TableSchema
from raycdc.sinks.mongodb.commits import Commits
from raycdc.sinks.mongodb.server import Server, Session
from raycdc.sinks.mongodb.types import ID
from raycdc.sinks.mongodb.writing import Layout, Statement, short, write
from raycdc.sinks.origins import CLAIMED, ORIGIN, last_per_origin, same_key
from raycdc.sinks.plan import Input
from raycdc.sinks.rows import changelog_names
from raycdc.sinks.tasks import ROW_GROUP_ROWS, compacted_rows, read_inputs


def statements(layout: Layout, inputs: Sequence[Input], *, access: SegmentAccess) -> Iterator[Statement]:
    """What writes every row of `inputs`, as it came."""
    names = changelog_names(layout.schema) if layout.changelog else [c.name for c in layout.schema.columns]
    for entry in inputs:
        batches: Iterator[pa.RecordBatch] = read_inputs(
            [entry.to_json()], names, access=access, symbols=layout.changelog
        )
        yield from layout.inserts(batches, split=entry.segment.split_id)


def merged_rows(
    layout: Layout, inputs: Sequence[Input], origins: Mapping[str, Any] | None, *, access: SegmentAccess
) -> pa.Table:
    """The last row of each key with `DELETED`; of several `origins` (`last_per_origin`) with `CLAIMED`, too."""
    if origins is None:
        return compacted_rows(inputs, layout.schema, access=access).rows
    names = [column.name for column in layout.schema.columns]
    wanted = [*names, "_op", "_seq", *ORIGIN]
    read = list(read_inputs([entry.to_json() for entry in inputs], wanted, access=access))
    return last_per_origin(pa.Table.from_batches(read), layout.schema.primary_key, names, **origins)


def merges(layout: Layout, rows: pa.Table) -> Iterator[Statement]:
    """What writes `merged_rows` that are there."""
    return layout.merges(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def deletions(layout: Layout, rows: pa.Table) -> Iterator[Statement]:
    """What deletes `merged_rows` that are gone; before `merges`."""
    return layout.deletions(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def check_claims(
    server: Server, layout: Layout, rows: pa.Table, *, alone: bool, session: Session | None = None
) -> None:
    """`DataError` where the target has a key already that a row of `merged_rows` says is new."""
    claimed = rows.filter(rows.column(CLAIMED))
    for keys in layout.keys(claimed.to_batches()):
        found = server.collection(layout.target).find_one({ID: {"$in": keys}}, {ID: 1}, session=session)
        if found is not None:
            names = layout.schema.primary_key
            key = {names[0]: found[ID]} if len(names) == 1 else dict(found[ID])
            raise same_key(str(layout.target), key, alone=alone)


def load(
    inputs: list[dict[str, Any]],
    target: list[str],
    schema: dict[str, Any],
    layout: dict[str, Any],
    mode: str,
    origins: dict[str, Any] | None,
    address: dict[str, str],
    app_id: str,
    fence: str,
    node: str,
    token: str,
) -> dict[str, Any]:
    """Write the rows of `inputs` to `target` while `fence` stands: as they are (`mode` ``"insert"``), the last of each
    key (``"merge"``), of those only the deletions (``"delete"``), or only look whether that can be (``"check"``). An
    address with secrets is in a file.
    """
    name = TableId(*target)
    server = Server(address["uri"] or _read(address["uri_file"]), address["record"])
    shape = Layout(name, TableSchema.from_json(schema), short(app_id), **layout)
    access = SegmentAccess(node, token)
    parts = list(map(Input.from_json, inputs))
    with server.named(name):
        if mode == "insert":
            found = statements(shape, parts, access=access)
        else:
            rows = merged_rows(shape, parts, origins, access=access)
            if mode == "check":
                assert origins is not None
                check_claims(server, shape, rows, alone=origins["alone"])
                return {}
            found = deletions(shape, rows)
            if mode == "merge":
                found = chain(found, merges(shape, rows))
        commits = Commits(server, app_id)
        write(server, name, found, lambda session: commits.pass_fence(session, name, fence))
    return {}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as cause:
        raise SinkError(
            f"The address of the sink cannot be read from {path}: {cause.strerror}. Tasks on other machines need "
            'pipeline.state on a file system they share; or use a Spark on this machine ("local[*]").'
        ) from cause
