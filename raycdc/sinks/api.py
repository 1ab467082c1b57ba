"""The interface of a sink: a store that holds each epoch exactly once, and reports which epochs it holds.

Called by the epoch loop on the driver (`raycdc.delivery.epoch_loop`). The calls for a target in an epoch are, in this
order: ``apply_schema`` if its columns change, ``stage``, ``commit``. `stage` of epoch e+1 runs while e commits.
`commit` of different targets may run concurrently on several threads, but never concurrently for one target.

*The commit record is a vector*: for each target table the last (epoch, step) with the pipeline's identity and
generation, written inside the sink's own transaction, so that recovery can rely on it. A table may commit several times
in an epoch (schema change, append of snapshot rows, merge of log rows); the last commit of the epoch has `STEP_LAST`. A
table holds the epoch only if its vector is at `STEP_LAST`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from raycdc.config.checks import CheckResult
from raycdc.errors import TableRefusedError
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.evolution.events import SchemaChangeEvent
from raycdc.model.rules.layout import ANY_LAYOUT, TableLayout
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.segments.tasks import TaskRunner
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.task_inputs import Input, TableInput
from raycdc.state.manifests.manifest import Segment
from raycdc.state.opaque import Positions
from raycdc.state.recovery import STEP_APPEND, STEP_LAST, STEP_MERGE, STEP_SCHEMA, STEP_TOMBSTONE, CommitVector
from raycdc.storage.settings import LIKE_ANYBODY, StorageSettings

__all__ = [
    "CHANGELOG",
    "STEP_APPEND",
    "STEP_LAST",
    "STEP_MERGE",
    "STEP_SCHEMA",
    "STEP_TOMBSTONE",
    "UPSERT",
    "CommitVector",
    "Sink",
    "SinkContext",
    "TableCommit",
    "TargetShape",
]

#: The content of a target: the present rows of the table (`UPSERT`), or every change of the table (`CHANGELOG`).
UPSERT = "upsert"
CHANGELOG = "changelog"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One table's part of one epoch: the schema, the changes to apply first, and the rows to write.

    `segments` are in order of `_seq`. `merged` are the source tables of the target if routes merge several tables. If a
    transform gives the rows of a single table another key, `merged` is that table. Otherwise it is empty. If `merged`
    is not empty, a sink that updates rows must refuse a key that comes from two tables, or from two rows of one table.
    A sink that can do that sets `merges_sources`. `beginning` are the tables in `merged` of which the target has no row
    yet; a truncation of such a table removes nothing. `source` is the only source table, or the first one. `positions`
    are the source positions after the epoch; they are written in the sink's transaction for people to see. `layout` is
    the target's layout, which the sink's configuration allows (`no_layout`). `made` are columns whose name the source
    does not have, because they are computed, constant, renamed or looked up. `replaces` is True if the epoch begins the
    table and the user requested that it replaces any existing target. `digest` is the digest of the manifest
    (`CommitVector.digest`).
    """

    epoch: int
    generation: int
    source: TableId
    target: TableId
    schema: TableSchema
    changes: tuple[SchemaChangeEvent, ...]
    segments: tuple[Segment, ...]
    positions: Positions
    merged: tuple[TableId, ...] = ()
    beginning: tuple[TableId, ...] = ()
    layout: TableLayout = ANY_LAYOUT
    made: tuple[str, ...] = ()
    replaces: bool = False
    digest: int = 0

    @property
    def input_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


