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

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge.reading import read_segment
from raycdc.bridge.tasks import StageTask
from raycdc.checkpoint.folder import private_file
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import (
    ChangeRefusedError,
    ColumnsRefusedError,
    FencedError,
    SinkError,
    TargetGoneError,
    TargetTakenError,
)
from raycdc.failpoints import reach
from raycdc.model import META_COLUMNS, Column, RowKind, TableId
from raycdc.sinks.api import (
    CHANGELOG,
    STEP_APPEND,
    STEP_LAST,
    STEP_SCHEMA,
    STEP_TOMBSTONE,
    UPSERT,
    CommitVector,
    SinkContext,
)
from raycdc.sinks.api import TableWork as Work
from raycdc.sinks.changes import check_changes, check_key, check_unmerged, creates, fitted, may_lack
from raycdc.sinks.columns import Plan, plan, type_error
from raycdc.sinks.mongodb.adopt import check_collection, check_keys
from raycdc.sinks.mongodb.commits import Commits, Kept
from raycdc.sinks.mongodb.migration import empty, migrate, operations_of
from raycdc.sinks.mongodb.plugin import MongoDbSinkConfig
from raycdc.sinks.mongodb.server import DuplicateError, Server, Session, uuid_of
from raycdc.sinks.mongodb.tasks import check_claims, deletions, merged_rows, merges, statements
from raycdc.sinks.mongodb.types import ID, any_key, check_columns, check_name, same_form, same_key, spread
from raycdc.sinks.mongodb.writing import Layout, Statement, short, updates_of
from raycdc.sinks.origins import CLAIMED
from raycdc.sinks.plan import Input, by_partition, share_out
from raycdc.sinks.record import Before, Held, Intent, again, renamed
from raycdc.sinks.rows import DELETED
from raycdc.sinks.targets import check_write

#: An epoch of a table up to this is written by the driver, at once: a transaction of a few seconds at most.
SMALL_BYTES_MAX = 4 << 20


