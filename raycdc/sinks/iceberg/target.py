"""The operations of a `raycdc.sinks.steps.Target` on an Iceberg table. They decide which files each commit adds and
removes, and `table` makes the commits. Each attempt of a commit is planned on the table's newest version, so a plan is
made again if another writer committed first.

Schema changes are planned by field ids according to ``pipeline.schema_change``, and carried out in one commit with the
vector. `raycdc.sinks.columns` plans the columns. A column keeps its id when it is renamed or moved, so such a change
affects metadata only. A new column gets a new id, even if an earlier column had its name. Data files are rewritten if
rows get values that no file has. Examples are a constant default, a new scale of a decimal, and a copy of another
column's values.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, FileFormat

from raycdc.core.failpoints import reach
from raycdc.errors import TargetExistsError, TargetModifiedError
from raycdc.model.column_names import spark_fold
from raycdc.segments.tasks import ResultT, StageTask, run_in_process
from raycdc.sinks.api import STEP_APPEND, STEP_LAST, STEP_MERGE, SinkContext, TableCommit
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.changes import fitted_to
from raycdc.sinks.columns import ColumnPlan, plan_columns
from raycdc.sinks.iceberg.commits import CommitContent
from raycdc.sinks.iceberg.concurrent_writers import check_files, check_unchanged
from raycdc.sinks.iceberg.files import IcebergColumn, KeyBounds, WrittenFile, arrow_type, read_whole, stored, type_text
from raycdc.sinks.iceberg.layout import StoredPartition
from raycdc.sinks.iceberg.table import CREATED_BY, IcebergTarget, check_identifiers, check_sources
from raycdc.sinks.iceberg.tasks import (
    CarriedInto,
    Carry,
    Changed,
    CompactedFiles,
    FileDestination,
    Rewrite,
    RewrittenFiles,
    WantedColumn,
)
from raycdc.sinks.lakes.lake_columns import check_adoptable, constant_of, lake_abilities
from raycdc.sinks.lakes.maintenance import groups_of
from raycdc.sinks.lakes.ownership import new_names, nothing_left
from raycdc.sinks.rows import changelog_arrow
from raycdc.sinks.steps import (
    CommitMetadata,
    ForeignTarget,
    MissingTarget,
    OwnTarget,
    Target,
    TargetState,
    UnfinishedTarget,
)
from raycdc.sinks.targets import absent, lost_files, occupied_error
from raycdc.storage.files import AnyPath, FileName, delete


def _stored(arrow: pa.DataType) -> pa.DataType:
    return arrow_type(type_text(arrow))


ICEBERG = lake_abilities("Iceberg", _stored)


@dataclass(frozen=True, slots=True)
class EvolvedColumn:
    """A column of the table after the changes.

    `origin` is the id of the present column whose values it keeps. None: it is a new column, and existing rows get
    `constant` (as text) or null in it.
    """

    column: IcebergColumn
    origin: int | None
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """The table's columns after the changes. `emptied` is True if its rows are removed, and `rewritten` if its data
    files must be rewritten.
    """

    columns: tuple[EvolvedColumn, ...]
    emptied: bool
    rewritten: bool


def plan_evolution(
    present: Sequence[IcebergColumn],
    work: TableCommit,
    wanted: pa.Schema,
    rules: ChangeRules,
    *,
    next_id: int,
) -> SchemaEvolution:
    """Return the plan of ``work.changes`` for a table with the columns `present`.

    `wanted` are the columns of the new rows (`files.stored`). Raises `SinkError` if the table cannot follow.
    """
    planned = plan_columns(ICEBERG, _fields(present), work, list(wanted), rules)
    return _numbered(planned, present, work, next_id=next_id, upsert=rules.upsert)


def mergeable(
    present: Sequence[IcebergColumn], wanted: pa.Schema, work: TableCommit, *, next_id: int
) -> SchemaEvolution:
    """Return the columns of an existing table, extended by missing ones. Raises `SinkError` if types differ."""
    check_adoptable(ICEBERG, work.target, _fields(present), wanted)
    there = {spark_fold(column.name) for column in present}
    missing = [field for field in wanted if spark_fold(field.name) not in there]
    new = [IcebergColumn(next_id + at, field.name, type_text(field.type)) for at, field in enumerate(missing)]
    kept = [EvolvedColumn(column, column.id) for column in present]
    return SchemaEvolution((*kept, *(EvolvedColumn(column, None) for column in new)), emptied=False, rewritten=False)


def _numbered(
    plan: ColumnPlan[pa.Field], present: Sequence[IcebergColumn], work: TableCommit, *, next_id: int, upsert: bool
) -> SchemaEvolution:
    """Return the plan with field ids.

    A column keeps its id if its values can be read from the existing files. Otherwise it gets a new id.
    """
    here = {column.name: column for column in present}
    kept_by: dict[int, str] = {}
    #: If two columns get the values of the same present column, the column with the name of the present column keeps
    #: its id.
    for p in sorted(plan.columns, key=lambda p: p.name != p.values_of):
        if p.values_of is not None and _is_read_as(here[p.values_of].arrow, p.column.type):
            kept_by.setdefault(here[p.values_of].id, p.name)
    planned: list[EvolvedColumn] = []
    rewritten = False
    for p in plan.columns:
        name, origin = p.name, None if p.values_of is None else here[p.values_of].id
        checked = constant_of(work.target, p) if upsert else None
        constant = p.added.default if checked is not None and p.added is not None else None
        if origin is not None and kept_by.get(origin) == name:
            number = origin
        else:
            number, next_id = next_id, next_id + 1
            rewritten = rewritten or origin is not None or constant is not None
        planned.append(EvolvedColumn(IcebergColumn(number, name, type_text(p.column.type)), origin, constant))
    return SchemaEvolution(tuple(planned), emptied=plan.emptied, rewritten=rewritten and not plan.emptied)


def _fields(columns: Sequence[IcebergColumn]) -> list[pa.Field]:
    return [pa.field(column.name, column.arrow) for column in columns]


def _is_read_as(have: pa.DataType, want: pa.DataType) -> bool:
    """Return True for Iceberg's type promotions: int to long, float to double, and decimals with more integer
    digits.
    """
    if have == want or (have, want) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    decimals = pa.types.is_decimal(have) and pa.types.is_decimal(want)
    return bool(decimals and have.scale == want.scale and have.precision <= want.precision)


#: Data files of up to this size in total are rewritten in this process, because a Spark job costs more than reading
#: them.
REWRITE_IN_PROCESS_BYTES_MAX = 32 << 20

#: Data files of up to the first size are rewritten together, up to the second size in total. The first limit prevents
#: that the same rows are combined again and again. The second limit prevents that more than a few megabytes are copied
#: for one changed row.
SMALL_BYTES_MAX = 4 << 20
TOGETHER_BYTES_MAX = 8 << 20

#: Data files up to this size count as very small; this many of a partition are combined with the next merge.
CRUMB_BYTES_MAX = 256 << 10
SMALL_FILES_MAX = 16

#: The pattern of the names of data files that merges (`new_file`, with a number for each partition) and maintenance
#: write.
_OURS = re.compile(r"(\d{10,}|upkeep)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-\d{5,})?\.parquet")

#: The prefix of names of files that belong to no table.
KEYS = "keys-"


@dataclass(frozen=True, slots=True)
class StagedIceberg:
    """The results of a table's stage tasks, and the columns and partitions with which the files were written."""

    append: list[list[WrittenFile]] = field(default_factory=list)
    merge: list[CompactedFiles] = field(default_factory=list)
    columns: list[IcebergColumn] = field(default_factory=list)
    partitions: list[StoredPartition] = field(default_factory=list)
    #: Files that the commit needs and that never belong to the table.
    scratch: list[FileName] = field(default_factory=list)

    def files(self, step: int) -> list[WrittenFile]:
        """Return the data files of a step."""
        each = self.append if step == STEP_APPEND else [result.files for result in self.merge]
        return [file for files in each for file in files]


