"""The operations of a `raycdc.sinks.steps.Target` on a collection. Each operation writes the record of `commits` in its
transactions. `raycdc.sinks.mongodb.sink` describes which epochs are written in one transaction and which in several.
`check_collection` and `check_keys` decide if another writer's collection can be adopted without silently losing,
changing or merging rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from bson.binary import UUID_SUBTYPE, Binary
from pymongo.errors import OperationFailure

from raycdc.core.failpoints import reach
from raycdc.errors import (
    ChangeRefusedError,
    KeyRefusedError,
    SinkError,
    TableRefusedError,
    TargetDroppedError,
    TargetExistsError,
)
from raycdc.model import Column, TableId, TableSchema
from raycdc.sinks.api import STEP_APPEND, CommitVector, SinkContext
from raycdc.sinks.api import TableCommit as Work
from raycdc.sinks.changes import fitted_to
from raycdc.sinks.database_columns import DATABASE, DatabasePlan, plan
from raycdc.sinks.mongodb.commits import CommitCollection, Kept, Operations, RecordChange
from raycdc.sinks.mongodb.migration import empty, migrate, operations_of
from raycdc.sinks.mongodb.server import DUPLICATE_KEY, Described, Document, DuplicateError, Server, Session
from raycdc.sinks.mongodb.tasks import (
    LoadTasks,
    Mode,
    ServerAddress,
    check_claims,
    deletions,
    merged_rows,
    merges,
    removals,
    statements,
)
from raycdc.sinks.mongodb.types import (
    ID,
    BsonForm,
    any_key,
    check_columns,
    form_of,
    key_pattern,
    same_form,
    same_key,
    spread,
    subtype_of,
)
from raycdc.sinks.mongodb.writing import Statement, short, updates_of
from raycdc.sinks.record import Before, Intent, TargetRecord, again, renamed
from raycdc.sinks.steps import (
    CommitMetadata,
    ForeignTarget,
    MissingTarget,
    OwnTarget,
    Target,
    TargetState,
    UnfinishedTarget,
    has_only,
)
from raycdc.sinks.targets import occupied_error
from raycdc.sinks.task_inputs import Input, split, task_inputs

#: Options of a collection that affect the equality of keys, or the fate of documents.
_OPTIONS = {
    "collation": "compares texts by a collation, which may take different keys of the source for one",
    "capped": "is capped, and drops its oldest documents",
    "timeseries": "is a time series, whose documents have no keys of their own",
    "clusteredIndex": "is clustered, with limits on its keys",
    "expireAfterSeconds": "drops its documents after a while",
}


def check_collection(target: TableId, described: Described, where: str) -> None:
    """Raise `SinkError` for a view, and for a collection with options that no target may have."""
    what = next((text for name, text in _OPTIONS.items() if name in described.options), None)
    if described.kind not in ("collection", "timeseries"):
        what = "is a view"
    if what:
        raise TargetExistsError(f"{target} exists in {where} and {what}. Choose another target.")


def check_keys(collection: Any, target: TableId, schema: TableSchema, where: str) -> None:
    """Raise `SinkError` if the ``_id`` of an existing document differs, in value or type, from the ``_id`` that the
    pipeline would write for it. Without this check, the pipeline would insert a second document for the same key.
    """
    key = schema.primary_key
    if key != (ID,):
        whole: Any = f"${key[0]}" if len(key) == 1 else {name: f"${name}" for name in key}
        columns = key[0] if len(key) == 1 else "{" + ", ".join(key) + "}"
        document = collection.find_one({"$expr": {"$ne": [f"${ID}", whole]}}, {ID: 1})
        _refuse(document, target, where, f"is not its {columns}, by which rows are found")
    for name in key:
        field = ID if len(key) == 1 else f"{ID}.{name}"
        logical = schema.column(name).type
        form = form_of(logical)
        if form is BsonForm.VALUE:
            continue
        wanted: Document = {"$type": list(_TYPES.get(form, (form.bson,)))}
        if (pattern := key_pattern(logical)) is not None:
            wanted = {"$regex": pattern}
        document = collection.find_one({"$nor": [{field: wanted}]}, {ID: 1})
        if document is None and form in (BsonForm.BINARY, BsonForm.UUID):
            subtype = UUID_SUBTYPE if form is BsonForm.UUID else subtype_of(logical)
            document = _other_binary(collection, subtype, name if len(key) > 1 else None)
        _refuse(document, target, where, f"has not the form of column {name} ({form.value})")


def _other_binary(collection: Any, subtype: int, part: str | None) -> Any:
    """Return a document whose key has a binary subtype that this pipeline never writes; None if there is none. Such a
    key would equal no key of the pipeline, so a query by keys cannot find the document.
    """
    for one in collection.find({}, {ID: 1}):
        value = one[ID] if part is None else one[ID][part]
        if (value.subtype if isinstance(value, Binary) else 0) != subtype:
            return one
    return None


def _refuse(document: Document | None, target: TableId, where: str, why: str) -> None:
    if document is not None:
        raise TargetExistsError(
            f"{target} exists in {where} and has a document whose {ID} {why}. Choose another target."
        )


#: A new snapshot of an adopted collection would delete documents of others, so `require_own` refuses it.
_WAY_OUT = (
    'Rename the collection, and the pipeline makes a new one; or set pipeline.on_existing = "replace", which deletes '
    "all of its documents."
)
_NUMBERS = ("int", "long", "double", "decimal")
#: For a BSON form, all types whose values may equal a value of the form, if there are several such types.
_TYPES = dict.fromkeys((BsonForm.INT32, BsonForm.INT64, BsonForm.UINT64, BsonForm.DOUBLE, BsonForm.DECIMAL), _NUMBERS)


def check_fields(server: Server, work: Work, held: TargetRecord, planned: DatabasePlan) -> None:
    """Raise `TargetExistsError` if a document has a field with the name of a new or renamed column."""
    known = {ID, *(column.name for column in held.columns)}
    new = [p.column.name for p in planned.columns if p.column.name not in known]
    # The fields of whole documents are the source's own.
    if not new or spread(work.schema.columns):
        return
    document = server.keys(work.target).find_one({"$or": [{name: {"$exists": True}} for name in new]}, [*new])
    if document is not None:
        field = next(name for name in new if name in document)
        raise TargetExistsError(
            f"The collection {work.target} in {server.where} has documents with a field {field}, which others wrote, "
            f"and the source has a column of that name now. No document was changed. {_WAY_OUT}"
        )


def require_own_documents(target: TableId, record: Kept, where: str, *, others: bool) -> None:
    """Raise `TargetExistsError` if the pipeline does not know which documents are its rows. `others` is True if another
    pipeline writes to the collection.
    """
    if not (record.rows or record.held.created):
        why = "an earlier version of raycdc adopted it"
    elif record.held.created and others:
        why = "another pipeline writes to it"
    else:
        return
    raise TargetExistsError(
        f"The collection {target} in {where} may have documents of others ({why}), and a column that was dropped, "
        f"renamed or added with a default changes documents. No document was changed. {_WAY_OUT}"
    )


class MongoDbSteps(Target):
    """The operations on a collection and its record; used by one thread. An epoch of up to `small_bytes_max` bytes of
    segments is written in one transaction. `address` is the servers' address for tasks.
    """

    def __init__(
        self,
        name: TableId,
        server: Server,
        commits: CommitCollection,
        context: SinkContext,
        *,
        small_bytes_max: int,
        address: ServerAddress,
    ) -> None:
        super().__init__(name, f"{name} in {server.where}")
        self._server = server
        self._commits = commits
        self._context = context
        self._small_bytes_max = small_bytes_max
        self._tasks = LoadTasks(context, address)
        #: The record that was last read or written, and the server's description of the collection.
        self._kept: Kept | None = None
        self._described: Described | None = None

    def read_state(self, epoch: int | None = None) -> TargetState:
        record, described = self._commits.read(self.name), self._server.described(self.name)
        self._kept, self._described = record, described
        vector = None if record is None else record.held.vector
        touched = record is not None and bool(record.held.columns)
        if described is None:
            return MissingTarget(lost=vector) if touched else MissingTarget(vector=vector)
        if touched:
            return OwnTarget(vector)
        try:
            check_collection(self.name, described, self._server.where)
        except SinkError as invalid:
            return ForeignTarget(vector, unusable=invalid)
        collection = self._server.collection(self.name)
        if collection.find_one({}, {"_id": 1}) is None and not self._commits.has_other_writers(self.name):
            # The collection has no documents. Either an earlier attempt of this pipeline created it and died, or
            # another writer created it.
            return UnfinishedTarget(vector)
        return ForeignTarget(vector)

    def recover(self, commit_metadata: CommitMetadata) -> bool:
        record = self._kept
        if record is None or record.operations is None:
            return False
        record = self._same(record)
        vector = replace(record.held.vector, generation=commit_metadata.vector.generation)
        held = replace(record.held, vector=vector)
        record = self._write(record, held, commit_metadata, operations=record.operations, progress=record.progress)
        self._migrate(record, commit_metadata)
        return True

    def create(self, work: Work, commit_metadata: CommitMetadata) -> None:
        self._server.create(self.name)
        self._described = self._server.described(self.name)
        self._write(self._kept, _new(work, commit_metadata, created=True), commit_metadata, uuid=_uuid(self._described))

    def begin(self, work: Work, commit_metadata: CommitMetadata) -> None:
        self._write(self._kept, _new(work, commit_metadata, created=True), commit_metadata, uuid=_uuid(self._described))

    def replace(self, work: Work, commit_metadata: CommitMetadata) -> None:
        record = self._kept
        new = _new(work, commit_metadata, created=True)
        shape = Before(new.columns, new.key, tuple(column.name for column in new.columns))
        intent = Intent(str(work.epoch), new.columns, new.key, shape)
        before = record.held.vector if record else CommitVector(0, 0)
        begun = TargetRecord(replace(before, generation=work.generation), (), (), created=True, intent=intent)
        record = self._write(
            record, begun, commit_metadata, operations=Operations(empty=True), uuid=_uuid(self._described), alone=True
        )
        self._write(self._migrate(record, commit_metadata), new, commit_metadata)

    def adopt(self, work: Work, commit_metadata: CommitMetadata) -> None:
        if self._context.upsert and spread(work.schema.columns):
            raise TargetExistsError(
                f"The collection {self.name} exists in {self._server.where}, and documents are copied as a whole, "
                "which keeps no fields of others. Choose another target, or empty it with "
                'pipeline.on_existing = "replace".'
            )
        if self._context.upsert:
            check_keys(self._server.collection(self.name), self.name, work.schema, self._server.where)
        held, uuid = _new(work, commit_metadata, created=False), _uuid(self._described)
        self._write(self._kept, held, commit_metadata, uuid=uuid, rows=uuid4().hex)

    def evolve(self, work: Work, commit_metadata: CommitMetadata) -> None:
        record, context = self._same(self._recorded), self._context
        held = record.held
        shape = held.shape()
        planned = plan(DATABASE, shape.columns, shape.key, work, context.rules)
        before = renamed(shape, planned)
        planned = again(self.name, held, planned)
        columns = tuple(p.column for p in planned.columns)
        key = work.schema.primary_key if context.upsert else held.key
        check_columns(self.name, columns, key, upsert=context.upsert)
        self._check_forms(work, held.columns, held.key, planned)
        alone = True
        if planned.emptied:
            alone = held.created and not self._commits.has_other_writers(self.name)
            self.require_own(alone=alone, on_existing=context.on_existing)
            held = replace(held, created=True)
        operations = operations_of(self.name, held.columns, held.key if context.upsert else (), planned)
        if context.upsert and not planned.emptied:
            check_fields(self._server, work, held, planned)
            if operations or planned.copied:
                others = self._commits.has_other_writers(self.name)
                require_own_documents(self.name, record, self._server.where, others=others)
        if operations or planned.copied:
            intent = Intent(str(work.epoch), columns, key, before, copies=planned.copied)
            begun = replace(held, vector=replace(held.vector, generation=work.generation), intent=intent)
            begun_again = self._write(record, begun, commit_metadata, operations=operations, alone=not alone)
            record = self._migrate(begun_again, commit_metadata)
        self._write(record, TargetRecord(commit_metadata.vector, columns, key, held.created, before), commit_metadata)

    def steps(self, work: Work, staged: bool) -> Sequence[int]:
        self._kept = self._same(self._recorded)
        return ()

    def write(self, work: Work, staged: bool, step: int, commit_metadata: CommitMetadata) -> None:
        record = self._recorded
        if staged and not (record.held.created and not self._commits.has_other_writers(self.name)):
            self.require_own(alone=False, on_existing=self._context.on_existing)
            record = self._write(record, replace(record.held, created=True), commit_metadata, alone=True)
        work = fitted_to(work, self._context, {column.name for column in record.held.columns})
        may_insert = self._context.upsert and not work.merged and record.held.created
        appended, merged = split(work.segments, upsert=self._context.upsert, may_append=may_insert)
        small = self._context.without_tasks(work.input_bytes, self._small_bytes_max)
        if not staged and small and not _in_part(record, work):
            self._write_at_once(work, [Input(segment) for segment in appended], merged, commit_metadata)
            return
        inserted = [] if staged else task_inputs(appended, parallelism=self._context.parallelism)
        rounds: list[tuple[Mode, Sequence[Sequence[Input]]]] = [] if staged else [("insert", inserted)]
        if self._context.upsert and any_key(work.schema):
            # All deletions come first, because the server may treat a key of one task as equal to a key of another
            # task.
            rounds.append(("delete", merged))
        try:
            self._write_in_parts(work, [*rounds, ("merge", merged)], commit_metadata, emptied=staged)
        except TableRefusedError as refused:
            refused.partly_written = _in_part(self._recorded, work)
            raise

    def bar(self, work: Work, commit_metadata: CommitMetadata) -> None:
        # If nothing was written, only the record bars the epoch.
        held = self._kept.held if self._kept is not None else TargetRecord(CommitVector(0, 0), (), (), created=False)
        self._write(self._kept, replace(held, vector=commit_metadata.vector), commit_metadata)

    def taken(self) -> TargetExistsError:
        index = f"The collection {self.name} in {self._server.where}"
        return occupied_error(index, "choose another server in sink.uri", replaced="to empty it")

    def went_back(self, reached: int, record: CommitVector | None) -> TargetDroppedError:
        return TargetDroppedError(
            f"{self.name} in {self._server.where} held epoch {reached} and now holds {has_only(record)}: the servers "
            "went back in time (a restore), or somebody changed raycdc_commit. Nothing more was written. Bring back a "
            "copy that has the epoch and start again, or take a new snapshot of the "
            "table."
        )

    def _check_forms(self, work: Work, present: Sequence[Column], key: Sequence[str], planned: DatabasePlan) -> None:
        """Raise `SinkError` if a change of type changes the BSON form of values, because existing documents would keep
        the old form. A wider type of the same form is allowed.
        """
        types = {column.name: column for column in present}
        # Rows come with the source's present types, even if the change was left out.
        written = {column.name: column.type for column in work.schema.columns}
        copied = dict(planned.copied)
        for p in planned.columns:
            old = types.get(p.origin or copied.get(p.column.name, ""))
            new = written.get(p.column.name, p.column.type)
            if old is None or planned.emptied:
                continue
            if not same_form(old.type, new):
                raise DATABASE.type_error(self.name, old, old.with_type(new))
            if self._context.upsert and p.origin is not None and old.name in key and not same_key(old.type, new):
                raise ChangeRefusedError(
                    f"{self.name}: the key column {old.name} is a text in MongoDB, whose digits after the point "
                    f"become others, and the {ID} of the documents that exist cannot change. Nothing was written. Take "
                    "a new snapshot of the table, which empties the collection."
                )

    def _write_at_once(
        self, work: Work, inserted: Sequence[Input], merged: Sequence[Sequence[Input]], commit_metadata: CommitMetadata
    ) -> None:
        record = self._recorded
        written = record.held.written(commit_metadata.vector)
        layout, merged_target = self._tasks.layout(work, record.held, record.rows), self._tasks.merged_target(work)
        changes = list(statements(layout, self._context.table_input(work, inserted)))
        groups = [merged_rows(self._context.table_input(work, inputs), merged_target) for inputs in merged]
        for writes in (deletions, merges):
            changes += [statement for rows in groups for statement in writes(layout, rows)]

        def run(session: Session, chosen: Sequence[Statement]) -> Kept:
            now = self._commits.write(session, work.target, record, RecordChange(written), commit_metadata.positions)
            for rows in groups if merged_target else ():
                check_claims(self._server, layout, rows, alone=len(work.merged) == 1, session=session)
            for statement in chosen:
                statement.run(self._server, session, work.target)
            reach("in_commit")
            return now

        def attempt(chosen: Sequence[Statement]) -> Kept:
            try:
                return self._server.transaction(lambda session: run(session, chosen))
            except DuplicateError:
                return self._server.transaction(lambda session: run(session, updates_of(chosen)))

        try:
            self._kept = attempt(changes)
        except OperationFailure as cause:
            # A document that changes later in the epoch may still have the unique value.
            if cause.code != DUPLICATE_KEY or layout.adopted:
                raise
            self._kept = attempt([*(statement for rows in groups for statement in removals(layout, rows)), *changes])

    def _write_in_parts(
        self,
        work: Work,
        rounds: Sequence[tuple[Mode, Sequence[Sequence[Input]]]],
        commit_metadata: CommitMetadata,
        *,
        emptied: bool,
    ) -> None:
        """Write the epoch in rounds of tasks, each with its own fences, so that no round overlaps the previous one."""
        record = self._recorded
        written = record.held.written(commit_metadata.vector)
        begun = replace(record.held, vector=replace(commit_metadata.vector, step=STEP_APPEND))
        layout = self._tasks.layout(work, begun, record.rows)
        if work.merged and self._context.upsert and not emptied and not _in_part(record, work):
            # Keys are checked before the first row is written, because a duplicate that is found later could be a row
            # of this same epoch.
            self._tasks.run(work, layout, "check", [inputs for _, groups in rounds for inputs in groups])
        record = self._write(record, begun, commit_metadata)
        if emptied:
            record = empty(self._server, self._commits, work.target, record, commit_metadata.positions)
        pending = list(rounds)
        while pending:
            mode, groups = pending.pop(0)
            fences = [uuid4().hex for _ in groups]
            record = self._write(record, begun, commit_metadata, fences=fences)
            try:
                self._tasks.run(work, layout, mode, groups, fences)
            except KeyRefusedError:
                # A document that changes later in the epoch may still have the unique value.
                if mode != "merge" or layout.adopted or ("remove", groups) in rounds:
                    raise
                rounds = [*rounds, ("remove", groups)]
                pending = [("remove", groups), (mode, groups), *pending]
        self._described = self._server.described(self.name)
        record = self._same(record)
        reach("in_commit")
        self._write(record, written, commit_metadata)

    @property
    def _recorded(self) -> Kept:
        assert self._kept is not None, f"{self.name} has no record"
        return self._kept

    def _write(self, record: Kept | None, held: TargetRecord, commit_metadata: CommitMetadata, **more: Any) -> Kept:
        self._kept = self._commits.write(None, self.name, record, RecordChange(held, **more), commit_metadata.positions)
        return self._kept

    def _migrate(self, record: Kept, commit_metadata: CommitMetadata) -> Kept:
        by = "" if self._context.upsert else short(self._context.app_id)
        self._kept = migrate(self._server, self._commits, self.name, record, commit_metadata.positions, by=by)
        return self._kept

    def _same(self, record: Kept) -> Kept:
        """Return `record` if it belongs to the existing collection. Raises `SinkError` if the collection is missing, or
        is a different one with the same name.
        """
        if self._described is None:
            raise self.disappeared()
        uuid = self._described.uuid
        if record.uuid and uuid and record.uuid != uuid:
            raise TargetDroppedError(
                f"{self.name} in {self._server.where} is another collection than this pipeline wrote to: it was "
                "dropped and made again, and what it held may be gone. Nothing was written. Drop the collection and "
                "read its source table anew; if it is whole (resharded, or restored), "
                f'set uuid to "" in its document of {self._server.record}.raycdc_commit, and start again.'
            )
        return replace(record, uuid=record.uuid or uuid)


def _new(work: Work, commit_metadata: CommitMetadata, *, created: bool) -> TargetRecord:
    return TargetRecord(commit_metadata.vector, work.schema.columns, work.schema.primary_key, created)


def _uuid(described: Described | None) -> str:
    """Return the UUID of a collection; empty if there is no collection, or if the server does not report it."""
    return "" if described is None else described.uuid


def _in_part(record: Kept, work: Work) -> bool:
    """Return True if the collection may already have rows of the epoch."""
    return record.held.vector.progress == (work.epoch, STEP_APPEND)
