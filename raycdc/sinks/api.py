"""What a sink is: a place that holds epochs, each exactly once, and says so when asked.

Called by the epoch loop on the driver (`raycdc.spark.epochs`), from one thread at a time per method. The order for
every epoch is ``plan → stage (tasks) → commit`` per table; stage of epoch e+1 may run while e commits.

*The commit record is a vector*: for each target table the last (epoch, step) with the pipeline's identity and
generation, written inside the sink's own transaction, so that recovery can ask the sink and believe it.
A table may commit several times in an epoch (`step`): schema change, append of snapshot rows, merge of log rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raycdc.checkpoint.manifest import Segment
from raycdc.model import TableId, TableSchema

#: Steps of one table's epoch, in order. A sink that needs fewer skips numbers, never reuses them.
STEP_SCHEMA = 0
STEP_APPEND = 1
STEP_MERGE = 2
STEP_LAST = 3


@dataclass(frozen=True, slots=True, order=True)
class CommitVector:
    """How far a target table got: everything up to and including (`epoch`, `step`)."""

    epoch: int
    step: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class TableWork:
    """One table's share of one epoch: schema in force, changes to apply first, rows to write.

    `snapshot_only` is True when all rows are inserts of snapshot chunks (a plain append is right, if the target was
    created or emptied by this pipeline).
    """

    epoch: int
    generation: int
    source: TableId
    target: TableId
    schema: TableSchema
    changes: tuple[dict[str, Any], ...]
    segments: tuple[Segment, ...]
    snapshot_only: bool
    positions: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Handed to a sink once: the identity its commits carry and, for Spark-side work, the session.

    `app_id` is ``"raycdc:" + pipeline name + ":" + checkpoint identity``; `spark` is a SparkSession or None where the
    sink runs without Spark (`pipeline.epochs()`, tests of pure sinks).
    """

    app_id: str
    write: str
    on_existing: str
    spark: Any = None


class Sink(Protocol):
    """See the module's docstring. Every method may block; errors are `SinkError` with the table in the text."""

    def open(self, context: SinkContext) -> None:
        """Connect and check; called once before anything else."""

    def committed(self, target: TableId) -> CommitVector | None:
        """What `target` holds of this pipeline (by `app_id`); None when nothing. Reads the sink, never a cache."""

    def apply_schema(self, work: TableWork) -> None:
        """Create the target or apply ``work.changes`` to it; idempotent (judged by what the sink has)."""

    def stage(self, works: Sequence[TableWork]) -> Mapping[TableId, Any]:
        """Write all tables' rows where readers of the target do not see them; returns commit messages per target."""

    def commit(self, work: TableWork, staged: Any) -> None:
        """Make the rows of `work` visible together with its commit vector; idempotent by (epoch, step)."""

    def tombstone(self, target: TableId, *, epoch: int, generation: int) -> None:
        """Write an empty commit for `epoch`, so that a driver waking from a pause cannot commit it any more."""

    def close(self) -> None: ...
