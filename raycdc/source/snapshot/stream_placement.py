"""Where the stream split of a job is: with which reader, or for whom it waits. Held by the enumerator.

| placement | means | then |
|---|---|---|
| `NoStream` | nobody knows yet where to begin | `Placed` at the start point |
| `Unplaced` | its position may be of another server than the one that answers now | `Placing`; `Owned` where none is |
| `Placing` | the server that answers was asked for the place | `Placed`, there |
| `Placed` | its position is good, and it waits for a reader | `Owned` |
| `Owned` | a reader has it, and may have been told where to stop | `Unplaced` when that reader is lost |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.snapshot.chunk_events import LogEvent, StopAt
from raycdc.source.snapshot.run_end import RunEnd
from raycdc.source.snapshot.snapshot_plan import EnumeratorDialect, ResumePoint
from raycdc.source.split import StreamSplit


@dataclass(frozen=True, slots=True)
class NoStream:
    """There is no stream split yet."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The split as it was sealed last, by a reader that is lost or an earlier run."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class Placing:
    """The answer tells where the split goes on."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class Placed:
    """The split may be given away as it is."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class Owned:
    """`reader` has it since it was `split`; `told_to_stop`: the end that it knows still holds."""

    split: StreamSplit
    reader: int
    told_to_stop: bool = False


Placement = NoStream | Unplaced | Placing | Placed | Owned


class StreamAssignment:
    """Gives the stream split to one reader at a time, asks where it goes on, and tells its reader where to stop.

    `on_placed` hears when an answer of the source let the split go on.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        end: RunEnd,
        *,
        on_placed: Callable[[], None],
    ) -> None:
        self._context, self._dialect, self._end = context, dialect, end
        self._on_placed = on_placed
        self._placement: Placement = NoStream()

    def __repr__(self) -> str:
        return f"StreamAssignment({self._placement})"

    @property
    def reader(self) -> int | None:
        """Who has the stream split."""
        return self._placement.reader if isinstance(self._placement, Owned) else None

    def begin(self, split: StreamSplit) -> None:
        """The start point is known."""
        self._placement = Placed(split)

    def take_back(self, split: StreamSplit) -> None:
        """The split as it was sealed last, by a reader that is lost or an earlier run."""
        self._placement = Unplaced(split)

    def change(self, change: Callable[[StreamSplit], StreamSplit]) -> None:
        """Change the split where no reader has it; one that has it is told by an event."""
        if isinstance(self._placement, Unplaced | Placing | Placed):
            self._placement = replace(self._placement, split=change(self._placement.split))

    def give(self) -> None:
        """Give the split to a reader, if it waits for one."""
        if isinstance(self._placement, NoStream | Placing | Owned):
            return  # So it is nearly always: nobody looks at all readers for that.
        readers = self._context.registered_readers()
        match self._placement:
            case Unplaced(split) if (failover := self._dialect.failover) is not None and readers:
                self._placement = Placing(split)
                resume_point = partial(failover.resume_point, split.state.position)
                self._context.call_async(resume_point, self._on_resume_point)
            case Unplaced(split) | Placed(split) if readers:
                self._placement = Owned(split, min(readers))
                self._context.assign_splits({min(readers): [split]})
            case Unplaced() | Placed():
                return  # The first reader that registers gets it.
            case _:
                assert_never(self._placement)

    def send(self, event: LogEvent) -> None:
        """Tell the log reader, if there is one."""
        if self.reader is not None:
            self._context.send_event(self.reader, event)

    def stop(self, *, changes: int) -> None:
        """Tell the log reader once where a bounded run ends, if that is known."""
        place = self._end.place
        if place is not None and isinstance(self._placement, Owned) and not self._placement.told_to_stop:
            self._placement = replace(self._placement, told_to_stop=True)
            self.send(StopAt(place, changes))

    def stop_no_more(self) -> None:
        """A table has more to read: the end that the log reader was told does not hold any more."""
        if isinstance(self._placement, Owned):
            self._placement = replace(self._placement, told_to_stop=False)

    def _on_resume_point(self, point: ResumePoint | None) -> None:
        """Another server's positions begin anew: what was compared with the old one's is of no use any more."""
        assert isinstance(self._placement, Placing), f"{self._placement} was not asked for"
        split = self._placement.split
        if point is not None:
            split = replace(split, state=split.state.elsewhere(point.position, point.ordinal))
            self._end.at_another_server(point.end)
        self._placement = Placed(split)
        self._on_placed()
