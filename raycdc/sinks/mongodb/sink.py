"""Collections of a MongoDB replica set or sharded cluster, either equal to the source tables or holding their changes.

| epoch of a target | written | readers see |
|---|---|---|
| up to `SMALL_BYTES_MAX` of segments | by the driver: rows and record in one transaction | all of it or nothing |
| larger, or after a truncation | the record says "in part"; tasks write, each batch behind a fence | it grow |

*What if the process dies here?* Before the record says "in part" the target has nothing of the epoch. From then on
recovery knows, and never drops the epoch: it is written again, where every statement has the same effect however often
it comes (documents by their keys; changes by `_seq` and split), or, where its segments are gone, the table begins again
with a new snapshot. *What if a driver wakes from a pause?* Each of its transactions changes a document that whoever
replaced it has changed or removed (`commits`): nothing of it arrives. *What if the servers elect another primary?* What
was acknowledged is on a majority; transactions that were not are undone and tried again. *What if it is a restored
copy?* The sink remembers how far each target was, and commits nothing to one that holds less.

Tables commit one by one: an epoch is atomic per table at most, not across tables.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge.reading import read_segment
from raycdc.checkpoint.folder import private_file
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import ColumnsRefusedError, SinkError
from raycdc.model import META_COLUMNS, RowKind, TableId
from raycdc.references import as_private
from raycdc.sinks.api import CHANGELOG, UPSERT, SinkContext, TargetShape
from raycdc.sinks.api import TableWork as Work
from raycdc.sinks.changes import check_key, check_unmerged
from raycdc.sinks.misfits import halved
from raycdc.sinks.mongodb.checks import check_sink
from raycdc.sinks.mongodb.commits import Commits
from raycdc.sinks.mongodb.plugin import MongoDbSinkConfig
from raycdc.sinks.mongodb.server import Server
from raycdc.sinks.mongodb.target import MongoDbSteps
from raycdc.sinks.mongodb.tasks import ServerAddress
from raycdc.sinks.mongodb.types import ID, check_columns, check_name, form_of
from raycdc.sinks.mongodb.writing import Layout
from raycdc.sinks.origins import CLAIMED
from raycdc.sinks.rows import DELETED
from raycdc.sinks.steps import Batch, ExactlyOnceSink
from raycdc.source.checks import CheckResult

#: An epoch of a table up to this is written by the driver, at once: a transaction of a few seconds at most.
SMALL_BYTES_MAX = 4 << 20


class MongoDbSink(ExactlyOnceSink[MongoDbSteps]):
    """See the module's docstring."""

    kind: ClassVar[str] = "mongodb"
    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    #: Rows of several source tables may go to one target: the same key of two of them is found and refused.
    merges_origins: ClassVar[bool] = True

    def __init__(self, config: MongoDbSinkConfig) -> None:
        super().__init__()
        self._config = config
        self._server = Server(config.uri.reveal(), config.record)
        #: Where tasks read an address that holds secrets; nobody else may.
        self._uri_file: Path | None = None
        self._written = ""
        self._address = ServerAddress(self._server.uri, "", config.record)
        #: Up to how many bytes of segments an epoch of a table is one transaction; tests have none.
        self.small_bytes_max = SMALL_BYTES_MAX

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        return check_sink(self._config, targets)

    def statement(self, target: TargetShape) -> str:
        """A collection's making, and what its documents look like."""
        fields = [f"{column.name}: {form_of(column.type).bson}" for column in target.columns if column.name != ID]
        key = target.key
        ident = key[0] if len(key) == 1 else "{" + ", ".join(key or ("_seq", "split")) + "}"
        name = f"db.getSiblingDB({json.dumps(target.name.db)}).createCollection({json.dumps(target.name.table)})"
        return f"{name} // {{{ID}: {', '.join([ident, *fields])}}}"

    def __repr__(self) -> str:
        return f"MongoDbSink({self._server.where})"

    def open(self, context: SinkContext) -> None:
        self.look(context)
        with self._server.named("sink.uri"):
            self._commits.prepare()
        if self._server.secret:
            self._written = as_private(self._server.uri)
            self._uri_file = private_file(Path(context.private or tempfile.gettempdir()), self._written)
            self._address = replace(self._address, uri="", uri_file=str(self._uri_file))

    def look(self, context: SinkContext) -> None:
        super().look(context)
        self._commits = Commits(self._server, context.app_id)
        with self._server.named("sink.uri"):
            hello = self._server.client.admin.command("hello")
        if not ("setName" in hello or hello.get("msg") == "isdbgrid"):
            raise SinkError(
                f"sink.uri: MongoDB at {self._server.where} is a single server, which has no transactions. "
                "Make it a replica set of one: start mongod with --replSet rs0, then rs.initiate()."
            )

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[MongoDbSteps]:
        # No lock: whoever writes the record changes its version, and who comes second finds that.
        self._tell_tasks()
        with self._server.named(target):
            yield MongoDbSteps(
                target,
                self._server,
                self._commits,
                self._context,
                small_bytes_max=self.small_bytes_max,
                address=self._address,
            )

    def _tell_tasks(self) -> None:
        """Let the file say the address as it is now, which tasks on other machines cannot read for themselves."""
        if (file := self._uri_file) is None:
            return
        told = as_private(self._server.uri)
        if told != self._written:
            private_file(file.parent, told).replace(file)
            self._written = told

    def check_work(self, work: Work) -> None:
        check_name(work.target)
        if self._upsert:
            check_key(work)
        names = [column.name.casefold() for column in work.schema.columns]
        ours = [DELETED, *([CLAIMED] if work.merged else [])] if self._upsert else META_COLUMNS
        if taken := [name for name in ours if name in names]:
            raise ColumnsRefusedError(f"{work.target}: column {taken[0]} has a name that raycdc needs. Rename it.")
        check_columns(work.target, work.schema.columns, work.schema.primary_key, upsert=self._upsert)
        if self._upsert:
            check_unmerged(work, self._context.on_existing, rows="document")

    def prepare(self, work: Work, batch: Batch) -> bool:
        """Nothing is staged; whether the target is emptied is found out, because that comes before any task writes."""
        # Of several tables each one's own rows go; where that cannot be, it is refused when they are merged.
        return self._upsert and len(work.merged) < 2 and self._truncates(work.segments)

    def misfits(self, work: Work, rows: pa.RecordBatch) -> pa.Array:
        return halved(rows, Layout(work.target, work.schema, "", made=work.made).refusal)

    def tombstone(self, work: Work) -> None:
        check_name(work.target)
        super().tombstone(work)

    def close(self) -> None:
        if self._uri_file is not None:
            self._uri_file.unlink(missing_ok=True)
        self._server.close()

    def _truncates(self, segments: Sequence[Segment]) -> bool:
        """Whether rows say that the table was emptied."""
        truncation = pa.scalar(RowKind.TRUNCATE, pa.int8())
        for segment in segments:
            if segment.kind != "snapshot":
                for batch in read_segment(segment, ["_op"], access=self._context.access):
                    if pc.any(pc.equal(batch.column(0), truncation)).as_py():
                        return True
        return False
