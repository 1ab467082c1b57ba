"""Collections of a MongoDB replica set or sharded cluster, either equal to the source tables or holding their changes.

| epoch of a target | written | readers see |
|---|---|---|
| up to `SMALL_BYTES_MAX` of segments | by the driver, with the record in one transaction | all of it or nothing |
| larger, or after a truncation | the record says "in part"; tasks write, each batch protected by a fence | a growing \
part of it |

*Crashes*: before the record says "in part", the target has nothing of the epoch. Afterwards, recovery never drops the
epoch. The epoch is written again, by idempotent statements: the ``_id`` of a document is its key, and the ``_id`` of a
change is made of its `_seq` and split. If the segments of the epoch are lost, the table is resnapshotted.

*Suspended drivers*: each transaction changes the record or a fence (`commits`). If a suspended driver wakes up, its
successor has changed or removed that document, so the transaction fails.

*Failovers*: acknowledged data is on a majority of the servers. Transactions that were not acknowledged are undone and
retried. If the servers were restored from an older copy, targets hold less than this driver wrote, and the sink commits
nothing to such targets.

Tables commit one by one: an epoch is atomic per table at most, not across tables.

`check_sink` checks for ``raycdc check`` that the user may write a pipeline's collections in transactions, and creates
nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from pymongo.errors import OperationFailure, PyMongoError

from raycdc.config.checks import CheckResult, readable_on_the_way
from raycdc.config.mongodb import open_hosts
from raycdc.core.secrets import as_private
from raycdc.errors import ColumnsRefusedError, SinkError
from raycdc.model import META_COLUMNS, RowKind, TableId
from raycdc.model.column_names import spark_fold
from raycdc.segments.reading import read_segment
from raycdc.sinks.api import CHANGELOG, UPSERT, SinkContext, TargetShape
from raycdc.sinks.api import TableCommit as Work
from raycdc.sinks.changes import check_key, check_unmerged
from raycdc.sinks.mongodb.commits import CommitCollection
from raycdc.sinks.mongodb.plugin import MongoDbSinkConfig
from raycdc.sinks.mongodb.server import Document, Server
from raycdc.sinks.mongodb.target import MongoDbSteps
from raycdc.sinks.mongodb.tasks import ServerAddress
from raycdc.sinks.mongodb.types import ID, check_columns, check_name, form_of
from raycdc.sinks.mongodb.writing import DocumentLayout
from raycdc.sinks.rows import DELETED, halved
from raycdc.sinks.source_tables import CLAIMED
from raycdc.sinks.steps import ExactlyOnceSink, StageBatch
from raycdc.state.files.folder import private_file
from raycdc.state.manifests.manifest import Segment


class _Resource(TypedDict, total=False):
    db: str
    collection: str
    anyResource: bool  # The server's name of this key.


class Privilege(TypedDict):
    """A privilege of a user as the server reports it: the allowed actions on a resource."""

    resource: _Resource
    actions: Sequence[str]


#: The actions on a target, and on the record; ``readWrite`` has all of them.
ACTIONS = ("createCollection", "find", "insert", "listCollections", "remove", "update")
SINGLE_SERVER = (
    "A single server has no transactions, which keep rows and record together. Make it a replica set of one: start "
    "mongod with --replSet rs0, then run rs.initiate()."
)
_FIX_URI = "Correct sink.uri; for a user of another database than the target's add authSource=admin to it."


def check_sink(config: MongoDbSinkConfig, tables: Sequence[TableId]) -> list[CheckResult]:
    """Return all findings. `tables` are the targets that are known so far."""
    server = Server(config.uri.reveal(), config.record)
    hosts = open_hosts(config.uri.reveal())
    fix = "Add tls=true to sink.uri, and tlsCAFile where the authority is your own."
    way = readable_on_the_way(f"MongoDB at {server.where}", hosts, encrypted=not hosts, fix=fix)
    return [*_user(server, config, tables), *way]


def _user(server: Server, config: MongoDbSinkConfig, tables: Sequence[TableId]) -> list[CheckResult]:
    """Check that the user may connect and write the collections in transactions. Closes the server."""
    try:
        hello = server.client.admin.command("hello")
        described = _status(server)
    except OperationFailure as cause:
        return [CheckResult("sink", f"MongoDB at {server.where}: {server.text_of(cause)}.", _FIX_URI)]
    except PyMongoError as cause:
        message = server.refused(cause) or server.text_of(cause).partition(", Timeout: ")[0][:300]
        text = f"MongoDB at {server.where} cannot be reached: {message.rstrip('.')}."
        return [CheckResult("sink", text, _FIX_URI)]
    finally:
        server.close()
    findings = [CheckResult("sink", f"Connected to MongoDB at {server.where}.", ok=True)]
    if not ("setName" in hello or hello.get("msg") == "isdbgrid"):
        findings.append(CheckResult("transactions", f"MongoDB at {server.where} is no replica set.", SINGLE_SERVER))
    known = described.get("authInfo", {})
    if user := next((one["user"] for one in known.get("authenticatedUsers", [])), None):
        # A table that cannot be a collection is parked, which the check of the tables reports.
        targets = [table for table in tables if not config.names.no_table(table)]
        databases = sorted({config.record, *(table.db for table in targets)})
        findings += lacking(user, known.get("authenticatedUserPrivileges", []), databases)
    return findings


def _status(server: Server) -> Document:
    """Return the client's user and privileges; empty if the server does not report them."""
    try:
        return server.client.admin.command({"connectionStatus": 1, "showPrivileges": True})
    except OperationFailure as cause:
        if cause.code != _UNKNOWN_COMMAND:
            raise
        return {}


