"""The placement of a job's stream split: the reader that has the split, or the reason why the split waits. Owned by the
enumerator.

| placement | meaning | next |
|---|---|---|
| `NoStream` | the start is not known yet | `LocatedStream` at the start point |
| `SealedStreamSplit` | its position may be of another server | `LocatingStream`; `OwnedStream` if servers cannot \
change |
| `LocatingStream` | the present server was asked for the position | `LocatedStream`, there |
| `LocatedStream` | its position is valid, and it waits for a reader | `OwnedStream` |
| `OwnedStream` | a reader has it, and may know its end | `SealedStreamSplit` when that reader is lost |

`RunEndPosition` is the end of the input of a bounded run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from raycdc.model.rules.rate_limit import Until
from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.snapshot.chunk_events import LogEvent, StopAt
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect, ResumePoint
from raycdc.source.split import StreamSplit


class RunEndPosition:
    """The log position at which a bounded run ends. It is the end of the log when the run began, or the H of the last
    chunk if that is later. `until` is None for a run that goes on until it is stopped. A run for the snapshot alone
    ends at the H of its last chunk.
    """

    def __init__(self, until: Until | None, *, high: int, on_known: Callable[[], None]) -> None:
        """`high` is the greatest H of earlier chunks.

        `on_known` is called when the source has returned the log's end.
        """
        self._on_known = on_known
        self._until = until
        self._begun_at: int | None = None if self.asks_for_the_end else 0
        self._relocated = False
        self.high = high

    def __repr__(self) -> str:
        return f"RunEnd({self._until}, begun_at={self._begun_at}, high={self.high})"

    @property
    def asks_for_the_end(self) -> bool:
        """Return True if the source must be asked for the present end of the log."""
        return self._until is Until.CAUGHT_UP

    @property
    def ordinal(self) -> int | None:
        """Return the ordinal to stop at; None if the run goes on, or the ordinal is not known yet."""
        if self._until is None or self._begun_at is None:
            return None
        return max(self._begun_at, self.high)

    def began_at(self, ordinal: int) -> None:
        """Record that the log ended at `ordinal`. The answer of a replaced server is ignored."""
        if not self._relocated:
            self._begun_at = ordinal
            self._on_known()

    def saw(self, high: int) -> None:
        """Move the end: a chunk saw rows up to `high`."""
        self.high = max(self.high, high)

    def at_another_server(self, end: int) -> None:
        """Use the positions of another server, whose log now ends at `end`."""
        self._relocated, self.high = True, 0
        if self.asks_for_the_end:
            self._begun_at = end


@dataclass(frozen=True, slots=True)
class NoStream:
    """There is no stream split yet."""


@dataclass(frozen=True, slots=True)
class SealedStreamSplit:
    """The split as last sealed by a lost reader, or by an earlier run."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class LocatingStream:
    """The source is being asked for the position of the split at the present server."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class LocatedStream:
    """The split's position is valid, so the split may be given to a reader."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class OwnedStream:
    """`reader` has the split, which had the state `split` when the reader got it. `stop_requested` is True if the
    reader was given an end position that is still valid.
    """

    split: StreamSplit
    reader: int
    stop_requested: bool = False


Placement = NoStream | SealedStreamSplit | LocatingStream | LocatedStream | OwnedStream


class StreamAssignment:
    """Gives the stream split to one reader at a time, finds the split's position, and sends its reader the end
    position. `on_placement` is called when an answer of the source has made the split ready to be assigned.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        end: RunEndPosition,
        *,
        on_placement: Callable[[], None],
    ) -> None:
        self._context, self._dialect, self._end = context, dialect, end
        self._on_placement = on_placement
        self._placement: Placement = NoStream()

    def __repr__(self) -> str:
        return f"StreamAssignment({self._placement})"

    @property
    def reader(self) -> int | None:
        """Return the reader of the stream split, or None."""
        return self._placement.reader if isinstance(self._placement, OwnedStream) else None

    def begin(self, split: StreamSplit) -> None:
        """Place a new stream split, because the start point is known."""
        self._placement = LocatedStream(split)

    def take_back(self, split: StreamSplit) -> None:
        """Return take back the split as last sealed by a lost reader, or by an earlier run."""
        self._placement = SealedStreamSplit(split)

    def change(self, change: Callable[[StreamSplit], StreamSplit]) -> None:
        """Change the split if no reader has it. If a reader has the split, the caller must notify that reader by an
        event instead.
        """
        if isinstance(self._placement, SealedStreamSplit | LocatingStream | LocatedStream):
            self._placement = replace(self._placement, split=change(self._placement.split))

    def give(self) -> None:
        """Give the split to a registered reader, if the split waits for one."""
        if isinstance(self._placement, NoStream | LocatingStream | OwnedStream):
            return  # The usual case, without a search through all readers.
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
        """Send the event to the log reader, if there is one."""
        if self.reader is not None:
            self._context.send_event(self.reader, event)

    def stop(self, *, changes: int) -> None:
        """Send the end of a bounded run to the log reader, once and if it is known."""
        ordinal = self._end.ordinal
        if ordinal is not None and isinstance(self._placement, OwnedStream) and not self._placement.stop_requested:
            self._placement = replace(self._placement, stop_requested=True)
            self.send(StopAt(ordinal, changes))

    def stop_no_more(self) -> None:
        """Withdraw the end that the log reader was given, because a table has more to read."""
        if isinstance(self._placement, OwnedStream):
            self._placement = replace(self._placement, stop_requested=False)

    def _on_resume_point(self, point: ResumePoint | None) -> None:
        """Move the split to the new server's position. Values that are compared with positions of the old server are
        dropped.
        """
        assert isinstance(self._placement, LocatingStream), f"{self._placement} was not asked for"
        split = self._placement.split
        if point is not None:
            split = replace(split, state=split.state.elsewhere(point.position, point.ordinal))
            self._end.at_another_server(point.end)
        self._placement = LocatedStream(split)
        self._on_placement()
