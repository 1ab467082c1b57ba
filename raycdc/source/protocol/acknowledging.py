"""Telling a source what the sink holds: one call at a time, the newest positions, never ahead of a commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raycdc.checkpoint.opaque import Position, SealedSplit, positions_in
from raycdc.errors import RaycdcError

#: ``(call, handler, after_s)``: run `call` elsewhere, give its result to `handler` on the coordinator's thread.
CallAsync = Callable[[Callable[[], Any], Callable[[Any], None], float], None]


class Acknowledgements:
    """Between the coordinator and `raycdc.source.connector.Source.acknowledge`. Single-threaded, never blocks.

    Commits that come while a call is under way are told by the next one, in which the later stand for the earlier.
    """

    def __init__(self, acknowledge: Callable[[Mapping[str, Position]], None], call_async: CallAsync) -> None:
        self._acknowledge = acknowledge
        self._call_async = call_async
        self._positions: Mapping[str, Position] | None = None
        self._under_way = False
        #: The error of the last call, for people; empty when it succeeded.
        self.problems: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Acknowledgements(idle={self.idle})"

    @property
    def idle(self) -> bool:
        """Whether the source has heard of every commit, or could not be told."""
        return not self._under_way and self._positions is None

    def committed(self, splits: Mapping[str, SealedSplit]) -> None:
        """The sink holds an epoch; `splits` are the unbounded splits' states in its manifest."""
        positions = positions_in(splits)
        if positions:
            self._positions = positions
            self._tell()

    def _tell(self) -> None:
        if self._under_way or self._positions is None:
            return
        positions, self._positions = self._positions, None
        self._under_way = True
        self._call_async(lambda: self._problem_of(positions), self._told, 0.0)

    def _problem_of(self, positions: Mapping[str, Position]) -> str:
        try:
            self._acknowledge(positions)
        except RaycdcError as error:
            return str(error)
        return ""

    def _told(self, problem: str) -> None:
        self._under_way = False
        self.problems = {"acknowledge": problem} if problem else {}
        self._tell()


def told_nobody() -> Acknowledgements:
    """Those of a source that has no use for them."""
    return Acknowledgements(lambda _: None, lambda call, handler, _: handler(call()))
