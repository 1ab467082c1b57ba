"""The operations of a `raycdc.sinks.steps.Target` on a table of a database. Each operation writes ``raycdc_commit`` in
its transaction.

On PostgreSQL, DDL is part of that transaction. On MySQL, it is one statement that leaves a mark on the table. If a
table has the mark of an epoch and no record of it, the statement was carried out and the driver died before it wrote
the record.

Columns of a target are NOT NULL if the source's are. The pipeline sets such a constraint only to describe the source.
If a row has NULL in the column nevertheless (in a merged table, for a zero date, or after the source dropped the
column), the constraint is removed and the row is written. The constraints of adopted tables are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from raycdc.core.failpoints import reach
from raycdc.errors import (
    KeyRefusedError,
    NameRefusedError,
    ReferenceRefusedError,
    SinkError,
    SinkUnavailableError,
    TargetDroppedError,
    TargetExistsError,
    TargetModifiedError,
)
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.evolution.events import AlterColumnTypeEvent
from raycdc.sinks.api import CommitVector, SinkContext, TableCommit
from raycdc.sinks.api import TableCommit as Work
from raycdc.sinks.changes import fitted_to
from raycdc.sinks.database_columns import (
    DATABASE,
    DATABASE_IGNORING_CASE,
    DatabasePlan,
    key_after,
    plan,
    same_everywhere,
)
from raycdc.sinks.jdbc.database import DatabaseSession, JdbcDatabase, Made, is_same_table, short
from raycdc.sinks.jdbc.plugin import STAGE_PREFIX
from raycdc.sinks.jdbc.staging import Incoming, StagedTable
from raycdc.sinks.jdbc.types import demanded
from raycdc.sinks.record import Intent, TargetRecord, again, renamed
from raycdc.sinks.rows import target_columns
from raycdc.sinks.source_tables import same_key
from raycdc.sinks.steps import (
    CommitMetadata,
    ForeignTarget,
    MissingTarget,
    OwnTarget,
    Target,
    TargetState,
    UnfinishedTarget,
    fenced,
    has_only,
)
from raycdc.sinks.targets import is_of_pipeline, occupied_error


def wished(work: TableCommit, *, upsert: bool) -> tuple[str, ...]:
    """Return the columns that should be NOT NULL, because the source's are.

    A changelog has no such columns, because its rows may have any earlier schema.
    """
    return demanded(work.schema.columns, work.schema.primary_key) if upsert else ()


def required_after(
    held: TargetRecord, planned: DatabasePlan, work: TableCommit, session: DatabaseSession, *, upsert: bool
) -> tuple[str, ...]:
    """Return the columns that are NOT NULL after `planned`.

    A column that was NOT NULL stays NOT NULL if its source column still is. A column that the source made NOT NULL
    becomes NOT NULL if no row of the target has NULL in it. May scan a column of the target.
    """
    wishes = set(wished(work, upsert=upsert))
    altered = {change.name for change in work.changes if isinstance(change, AlterColumnTypeEvent)}
    filled = {column.name for column in planned.filled}
    copied = dict(planned.copied)
    names = []
    for p in planned.columns:
        name, old = p.column.name, p.origin
        if name not in wishes:
            continue
        if planned.emptied or old in held.demands:
            may = True
        elif old is None:
            # In MySQL, existing rows get their values only after the statement, which must be a single one.
            may = session.transactional_ddl and (
                name in filled or (name in copied and not session.tables.has_null(work.target, copied[name]))
            )
        else:
            may = name in altered and not session.tables.has_null(work.target, old)
        if may and (held.created or old in held.demands):
            names.append(name)
    return tuple(names)


def loosen(session: DatabaseSession, target: TableId, held: TargetRecord, after: TargetRecord) -> None:
    """Remove the NOT NULL constraints that are in `held` and not in `after`. On PostgreSQL this is part of the
    transaction; on MySQL the statement ends the transaction.
    """
    columns = [c for c in held.columns if c.name in held.demands and c.name not in after.demands]
    session.tables.loosen(target, columns)


@dataclass(frozen=True, slots=True)
class StagedJdbc:
    """The staging tables of an epoch: those with rows to append, and those with rows to merge."""

    append: list[StagedTable] = field(default_factory=list)
    merge: list[StagedTable] = field(default_factory=list)


class JdbcSteps(Target):
    """The operations on a table of a database and on its row of ``raycdc_commit``. If `writes` is True, `session` has
    locked the row. `prepared` is True if the server has the commit table; it is missing only if the sink is inspected
    before the first run.
    """

    def __init__(
        self,
        name: TableId,
        session: DatabaseSession,
        database: JdbcDatabase,
        context: SinkContext,
        *,
        writes: bool,
        prepared: bool,
    ) -> None:
        super().__init__(name, f"The table {name} in {database.address}")
        self._session = session
        self._database = database
        self._address = database.address
        self._context = context
        self._writes = writes
        self._prepared = prepared
        #: The record as last read or written.
        self._held: TargetRecord | None = None

    def read_state(self, epoch: int | None = None) -> TargetState:
        session, tables, app_id = self._session, self._session.tables, self._context.app_id
        held = session.held(app_id, self.name, lock=self._writes) if self._prepared else None
        self._held = held
        vector = held.vector if held is not None else None
        if (identity := tables.there(self.name)) is None:
            return MissingTarget(lost=vector)
        if held is not None and held.columns:
            if is_same_table(held.identity, identity):
                return OwnTarget(vector)
            # The pipeline's table was dropped, and another one with its name was created, which holds nothing of this
            # pipeline.
            held = vector = None
        if self._prepared and (other := tables.folded(app_id, self.name)):
            same = NameRefusedError(
                f"{self.name} and {other} are one table in {self._address}, whose names ignore case "
                "(lower_case_table_names). Give one of them another name by a [[route]], or exclude it."
            )
            return ForeignTarget(vector, unusable=same)
        marker = tables.marker(self.name) or ""
        if epoch is None and marker.startswith(f"{short(app_id)}:"):
            return UnfinishedTarget(vector)
        if epoch is not None and self._is_of(marker, epoch):
            return UnfinishedTarget(vector)
        if held is not None and marker.startswith(marker_of(app_id, self.name, "")) and tables.is_empty(self.name):
            # The table was created for an epoch that was dropped, possibly with a different schema. No row was ever
            # committed to it.
            return UnfinishedTarget(vector)
        owners = session.commits.owners(self.name) if self._prepared else {}
        others = [(owner, made) for owner, made in owners.items() if owner != app_id]
        ours = bool(others) and all(made and is_of_pipeline(owner, app_id) for owner, made in others)
        # An earlier start of this pipeline, with another state, created it and wrote no row.
        return UnfinishedTarget(vector) if ours and tables.is_empty(self.name) else ForeignTarget(vector)

    def inspect(self) -> None:
        """Raise `TargetModifiedError` if a commit to this pipeline's target would be refused."""
        if isinstance(self.read_state(), OwnTarget) and self._held is not None:
            untouched(self.name, self._held, self._session, upsert=self._context.upsert)

    def create(self, work: Work, commit_metadata: CommitMetadata) -> None:
        self._make(work, commit_metadata, instead=False)

    def begin(self, work: Work, commit_metadata: CommitMetadata) -> None:
        if self._is_of(self._session.tables.marker(self.name) or "", work.epoch):
            self._hold(self._new(work, commit_metadata, created=True), commit_metadata)
        else:
            self.replace(work, commit_metadata)

    def replace(self, work: Work, commit_metadata: CommitMetadata) -> None:
        self._make(work, commit_metadata, instead=True)
        self._session.commits.forget_other_writers(self._context.app_id, self.name)

    def require_adoptable(self) -> None:
        self._session.tables.require_adoptable(self.name)

    def adopt(self, work: Work, commit_metadata: CommitMetadata) -> None:
        columns = target_columns(work.schema, changelog=not self._context.upsert)
        self._session.tables.adopt(self.name, columns, target_key(work, self._context))
        self._hold(self._new(work, commit_metadata, created=False), commit_metadata)

    def evolve(self, work: Work, commit_metadata: CommitMetadata) -> None:
        held, context = self._held, self._context
        assert held is not None
        shape = held.shape()
        store = DATABASE_IGNORING_CASE if self._database.ignores_case else DATABASE
        may_rekey = held.created and not work.merged
        planned = plan(store, shape.columns, shape.key, work, context.rules, may_rekey=may_rekey)
        before = renamed(shape, planned)
        planned = again(self.name, held, planned)
        columns = tuple(p.column for p in planned.columns)
        key = work.schema.primary_key if context.upsert else held.key
        # Compare with the target's present key: an epoch that was dropped later may already have changed it.
        planned = replace(planned, rekeyed=context.upsert and key_after(held.key, planned.columns) != key)
        self._database.check_columns(self.name, columns, target_key(work, context))
        if planned.emptied:
            held = self._emptied(held)
        planned = replace(planned, demands=required_after(held, planned, work, self._session, upsert=context.upsert))
        keyed = key if context.upsert else ()
        values = planned.emptied or planned.filled or planned.copied
        if values or planned.rekeyed or not is_same(held, planned, keyed, self._database):
            marker = marker_of(self._context.app_id, self.name, work.epoch)
            if not self._session.transactional_ddl:
                vector = replace(held.vector, generation=work.generation)
                intent = Intent(marker, columns, key, before, planned.demands)
                self._hold(replace(held, vector=vector, intent=intent), commit_metadata)
            untouched(self.name, held, self._session, upsert=context.upsert)
            present = Made(held.columns, held.key, held.demands)
            self._session.tables.alter(self.name, present, planned, target_key(work, context), marker)
        after = replace(held, vector=commit_metadata.vector, columns=columns, key=key, before=before, intent=None)
        self._hold(replace(after, demands=planned.demands), commit_metadata)

    def write(self, work: Work, staged: StagedJdbc, step: int, commit_metadata: CommitMetadata) -> None:
        held, session = self._held, self._session
        assert held is not None
        work = fitted_to(work, self._context, {column.name for column in held.columns})
        columns = target_columns(work.schema, changelog=not self._context.upsert)
        for table in (*staged.append, *staged.merge):
            if (count := session.staging.rows(table.name)) != table.rows:
                raise SinkError(
                    f"{work.target}: staging table {table.name} in {self._address} has {count} rows instead of "
                    f"{table.rows}: the server restarted, or somebody changed it. Start again."
                )
        written = {column.name for column in work.schema.columns}
        dropped_columns = tuple(column.name for column in held.columns if column.name not in written)
        nulls = frozenset(dropped_columns).union(*(table.nulls for table in (*staged.append, *staged.merge)))
        if not nulls.isdisjoint(held.demands):
            before, held = held, replace(held, demands=tuple(name for name in held.demands if name not in nulls))
            loosen(session, self.name, before, held)
            if not session.transactional_ddl and not self._restart_transaction(held):
                raise fenced(self.name, commit_metadata.vector.generation)
        emptied = any(table.truncated for table in staged.merge)
        appended = () if emptied else staged.append
        rows = Incoming(work.target, columns, work.schema.primary_key, dropped_columns, appended, staged.merge)
        if emptied:
            held = self._emptied(held)
            session.tables.empty(work.target)
        else:
            for table in staged.merge if work.merged else ():
                if (key := session.staging.taken(work.target, work.schema.primary_key, table.name)) is not None:
                    raise same_key(str(work.target), key, alone=len(work.merged) == 1)
        try:
            self._put(rows, held, emptied=emptied)
        except SinkError as error:
            if (cause := cause_of(error, self.name, held, session, upsert=self._context.upsert)) is not None:
                raise cause from error
            raise
        identity = untouched(self.name, held, session, upsert=self._context.upsert)
        if identity is None or not is_same_table(held.identity, identity):
            raise self.disappeared()
        self._hold(replace(held.written(commit_metadata.vector), identity=identity), commit_metadata)
        reach("in_commit")

    def _put(self, rows: Incoming, held: TargetRecord, *, emptied: bool) -> None:
        """Insert the rows.

        If the insert fails because a unique value still belongs to another row that the epoch changes, all changed rows
        are deleted first. If it fails because rows refer to each other, deletions come last.
        """
        staging, tables = self._session.staging, self._session.tables
        try:
            staging.put(rows)
        except KeyRefusedError:
            if emptied or not self._restart_transaction(held) or not tables.is_ours_alone(rows.target, held.columns):
                raise
            staging.take_out(rows)
            staging.put(rows)
        except ReferenceRefusedError:
            if emptied or not self._restart_transaction(held):
                raise
            staging.put(rows, deletes_last=True)

    def bar(self, work: Work, commit_metadata: CommitMetadata) -> None:
        held = self._held
        if held is None and self._session.tables.there(self.name) is not None:
            # The table is another writer's and the epoch never changed it, so only the record can bar the epoch.
            held = TargetRecord(CommitVector(0, 0), (), (), created=False)
        if held is None:
            self.create(work, commit_metadata)
        else:
            self._hold(replace(held, vector=commit_metadata.vector), commit_metadata)

    def taken(self) -> TargetExistsError:
        location, elsewhere = f"The table {self.name} in {self._address}", "choose another database in sink.url"
        return occupied_error(location, elsewhere, replaced="to make it anew")

    def went_back(self, reached: int, record: CommitVector | None) -> TargetDroppedError:
        return TargetDroppedError(
            f"{self.name} in {self._address} held epoch {reached} and now holds {has_only(record)}: the server went "
            "back in time (a failover to an older copy, or a restore), or somebody dropped the table and made it anew, "
            "or changed raycdc_commit or the end of the table's comment. Nothing more was written. Bring back a copy "
            "that has the epoch and start again, or take a new snapshot of the table."
        )

    def _make(self, work: Work, commit_metadata: CommitMetadata, *, instead: bool) -> None:
        columns = target_columns(work.schema, changelog=not self._context.upsert)
        key = target_key(work, self._context)
        made = Made(columns, key, wished(work, upsert=self._context.upsert))
        marker = marker_of(self._context.app_id, self.name, work.epoch)
        self._session.tables.create(self.name, made, marker, replace=instead)
        self._hold(self._new(work, commit_metadata, created=True), commit_metadata)

    def _new(self, work: Work, commit_metadata: CommitMetadata, *, created: bool) -> TargetRecord:
        identity = self._session.tables.there(self.name) or ""
        held = TargetRecord(
            commit_metadata.vector, work.schema.columns, work.schema.primary_key, created, identity=identity
        )
        return replace(held, demands=wished(work, upsert=self._context.upsert)) if created else held

    def _hold(self, held: TargetRecord, commit_metadata: CommitMetadata) -> None:
        self._session.commits.hold(self._context.app_id, self.name, held, commit_metadata.positions)
        self._held = held

    def _restart_transaction(self, held: TargetRecord) -> bool:
        """Roll back, and begin a new transaction. In the new transaction, again remove the NOT NULL constraints that
        are not in `held` any more. Return True if the record is still as this process left it, that is, if no other
        driver has written meanwhile.
        """
        session, before = self._session, self._held
        session.rollback()
        if before is None or session.held(self._context.app_id, self.name, lock=True) != before:
            return False
        if session.transactional_ddl and before.demands != held.demands:
            loosen(session, self.name, before, held)
        return True

    def _emptied(self, held: TargetRecord) -> TargetRecord:
        """Prepare the removal of all rows, including the rows of other pipelines, and return the record that the
        emptied target will have.

        Raises `TargetExistsError` if other writers' rows may not be removed.
        """
        app_id, commits = self._context.app_id, self._session.commits
        alone = held.created and all(is_of_pipeline(owner, app_id) for owner in commits.owners(self.name))
        self.require_own(alone=alone, on_existing=self._context.on_existing)
        if not alone:
            commits.forget_other_writers(app_id, self.name)
        return replace(held, created=True)

    def _is_of(self, marker: str, epoch: int) -> bool:
        """Return True if `marker` says that the table was created for this epoch.

        Older versions left the table's name out of the marker.
        """
        app_id = self._context.app_id
        return marker in (marker_of(app_id, self.name, epoch), f"{short(app_id)}:{epoch}")


