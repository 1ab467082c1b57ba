"""The surroundings that an epoch loop needs: a driver's, those of `check`, or a test's.

Where tables go and what their rows become on the way: the parts that `pipeline.py` hands to the epoch loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raycdc.core.activity import ActivityTracker
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

if TYPE_CHECKING:  # Delta's libraries are loaded by pipelines that keep known rows alone.
    from raycdc.delivery.rows.row_store import RowStore


class Derives(Protocol):
    """The maker of derived segments (`raycdc.spark.derive.Deriver`)."""

    def __call__(self, segments: Sequence[Segment], resolved: ResolvedTransform, epoch: int) -> list[FilteredSegment]:
        """The derived segment of each, and what was left out of it. Blocks."""

    def forget(self, segments: Iterable[Segment]) -> None:
        """Nobody needs these any more."""

    def sweep(self) -> None:
        """Delete what is left of earlier runs."""


class Joins(Protocol):
    """The maker of joined segments (`raycdc.delivery.lookup.Joiner`)."""

    def __call__(
        self, segments: Sequence[Segment], made: Sequence[FilteredSegment], resolved: ResolvedTransform, epoch: int
    ) -> list[FilteredSegment]:
        """The segments `made` of each segment, joined by the lookups of their rows. Blocks."""

    def forget(self, epoch: int) -> None:
        """An epoch is recorded."""

    def sweep(self, committed: int) -> None:
        """Delete what is left of epochs up to `committed`."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tables go and as what; whether the sink updates rows; why several tables cannot go to one target, if so.

    `deriver` goes through the rows of segments whose transform needs that, `joiner` adds to them what is looked up, and
    `sieve` goes through those that a merged target may not be able to hold. `records` is what becomes of bad rows.
    `known` makes changes exact before all that, where that is asked for. `log` knows whose tasks wrote the rows.
    """

    router: Router
    upsert: bool = False
    no_merging: str = ""
    transforms: TransformedTables = field(default_factory=TransformedTables)
    deriver: Derives | None = None
    sieve: BadRowFilter | None = None
    records: BadRecords = field(default_factory=BadRecords)
    joiner: Joins | None = None
    known: RowStore | None = None
    log: TaskLog = field(default_factory=TaskLog)

    @property
    def makers(self) -> list[Derives | BadRowFilter | RowStore]:
        """Whoever makes segments."""
        return [maker for maker in (self.deriver, self.sieve, self.known) if maker is not None]


def _refuse(_manifest: Manifest, _tables: Sequence[TableId], text: str) -> None:
    raise StateError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPorts:
    """The ways in and out of an epoch loop, and the two policies that are configured: `routing` says which targets
    tables go to, `parking` which refusals do not end the run, and who is told of them (by default none is parked).

    `generation` tells the driver's own generation, which rises when its coordinator had to be replaced
    (`raycdc.state.drivers.driver_generation`). `next_sealed(after, timeout_s)` returns the first sealed epoch greater
    than `after`, or None when there was none for so long; it may raise to end the loop. `on_committed` is called after
    each record, in order, on a thread of the loop. `begin_again` asks, durably, for new snapshots of source tables
    whose rows of an epoch are gone (the text says why), or raises if that cannot be. `access` tells how segments are
    reached, as of now. `threads` are what the loop stages and commits on, and `board` shows what they are at. `copies`
    has segments whose nodes are lost. `read_by` tells whose readers sealed the epochs of a generation; None: an earlier
    run's.
    """

    generation: Callable[[], OwnGeneration]
    next_sealed: Callable[[int, float], Manifest | None]
    on_committed: Callable[[EpochStatistics], None] = lambda _: None
    begin_again: Callable[[Manifest, Sequence[TableId], str], None] = _refuse
    access: Callable[[], SegmentAccess] = lambda: HERE
    routing: Routing = field(default_factory=lambda: Routing(Router()))
    parking: ParkingPolicy = NOTHING
    threads: Threads = THREADS
    board: ActivityTracker = field(default_factory=ActivityTracker)
    copies: SegmentCopies | None = None
    read_by: Callable[[int], EngineName | None] = lambda _: None
