"""Where the input of a bounded run ends."""

from __future__ import annotations

from collections.abc import Callable

from raycdc.model.until import Until


class RunEnd:
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
