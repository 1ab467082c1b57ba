"""Tables of a PostgreSQL, MySQL or MariaDB server, either equal to the source tables or holding their changelogs.

Stage tasks load rows into staging tables of the target database, snapshot rows as they are and log rows compacted to
the last of each key. The commit of a table is one transaction: it locks the table's row in ``raycdc_commit``, looks
whether it still may and must write, moves the staged rows by a few statements for the whole set, and writes epoch,
step, generation and positions into that row. So the rows and the word that they are there cannot part, and a driver
that wakes from a pause finds a newer generation in the row and stops.

| write | snapshot rows | log rows |
|---|---|---|
| changelog | append | append |
| upsert, table created or emptied by this pipeline | append | merge |
| … of several source tables, or with another key | merge, if no key is taken | the same |
| upsert, ``on_existing = "merge"`` | merge | merge |

*What if the server goes back in time?* A failover to an older copy or a restore, while the driver runs, takes epochs
away that were committed. The sink remembers how far each target was, and commits nothing to one that holds less.

*What if the process dies here?* Before the transaction ends nothing of the epoch is in the target; staging tables that
nobody takes are removed by the next commit of the target. DDL is in the transaction too (PostgreSQL), or one statement
that leaves a mark on the table, by which the next try sees it (MySQL, `mysql`). Tables commit one by one: an epoch
is atomic per table, not across tables.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from raycdc.bridge.tasks import StageTask
from raycdc.checkpoint.folder import private_file
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import (
    ColumnsRefusedError,
    ConfigError,
    FencedError,
    NameRefusedError,
    SinkError,
    TargetGoneError,
    TargetTakenError,
)
from raycdc.failpoints import reach
from raycdc.model import META_COLUMNS, Column, TableId, TableSchema
from raycdc.sinks.api import CHANGELOG, STEP_LAST, STEP_SCHEMA, STEP_TOMBSTONE, UPSERT, CommitVector, SinkContext
from raycdc.sinks.api import TableWork as Work
from raycdc.sinks.changes import check_changes, check_key, check_unmerged, creates, fitted, may_lack
from raycdc.sinks.columns import Plan, key_after, plan, same_everywhere
from raycdc.sinks.jdbc.database import STAGE_PREFIX, Session, StagedTable, open_database
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.sinks.origins import CLAIMED, same_key
from raycdc.sinks.plan import TASK_BYTES_MAX, Input, by_partition, share_out
from raycdc.sinks.record import Held, Intent, again, renamed
from raycdc.sinks.rows import DELETED, META_TYPES
from raycdc.sinks.targets import check_write, is_of_pipeline

Staged = Mapping[str, Sequence[StagedTable]]


class JdbcSink:
    """See the module's docstring."""

    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    durable: ClassVar[bool] = True
    #: Rows of several source tables may go to one target: the same key of two of them is found and refused.
    merges_origins: ClassVar[bool] = True

    def __init__(self, config: JdbcSinkConfig) -> None:
        self._address = config.address()
        #: Where tasks read the password; nobody else may.
        self._password_file: Path | None = None
        #: Whether snapshot rows of a target may be appended; asked while another thread may be committing to it.
        self._appendable: dict[TableId, bool] = {}
        #: The last (epoch, step) that each target was found or left at; a target is in one thread's hands at a time.
        self._reached: dict[TableId, tuple[int, int]] = {}
        #: Whether the server has the commit table: `open` makes it.
        self._prepared = True

    def __repr__(self) -> str:
        return f"JdbcSink({self._address})"

    def open(self, context: SinkContext) -> None:
        self._open(context)
        self._database.prepare()
        if self._address.password:
            self._password_file = private_file(Path(context.private or tempfile.gettempdir()), self._address.password)

    def look(self, context: SinkContext) -> None:
        self._open(context)
        with self._database.session() as session:
            self._prepared = session.is_prepared()

    def _open(self, context: SinkContext) -> None:
        check_write("jdbc", self.writes, context.write)
        self._context = context
        self._upsert = context.write == UPSERT
        try:
            self._database = open_database(self._address)
        except SinkError as cause:
            raise ConfigError(f"sink.url: {cause}") from cause

    def committed(self, target: TableId) -> CommitVector | None:
        if not self._prepared:
            return None
        with self._database.session() as session:
            held = session.held(self._context.app_id, target)
            if held is None or not session.exists(target):
                return None
        self._reach(target, held)
        return held.vector

    def require_free(self, target: TableId) -> None:
        with self._database.session() as session:
            if not session.exists(target):
                return
            held = session.held(self._context.app_id, target) if self._prepared else None
            ours = f"{_short(self._context.app_id)}:"
            if (held is None or not held.columns) and not (session.marker(target) or "").startswith(ours):
                self._on_existing(session, target)

    def apply_schema(self, work: Work) -> None:
        check_changes(work, self._context.schema_change, self._context.left_out)
        self._check(work)
        if self._upsert:
            check_unmerged(work, self._context.on_existing)
        self._appendable.pop(work.target, None)
        with self._database.session() as session:
            held = self._held(session, work)
            now = held
            if not session.exists(work.target):
                if not creates(work) or (held is not None and held.vector.epoch >= work.epoch):
                    raise self._disappeared(work.target)
                now = self._create(session, work, STEP_SCHEMA)
            elif held is None:
                now = self._take_over(session, work, held)
            elif (held.vector.epoch, held.vector.step) < (work.epoch, STEP_SCHEMA):
                now = self._evolve(session, work, held)
            self._end(session, work, now)

    def stage(self, works: Sequence[Work]) -> Mapping[TableId, Any]:
        tasks: list[StageTask] = []
        places: list[list[StagedTable]] = []
        staged: dict[TableId, Staged] = {}
        for work in map(self._fitted, works):
            into: dict[str, list[StagedTable]] = {"append": [], "merge": []}
            staged[work.target] = into
            appended, merged = self._split(work)
            shares = share_out(appended, parallelism=self._context.parallelism, task_bytes_max=TASK_BYTES_MAX)
            for inputs in shares:
                tasks.append(self._task(work, inputs, "append" if self._upsert else "changelog"))
                places.append(into["append"])
            for inputs in merged:
                tasks.append(self._task(work, inputs, "merge"))
                places.append(into["merge"])
        results = self._context.run_tasks(tasks) if tasks else []
        for place, result in zip(places, results, strict=True):
            place.append(StagedTable(**result))
        return staged

    def commit(self, work: Work, staged: Any) -> None:
        with self._database.session() as session:
            held = self._held(session, work)
            if held is None or not session.exists(work.target):
                raise self._disappeared(work.target)
            if (held.vector.epoch, held.vector.step) < (work.epoch, STEP_LAST):
                self._write(session, self._fitted(work, held), held, staged)
                now = held.written(CommitVector(work.epoch, STEP_LAST, work.generation))
                session.hold(self._context.app_id, work.target, now, work.positions)
                reach("in_commit")
                self._end(session, work, now)
        prefix = self._prefix(work.target)
        self._database.drop_stages(prefix, up_to=f"{prefix}{work.epoch:010d}")

    def tombstone(self, work: Work) -> None:
        with self._database.session() as session:
            held = self._held(session, work)
            there = session.exists(work.target)
            if held is None and there:
                # Somebody else's table, which the epoch never touched: only the record says that it never will.
                record = Held(CommitVector(0, 0), (), (), created=False)
            elif held is None:
                self._check(work)
                record = self._create(session, work, STEP_TOMBSTONE)
            elif held.vector.epoch == work.epoch and STEP_SCHEMA < held.vector.step < STEP_TOMBSTONE:
                raise SinkError(
                    f"Epoch {work.epoch} reached {work.target} while it was being dropped: a driver that was replaced "
                    "had not ended. Start again; the epoch will be kept."
                )
            else:
                record = held
            if (record.vector.epoch, record.vector.step) < (work.epoch, STEP_TOMBSTONE):
                record = replace(record, vector=CommitVector(work.epoch, STEP_TOMBSTONE, work.generation))
                session.hold(self._context.app_id, work.target, record, work.positions)
            self._end(session, work, record)

    def close(self) -> None:
        if self._password_file is not None:
            self._password_file.unlink(missing_ok=True)
        self._database.close()

    # -- schema

    def _check(self, work: Work) -> None:
        names = [column.name.casefold() for column in work.schema.columns]
        if self._upsert:
            check_key(work)
        ours = [DELETED, *([CLAIMED] if work.merged else [])] if self._upsert else sorted(META_COLUMNS)
        if taken := [name for name in ours if name in names]:
            raise ColumnsRefusedError(f"{work.target}: column {taken[0]} has a name that raycdc needs. Rename it.")
        self._database.check_columns(work.target, self._columns(work.schema), self._key(work))

    def _create(self, session: Session, work: Work, step: int, *, instead: bool = False) -> Held:
        columns = self._columns(work.schema)
        session.create(work.target, columns, self._key(work), self._marker(work), replace=instead)
        held = self._new(work, step, created=True)
        session.hold(self._context.app_id, work.target, held, work.positions)
        return held

    def _new(self, work: Work, step: int, *, created: bool) -> Held:
        vector = CommitVector(work.epoch, step, work.generation)
        return Held(vector, work.schema.columns, work.schema.primary_key, created)

    def _take_over(self, session: Session, work: Work, held: Held | None) -> Held:
        """Begin with a table that is there, and of which no record has the columns."""
        if other := session.folded(self._context.app_id, work.target):
            raise NameRefusedError(
                f"{work.target} and {other} are one table in {self._address}, whose names ignore case "
                "(lower_case_table_names). Give one of them another name by a [[route]], or exclude it."
            )
        marker = session.marker(work.target) or ""
        if marker in (self._marker(work), f"{_short(self._context.app_id)}:{work.epoch}"):
            now = self._new(work, STEP_SCHEMA, created=True)
            session.hold(self._context.app_id, work.target, now, work.positions)
            return now
        if held is not None and marker.startswith(self._marks(work)) and session.is_empty(work.target):
            # Made for an epoch that was dropped, maybe in another shape; no row was ever committed to it.
            return self._create(session, work, STEP_SCHEMA, instead=True)
        if self._on_existing(session, work.target) == "replace":
            now = self._create(session, work, STEP_SCHEMA, instead=True)
            session.forget_others(self._context.app_id, work.target)
            return now
        session.adopt(work.target, self._columns(work.schema), self._key(work))
        now = self._new(work, STEP_SCHEMA, created=False)
        session.hold(self._context.app_id, work.target, now, work.positions)
        return now

    def _on_existing(self, session: Session, target: TableId) -> str:
        """What becomes of a table that is not ours: it is merged into, or replaced."""
        app_id = self._context.app_id
        owners = session.owners(target) if self._prepared else {}
        others = [(owner, made) for owner, made in owners.items() if owner != app_id]
        ours = bool(others) and all(made and is_of_pipeline(owner, app_id) for owner, made in others)
        # Made by an earlier start of this pipeline, with another state, that wrote no row.
        wanted = "replace" if ours and session.is_empty(target) else self._context.on_existing
        if wanted == "fail":
            raise TargetTakenError(
                f"The table {target} exists in {self._address} and was not created by this pipeline (or its state was "
                'deleted). Set pipeline.on_existing to "merge" to write into it or "replace" to make it anew, or '
                "choose another database in sink.url."
            )
        return wanted

    def _evolve(self, session: Session, work: Work, held: Held) -> Held:
        if not held.columns:
            # Its first epoch was dropped before the table was touched.
            return self._take_over(session, work, held)
        shape = held.shape()
        planned = plan(
            shape.columns,
            shape.key,
            work,
            upsert=self._upsert,
            behavior=self._context.schema_change,
            left_out=self._context.left_out,
            fold=str.casefold if self._database.ignores_case else str,
            may_rekey=held.created and not work.merged,
        )
        before = renamed(shape, planned)
        planned = again(work.target, held, planned)
        columns = tuple(p.column for p in planned.columns)
        key = work.schema.primary_key if self._upsert else held.key
        # What the target has now counts: an epoch that was dropped since may have given it its key already.
        planned = replace(planned, rekeyed=self._upsert and key_after(held.key, planned.columns) != key)
        self._database.check_columns(work.target, columns, self._key(work))
        if planned.emptied or planned.filled or planned.rekeyed or not self._same(held, planned, key):
            if not session.transactional_ddl:
                intent = Intent(self._marker(work), columns, key, before)
                vector = replace(held.vector, generation=work.generation)
                record = replace(held, vector=vector, intent=intent)
                session.hold(self._context.app_id, work.target, record, work.positions)
            session.alter(work.target, held.columns, planned, self._key(work), self._marker(work))
        vector = CommitVector(work.epoch, STEP_SCHEMA, work.generation)
        now = Held(vector, columns, key, held.created, before)
        session.hold(self._context.app_id, work.target, now, work.positions)
        return now

    def _same(self, held: Held, planned: Plan, key: tuple[str, ...]) -> bool:
        def retyped(old: Column, new: Column) -> bool:
            return self._database.retyped(old, new, key=self._upsert and new.name in key)

        return same_everywhere(retyped, held.columns, planned)

    # -- rows

    def _write(self, session: Session, work: Work, held: Held, staged: Staged) -> None:
        columns = self._columns(work.schema)
        for table in (*staged["append"], *staged["merge"]):
            if (found := session.staged_rows(table.name)) != table.rows:
                raise SinkError(
                    f"{work.target}: staging table {table.name} in {self._address} has {found} rows instead of "
                    f"{table.rows}: the server restarted, or somebody changed it. Start again."
                )
        if any(table.truncated for table in staged["merge"]):
            session.empty(work.target)
        else:
            for table in staged["merge"] if work.merged else ():
                if (key := session.taken(work.target, work.schema.primary_key, table.name)) is not None:
                    raise same_key(str(work.target), key, alone=len(work.merged) == 1)
            for table in staged["append"]:
                session.append(work.target, columns, table.name)
        written = {column.name for column in work.schema.columns}
        gone = [column.name for column in held.columns if column.name not in written]
        for table in staged["merge"]:
            session.merge(work.target, columns, work.schema.primary_key, gone, table)

    def _split(self, work: Work) -> tuple[list[Segment], list[list[Input]]]:
        """Segments to append, and inputs of the tasks that compact rows to merge."""
        if not self._upsert:
            return list(work.segments), []
        if not work.merged and self._may_append(work.target):
            snapshot = [s for s in work.segments if s.kind == "snapshot"]
            return snapshot, by_partition(s for s in work.segments if s.kind != "snapshot")
        # Chunks are not hash-partitioned as the log is: one task sees all rows of a key.
        return [], [[Input(s) for s in sorted(work.segments, key=lambda s: s.seq_base)]] if work.segments else []

    def _may_append(self, target: TableId) -> bool:
        if target not in self._appendable:
            held = self._record(target)
            self._appendable[target] = held is not None and held.created
        return self._appendable[target]

    def _task(self, work: Work, inputs: list[Input], mode: str) -> StageTask:
        args = {
            "inputs": [entry.to_json() for entry in inputs],
            "target": str(work.target),
            "schema": work.schema.to_json(),
            "prefix": f"{self._prefix(work.target)}{work.epoch:010d}_",
            "address": self._address.for_tasks(str(self._password_file or "")),
            "mode": mode,
            "node": self._context.node,
            "token": self._context.flight_token,
        }
        if mode == "merge" and work.merged:
            beginning = [str(table) for table in work.beginning]
            args["origins"] = {"target": str(work.target), "beginning": beginning, "alone": len(work.merged) == 1}
        return StageTask("raycdc.sinks.jdbc.tasks:load", args, sum(entry.bytes for entry in inputs))

    def _fitted(self, work: Work, held: Held | None = None) -> Work:
        """`work` with the columns that the target takes; all, unless the user wants changes left out."""
        if not may_lack(self._context.schema_change, self._context.left_out):
            return work
        held = held or self._record(work.target)
        return work if held is None else replace(work, schema=fitted(work.schema, {c.name for c in held.columns}))

    # -- helpers

    def _held(self, session: Session, work: Work) -> Held | None:
        """The record, locked; `FencedError` where a newer driver wrote it, `SinkError` where it was further before."""
        held = session.held(self._context.app_id, work.target, lock=True)
        if held is not None and held.vector.generation > work.generation:
            raise FencedError(f"{work.target} was written by a newer driver (generation {held.vector.generation}).")
        reached = self._reached.get(work.target)
        if reached is not None and (held is None or (held.vector.epoch, held.vector.step) < reached):
            have = "nothing of this pipeline" if held is None else f"only epoch {held.vector.epoch}"
            raise TargetGoneError(
                f"{work.target} in {self._address} held epoch {reached[0]} and now holds {have}: the server went back "
                "in time (a failover to an older copy, or a restore), or somebody changed raycdc_commit. Nothing more "
                "was written. Bring back a copy that has the epoch and start again, or take a new snapshot of "
                "the table."
            )
        if held is not None:
            self._reach(work.target, held)
        return held

    def _end(self, session: Session, work: Work, held: Held | None) -> None:
        """Commit, and remember what the target holds from here on."""
        session.commit()
        if held is not None:
            self._reach(work.target, held)

    def _reach(self, target: TableId, held: Held) -> None:
        reached = held.vector.epoch, held.vector.step
        self._reached[target] = max(reached, self._reached.get(target, reached))

    def _record(self, target: TableId) -> Held | None:
        with self._database.session() as session:
            return session.held(self._context.app_id, target)

    def _columns(self, schema: TableSchema) -> list[Column]:
        return target_columns(schema, changelog=not self._upsert)

    def _key(self, work: Work) -> tuple[str, ...]:
        return work.schema.primary_key if self._upsert else ()

    def _marker(self, work: Work) -> str:
        """What a table says of who last changed it, for databases whose DDL outruns the record."""
        return f"{self._marks(work)}{work.epoch}"

    def _marks(self, work: Work) -> str:
        """How all markers of the target begin."""
        return f"{_short(self._context.app_id)}:{_short(str(work.target))}:"

    def _prefix(self, target: TableId) -> str:
        return f"{STAGE_PREFIX}{_short(self._context.app_id)}_{_short(str(target))}_"

    def _disappeared(self, target: TableId) -> TargetGoneError:
        return TargetGoneError(f"The table {target} in {self._address} disappeared. Read its source table anew.")


def target_columns(schema: TableSchema, *, changelog: bool) -> list[Column]:
    """The columns of a target: the table's, then the metadata of a changelog."""
    meta = [Column(name, META_TYPES[name]) for name in META_COLUMNS] if changelog else []
    return [*schema.columns, *meta]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
