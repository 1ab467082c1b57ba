"""Where a log reader stands in its log."""

from __future__ import annotations

from raycdc.source.snapshot.log_unit import LogPlace
from raycdc.source.snapshot.stream_state import StreamState


class LogCursor:
    """The place behind the last unit that was passed on.

    Inside a transaction, position and ordinal are those of the last boundary, because a state can name no other place.
    """

    def __init__(self, state: StreamState) -> None:
        self.position, self.ordinal = state.position, state.ordinal
        #: The source's own notes, passed through; states that were written before there was any have none.
        self.notes = state.notes
        self.in_transaction = False
        #: Commit time of the last event, and of the last one behind which no transaction is open.
        self.event_ms: int | None = None
        self.watermark_ms: int | None = None
        #: Whether the place is another one than at the last cut.
        self.moved = False

    def __repr__(self) -> str:
        return f"LogCursor({self.ordinal}, in_transaction={self.in_transaction})"

    def move(self, place: LogPlace, *, in_transaction: bool) -> None:
        """A unit was passed on, and left a transaction open or not."""
        self.in_transaction = in_transaction
        self.moved = self.moved or place.ordinal != self.ordinal
        self.position, self.ordinal = place.position, place.ordinal
        if place.notes is not None:
            self.notes = place.notes
        if place.event_ms is not None:
            self.event_ms = place.event_ms
            if not in_transaction:
                self.watermark_ms = place.event_ms
