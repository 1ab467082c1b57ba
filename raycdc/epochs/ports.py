"""The surroundings that an epoch loop needs: a driver's, those of `check`, or a test's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from raycdc.bridge.access import HERE, SegmentAccess
from raycdc.bridge.copies import SegmentCopies
from raycdc.checkpoint.generations import OwnGeneration
from raycdc.checkpoint.manifest import Manifest
from raycdc.epochs.outcomes import EpochStatistics
from raycdc.epochs.parked_targets import NOTHING, Parking
from raycdc.epochs.routing import Routing
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.model.routes import Router
from raycdc.threads import THREADS, Threads
from raycdc.waiting.stages import Board


def _refuse(_manifest: Manifest, _tables: Sequence[TableId], text: str) -> None:
    raise StateError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPorts:
    """The ways in and out of an epoch loop, and the two policies that are configured: `routing` says which targets
    tables go to, `parking` which refusals do not end the run, and who is told of them (by default none is parked).

    `generation` tells the driver's own generation, which rises when its coordinator had to be replaced
    (`raycdc.checkpoint.term`). `next_sealed(after, timeout_s)` returns the first sealed epoch greater than `after`, or
    None when there was none for so long; it may raise to end the loop. `on_committed` is called after each record, in
    order, on a thread of the loop. `begin_again` asks, durably, for new snapshots of source tables whose rows of an
    epoch are gone (the text says why), or raises if that cannot be. `access` tells how segments are reached, as of now.
    `threads` are what the loop stages and commits on, and `board` shows what they are at. `copies` has
    segments whose nodes are lost.
    """

    generation: Callable[[], OwnGeneration]
    next_sealed: Callable[[int, float], Manifest | None]
    on_committed: Callable[[EpochStatistics], None] = lambda _: None
    begin_again: Callable[[Manifest, Sequence[TableId], str], None] = _refuse
    access: Callable[[], SegmentAccess] = lambda: HERE
    routing: Routing = field(default_factory=lambda: Routing(Router()))
    parking: Parking = NOTHING
    threads: Threads = THREADS
    board: Board = field(default_factory=Board)
    copies: SegmentCopies | None = None