def ignore_text(text: str) -> None:
    """Ignore a message. This is the default if no messages are shown."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The context that a sink gets in `open`: the identity that its commits carry, its settings, and the means to run
    its tasks.

    `app_id` is ``"raycdc:" + pipeline name + ":" + checkpoint identity``. `run_tasks` runs `StageTask`s, in Spark or in
    this process, and `parallelism` is the useful number of concurrent tasks. `schema_change` says how targets follow
    schema changes of the source's tables. Targets ignore changes of the types in `left_out`. `access` gives tasks
    access to segments. `session` returns the SparkSession, or is None if the pipeline runs without Spark. Rows of a
    total size of `from_bytes` or more must be written by tasks. Fewer rows may also be written by the sink itself
    (None: the sink may always choose). `order_by` names a column: among the rows of a key, the row with the greatest
    value of that column is kept. Only sinks with `keeps_greatest` get it. `private` is a folder for secrets that tasks
    need and that must not be in their arguments (empty: the system's temporary folder). `storage` has the settings of
    object stores, for a sink whose location is a URL. `warn` shows a warning to people, and may be called by any
    thread.
    """

    app_id: str
    write: str
    run_tasks: TaskRunner
    on_existing: str = "fail"
    schema_change: SchemaChangeBehavior = SchemaChangeBehavior.LENIENT
    left_out: frozenset[str] = frozenset()
    parallelism: int = 1
    access: SegmentAccess = HERE
    session: Callable[[], Any] | None = None
    from_bytes: int | None = None
    order_by: str = ""
    private: str = ""
    storage: StorageSettings = LIKE_ANYBODY
    warn: Callable[[str], None] = ignore_text

    @property
    def spark(self) -> Any:
        """Return the SparkSession; None if the pipeline runs without Spark. Blocks until Spark is up."""
        return None if self.session is None else self.session()

    def without_tasks(self, size: int, most: int) -> bool:
        """Return True if the calling thread may write rows of `size` bytes, which the sink prefers for up to `most`
        bytes.
        """
        return size <= most and (self.from_bytes is None or size < self.from_bytes)

    @property
    def upsert(self) -> bool:
        return self.write == UPSERT

    @property
    def rules(self) -> ChangeRules:
        """Return the rules by which targets follow schema changes."""
        return ChangeRules(self.upsert, self.schema_change, self.left_out)

    def table_input(self, work: TableCommit, inputs: Sequence[Input] | None = None) -> TableInput:
        """Return the input of a stage task: the batches `inputs` of a table's segments, or all of the table's in the
        epoch.
        """
        given = map(Input, work.segments) if inputs is None else inputs
        return TableInput(tuple(given), work.schema, self.access)


@dataclass(frozen=True, slots=True)
class TargetShape:
    """The shape of a target that would be created: its columns (with the additional columns of a changelog), key and
    layout.
    """

    name: TableId
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    layout: TableLayout = ANY_LAYOUT


