"""The interface of a sink: a place that holds epochs, each exactly once, and says so when asked.

Called by the epoch loop on the driver (`raycdc.delivery.epoch_loop`). The order for a table in an epoch is
``apply_schema (when it has changes) → stage → commit``. `stage` of epoch e+1 runs while e commits; `commit` of
different targets may run at once on several threads, never twice at once for one target.

*The commit record is a vector*: for each target table the last (epoch, step) with the pipeline's identity and
generation, written inside the sink's own transaction, so that recovery can ask the sink and believe it. A table may
commit several times in an epoch (schema change, append of snapshot rows, merge of log rows); whichever commit is its
last of the epoch carries `STEP_LAST`, so "holds the epoch" needs no knowledge of how the sink got there.
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
from raycdc.sinks.table_input import TableInput
from raycdc.sinks.task_plan import Input
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

#: The two things a sink may write: the table as it is, or every change of it.
UPSERT = "upsert"
CHANGELOG = "changelog"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One table's share of one epoch: schema in force, changes to apply first, rows to write.

    `segments` are in order of `_seq`. `merged` are all source tables that rows of the target come from, where routes
    merge several, or the one whose rows a transform gives another key (else empty): a sink that updates rows must then
    see to it that no key comes from two of them, or from two rows of the one, and say that it does (`merges_sources`);
    `beginning` are those of which the target has no row yet, so that emptying them empties nothing. `source` is the
    one, or the first. `positions` are the source positions after the epoch; they go into the sink's transaction for
    people to see. `layout` is how the target is to lie: one that the sink's configuration allows (`no_layout`).
    `made` are columns that are none of the source's own under that name: computed, constant, renamed or looked up.
    `replaces`: the user asked that this epoch, which begins the table, takes the place of whatever the target is.
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

    @property
    def input_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


def ignore_text(text: str) -> None:
    """What people are told where there are none."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Handed to a sink once: the identity its commits carry and the means to run its tasks.

    `app_id` is ``"raycdc:" + pipeline name + ":" + checkpoint identity``. `run_tasks` runs `StageTask`s somewhere and
    `parallelism` says how many at once are worth having. `schema_change` is what targets do when the source's tables
    change their shape, `left_out` the types of changes that they are spared. `access` is how
    tasks reach segments. `session` gives the SparkSession, or is None where the pipeline runs without Spark.
    `from_bytes`: tasks write rows of this size and more, and of less where the sink wants them to (None: as it wants).
    `order_by` names the column whose greatest value wins among the rows of a key, and is given to sinks that
    `keeps_greatest` only.
    `private` is a folder for what tasks must know and their arguments must not say (empty: the system's for such).
    `storage` is how object stores are reached, for a sink whose place is a URL. `warn` tells people of something that
    they may want to mend, and may be called by any thread.
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
        """The SparkSession; None where the pipeline runs without Spark. May block: a run begins before Spark is up."""
        return None if self.session is None else self.session()

    def without_tasks(self, size: int, most: int) -> bool:
        """Whether rows of `size` bytes may be written by the calling thread, as a sink may want up to `most`."""
        return size <= most and (self.from_bytes is None or size < self.from_bytes)

    @property
    def upsert(self) -> bool:
        return self.write == UPSERT

    @property
    def rules(self) -> ChangeRules:
        """The rules by which targets follow schema changes."""
        return ChangeRules(self.upsert, self.schema_change, self.left_out)

    def table_input(self, work: TableCommit, inputs: Sequence[Input] | None = None) -> TableInput:
        """The part of every stage task that reads segments of a table: `inputs`, or all of the epoch's."""
        given = map(Input, work.segments) if inputs is None else inputs
        return TableInput(tuple(given), work.schema, self.access)


@dataclass(frozen=True, slots=True)
class TargetShape:
    """The shape of a target: its columns, those of a changelog among them, its key and its layout."""

    name: TableId
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    layout: TableLayout = ANY_LAYOUT


class Sink(ABC):
    """See the module's docstring. Every method may block; errors are `SinkError` with the table in the text.

    `raycdc.sinks.steps.ExactlyOnceSink` is all of it but the verbs of one kind of target; implement this page only
    where a target cannot tell on the driver what it holds (Kafka), or keeps no record (the console).
    """

    #: The values of ``sink.write`` that the sink supports; the first is its default.
    writes: ClassVar[tuple[str, ...]]
    #: False for a sink that remembers nothing (the console): it is never asked what it holds.
    durable: ClassVar[bool] = True
    #: Whether rows of several source tables may go to one upsert target, because the sink finds a key that comes from
    #: two of them.
    merges_sources: ClassVar[bool] = False
    #: Whether the sink leaves a row that has a greater value of ``source.order_by`` than the one that comes.
    keeps_greatest: ClassVar[bool] = False
    #: Whether new targets share nothing and need not be there to stage no rows: then several threads may call
    #: `apply_schema` of one each, and one without rows is made by `commit` alone. Hundreds are made sooner where making
    #: one waits for a disk. Not where they are made in something that they share, such as a database.
    makes_at_once: ClassVar[bool] = False
    #: Whether a work that `replaces` puts an empty target in the place of whatever is there.
    can_replace: ClassVar[bool] = False
    #: How object stores are reached, for `check`, which comes before a sink has a context.
    storage: StorageSettings = LIKE_ANYBODY

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        """The findings about the target's server or catalog before a run of `pipeline`, good and bad, for
        ``raycdc check``; asked before `open`. `targets` are those that are known now; a finding that `parks` says that
        there cannot be one of its name. A sink of files names its folder in `SinkConfig.folder` instead; `check` and
        `run` then refuse one that cannot be written.
        """
        return []

    def statement(self, target: TargetShape) -> str:
        """The statement that makes such a target, as ``raycdc plan`` shows it; empty where there is nothing like it.

        Pure. The server may get it in other words, with the settings of raycdc's own bookkeeping.
        """
        return ""

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Connect and check; called once before anything else."""

    @abstractmethod
    def inspect(self, context: SinkContext) -> None:
        """Instead of `open`, with its errors, and nothing is changed: ``raycdc check`` asks whether a run could begin.
        Only `committed`, `require_free` and `close` follow.
        """

    @abstractmethod
    def require_free(self, target: TableId) -> None:
        """`TargetExistsError`, in the words of `apply_schema`, where something lies at `target` with which it would not
        begin. Asked of targets that hold nothing of this pipeline.
        """

    @abstractmethod
    def committed(self, target: TableId) -> CommitVector | None:
        """The vector that `target` holds of this pipeline (by `app_id`); None when none. Reads the
        sink, never a cache.
        """

    def unfit(self, targets: Sequence[TableId]) -> Mapping[TableId, TableRefusedError]:
        """Those of `targets` to which somebody did what their next commit would refuse, and why: asked at each start of
        targets that hold what the record says, also of those that get no rows for a long time. Changes nothing.
        """
        return {}

    def blocked(self, target: TableId, *, wholly: bool = False) -> str:
        """Who has this one target locked, as a sentence for people; empty where nobody has, or where the sink cannot
        tell. `wholly`: only those count with whose locks nobody else can write. Asked of a target when
        `SinkLockedError` came for minutes, and (`wholly`) of others, which go on where nobody has them locked.
        """
        return ""

    @abstractmethod
    def apply_schema(self, work: TableCommit) -> None:
        """Create the target or apply ``work.changes`` to it; idempotent (judged by what the sink has)."""

    @abstractmethod
    def stage(self, commits: Sequence[TableCommit]) -> Mapping[TableId, Any]:
        """Write all tables' rows where readers of the target do not see them; returns what `commit` needs."""

    def unrepresentable(self, work: TableCommit, rows: pa.RecordBatch) -> pa.Array:
        """Which of `rows`, with the columns of ``work.schema``, hold a value that the target can never have: for each
        row the reason, which begins with the column and quotes no value, or null where it fits.

        Asked only after the sink refused a value of the target (`ValueRefusedError`), so that the row can be named, or
        left out as ``pipeline.on_bad_record`` says. The same value must always be judged alike. A sink that cannot
        tell says of no row that it does not fit; the table is parked then.
        """
        return pa.nulls(rows.num_rows, pa.string())

    @abstractmethod
    def commit(self, work: TableCommit, staged: Any) -> None:
        """Make the rows of `work` visible together with its vector; steps the target holds already are skipped."""

    @abstractmethod
    def tombstone(self, work: TableCommit) -> None:
        """Write an empty commit at `STEP_TOMBSTONE` of the epoch, so that a driver waking from a pause cannot commit
        it any more. `work` has no segments; its schema serves a target that does not exist yet.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of connections; staged files that were not committed may stay for the next start to remove."""
