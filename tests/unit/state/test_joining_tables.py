"""A table that comes to a parked target later: it waits with the others, and begins with the first of them."""

from __future__ import annotations

from raycdc.errors import ParkReason
from raycdc.model import TableId
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.opaque import EnumeratorState, SealedSplit
from raycdc.state.parked import ParkedTarget

ONE, TWO, LATER = (TableId("shop", name) for name in ("one", "two", "later"))


def manifest(epoch: int, **incarnations: int) -> Manifest:
    tables = {f"shop.{name}": {"incarnation": number} for name, number in incarnations.items()}
    stream = SealedSplit.from_json({"tables": tables})
    return Manifest(epoch, 1, 0, {}, {STREAM_SPLIT_ID: stream}, EnumeratorState.from_json({}))


def parked(**sources: int) -> ParkedTarget:
    numbers = {f"shop.{name}": number for name, number in sources.items()}
    return ParkedTarget(4, None, ParkReason.MISSING, "It is gone.", 0, numbers)


def test_it_waits_while_the_target_holds_what_it_held() -> None:
    entry = parked(one=3, two=3)
    still = manifest(5, one=3, two=3, later=5)
    assert entry.waits(LATER, still)
    left = entry.after(still, [LATER])
    assert left is not None
    assert left.sources == {"shop.one": 3, "shop.two": 3, "shop.later": 5}


def test_it_begins_in_the_epoch_in_which_the_target_is_emptied() -> None:
    entry = parked(one=3, two=3)
    first = manifest(5, one=6, two=3, later=7)
    assert [entry.waits(table, first) for table in (ONE, TWO, LATER)] == [False, True, False]
    left = entry.after(first, [ONE, TWO, LATER])
    assert left is not None
    assert (left.sources, left.begun) == ({"shop.two": 3}, True)
    second = manifest(6, one=6, two=8, later=7)
    assert left.after(second, [ONE, TWO, LATER]) is None