class MongoDbSink:
    """See the module's docstring."""

    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    durable: ClassVar[bool] = True
    #: Rows of several source tables may go to one target: the same key of two of them is found and refused.
    merges_origins: ClassVar[bool] = True

    def __init__(self, config: MongoDbSinkConfig) -> None:
        self._server = Server(config.uri.reveal(), config.record)
        #: Where tasks read an address that holds secrets; nobody else may.
        self._uri_file: Path | None = None
        #: Up to how many bytes of segments an epoch of a table is one transaction; tests have none.
        self.small_bytes_max = SMALL_BYTES_MAX
        #: Whether snapshot rows of a target may be inserted; asked while another thread may be committing to it.
        self._insertable: dict[TableId, bool] = {}
        #: The last (epoch, step) that each target was found or left at; a target is in one thread's hands at a time.
        self._reached: dict[TableId, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"MongoDbSink({self._server.where})"

    def open(self, context: SinkContext) -> None:
        self.look(context)
        with self._server.named("sink.uri"):
            self._commits.prepare()
        if self._server.secret:
            self._uri_file = private_file(Path(context.private or tempfile.gettempdir()), self._server.uri)

    def look(self, context: SinkContext) -> None:
        check_write("mongodb", self.writes, context.write)
        self._context = context
        self._upsert = context.write == UPSERT
        self._commits = Commits(self._server, context.app_id)
        with self._server.named("sink.uri"):
            hello = self._server.client.admin.command("hello")
        if not ("setName" in hello or hello.get("msg") == "isdbgrid"):
            raise SinkError(
                f"sink.uri: MongoDB at {self._server.where} is a single server, which has no transactions. "
                "Make it a replica set of one: start mongod with --replSet rs0, then rs.initiate()."
            )

    def require_free(self, target: TableId) -> None:
        with self._server.named(target):
            kept, there = self._commits.read(target), self._server.described(target)
            if there is not None and (kept is None or not kept.held.columns):
                self._on_existing(target, there)

    def committed(self, target: TableId) -> CommitVector | None:
        with self._server.named(target):
            kept = self._commits.read(target)
            if kept is None or (kept.held.columns and self._server.described(target) is None):
                return None
        self._reach(target, kept)
        return kept.held.vector

    def apply_schema(self, work: Work) -> None:
        check_changes(work, self._context.schema_change, self._context.left_out)
        self._check(work)
        if self._upsert:
            check_unmerged(work, self._context.on_existing, rows="document")
        self._insertable.pop(work.target, None)
        with self._server.named(work.target):
            kept = self._kept(work)
            there = self._server.described(work.target)
            touched = kept is not None and bool(kept.held.columns)
            if there is None:
                if not creates(work) or (touched and kept is not None and kept.held.vector.epoch >= work.epoch):
                    raise self._disappeared(work.target)
                self._server.create(work.target)
                made = uuid_of(self._server.described(work.target) or {})
                self._write(work, kept, self._new(work, created=True), uuid=made)
            elif not touched:
                self._take_over(work, kept, there)
            elif kept is not None:
                kept = self._same(work, kept)
                if (kept.held.vector.epoch, kept.held.vector.step) < (work.epoch, STEP_SCHEMA):
                    self._evolve(work, kept)

    def stage(self, works: Sequence[Work]) -> Mapping[TableId, Any]:
        # Of several tables each one's own rows go; where that cannot be, it is refused when they are merged.
        return {work.target: self._upsert and len(work.merged) < 2 and self._truncates(work.segments) for work in works}

    def commit(self, work: Work, staged: Any) -> None:
        with self._server.named(work.target):
            kept = self._kept(work)
            if kept is None or not kept.held.columns:
                raise self._disappeared(work.target)
            kept = self._same(work, kept)
            if (kept.held.vector.epoch, kept.held.vector.step) >= (work.epoch, STEP_LAST):
                return
            work = self._fitted(work, kept.held)
            written = kept.held.written(CommitVector(work.epoch, STEP_LAST, work.generation))
            inserted, merged = self._split(work)
            if not staged and work.input_bytes <= self.small_bytes_max and not _in_part(kept, work):
                self._write_at_once(work, kept, written, inserted, merged)
                return
            rounds = (
                [("insert", share_out([entry.segment for entry in inserted], parallelism=self._context.parallelism))]
                if not staged
                else []
            )
            if self._upsert and any_key(work.schema):
                # A key of one task may be, for the server, one that another task's row has.
                rounds.append(("delete", merged))
            self._write_in_parts(work, kept, written, [*rounds, ("merge", merged)], emptied=staged)

    def tombstone(self, work: Work) -> None:
        check_name(work.target)
        with self._server.named(work.target):
            kept = self._kept(work)
            # Where nothing was touched only the record says that it never will be.
            held = kept.held if kept is not None else Held(CommitVector(0, 0), (), (), created=False)
            if held.vector.epoch == work.epoch and STEP_SCHEMA < held.vector.step < STEP_TOMBSTONE:
                raise SinkError(
                    f"Epoch {work.epoch} reached {work.target} while it was being dropped: a driver that was replaced "
                    "had not ended. Start again; the epoch will be kept."
                )
            if (held.vector.epoch, held.vector.step) < (work.epoch, STEP_TOMBSTONE):
                self._write(work, kept, replace(held, vector=CommitVector(work.epoch, STEP_TOMBSTONE, work.generation)))

    def close(self) -> None:
        if self._uri_file is not None:
            self._uri_file.unlink(missing_ok=True)
        self._server.close()

    # -- schema

    def _check(self, work: Work) -> None:
        check_name(work.target)
        if self._upsert:
            check_key(work)
        names = [column.name.casefold() for column in work.schema.columns]
        ours = [DELETED, *([CLAIMED] if work.merged else [])] if self._upsert else META_COLUMNS
        if taken := [name for name in ours if name in names]:
            raise ColumnsRefusedError(f"{work.target}: column {taken[0]} has a name that raycdc needs. Rename it.")
        check_columns(work.target, work.schema.columns, work.schema.primary_key, upsert=self._upsert)

    def _new(self, work: Work, *, created: bool) -> Held:
        vector = CommitVector(work.epoch, STEP_SCHEMA, work.generation)
        return Held(vector, work.schema.columns, work.schema.primary_key, created)

    def _take_over(self, work: Work, kept: Kept | None, there: Mapping[str, Any]) -> None:
        """Begin with a collection that is there, and of which no record has the columns."""
        target, collection = work.target, self._server.collection(work.target)
        match self._on_existing(target, there):
            case "begin":
                self._write(work, kept, self._new(work, created=True), uuid=uuid_of(there))
            case "replace":
                new = self._new(work, created=True)
                shape = Before(new.columns, new.key, tuple(column.name for column in new.columns))
                intent = Intent(str(work.epoch), new.columns, new.key, shape)
                before = kept.held.vector if kept else CommitVector(0, 0)
                begun = Held(replace(before, generation=work.generation), (), (), created=True, intent=intent)
                kept = self._write(work, kept, begun, {"empty": True}, uuid=uuid_of(there), alone=True)
                kept = migrate(self._server, self._commits, target, kept, work.positions)
                self._write(work, kept, new)
            case _:
                if self._upsert and spread(work.schema.columns):
                    raise TargetTakenError(
                        f"The collection {target} exists in {self._server.where}, and documents are copied as a whole, "
                        "which keeps no fields of others. Choose another target, or empty it with "
                        'pipeline.on_existing = "replace".'
                    )
                if self._upsert:
                    check_keys(collection, target, work.schema, self._server.where)
                self._write(work, kept, self._new(work, created=False), uuid=uuid_of(there))

    def _on_existing(self, target: TableId, there: Mapping[str, Any]) -> str:
        """What becomes of a collection that no record knows: it is begun with, merged into, or replaced."""
        check_collection(target, there, self._server.where)
        if self._server.collection(target).find_one({}, {"_id": 1}) is None and not self._commits.others(target):
            # Ours, made before the process died, or somebody's who has nothing to lose.
            return "begin"
        if self._context.on_existing == "fail":
            raise TargetTakenError(
                f"The collection {target} exists in {self._server.where} and was not created by this pipeline (or its "
                'state was deleted). Set pipeline.on_existing to "merge" to write into it or "replace" to empty it, or '
                "choose another server in sink.uri."
            )
        return self._context.on_existing

    def _evolve(self, work: Work, kept: Kept) -> None:
        held, target = kept.held, work.target
        shape = held.shape()
        planned = plan(
            shape.columns,
            shape.key,
            work,
            upsert=self._upsert,
            behavior=self._context.schema_change,
            left_out=self._context.left_out,
        )
        before = renamed(shape, planned)
        planned = again(target, held, planned)
        columns = tuple(p.column for p in planned.columns)
        key = work.schema.primary_key if self._upsert else held.key
        check_columns(target, columns, key, upsert=self._upsert)
        self._check_forms(work, held.columns, held.key, planned)
        if operations := operations_of(target, held.columns, held.key if self._upsert else (), planned):
            intent = Intent(str(work.epoch), columns, key, before)
            begun = replace(held, vector=replace(held.vector, generation=work.generation), intent=intent)
            kept = self._write(work, kept, begun, operations=operations)
            kept = migrate(self._server, self._commits, target, kept, work.positions)
        vector = CommitVector(work.epoch, STEP_SCHEMA, work.generation)
        self._write(work, kept, Held(vector, columns, key, held.created, before))

    def _check_forms(self, work: Work, present: Sequence[Column], key: Sequence[str], planned: Plan) -> None:
        """Documents keep their values when a type becomes wider; one that would be written otherwise is refused."""
        types = {column.name: column for column in present}
        # Rows come as the source has them, whatever became of the change.
        written = {column.name: column.type for column in work.schema.columns}
        for p in planned.columns:
            old = types.get(p.origin or "")
            new = written.get(p.column.name, p.column.type)
            if old is None or planned.emptied:
                continue
            if not same_form(old.type, new):
                raise type_error(work.target, old, new)
            if self._upsert and old.name in key and not same_key(old.type, new):
                raise ChangeRefusedError(
                    f"{work.target}: the key column {old.name} is a text in MongoDB, whose digits after the point "
                    f"become others, and the {ID} of the documents that exist cannot change. Nothing was written. Take "
                    "a new snapshot of the table, which empties the collection."
                )

    # -- rows

    def _write_at_once(
        self, work: Work, kept: Kept, written: Held, inserted: Sequence[Input], merged: Sequence[Sequence[Input]]
    ) -> None:
        layout, origins = self._layout(work, kept.held), self._origins(work)
        node, token = self._context.node, self._context.flight_token
        found = list(statements(layout, inserted, node=node, token=token))
        groups = [merged_rows(layout, inputs, origins, node=node, token=token) for inputs in merged]
        for writes in (deletions, merges):
            found += [statement for rows in groups for statement in writes(layout, rows)]

        def run(session: Session, chosen: Sequence[Statement]) -> Kept:
            now = self._commits.write(session, work.target, kept, written, work.positions)
            for rows in groups if origins else ():
                check_claims(self._server, layout, rows, alone=len(work.merged) == 1, session=session)
            for statement in chosen:
                self._server.run(session, work.target, statement.command, statement.documents)
            reach("in_commit")
            return now

        try:
            now = self._server.transaction(lambda session: run(session, found))
        except DuplicateError:
            found = updates_of(found)
            now = self._server.transaction(lambda session: run(session, found))
        self._reach(work.target, now)

    def _write_in_parts(
        self,
        work: Work,
        kept: Kept,
        written: Held,
        rounds: Sequence[tuple[str, Sequence[Sequence[Input]]]],
        *,
        emptied: bool,
    ) -> None:
        """Rounds of tasks, each behind fences of its own: none begins before the one before it can write no more."""
        begun = replace(kept.held, vector=CommitVector(work.epoch, STEP_APPEND, work.generation))
        layout = self._layout(work, begun)
        if work.merged and self._upsert and not emptied and not _in_part(kept, work):
            # Before the first row: what is found later may be this epoch's own.
            self._run(work, layout, "check", [inputs for _, groups in rounds for inputs in groups])
        kept = self._write(work, kept, begun)
        if emptied:
            kept = empty(self._server, self._commits, work.target, kept, work.positions)
        for mode, groups in rounds:
            fences = [uuid.uuid4().hex for _ in groups]
            kept = self._write(work, kept, begun, fences=fences)
            self._run(work, layout, mode, groups, fences)
        kept = self._same(work, kept)
        reach("in_commit")
        self._write(work, kept, written)

    def _run(
        self, work: Work, layout: Layout, mode: str, groups: Sequence[Sequence[Input]], fences: Sequence[str] = ()
    ) -> None:
        tasks = []
        for number, inputs in enumerate(groups):
            args = {
                "inputs": [entry.to_json() for entry in inputs],
                "target": [work.target.db, work.target.table],
                "schema": work.schema.to_json(),
                "layout": layout.how(),
                "mode": mode,
                "origins": self._origins(work),
                "address": {
                    "uri": "" if self._server.secret else self._server.uri,
                    "uri_file": str(self._uri_file or ""),
                    "record": self._server.record,
                },
                "app_id": self._context.app_id,
                "fence": fences[number] if fences else "",
                "node": self._context.node,
                "token": self._context.flight_token,
            }
            tasks.append(StageTask("raycdc.sinks.mongodb.tasks:load", args, sum(entry.bytes for entry in inputs)))
        if tasks:
            self._context.run_tasks(tasks)

    def _origins(self, work: Work) -> dict[str, Any] | None:
        """What `last_per_origin` must know of rows of several tables, or of one under another key."""
        if not work.merged or not self._upsert:
            return None
        beginning = [str(table) for table in work.beginning]
        return {"target": str(work.target), "beginning": beginning, "alone": len(work.merged) == 1}

    def _layout(self, work: Work, held: Held) -> Layout:
        written = {column.name for column in work.schema.columns}
        gone = tuple(column.name for column in held.columns if column.name not in written)
        adopted = self._upsert and not held.created
        by = short(self._context.app_id)
        return Layout(
            work.target, work.schema, by, changelog=not self._upsert, adopted=adopted, gone=gone, made=work.made
        )

    def _split(self, work: Work) -> tuple[list[Input], list[list[Input]]]:
        """Inputs of rows to insert, and of those to merge, which one task each must see whole."""
        if not self._upsert:
            return [Input(segment) for segment in work.segments], []
        if not work.merged and self._may_insert(work.target):
            snapshot = [Input(segment) for segment in work.segments if segment.kind == "snapshot"]
            return snapshot, by_partition(s for s in work.segments if s.kind != "snapshot")
        # Chunks are not hash-partitioned as the log is: one task sees all rows of a key.
        return [], [[Input(s) for s in sorted(work.segments, key=lambda s: s.seq_base)]] if work.segments else []

    def _may_insert(self, target: TableId) -> bool:
        if target not in self._insertable:
            kept = self._commits.read(target)
            self._insertable[target] = kept is not None and kept.held.created
        return self._insertable[target]

    def _truncates(self, segments: Sequence[Segment]) -> bool:
        """Whether rows say that the table was emptied: it must be before any task writes."""
        truncation = pa.scalar(RowKind.TRUNCATE, pa.int8())
        node, token = self._context.node or None, self._context.flight_token or None
        for segment in segments:
            if segment.kind != "snapshot":
                for batch in read_segment(segment, ["_op"], node=node, token=token):
                    if pc.any(pc.equal(batch.column(0), truncation)).as_py():
                        return True
        return False

    def _fitted(self, work: Work, held: Held) -> Work:
        """`work` with the columns that the target takes; all, unless the user wants changes left out."""
        if not may_lack(self._context.schema_change, self._context.left_out):
            return work
        return replace(work, schema=fitted(work.schema, {column.name for column in held.columns}))

    # -- the record

    def _kept(self, work: Work) -> Kept | None:
        """The record, with no migration under way; `FencedError` where a newer driver wrote it, `SinkError` where it
        was further before.
        """
        kept = self._commits.read(work.target)
        if kept is not None and kept.held.vector.generation > work.generation:
            raise FencedError(
                f"{work.target} was written by a newer driver (generation {kept.held.vector.generation})."
            )
        reached = self._reached.get(work.target)
        if reached is not None and (kept is None or (kept.held.vector.epoch, kept.held.vector.step) < reached):
            have = "nothing of this pipeline" if kept is None else f"only epoch {kept.held.vector.epoch}"
            raise TargetGoneError(
                f"{work.target} in {self._server.where} held epoch {reached[0]} and now holds {have}: the servers went "
                "back in time (a restore), or somebody changed raycdc_commit. Nothing more was written. Bring back a "
                "copy that has the epoch and start again, or take a new snapshot of the "
                "table."
            )
        if kept is not None and kept.operations is not None:
            kept = self._same(work, kept)
            vector = replace(kept.held.vector, generation=work.generation)
            kept = self._write(work, kept, replace(kept.held, vector=vector), kept.operations, kept.progress)
            kept = migrate(self._server, self._commits, work.target, kept, work.positions)
        if kept is not None:
            self._reach(work.target, kept)
        return kept

    def _write(
        self,
        work: Work,
        kept: Kept | None,
        held: Held,
        operations: dict[str, Any] | None = None,
        progress: Any = None,
        **more: Any,
    ) -> Kept:
        now = self._commits.write(
            None, work.target, kept, held, work.positions, operations=operations, progress=progress, **more
        )
        self._reach(work.target, now)
        return now

    def _reach(self, target: TableId, kept: Kept) -> None:
        reached = kept.held.vector.epoch, kept.held.vector.step
        self._reached[target] = max(reached, self._reached.get(target, reached))

    def _same(self, work: Work, kept: Kept) -> Kept:
        """`kept` of the collection that is there; `SinkError` where there is none, or another one."""
        there = self._server.described(work.target)
        if there is None:
            raise self._disappeared(work.target)
        found = uuid_of(there)
        if kept.uuid and found and kept.uuid != found:
            raise TargetGoneError(
                f"{work.target} in {self._server.where} is another collection than this pipeline wrote to: it was "
                "dropped and made again, and what it held may be gone. Nothing was written. Drop the collection and "
                "read its source table anew; if it is whole (resharded, or restored), "
                f'set uuid to "" in its document of {self._server.record}.raycdc_commit, and start again.'
            )
        return replace(kept, uuid=kept.uuid or found)

    def _disappeared(self, target: TableId) -> TargetGoneError:
        return TargetGoneError(f"{target} in {self._server.where} disappeared. Read its source table anew.")


def _in_part(kept: Kept, work: Work) -> bool:
    """Whether rows of the epoch may be there already."""
    return (kept.held.vector.epoch, kept.held.vector.step) == (work.epoch, STEP_APPEND)
