"""The tasks of the MongoDB sink: segments in, documents out, each transaction behind the task's fence.

A task that runs twice writes the same documents twice; one that outlives its round finds its fence gone and ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import pyarrow as pa

from raycdc.errors import SinkError
from raycdc.private_texts import private_text
from raycdc.references import from_private
from raycdc.sinks.mongodb.commits import Commits
from raycdc.sinks.mongodb.server import Server, Session
from raycdc.sinks.mongodb.types import ID
from raycdc.sinks.mongodb.writing import Layout, Statement, write
from raycdc.sinks.origins import CLAIMED, Origins, same_key
from raycdc.sinks.table_input import TableInput, TableTask
from raycdc.sinks.tasks import ROW_GROUP_ROWS, compacted_origins, compacted_rows

Mode = Literal["insert", "merge", "delete", "remove", "check"]


def statements(layout: Layout, table: TableInput) -> Iterator[Statement]:
    """The statements that write every row of `table`, as it came."""
    for entry in table.inputs:
        batches = replace(table, inputs=(entry,)).rows(changelog=layout.changelog)
        yield from layout.inserts(batches, split=entry.segment.split_id)


def merged_rows(table: TableInput, origins: Origins | None) -> pa.Table:
    """The last row of each key with `DELETED`; of several `origins` with `CLAIMED`, too."""
    compacted = compacted_rows(table) if origins is None else compacted_origins(table, origins)
    return compacted.rows


def merges(layout: Layout, rows: pa.Table) -> Iterator[Statement]:
    """The statements that write `merged_rows` that are there."""
    return layout.merges(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def deletions(layout: Layout, rows: pa.Table) -> Iterator[Statement]:
    """The statements that delete `merged_rows` that are gone; before `merges`."""
    return layout.deletions(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def removals(layout: Layout, rows: pa.Table) -> Iterator[Statement]:
    """The statements that delete the documents of all `merged_rows`, before `merges` puts those back that stay."""
    return layout.removals(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def check_claims(
    server: Server, layout: Layout, rows: pa.Table, *, alone: bool, session: Session | None = None
) -> None:
    """`DataError` where the target has a key already that a row of `merged_rows` says is new."""
    claimed = rows.filter(rows.column(CLAIMED))
    for keys in layout.keys(claimed.to_batches()):
        document = server.collection(layout.target).find_one({ID: {"$in": keys}}, {ID: 1}, session=session)
        if document is not None:
            names = layout.schema.primary_key
            key = {names[0]: document[ID]} if len(names) == 1 else dict(document[ID])
            raise same_key(str(layout.target), key, alone=alone)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where tasks find the servers: `uri`, or the file that has it where it holds secrets; and the sink's database."""

    uri: str = field(repr=False)
    uri_file: str
    record: str

    def open(self) -> Server:
        return Server(self.uri or from_private(_read(self.uri_file)), self.record)


@dataclass(frozen=True, slots=True)
class Load(TableTask[None]):
    """Write the rows to the target of `layout` while `fence` stands: as they are (`mode` ``"insert"``), the last of
    each key (``"merge"``), of those only the deletions (``"delete"``), the documents of all out of the way
    (``"remove"``), or only look whether that can be (``"check"``).
    """

    layout: Layout
    mode: Mode
    origins: Origins | None
    address: ServerAddress
    app_id: str
    fence: str = ""

    def run(self) -> None:
        server, layout = self.address.open(), self.layout
        with server.named(layout.target):
            if self.mode == "insert":
                writes = statements(layout, self.table)
            else:
                rows = merged_rows(self.table, self.origins)
                if self.mode == "check":
                    assert self.origins is not None
                    check_claims(server, layout, rows, alone=self.origins.alone)
                    return
                writes = removals(layout, rows) if self.mode == "remove" else deletions(layout, rows)
                if self.mode == "merge":
                    writes = chain(writes, merges(layout, rows))
            commits = Commits(server, self.app_id)
            write(server, layout.target, writes, lambda session: commits.pass_fence(session, layout.target, self.fence))


def _read(path: str) -> str:
    try:
        return private_text(path)
    except OSError as cause:
        raise SinkError(
            f"The address of the sink cannot be read from {path}: {cause.strerror}. Somebody removed it: start "
            "the pipeline again."
        ) from cause
