"""The tasks of the MongoDB sink: they write documents from segments. Each transaction is protected by the task's fence.

A task that runs twice writes the same documents twice. A task that outlives its round of tasks finds no fence and ends.
`LoadTasks` runs tasks for an epoch concurrently, one for each group of segments; the collection's target calls it on
the driver. A task may run in another process, so it gets everything as one value (`LoadDocuments`): its rows, the
layout of documents, the servers' address, and the token of its fence (`raycdc.sinks.mongodb.commits`), without which it
writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import pyarrow as pa

from raycdc.core.secrets import from_private, private_text
from raycdc.errors import SinkError
from raycdc.sinks.api import SinkContext
from raycdc.sinks.api import TableCommit as Work
from raycdc.sinks.mongodb.commits import CommitCollection
from raycdc.sinks.mongodb.server import Server, Session
from raycdc.sinks.mongodb.types import ID
from raycdc.sinks.mongodb.writing import DocumentLayout, Statement, short, write
from raycdc.sinks.record import TargetRecord
from raycdc.sinks.source_tables import CLAIMED, MergedTarget, same_key
from raycdc.sinks.task_inputs import Input, TableInput, TableTask
from raycdc.sinks.tasks import ROW_GROUP_ROWS, compacted_merged, compacted_rows

Mode = Literal["insert", "merge", "delete", "remove", "check"]


def statements(layout: DocumentLayout, table: TableInput) -> Iterator[Statement]:
    """Return the statements that insert every row of `table` unchanged."""
    for entry in table.inputs:
        batches = replace(table, inputs=(entry,)).rows(changelog=layout.changelog)
        yield from layout.inserts(batches, split=entry.segment.split_id)


def merged_rows(table: TableInput, merged: MergedTarget | None) -> pa.Table:
    """Return the last row of each key with `DELETED`; if the target is `merged`, with `CLAIMED`, too."""
    compacted = compacted_rows(table) if merged is None else compacted_merged(table, merged)
    return compacted.rows


def merges(layout: DocumentLayout, rows: pa.Table) -> Iterator[Statement]:
    """Return the statements that write the rows among `merged_rows` that are not deletions."""
    return layout.merges(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def deletions(layout: DocumentLayout, rows: pa.Table) -> Iterator[Statement]:
    """Return the statements that delete the deleted keys of `merged_rows`; they come before `merges`."""
    return layout.deletions(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def removals(layout: DocumentLayout, rows: pa.Table) -> Iterator[Statement]:
    """Return the statements that delete the documents of all `merged_rows`. `merges` writes the rows that are not
    deleted afterwards.
    """
    return layout.removals(rows.to_batches(max_chunksize=ROW_GROUP_ROWS))


def check_claims(
    server: Server, layout: DocumentLayout, rows: pa.Table, *, alone: bool, session: Session | None = None
) -> None:
    """Raise `DataError` if the target already has a key that is marked as new in `merged_rows`."""
    claimed = rows.filter(rows.column(CLAIMED))
    for keys in layout.keys(claimed.to_batches()):
        document = server.collection(layout.target).find_one({ID: {"$in": keys}}, {ID: 1}, session=session)
        if document is not None:
            names = layout.schema.primary_key
            key = {names[0]: document[ID]} if len(names) == 1 else dict(document[ID])
            raise same_key(str(layout.target), key, alone=alone)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The servers' address for tasks. `uri` is the address. If the address has secrets, `uri` is empty and `uri_file`
    is the name of a file that contains the address. `record` is the database of the sink's own collections.
    """

    uri: str = field(repr=False)
    uri_file: str
    record: str

    def open(self) -> Server:
        return Server(self.uri or from_private(_read(self.uri_file)), self.record)


@dataclass(frozen=True, slots=True)
class LoadDocuments(TableTask[None]):
    """Writes rows to the target of `layout` while `fence` exists.

    The `mode` is ``"insert"`` to write unchanged rows, ``"merge"`` to write the last row of each key, ``"delete"`` to
    write only the deletions among these, ``"remove"`` to delete the documents of all keys, or ``"check"`` to check that
    the target has none of the keys that must be new, without writing anything.
    """

    layout: DocumentLayout
    mode: Mode
    merged: MergedTarget | None
    address: ServerAddress
    app_id: str
    fence: str = ""

    def run(self) -> None:
        server, layout = self.address.open(), self.layout
        with server.named(layout.target):
            if self.mode == "insert":
                writes = statements(layout, self.table)
            else:
                rows = merged_rows(self.table, self.merged)
                if self.mode == "check":
                    assert self.merged is not None
                    check_claims(server, layout, rows, alone=self.merged.alone)
                    return
                writes = removals(layout, rows) if self.mode == "remove" else deletions(layout, rows)
                if self.mode == "merge":
                    writes = chain(writes, merges(layout, rows))
            commits = CommitCollection(server, self.app_id)
            write(server, layout.target, writes, lambda session: commits.pass_fence(session, layout.target, self.fence))


def _read(path: str) -> str:
    try:
        return private_text(path)
    except OSError as cause:
        raise SinkError(
            f"The address of the sink cannot be read from {path}: {cause.strerror}. Somebody removed it: start "
            "the pipeline again."
        ) from cause


class LoadTasks:
    """Creates and runs the tasks of an epoch; see the module's docstring.

    `address` is the servers' address for tasks.
    """

    def __init__(self, context: SinkContext, address: ServerAddress) -> None:
        self._context = context
        self._address = address

    def run(
        self,
        work: Work,
        layout: DocumentLayout,
        mode: Mode,
        groups: Sequence[Sequence[Input]],
        fences: Sequence[str] = (),
    ) -> None:
        """Run a task for each of `groups`, and return when all are done. `fences` are the tokens of the tasks' fences,
        in the same order. Tasks that only check rows need no fences.
        """
        tasks = [
            LoadDocuments(
                self._context.table_input(work, inputs),
                layout=layout,
                mode=mode,
                merged=self.merged_target(work),
                address=self._address,
                app_id=self._context.app_id,
                fence=fences[number] if fences else "",
            )
            for number, inputs in enumerate(groups)
        ]
        if tasks:
            self._context.run_tasks(tasks)

    def merged_target(self, work: Work) -> MergedTarget | None:
        """Return the description of a merged target; None if the target has the rows of one table under the table's own
        key.
        """
        return MergedTarget.of(work) if self._context.upsert else None

    def layout(self, work: Work, held: TargetRecord, rows: str) -> DocumentLayout:
        """Return the layout of the documents of `work` in a collection with the record `held` and the list `rows`."""
        written = {column.name for column in work.schema.columns}
        dropped_columns = tuple(column.name for column in held.columns if column.name not in written)
        upsert = self._context.upsert
        return DocumentLayout(
            work.target,
            work.schema,
            short(self._context.app_id),
            changelog=not upsert,
            adopted=upsert and not held.created,
            dropped_columns=dropped_columns,
            made=work.made,
            rows=rows,
        )