class IcebergSteps(Target):
    """An Iceberg table, used by one thread."""

    def __init__(self, table: IcebergTarget, context: SinkContext) -> None:
        super().__init__(table.name, f"The Iceberg table {table.name}")
        self._table = table
        self._context = context

    def read_state(self, epoch: int | None = None) -> TargetState:
        table = self._table
        if not table.refresh():
            return MissingTarget()
        if table.is_new:
            check_files(table)
        vector = table.vector()
        if vector is not None or table.ownership.created_by_us:
            return OwnTarget(vector)
        return UnfinishedTarget() if table.left_empty() else ForeignTarget()

    def is_alone(self) -> bool:
        return self._table.ownership.created_by_us

    def create(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._table.create(stored(rows_of(work, self._context)), commit_metadata, work.layout)

    def replace(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._table.check_layout(work.layout)
        wanted = stored(rows_of(work, self._context))
        self._table.commit(commit_metadata, lambda: self._replaced(wanted))

    def adopt(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        table, wanted = self._table, stored(rows_of(work, self._context))
        table.check_layout(work.layout)
        table.check_plain()
        check_identifiers(table, work.schema.primary_key if self._context.upsert else ())

        def change() -> CommitContent:
            return self._planned(work, mergeable(table.columns(), wanted, work, next_id=table.next_id))

        table.commit(commit_metadata, change)

    def evolve(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._table.commit(commit_metadata, lambda: self._evolved(work, stored(rows_of(work, self._context))))

    def steps(self, work: TableCommit, staged: StagedIceberg) -> Sequence[int]:
        self._table.check_layout(work.layout)
        self._table.options = dict(work.layout.options)
        return [step for step, rows in ((STEP_APPEND, staged.append), (STEP_MERGE, staged.merge)) if rows]

    def write(self, work: TableCommit, staged: StagedIceberg, step: int, commit_metadata: CommitMetadata) -> None:
        reach("in_commit")
        work = fitted_to(work, self._context, self._table.arrow().names)
        self._table.commit(commit_metadata, lambda: self._noting(work, self._change(work, staged, step)))
        named = staged.files(step) if step != STEP_LAST and not staged.scratch else []
        reach("before_look")
        if missing := absent(file.path for file in named):
            raise lost_files(self.location, work.epoch, missing)

    def vanished(self, staged: StagedIceberg, step: int) -> Sequence[str]:
        if step == STEP_LAST:
            return ()
        keys = [result.keys for result in staged.merge] if step == STEP_MERGE else []
        return absent([*(file.path for file in staged.files(step)), *keys])

    def skip(self, staged: StagedIceberg, step: int) -> None:
        delete([file.path for file in staged.files(step)])

    def bar(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        if self._table.refresh():
            self._table.commit(commit_metadata, CommitContent)
        else:
            self.create(work, commit_metadata)

    def taken(self) -> TargetExistsError:
        return occupied_error(f"The Iceberg table {self.name}", "route the table to another name")

    def _noting(self, work: TableCommit, change: CommitContent) -> CommitContent:
        """Return `change` with a table property added that lists the columns that the source dropped and the table
        keeps. Return it unchanged if the table already has that property.
        """
        if not self._context.upsert:
            return change
        note = self._table.ownership.note(self._table.arrow().names, work.schema.arrow().names)
        return replace(change, properties={**change.properties, **note})

    def _change(self, work: TableCommit, staged: StagedIceberg, step: int) -> CommitContent:
        """Return the commit for the rows of one step of an epoch."""
        table = self._table
        if self._context.upsert:
            check_unchanged(table, work.schema.arrow().names)
        if step == STEP_LAST:
            return CommitContent()
        table.check_plain()
        check_identifiers(table, work.schema.primary_key if self._context.upsert else ())
        if columns_of(work, table, self._context) != staged.columns or table.partitions() != staged.partitions:
            raise TargetModifiedError(
                f"{work.target}: somebody changed the columns or partitions of the Iceberg table while an epoch was "
                "written to it. Start again."
            )
        added = staged.files(step)
        if step == STEP_APPEND:
            return CommitContent(add=added)
        if any(result.truncated for result in staged.merge):
            self.require_own(alone=self.is_alone(), on_existing=self._context.on_existing)
            return CommitContent(add=added, delete=table.data_files())
        results = [result for result in staged.merge if result.rewritten]
        if not results:
            return CommitContent()
        keys = [result.keys for result in results]
        key = [column for column in staged.columns if column.name in work.schema.primary_key]
        names = [column.name for column in key]
        touched = pa.concat_tables([read_whole(path, names) for path in keys])
        bounds = KeyBounds(key, touched)
        files = table.data_files()
        many = small_files(files, table)
        # Files are compared by their paths. If the table lists a file twice, both entries are therefore handled
        # together.
        chosen = many.union(file for file in files if bounds.may_have(file.lower_bounds, file.upper_bounds))
        old = [file for file in files if file in chosen]
        columns = [WantedColumn(column, column.id) for column in table.columns()]
        changed = Changed(work.schema.primary_key, tuple(keys), str(work.target), alone=len(work.merged) == 1)
        theirs = foreign_columns(table, work)
        groups = together(old, table)
        written = self._rewritten(
            work, groups, columns, replace(changed, small_files=paths_of(many, table)), carry=theirs
        )
        missing = [
            file
            for group, result in zip(groups, written, strict=True)
            for file, went in zip(group, result.went, strict=True)
            if went
        ]
        new = [file for result in written for file in result.files]
        if carried := tuple(result.carried for result in written if result.carried):
            into = FileDestination("", (*staged.columns, *theirs), tuple(table.partitions()))
            indexes = [replace(into, path=new_file(table, work)) for _ in added]
            tasks = [
                CarriedInto(file, tuple(staged.columns), destination, changed.key, carried)
                for file, destination in zip(added, indexes, strict=True)
            ]
            staged.scratch.extend([*carried, *(file.path for file in added)])
            added = [file for files in run_in_commit(tasks, self._context) for file in files]
        return CommitContent(add=[*added, *new], delete=missing)

    def _evolved(self, work: TableCommit, wanted: pa.Schema) -> CommitContent:
        """Return the commit for the schema changes of an epoch."""
        if self._context.upsert:
            check_unchanged(self._table, work.schema.arrow().names)
        columns, rules = self._table.columns(), self._context.rules
        plan = plan_evolution(columns, work, wanted, rules, next_id=self._table.next_id)
        events = rules.followed(work.changes)
        names = [planned.column.name for planned in plan.columns]
        origins = {planned.column.name: planned.origin for planned in plan.columns}
        kept = {column.name for column in columns if origins.get(column.name) == column.id}
        if not plan.emptied:
            lost = {column.name for column in columns} - kept
            self._table.ownership.require_own_names(self.location, events, lost)
        change, added = self._planned(work, plan), set(new_names(events)) - kept
        if not self._context.upsert and not added:
            return change
        note = self._table.ownership.note_after(work.changes, names, work.schema.arrow().names, added=added)
        return replace(change, properties={**change.properties, **note})

    def _planned(self, work: TableCommit, plan: SchemaEvolution) -> CommitContent:
        table = self._table
        columns = [planned.column for planned in plan.columns]
        check_sources(table, columns)
        if plan.emptied:
            return CommitContent(delete=table.data_files(), columns=columns)
        if not plan.rewritten:
            return CommitContent(columns=columns)
        table.check_plain()
        old = table.data_files()
        wanted = [WantedColumn(p.column, p.origin, p.constant) for p in plan.columns]
        written = self._rewritten(work, [[file] for file in old], wanted)
        new = [file for result in written for file in result.files]
        return CommitContent(add=new, delete=old, columns=columns)

    def _rewritten(
        self,
        work: TableCommit,
        groups: Sequence[Sequence[DataFile]],
        columns: Sequence[WantedColumn],
        changed: Changed | None = None,
        *,
        carry: Sequence[IcebergColumn] = (),
    ) -> list[RewrittenFiles]:
        """Rewrite data files by tasks, one for each group, and return their results."""
        partitions = tuple(self._table.partitions())
        tasks = [
            Rewrite(
                tuple(self._table.files.path(file.file_path) for file in group),
                sum(file.file_size_in_bytes for file in group),
                new_file(self._table, work),
                tuple(columns),
                partitions,
                changed,
                Carry(scratch_path(self._table, work), changed.key, tuple(carry)) if changed and carry else None,
            )
            for group in groups
        ]
        return run_in_commit(tasks, self._context)

    def _replaced(self, wanted: pa.Schema) -> CommitContent:
        """Return the commit that empties the table and gives it the columns `wanted`.

        Unchanged columns keep their ids.
        """
        table = self._table
        table.check_plain()
        here = {(column.name, column.arrow): column for column in table.columns()}
        fresh = iter(range(table.next_id, table.next_id + len(wanted)))
        columns = [here.get((f.name, f.type)) or IcebergColumn(next(fresh), f.name, type_text(f.type)) for f in wanted]
        check_sources(table, columns)
        app_id = self._context.app_id
        ours = {CREATED_BY: app_id, **nothing_left(app_id)}
        return CommitContent(delete=table.data_files(), columns=columns, properties=ours, alone=True)


def small_files(files: Sequence[DataFile], table: IcebergTarget) -> set[DataFile]:
    """Return very small files that a merge rewrites although they have no changed key, some megabytes at most. They
    belong to partitions with many very small files. Only files that raycdc wrote are included, because raycdc may be
    unable to read other files.
    """
    now = table.table.metadata.default_spec_id
    each: dict[tuple[Any, ...], list[DataFile]] = {}
    for file in files:
        if file.file_size_in_bytes <= CRUMB_BYTES_MAX and file.spec_id == now and _is_ours(file):
            each.setdefault(values_of(file), []).append(file)
    found: set[DataFile] = set()
    total = 0
    for of_partition in each.values():
        if len(of_partition) >= SMALL_FILES_MAX and total < TOGETHER_BYTES_MAX:
            taken = of_partition[: TOGETHER_BYTES_MAX // CRUMB_BYTES_MAX]
            found.update(taken)
            total += sum(map(size_of, taken))
    return found


def _is_ours(file: DataFile) -> bool:
    """Return True if the data file has a name that raycdc gives."""
    return file.file_format == FileFormat.PARQUET and bool(_OURS.fullmatch(file.file_path.rpartition("/")[2]))


def paths_of(files: Iterable[DataFile], table: IcebergTarget) -> frozenset[str]:
    """Return the paths of the files as texts."""
    return frozenset(str(table.files.path(file.file_path)) for file in files)


def together(files: Sequence[DataFile], table: IcebergTarget) -> list[list[DataFile]]:
    """Return the files that a merge may rewrite, in groups whose remaining rows become one file.

    A group consists of small files of one partition. Without groups, each commit would leave as many small files as it
    rewrote.
    """
    now = table.table.metadata.default_spec_id
    small, groups = [], []
    for file in files:
        if file.file_size_in_bytes <= SMALL_BYTES_MAX and file.spec_id == now:
            small.append(file)
        else:
            groups.append([file])
    return [*groups, *groups_of(small, bytes_max=TOGETHER_BYTES_MAX, size=size_of, partition=values_of)]


def size_of(file: DataFile) -> int:
    """Return the size in bytes."""
    return file.file_size_in_bytes


def values_of(file: DataFile) -> tuple[Any, ...]:
    """Return the partition values of a data file, as Iceberg stores them."""
    return tuple(file.partition[at] for at in range(len(file.partition)))


def run_in_commit(tasks: Sequence[StageTask[ResultT]], context: SinkContext) -> list[ResultT]:
    """Run tasks for which a commit waits, in this process if they are small, and return their results."""
    small = sum(task.input_bytes for task in tasks) <= REWRITE_IN_PROCESS_BYTES_MAX
    return run_in_process(tasks) if small else context.run_tasks(tasks)


def rows_of(work: TableCommit, context: SinkContext) -> pa.Schema:
    """Return the columns of the rows to come."""
    return work.schema.arrow() if context.upsert else changelog_arrow(work.schema)


def columns_of(work: TableCommit, table: IcebergTarget, context: SinkContext) -> list[IcebergColumn]:
    """Return the table's columns that rows of `work` have, in the rows' order."""
    there = {column.name: column for column in table.columns()}
    wanted = stored(rows_of(work, context))
    if missing := [name for name in wanted.names if name not in there]:
        raise TargetModifiedError(
            f"The Iceberg table {work.target} lacks the column {missing[0]!r} of the rows to come: somebody else "
            "changed the table. Add the column again, or take a new snapshot of the table."
        )
    for want in wanted:
        if there[want.name].arrow != want.type:
            raise ICEBERG.retyped_error(work.target, pa.field(want.name, there[want.name].arrow), want)
    return [there[name] for name in wanted.names]


def foreign_columns(table: IcebergTarget, work: TableCommit) -> list[IcebergColumn]:
    """Return the table's columns that belong to other writers."""
    source = work.schema.arrow().names
    left = table.ownership.left_behind(table.arrow().names, source)
    return [column for column in table.columns() if column.name not in source and column.name not in left]


def parse_location(work: TableCommit, table: IcebergTarget, columns: Sequence[IcebergColumn]) -> FileDestination:
    """Return the destination for a task that writes rows of `work` with these columns."""
    return FileDestination(new_file(table, work), tuple(columns), tuple(table.partitions()))


def new_file(table: IcebergTarget, work: TableCommit) -> AnyPath:
    """Return a unique path for a data file."""
    return table.data_folder / f"{work.epoch:010d}-{uuid.uuid4()}.parquet"


def scratch_path(table: IcebergTarget, work: TableCommit) -> AnyPath:
    """Return a unique path for a temporary file of a commit, which belongs to no table. The next start deletes
    remaining ones.
    """
    return table.staging_folder / f"{KEYS}{work.epoch:010d}-{uuid.uuid4()}.parquet"