class Sink(ABC):
    """The interface of a sink; see the module's docstring. Every method may block. Errors are `SinkError`, and name the
    table.

    `raycdc.sinks.steps.ExactlyOnceSink` implements everything except the operations on one kind of target. Implement
    `Sink` directly only if the driver cannot read a target's commit record (Kafka), or if a target keeps no record (the
    console).
    """

    #: The values of ``sink.write`` that the sink supports; the first is its default.
    writes: ClassVar[tuple[str, ...]]
    #: False for a sink that cannot report which epochs it holds (the console).
    durable: ClassVar[bool] = True
    #: True if rows of several source tables may go to one upsert target, because the sink detects a key that comes from
    #: two of them.
    merges_sources: ClassVar[bool] = False
    #: True if the sink keeps a row whose value of ``source.order_by`` is greater than that of the new row.
    keeps_greatest: ClassVar[bool] = False
    #: True if several threads may create targets concurrently, each by a call of `apply_schema` for one target. A
    #: target without rows is then created by its `commit`. This saves time if creating a target waits for a disk and
    #: there are hundreds of targets. False if all targets are in one shared store, such as a database.
    makes_at_once: ClassVar[bool] = False
    #: True if a commit with `replaces` puts an empty target in place of any existing one.
    can_replace: ClassVar[bool] = False
    #: The settings of object stores, for `check`, which runs before the sink has a context.
    storage: StorageSettings = LIKE_ANYBODY

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        """Return the findings about the target's server or catalog before a run of `pipeline`, for ``raycdc check``.

        Called before `open`. `targets` are the targets known so far. A finding with `parks` means that the sink can
        have no target of that name. A sink of files need not check its folder: it returns the folder in
        `SinkConfig.folder`, and `check` and `run` refuse a folder that cannot be written.
        """
        return []

    def statement(self, target: TargetShape) -> str:
        """Return the statement that creates a target of this shape, for ``raycdc plan``; empty if no statement creates
        targets.

        Pure. The statement that the sink really executes may have additional properties, for raycdc's own records.
        """
        return ""

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Connect, and check the configuration against the store. Called once, before all methods except `check` and
        `statement`.
        """

    @abstractmethod
    def inspect(self, context: SinkContext) -> None:
        """Connect like `open`, with its errors, but change nothing. ``raycdc check`` calls it to see if a run could
        begin.

        Only `committed`, `require_free` and `close` are called afterwards.
        """

    @abstractmethod
    def require_free(self, target: TableId) -> None:
        """Raise `TargetExistsError` if something exists at `target` that `apply_schema` would refuse.

        Called for targets that hold nothing of this pipeline.
        """

    @abstractmethod
    def committed(self, target: TableId) -> CommitVector | None:
        """Return the vector of this pipeline (by `app_id`) that `target` holds; None if there is none.

        Reads the sink, never a cache.
        """

    def unfit(self, targets: Sequence[TableId]) -> Mapping[TableId, TableRefusedError]:
        """Return the `targets` whose next commit would be refused because another client changed them, each with its
        error.

        Called at each start for targets whose vectors agree with the commit record. Without this call, the problem
        would be found only with the target's next rows, possibly much later. Changes nothing.
        """
        return {}

    def no_merging(self, target: TableId) -> str:
        """Return why rows of several source tables cannot go to `target`, as the end of a sentence; empty if they can.

        Called by ``raycdc check`` after `inspect`, for targets of several tables. The commit of such a target must
        raise `RoutesRefusedError`. A sink that updates rows sets `merges_sources` instead.
        """
        return ""

    def blocked(self, target: TableId, *, wholly: bool = False) -> str:
        """Return a sentence that names the client that has this target locked; empty if the target is not locked, or if
        that is unknown.

        If `wholly` is True, only locks that prevent all writes count. Called for a target that raised `SinkLockedError`
        for minutes. Called with `wholly` for other targets of the sink, to see if they can be written.
        """
        return ""

    @abstractmethod
    def apply_schema(self, work: TableCommit) -> None:
        """Create the target or apply ``work.changes`` to it.

        Idempotent: does nothing if the target already holds this step.
        """

    @abstractmethod
    def stage(self, commits: Sequence[TableCommit]) -> Mapping[TableId, Any]:
        """Write the rows of all `commits` to places that readers of the targets do not see.

        Return for each target the value that `commit` gets as the result of staging.
        """

    def unrepresentable(self, work: TableCommit, rows: pa.RecordBatch) -> pa.Array:
        """Return the reason why the target can never hold a row, for each of `rows`; null for a row that it can hold.

        `rows` have the columns of ``work.schema``. A reason begins with the column's name and quotes no value. The
        method is called only after the store refused a value (`ValueRefusedError`), to find the rows with such values.
        They are then reported, or left out according to ``pipeline.on_bad_record``. If the result is null for every
        row, the table is parked. The same value must always get the same result.
        """
        return pa.nulls(rows.num_rows, pa.string())

    @abstractmethod
    def commit(self, work: TableCommit, staged: Any) -> None:
        """Make the rows of `work` visible together with its vector. Skips steps that the target already holds."""

    @abstractmethod
    def tombstone(self, work: TableCommit) -> None:
        """Write an empty commit at `STEP_TOMBSTONE` of the epoch, so that a suspended driver cannot commit the epoch
        later.

        `work` has no segments. If the target does not exist yet, it is created with the schema of `work`.
        """

    def close(self) -> None:  # noqa: B027
        """Close connections. Staged files that were not committed may remain, and the next start removes them."""
