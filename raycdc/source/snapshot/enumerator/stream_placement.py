"""Where the stream split of a job is: with which reader, or for whom it waits. Held by the enumerator.

| placement | means | then |
|---|---|---|
| `NoStream` | nobody knows yet where to begin | `LocatedStream` at the start point |
| `SealedStreamSplit` | its position may be of another server | `LocatingStream`; `OwnedStream` where none is |
| `LocatingStream` | the server that answers was asked for the place | `LocatedStream`, there |
| `LocatedStream` | its position is good, and it waits for a reader | `OwnedStream` |
| `OwnedStream` | a reader has it, and may have been told where to stop | `SealedStreamSplit` when that reader is lost |

Where the input of a bounded run ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from raycdc.model.rules.until import Until
from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.snapshot.chunk_events import LogEvent, StopAt
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect, ResumePoint
from raycdc.source.split import StreamSplit


class RunEndPosition:
    """The log's end when the run began, and in any case behind all that chunks have seen.

    `until` is None for a run that goes on; one until the snapshot ends with the last chunk.
    """

    def __init__(self, until: Until | None, *, high: int, on_known: Callable[[], None]) -> None:
        """`high` is the greatest H of the chunks before; `on_known` hears when the source has told the log's end."""
        self._on_known = on_known
        self._until = until
        self._begun_at: int | None = None if self.asks_for_the_end else 0
        self._relocated = False
        self.high = high

    def __repr__(self) -> str:
        return f"RunEnd({self._until}, begun_at={self._begun_at}, high={self.high})"

    @property
    def asks_for_the_end(self) -> bool:
        """Whether the source must say where the log ends now."""
        return self._until is Until.CAUGHT_UP

    @property
    def place(self) -> int | None:
        """The ordinal to stop at; None where the run goes on, or while nobody knows."""
        if self._until is None or self._begun_at is None:
            return None
        return max(self._begun_at, self.high)

    def began_at(self, ordinal: int) -> None:
        """The log ended there; an answer of a server that does not serve any more says nothing."""
        if not self._relocated:
            self._begun_at = ordinal
            self._on_known()

    def saw(self, high: int) -> None:
        """A chunk saw no row after `high`."""
        self.high = max(self.high, high)

    def at_another_server(self, end: int) -> None:
        """Positions begin anew, at a server whose log ends at `end` now."""
        self._relocated, self.high = True, 0
        if self.asks_for_the_end:
            self._begun_at = end


@dataclass(frozen=True, slots=True)
class NoStream:
    """There is no stream split yet."""


@dataclass(frozen=True, slots=True)
class SealedStreamSplit:
    """The split as it was sealed last, by a reader that is lost or an earlier run."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class LocatingStream:
    """The answer tells where the split goes on."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class LocatedStream:
    """The split may be given away as it is."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class OwnedStream:
    """`reader` has it since it was `split`; `told_to_stop`: the end that it knows still holds."""

    split: StreamSplit
    reader: int
    told_to_stop: bool = False


Placement = NoStream | SealedStreamSplit | LocatingStream | LocatedStream | OwnedStream


class StreamAssignment:
    """Gives the stream split to one reader at a time, asks where it goes on, and tells its reader where to stop.

    `on_placed` hears when an answer of the source let the split go on.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        end: RunEndPosition,
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
        return self._placement.reader if isinstance(self._placement, OwnedStream) else None

    def begin(self, split: StreamSplit) -> None:
        """The start point is known."""
        self._placement = LocatedStream(split)

    def take_back(self, split: StreamSplit) -> None:
        """The split as it was sealed last, by a reader that is lost or an earlier run."""
        self._placement = SealedStreamSplit(split)

    def change(self, change: Callable[[StreamSplit], StreamSplit]) -> None:
        """Change the split where no reader has it; one that has it is told by an event."""
        if isinstance(self._placement, SealedStreamSplit | LocatingStream | LocatedStream):
            self._placement = replace(self._placement, split=change(self._placement.split))

    def give(self) -> None:
        """Give the split to a reader, if it waits for one."""
        if isinstance(self._placement, NoStream | LocatingStream | OwnedStream):
            return  # So it is nearly always: nobody looks at all readers for that.
        readers = self._context.registered_readers()
        match self._placement:
            case SealedStreamSplit(split) if (failover := self._dialect.failover) is not None and readers:
                self._placement = LocatingStream(split)
                resume_point = partial(failover.resume_point, split.state.position)
                self._context.call_async(resume_point, self._on_resume_point)
            case SealedStreamSplit(split) | LocatedStream(split) if readers:
                self._placement = OwnedStream(split, min(readers))
                self._context.assign_splits({min(readers): [split]})
            case SealedStreamSplit() | LocatedStream():
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
        if place is not None and isinstance(self._placement, OwnedStream) and not self._placement.told_to_stop:
            self._placement = replace(self._placement, told_to_stop=True)
            self.send(StopAt(place, changes))

    def stop_no_more(self) -> None:
        """A table has more to read: the end that the log reader was told does not hold any more."""
        if isinstance(self._placement, OwnedStream):
            self._placement = replace(self._placement, told_to_stop=False)

    def _on_resume_point(self, point: ResumePoint | None) -> None:
        """Another server's positions begin anew: what was compared with the old one's is of no use any more."""
        assert isinstance(self._placement, LocatingStream), f"{self._placement} was not asked for"
        split = self._placement.split
        if point is not None:
            split = replace(split, state=split.state.elsewhere(point.position, point.ordinal))
            self._end.at_another_server(point.end)
        self._placement = LocatedStream(split)
        self._on_placed()
