"""The epochs of a job that the sink does not hold yet: open, being sealed, or sealed.

Invariant: epoch numbers only grow, and no number is used twice, even if its epoch was dropped.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raycdc.model import TableId
from raycdc.source.protocol.job_status import SealTimes
from raycdc.source.protocol.source_event import EpochSealed
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import PartitionSplit
from raycdc.state.manifests.manifest import Manifest, Segment, TableEpoch
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.opaque import SealedSplit

#: The number of recent seals that are kept. Clients poll the status every half second, and far fewer epochs are sealed
#: in that time.
SEALS_KEPT = 16


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The point from which a coordinator goes on. `last` is the newest manifest, and `committed` is the newest epoch
    that the sink holds. `first_epoch` is the first unused number; numbers of dropped epochs count as used. Processes of
    generations before `generation` are fenced.
    """

    generation: int
    last: Manifest | None
    committed: int
    first_epoch: int


class SplitStates(dict[str, SealedSplit]):
    """States of unbounded splits after an epoch.

    `changes` has, for splits for which it is known, the parts of the state that changed in the epoch.
    """

    def __init__(self, states: Mapping[str, SealedSplit]) -> None:
        super().__init__(states)
        self.changes: dict[str, Patch] = {}


@dataclass(slots=True)
class Sealing:
    """An epoch that is being sealed: the readers that have still to report, and the reports so far."""

    epoch: int
    waiting: set[int]
    asked_ms: int = 0
    #: The readers that have reported, with the time in Unix milliseconds.
    reported: dict[int, int] = field(default_factory=dict)
    reports: list[EpochSealed] = field(default_factory=list)
    #: The log reader, if it died after its report and before the manifest was written. Its report counts, and the
    #: stream is given back afterwards.
    stream_lost_by: int | None = None
    #: Partition splits of readers that were lost during the seal. They are given back in the state of this manifest.
    given_up: list[tuple[int, list[PartitionSplit]]] = field(default_factory=list)

    def take(self, subtask_id: int, report: EpochSealed, *, at_ms: int) -> None:
        """Record the report of a reader."""
        self.waiting.discard(subtask_id)
        self.reported[subtask_id] = at_ms
        self.reports.append(report)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for report in self.reports for segment in report.segments)

    @property
    def tables(self) -> dict[TableId, TableEpoch]:
        return {TableId.parse(table): epoch for report in self.reports for table, epoch in report.tables.items()}

    @property
    def schemas(self) -> dict[str, SchemaDocument]:
        """Return the documents of the schemas that this epoch's reports are the first to name."""
        return {fingerprint: document for report in self.reports for fingerprint, document in report.schemas.items()}

    @property
    def watermark_ms(self) -> int | None:
        """Return the time before which all events are in the epoch: the least watermark of the readers
        that have one.
        """
        watermarks = (report.watermark_ms for report in self.reports)
        return min((watermark for watermark in watermarks if watermark is not None), default=None)

    @property
    def read_to_end(self) -> bool:
        """Return True if every reader of an unbounded split is at the end of its input."""
        ended = [report.end_of_input for report in self.reports if report.splits or report.changes]
        return bool(ended) and all(ended)

    def states_after(self, before: Mapping[str, SealedSplit]) -> SplitStates:
        """Return the states of the unbounded splits after the epoch."""
        after = SplitStates(before)
        for report in self.reports:
            after.update(report.splits)
            for split, change in report.changes.items():
                after[split] = SealedSplit.from_json(change.onto(after[split].to_json()))
            after.changes.update(report.changes)
        return after


class PendingEpochs:
    """The epochs that the sink does not hold yet; see the module's docstring."""

    def __init__(self, recovered: RecoveryPoint) -> None:
        last = recovered.last
        #: The states of the unbounded splits, as last sealed.
        self.splits: dict[str, SealedSplit] = dict(last.to_splits) if last else {}
        self.sealed = recovered.first_epoch - 1
        self.committed = recovered.committed
        #: The last epoch of the run, once it is sealed.
        self.final: int | None = None
        self.sealing: Sealing | None = None
        self.rows: Counter[TableId] = Counter()
        self.lost_values: Mapping[TableId, int] = dict(last.lost) if last else {}
        self.seals: deque[SealTimes] = deque(maxlen=SEALS_KEPT)
        self._waiting: dict[int, Manifest] = {}
        #: The spools that have the segments of each epoch.
        self._spools: dict[int, frozenset[str]] = {}

    def __repr__(self) -> str:
        return f"Epochs(sealed={self.sealed}, committed={self.committed}, sealing={self.sealing is not None})"

    @property
    def open(self) -> int:
        """Return the first epoch whose seal was not requested yet."""
        return self.sealed + (2 if self.sealing is not None else 1)

    @property
    def in_flight(self) -> int:
        """Return the number of sealed epochs that wait for the sink."""
        return len(self._waiting)

    @property
    def owing(self) -> frozenset[str]:
        """Return the spools with segments of epochs that the sink does not hold, including the epoch being sealed."""
        reported = {segment.node for segment in self.sealing.segments} if self.sealing is not None else set()
        return frozenset().union(reported, *self._spools.values())

    def adopt(self, manifest: Manifest) -> None:
        """Add a sealed epoch of an earlier generation that the driver still has to commit."""
        self._wait_for(manifest)

    def begin_seal(self, waiting: Iterable[int], *, asked_ms: int) -> Sealing:
        """Start sealing the open epoch. It is sealed once all of these `readers` have reported."""
        self.sealing = Sealing(self.sealed + 1, set(waiting), asked_ms)
        return self.sealing

    def seal(self, manifest: Manifest) -> None:
        """Note that the manifest is written. From now on the epoch is sealed."""
        self.splits = dict(manifest.to_splits)
        self.sealed = manifest.epoch
        self.lost_values = manifest.lost
        self._wait_for(manifest)
        for segment in manifest.segments:
            self.rows[segment.table] += segment.rows
        if manifest.final:
            self.final = manifest.epoch

    def commit(self, epoch: int) -> list[Manifest]:
        """Record that the sink holds everything up to `epoch`. Returns, in order, the manifests that are no longer
        needed.
        """
        self.committed = max(self.committed, epoch)
        done = [self._waiting.pop(number) for number in sorted(self._waiting) if number <= epoch]
        for manifest in done:
            del self._spools[manifest.epoch]
        return done

    def sealed_after(self, epoch: int) -> int | None:
        """Return the first sealed epoch after `epoch` that is not committed; numbers of dropped epochs are skipped."""
        return min((number for number in self._waiting if number > epoch), default=None)

    def manifest(self, epoch: int) -> Manifest | None:
        """Return the manifest of a sealed, uncommitted epoch."""
        return self._waiting.get(epoch)

    def _wait_for(self, manifest: Manifest) -> None:
        self._waiting[manifest.epoch] = manifest
        self._spools[manifest.epoch] = frozenset(segment.node for segment in manifest.segments)

    def lost_with(self, segments: Iterable[Segment]) -> dict[TableId, int]:
        """Return the total numbers of lost values by table, including those of `segments`."""
        total = dict(self.lost_values)
        for segment in segments:
            if segment.lost:
                total[segment.table] = total.get(segment.table, 0) + segment.lost
        return total
