"""When a reader tells the coordinator how it is, and with which figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from raycdc.runtime.stopwatch import Stopwatch
from raycdc.source.protocol.api import SourceReader
from raycdc.source.protocol.metrics import CutProgress, ProcessMetrics
from raycdc.source.protocol.pace import PaceDemand
from raycdc.source.protocol.source_event import Heartbeat
from raycdc.waiting.stages import Board

#: A reader that has nothing to say still speaks this often, so that the coordinator knows it lives and how much it has
#: read. News that decide about sealing are told at once; each call costs both sides about a millisecond.
HEARTBEAT_S = 0.25
#: The longest pause between two, which a coordinator that is asked by very many readers leads to: it takes a reader for
#: dead after four times as long.
HEARTBEAT_MAX_S = 2.5
#: A reader is in a call for a heartbeat for at most a tenth of its time.
_PAUSES_PER_CALL = 10


def pause_s(took_s: float) -> float:
    """How long to wait after a heartbeat whose call took so long: the more readers ask, the less often each does."""
    return min(max(HEARTBEAT_S, took_s * _PAUSES_PER_CALL), HEARTBEAT_MAX_S)


class Heartbeats:
    """See the module's docstring. `statistics` are the source's own, `demand` is the one of its budget. Owned by the
    reader's thread.
    """

    def __init__(
        self,
        stopwatch: Stopwatch,
        board: Board,
        statistics: Callable[[], Mapping[str, Mapping[str, int]]],
        demand: Callable[[], PaceDemand | None],
    ) -> None:
        self._board = board
        self._demand = demand
        self._stopwatch = stopwatch
        self._statistics = statistics
        self._told = Heartbeat()
        self._told_matters: tuple[bool, bool] | None = None
        #: When the next one is due even if nothing has changed.
        self.due_s = 0.0

    def of(self, reader: SourceReader, *, now_s: float) -> Heartbeat | None:
        """The heartbeat to send now; None while none is due and nothing changed that decides about sealing."""
        matters = reader.seal_matters
        if now_s < self.due_s and matters == self._told_matters:
            return None
        board = self._board
        process = ProcessMetrics(
            self._stopwatch.seconds(), self._statistics(), standing=board.standing(), moves=board.moves
        )
        self._told_matters = matters
        self._told = replace(reader.heartbeat(), process=process, pace=self._demand())
        self.due_s = now_s + HEARTBEAT_S
        return self._told

    def took(self, seconds: float, *, now_s: float) -> None:
        """The call that the last one left with took so long."""
        self.due_s = max(self.due_s, now_s + pause_s(seconds))

    def of_cut(self, progress: CutProgress, *, now_s: float) -> Heartbeat | None:
        """The same in the middle of a cut, which may take minutes on a slow disk.

        It repeats the figures that were told last, and adds the cut's progress.
        """
        if now_s < self.due_s:
            return None
        self.due_s = now_s + HEARTBEAT_S
        return replace(self._told, process=replace(self._told.process, sealing=progress))
