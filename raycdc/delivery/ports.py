"""The inputs of an epoch loop, as a driver, ``raycdc check`` or a test supplies them.

`Routing` has the routes of tables, and the parts that transform rows on their way to the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raycdc.core.activity import ActivityTracker
from raycdc.core.stopping import StopRequest
from raycdc.core.threads import THREADS, Threads
from raycdc.delivery.outcomes import EpochStatistics
from raycdc.delivery.rows.bad_row_filter import BadRowFilter
from raycdc.delivery.targets.parked_targets import NOTHING, ParkingPolicy
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.model.engines import EngineName
from raycdc.model.rules.routes import Router
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.segments.bad_rows import BadRecords, FilteredSegment
from raycdc.segments.copies import SegmentCopies
from raycdc.segments.tasks import TaskLog
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.manifests.manifest import Manifest, Segment
from raycdc.transform import ResolvedTransform, TransformedTables

if TYPE_CHECKING:  # Only pipelines with a row store need Delta's libraries.
    from raycdc.delivery.rows.row_store import RowStore


class Derives(Protocol):
    """The interface of the maker of derived segments (`raycdc.spark.derive.Deriver`)."""

    def __call__(self, segments: Sequence[Segment], resolved: ResolvedTransform, epoch: int) -> list[FilteredSegment]:
        """Return for each segment its derived segment and the rows left out of it. Blocks."""

    def forget(self, segments: Iterable[Segment]) -> None:
        """Delete derived segments that are no longer needed."""

    def sweep(self) -> None:
        """Delete files left by earlier runs."""


class Joins(Protocol):
    """The interface of the maker of joined segments (`raycdc.delivery.lookup.Joiner`)."""

    def __call__(
        self, segments: Sequence[Segment], made: Sequence[FilteredSegment], resolved: ResolvedTransform, epoch: int
    ) -> list[FilteredSegment]:
        """Return the joined segment of each of the transformed segments `made`. Blocks."""

    def forget(self, epoch: int) -> None:
        """Delete the joined segments of `epoch`, which is recorded."""

    def sweep(self, committed: int) -> None:
        """Delete files that are left from epochs up to `committed`."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The routes of tables to targets, and the parts that transform rows on their way.

    `upsert` is True if the sink updates rows. `no_merging` is the reason why several tables cannot go to one target, or
    empty. A row passes these parts in order: `known` makes changes exact, `deriver` applies transforms, `joiner` adds
    looked-up columns, and `bad_row_filter` removes rows that the target cannot hold. `records` is the policy for bad
    rows. `log` records which engine's tasks wrote the rows.
    """

    router: Router
    upsert: bool = False
    no_merging: str = ""
    transforms: TransformedTables = field(default_factory=TransformedTables)
    deriver: Derives | None = None
    bad_row_filter: BadRowFilter | None = None
    records: BadRecords = field(default_factory=BadRecords)
    joiner: Joins | None = None
    known: RowStore | None = None
    log: TaskLog = field(default_factory=TaskLog)

    @property
    def makers(self) -> list[Derives | BadRowFilter | RowStore]:
        """Return the parts that write new segments."""
        return [maker for maker in (self.deriver, self.bad_row_filter, self.known) if maker is not None]


def _refuse(_manifest: Manifest, _tables: Sequence[TableId], text: str) -> None:
    raise StateError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPorts:
    """The inputs and outputs of an epoch loop, and its two policies.

    The policy `routing` decides to which targets tables go. The policy `parking` decides which refusals park a target
    instead of ending the run (default: none), and reports them.

    `generation` returns the driver's own generation, which rises when the driver replaces its coordinator
    (`raycdc.state.drivers.driver_generation`). `next_sealed(after, timeout_s)` returns the first sealed epoch greater
    than `after`, or None after the timeout; it may raise to end the loop. `on_committed` is called after each record,
    in order, on a thread of the loop. `request_resnapshot` stores a request for new snapshots of source tables whose
    rows of an epoch are lost. Its text gives the reason. It raises an error if the source cannot take snapshots.
    `access` returns the present access to segments. `threads` runs the loop's stages and commits, and `tracker` shows
    what they are doing. `stopping` is the request to stop the run, which ends the loop's waits. `copies` restores
    segments of lost nodes. `read_by` returns the engine whose readers sealed the epochs of a generation; None for a
    generation of an earlier run.
    """

    generation: Callable[[], OwnGeneration]
    next_sealed: Callable[[int, float], Manifest | None]
    on_committed: Callable[[EpochStatistics], None] = lambda _: None
    request_resnapshot: Callable[[Manifest, Sequence[TableId], str], None] = _refuse
    access: Callable[[], SegmentAccess] = lambda: HERE
    routing: Routing = field(default_factory=lambda: Routing(Router()))
    parking: ParkingPolicy = NOTHING
    threads: Threads = THREADS
    tracker: ActivityTracker = field(default_factory=ActivityTracker)
    stopping: StopRequest = field(default_factory=StopRequest)
    copies: SegmentCopies | None = None
    read_by: Callable[[int], EngineName | None] = lambda _: None