def is_same(held: TargetRecord, planned: DatabasePlan, key: Sequence[str], database: JdbcDatabase) -> bool:
    """Return True if `planned` changes nothing of the target's columns and constraints. `key` is the key after the
    changes.
    """

    def retyped(old: Column, new: Column) -> bool:
        return database.retyped(old, new, key=new.name in key)

    demands = {p.column.name for p in planned.columns if p.origin is not None and p.origin in held.demands}
    return demands == set(planned.demands) and same_everywhere(retyped, held.columns, planned)


def untouched(target: TableId, held: TargetRecord, session: DatabaseSession, *, upsert: bool) -> str | None:
    """Return the table's identity. Raises `TargetModifiedError` if the table differs from the record `held`
    (`JdbcTables.untouched`).
    """
    columns = target_columns(TableSchema(held.columns, held.key), changelog=not upsert)
    return session.tables.untouched(target, columns, held.key if upsert else ())


def cause_of(
    error: SinkError, target: TableId, held: TargetRecord, session: DatabaseSession, *, upsert: bool
) -> TargetModifiedError | None:
    """Return an error about changes that other writers made to the table, because such a change may be the reason why
    the server refused a statement. Return None if the table agrees with the record `held`, or if the server does not
    answer. Rolls back.
    """
    if isinstance(error, SinkUnavailableError):
        return None
    session.rollback()
    try:
        untouched(target, held, session, upsert=upsert)
    except TargetModifiedError as cause:
        return cause
    return None


def marker_of(app_id: str, target: TableId, epoch: int | str) -> str:
    """Return the mark that a table's last change leaves on it, for databases whose DDL commits before the record is
    written.
    """
    return f"{short(app_id)}:{short(str(target))}:{epoch}"


def target_key(work: Work, context: SinkContext) -> tuple[str, ...]:
    """Return the primary key of a target; empty for a changelog."""
    return work.schema.primary_key if context.upsert else ()


def stage_prefix(target: TableId, app_id: str) -> str:
    """Return the prefix of the names of the target's staging tables."""
    return f"{STAGE_PREFIX}{short(app_id)}_{short(str(target))}_"