def lacking(user: str, privileges: Iterable[Privilege], databases: Sequence[str]) -> list[CheckResult]:
    """Return a finding about each of `databases` in which `user` lacks permitted actions; one positive finding if
    nothing is missing.
    """
    privileges = list(privileges)
    findings = []
    for database in databases:
        allowed = {
            action
            for privilege in privileges
            if privilege["resource"].get("db") in ("", database) and privilege["resource"].get("collection") == ""
            for action in privilege["actions"]
        }
        anything = any(privilege["resource"].get("anyResource") for privilege in privileges)
        missing = [action for action in ACTIONS if action not in allowed]
        if missing and not anything:
            grant = f'db.getSiblingDB("admin").grantRolesToUser("{user}", [{{role: "readWrite", db: "{database}"}}])'
            text = f"{user} may not {', '.join(missing)} in database {database}."
            findings.append(CheckResult("sink privileges", text, grant))
    return findings or [CheckResult("sink privileges", f"{user} may write what the sink needs.", ok=True)]


_UNKNOWN_COMMAND = 59


#: The largest epoch of a table, in bytes of segments, that the driver writes in one transaction, which takes a few
#: seconds at most.
SMALL_BYTES_MAX = 4 << 20


class MongoDbSink(ExactlyOnceSink[MongoDbSteps]):
    """The MongoDB sink; see the module's docstring."""

    kind: ClassVar[str] = "mongodb"
    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    #: Rows of several source tables may go to one target, because a key that comes from two of them is found and
    #: refused.
    merges_sources: ClassVar[bool] = True

    def __init__(self, config: MongoDbSinkConfig) -> None:
        super().__init__()
        self._config = config
        self._server = Server(config.uri.reveal(), config.record)
        #: The file from which tasks read an address with secrets, readable only by this user.
        self._uri_file: Path | None = None
        self._written = ""
        self._address = ServerAddress(self._server.uri, "", config.record)
        #: The largest epoch of a table, in bytes of segments, that is one transaction. Tests change it.
        self.small_bytes_max = SMALL_BYTES_MAX

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        return check_sink(self._config, targets)

    def statement(self, target: TargetShape) -> str:
        """Return the command that creates a collection, and the form of its documents."""
        fields = [f"{column.name}: {form_of(column.type).bson}" for column in target.columns if column.name != ID]
        key = target.key
        ident = key[0] if len(key) == 1 else "{" + ", ".join(key or ("_seq", "split")) + "}"
        name = f"db.getSiblingDB({json.dumps(target.name.db)}).createCollection({json.dumps(target.name.table)})"
        return f"{name} // {{{ID}: {', '.join([ident, *fields])}}}"

    def __repr__(self) -> str:
        return f"MongoDbSink({self._server.where})"

    def open(self, context: SinkContext) -> None:
        self.inspect(context)
        with self._server.named("sink.uri"):
            self._commits.prepare()
        if self._server.secret:
            self._written = as_private(self._server.uri)
            self._uri_file = private_file(Path(context.private or tempfile.gettempdir()), self._written)
            self._address = replace(self._address, uri="", uri_file=str(self._uri_file))

    def inspect(self, context: SinkContext) -> None:
        super().inspect(context)
        self._commits = CommitCollection(self._server, context.app_id)
        with self._server.named("sink.uri"):
            hello = self._server.client.admin.command("hello")
        if not ("setName" in hello or hello.get("msg") == "isdbgrid"):
            raise SinkError(
                f"sink.uri: MongoDB at {self._server.where} is a single server, which has no transactions. "
                "Make it a replica set of one: start mongod with --replSet rs0, then rs.initiate()."
            )

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[MongoDbSteps]:
        # No lock is needed: writing the record changes its version, so a second writer fails.
        self._write_task_secrets()
        with self._server.named(target):
            yield MongoDbSteps(
                target,
                self._server,
                self._commits,
                self._context,
                small_bytes_max=self.small_bytes_max,
                address=self._address,
            )

    def _write_task_secrets(self) -> None:
        """Write the present address to the file, because tasks on other machines cannot resolve references."""
        if (file := self._uri_file) is None:
            return
        message = as_private(self._server.uri)
        if message != self._written:
            private_file(file.parent, message).replace(file)
            self._written = message

    def check_work(self, work: Work) -> None:
        check_name(work.target)
        if self._upsert:
            check_key(work)
        names = [spark_fold(column.name) for column in work.schema.columns]
        ours = [DELETED, *([CLAIMED] if work.merged else [])] if self._upsert else META_COLUMNS
        if taken := [name for name in ours if name in names]:
            raise ColumnsRefusedError(f"{work.target}: column {taken[0]} has a name that raycdc needs. Rename it.")
        check_columns(work.target, work.schema.columns, work.schema.primary_key, upsert=self._upsert)
        if self._upsert:
            check_unmerged(work, self._context.on_existing, rows="document")

    def prepare(self, work: Work, batch: StageBatch) -> bool:
        """Return True if the epoch empties the target; the target must then be emptied before any task writes. Nothing
        is staged.
        """
        # A target of several source tables is not emptied, because only the rows of one table would have to be removed.
        # The merge refuses such an epoch.
        return self._upsert and len(work.merged) < 2 and self._truncates(work.segments)

    def unrepresentable(self, work: Work, rows: pa.RecordBatch) -> pa.Array:
        return halved(rows, DocumentLayout(work.target, work.schema, "", made=work.made).refusal)

    def tombstone(self, work: Work) -> None:
        check_name(work.target)
        super().tombstone(work)

    def close(self) -> None:
        if self._uri_file is not None:
            self._uri_file.unlink(missing_ok=True)
        self._server.close()

    def _truncates(self, segments: Sequence[Segment]) -> bool:
        """Return True if the rows contain a truncation."""
        truncation = pa.scalar(RowKind.TRUNCATE, pa.int8())
        for segment in segments:
            if segment.kind != "snapshot":
                for batch in read_segment(segment, ["_op"], access=self._context.access):
                    if pc.any(pc.equal(batch.column(0), truncation)).as_py():
                        return True
        return False
