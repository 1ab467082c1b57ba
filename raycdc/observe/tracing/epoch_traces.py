"""Makes a trace of each epoch from the reports of a run.

| span | from … to | attributes, in addition to `raycdc.epoch` |
|---|---|---|
| `epoch` | the begin of the first span below … the end of the last | `raycdc.pipeline`, `raycdc.generation`, \
`raycdc.tables`, `raycdc.table_rows` (in the same order), `raycdc.rows`, `raycdc.bytes`, `raycdc.watermark_lag_ms`, \
`raycdc.final`, `raycdc.committed`, `raycdc.read_by`, `raycdc.written_by`, `raycdc.rows_written_by` (in the same \
order) |
| … `seal` | the request to the readers … the durable manifest | |
| … … `reader` | the request … this reader's report | `raycdc.reader` |
| … `schema` | a target follows changes of its columns | `raycdc.target` |
| … `stage` | rows are written where readers of the target do not see them | `raycdc.target` of a single one, \
`raycdc.targets`, `raycdc.rows`, `raycdc.bytes` |
| … `commit` | the rows become visible in one target | `raycdc.target`, `raycdc.rows`, `raycdc.bytes` |
| … `record` | the commit record is written to the state | `raycdc.targets` |

The coordinator measures the seal, and the driver all other spans. If an earlier run or coordinator sealed the epoch,
its trace has no `seal`. An epoch that was not committed has the error of its last failed part, or the error of the run.
An epoch that parked a table has an error, too.

A trace is a tree of spans, each with its times, attributes and error, independent of any format. There are few names of
spans, so that a collector can group by them; numbers and names of tables are attributes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from raycdc.core.activity import EndedPart, Stage
from raycdc.delivery.outcomes import EpochStatistics, FollowedChange
from raycdc.observe.events import RunEvent, RunProgress
from raycdc.source.protocol.job_status import JobStatus, SealTimes
from raycdc.state.parked import ParkedTarget

Attribute = str | int | bool | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event at one moment within a span, in nanoseconds of the wall clock."""

    name: str
    at_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A period of work, in nanoseconds of the wall clock.

    `error` is the class of the error that ended it, or another word for a problem; empty if there was none.
    """

    name: str
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Attribute]
    events: tuple[SpanEvent, ...] = ()
    error: str = ""
    children: tuple[Span, ...] = ()


#: The maximum number of parts in a trace. If an epoch has more (thousands of targets), the failed and the longest parts
#: are kept.
PARTS_MAX = 500
#: The maximum number of table names in an attribute.
TABLES_MAX = 100
#: The maximum number of epochs that wait for a status of the source side, which comes twice a second.
WAITING_MAX = 1000
#: The phase of a parked table. It is also the name of the span event about the parking, and the error of a committed
#: epoch that parked a table although no part failed.
PARKED = "parked"


@dataclass(slots=True)
class _Epoch:
    """The collected parts of an epoch until its trace is made."""

    parts: list[EndedPart] = field(default_factory=list)
    left_out: int = 0
    events: list[SpanEvent] = field(default_factory=list)
    parked: bool = False
    figures: EpochStatistics | None = None
    generation: int = 0
    ended_ns: int = 0

    def add(self, part: EndedPart) -> None:
        self.parts.append(part)
        if len(self.parts) > 2 * PARTS_MAX:
            self.parts.sort(key=_weight, reverse=True)
            self.left_out += len(self.parts) - PARTS_MAX
            del self.parts[PARTS_MAX:]


class EpochTraces:
    """Makes the traces of a run; `put` gets each trace after the first status with the time of its sealing.

    `parked` are the source tables that are parked when the run begins; `keeps` decides whether a successful epoch is
    reported. Any thread may call the methods, which never raise an error or wait.
    """

    def __init__(
        self,
        pipeline: str,
        put: Callable[[Span], None],
        *,
        generation: Callable[[], int],
        parked: Collection[str] = (),
        keeps: Callable[[], bool] = lambda: True,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._pipeline = pipeline
        self._put = put
        self._generation = generation
        self._keeps, self._now_ns = keeps, now_ns
        self._lock = threading.Lock()
        self._epochs: dict[int, _Epoch] = {}
        self._seals: dict[int, SealTimes] = {}
        #: The newest epoch whose trace was made.
        self._made = 0
        #: Events of tables without a known epoch; they are added to the next trace.
        self._loose: list[SpanEvent] = []
        #: Parked tables that were already reported.
        self._reported: set[str] = set(parked)

    def __repr__(self) -> str:
        return f"EpochTraces({sorted(self._epochs)}, {len(self._seals)} seals)"

    def part(self, ended: EndedPart) -> None:
        """Add a part of an epoch that has ended (`raycdc.core.activity.ActivityTracker.on_part`)."""
        with self._lock:
            self._of(ended.part.epoch).add(ended)

    def parked(self, entries: Mapping[str, ParkedTarget]) -> None:
        """Add the parking of targets to the trace of the refused epoch; to the next trace if the epoch's trace was
        sent already.
        """
        with self._lock:
            for target, entry in sorted(entries.items()):
                self._reported.update(entry.sources)
                named: dict[str, Attribute] = {"raycdc.target": target, "raycdc.reason": str(entry.reason.value)}
                event = SpanEvent(PARKED, self._now_ns(), named)
                known = self._epochs.get(entry.epoch)
                if entry.epoch <= self._made or (known is not None and known.figures is not None):
                    self._loose.append(event)
                else:
                    # An epoch may be refused before any of its parts has begun.
                    epoch = self._of(entry.epoch)
                    epoch.events.append(event)
                    epoch.parked = True

    def committed(self, figures: EpochStatistics) -> None:
        """Note that an epoch is recorded; older epochs without a record will never get one."""
        with self._lock:
            epoch = self._of(figures.epoch)
            epoch.figures, epoch.generation, epoch.ended_ns = figures, self._generation(), self._now_ns()
            for number in [n for n, e in self._epochs.items() if n < figures.epoch and e.figures is None]:
                self._make(number, self._epochs.pop(number))
            if len(self._epochs) > WAITING_MAX:
                first = min(self._epochs)
                self._make(first, self._epochs.pop(first))

    def listen(self, event: RunEvent) -> None:
        """Handle an event of the run."""
        if isinstance(event, RunProgress):
            self.heard(event.job)

    def heard(self, status: JobStatus | None) -> None:
        """Handle a status of the source side: make the traces of recorded epochs whose seal it knows."""
        if status is None:
            return
        with self._lock:
            self._find_parked(status)
            self._seals.update({seal.epoch: seal for seal in status.seals.newest})
            for number in sorted(self._epochs):
                if self._epochs[number].figures is not None and (number in self._seals or number <= status.sealed):
                    self._make(number, self._epochs.pop(number))
            self._seals = {n: seal for n, seal in self._seals.items() if n in self._epochs or n > self._made}

    def ended(self, error: str = "") -> None:
        """Make the traces of all epochs at the end of the run; `error` is the class of the error that ended it (empty:
        none).
        """
        with self._lock:
            for number in sorted(self._epochs):
                self._make(number, self._epochs.pop(number), error)

    def _find_parked(self, status: JobStatus) -> None:
        """Note the tables that their source has parked; they are added to the next trace."""
        for table, now in status.tables.items():
            name = str(table)
            if now.progress.phase != PARKED:
                self._reported.discard(name)
            elif name not in self._reported:
                self._reported.add(name)
                self._loose.append(SpanEvent(PARKED, self._now_ns(), {"raycdc.table": name}))

    def _of(self, number: int) -> _Epoch:
        return self._epochs.setdefault(number, _Epoch())

    def _make(self, number: int, epoch: _Epoch, error: str = "") -> None:
        """Make the trace of an epoch, and call `put` with it. The caller holds the lock."""
        of = {"raycdc.epoch": number}
        self._made = max(self._made, number)
        children = [self._sealed(seal, of)] if (seal := self._seals.pop(number, None)) is not None else []
        parts = sorted(epoch.parts, key=lambda part: part.began_ns)
        children += [Span(p.stage.value, p.began_ns, p.ended_ns, _about(p) | of, error=p.error) for p in parts]
        if not children:
            self._loose += epoch.events
            return
        if epoch.figures is not None:
            error = PARKED if epoch.parked or self._loose else ""
        if epoch.figures is None or error:
            error = next((part.error for part in reversed(parts) if part.error), error)
        if not error and not self._keeps():
            return
        events = [*epoch.events, *self._loose]
        self._loose.clear()
        attributes: dict[str, Attribute] = {
            **of,
            "raycdc.pipeline": self._pipeline,
            "raycdc.generation": epoch.generation or self._generation(),
            "raycdc.committed": epoch.figures is not None,
        }
        if epoch.left_out:
            attributes["raycdc.parts_left_out"] = epoch.left_out
        if epoch.figures is not None:
            attributes |= _figures(epoch.figures)
            events += [_changed(change, epoch.ended_ns) for change in epoch.figures.schema_changes]
        began_ns = min(child.began_ns for child in children)
        ended_ns = max(epoch.ended_ns, *(child.ended_ns for child in children))
        self._put(Span("epoch", began_ns, ended_ns, attributes, tuple(events), error, tuple(children)))

    def _sealed(self, seal: SealTimes, of: Mapping[str, Attribute]) -> Span:
        asked_ns = _ns(seal.asked_ms)
        readers = tuple(
            Span("reader", asked_ns, _ns(at_ms), {**of, "raycdc.reader": reader})
            for reader, at_ms in sorted(seal.reported_ms.items())
        )
        return Span("seal", asked_ns, _ns(seal.sealed_ms), of, children=readers)


def _weight(part: EndedPart) -> tuple[bool, int]:
    return bool(part.error), part.ended_ns - part.began_ns


def _ns(ms: int) -> int:
    return ms * 1_000_000


def _about(part: EndedPart) -> dict[str, Attribute]:
    """Return the attributes of a part of an epoch."""
    # Targets that are staged together have no single name; their `table` is a description for people.
    about: dict[str, Attribute] = {"raycdc.target": part.table} if part.table and part.part.targets == 1 else {}
    if part.stage in (Stage.STAGE, Stage.RECORD):
        about["raycdc.targets"] = part.part.targets
    if part.stage in (Stage.STAGE, Stage.COMMIT):
        about |= {"raycdc.rows": part.part.rows, "raycdc.bytes": part.part.bytes}
    return about


def _figures(figures: EpochStatistics) -> dict[str, Attribute]:
    largest = sorted(figures.tables, key=lambda table: (-figures.tables[table], table))[:TABLES_MAX]
    found: dict[str, Attribute] = {
        "raycdc.tables": tuple(largest),
        "raycdc.table_rows": tuple(figures.tables[table] for table in largest),
        "raycdc.rows": figures.rows,
        "raycdc.bytes": figures.bytes,
        "raycdc.final": figures.final,
    }
    if read := figures.engines.read:
        found["raycdc.read_by"] = tuple(map(str, read))
    if written := figures.engines.written:
        found["raycdc.written_by"] = tuple(map(str, written))
        found["raycdc.rows_written_by"] = tuple(written.values())
    if len(figures.tables) > TABLES_MAX:
        found["raycdc.tables_left_out"] = len(figures.tables) - TABLES_MAX
    if figures.watermark_ms is not None:
        found["raycdc.watermark_lag_ms"] = figures.committed_ms - figures.watermark_ms
    return found


def _changed(change: FollowedChange, at_ns: int) -> SpanEvent:
    named: dict[str, Attribute] = {"raycdc.table": change.table, "raycdc.target": change.target}
    return SpanEvent("schema changed", at_ns, named | {"raycdc.changes": change.changes})
