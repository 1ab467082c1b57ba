"""Each phase of a table is told once, and a snapshot when the sink has it."""

from __future__ import annotations

from raycdc.errors import ParkReason
from raycdc.model import TableId
from raycdc.observe.events import SnapshotDone, SnapshotsDone, TablePhaseChanged
from raycdc.observe.watch.run_reports import PhaseEvent, PhaseReporter
from raycdc.source.protocol.api import SnapshotAmount, TableCounts, TableProgress
from raycdc.source.protocol.job_status import JobStatus, Seals, SealStatus, TableStatus
from raycdc.state.parked import ParkedTarget

AMOUNT = SnapshotAmount(rows=10, bytes=100)


def status(*, sealed: int, committed: int, sealing: int = 0, chunks_out: int = 0, **phases: str) -> JobStatus:
    tables = {TableId("shop", name): TableStatus(TableProgress(word, amount=AMOUNT)) for name, word in phases.items()}
    counts = TableCounts(len(phases), [*phases.values()].count("snapshot"), chunks_out=chunks_out)
    under_way = SealStatus(sealing, (0,)) if sealing else None
    return JobStatus(1, sealed, committed, tables=tables, counts=counts, seals=Seals(under_way))


def test_a_snapshot_is_done_when_the_epoch_that_may_have_its_last_chunk_is_in_the_sink() -> None:
    told: list[PhaseEvent] = []
    lives = PhaseReporter({}, told.append)
    lives.heard(None)
    lives.heard(status(sealed=1, committed=1, a="snapshot", b="snapshot"))
    lives.heard(status(sealed=2, committed=1, sealing=3, a="stream", b="snapshot"))
    assert told == [TablePhaseChanged("shop.a", "snapshot", "stream")]
    lives.heard(status(sealed=3, committed=3, sealing=4, a="stream", b="snapshot"))
    assert told[1:] == []
    lives.heard(status(sealed=4, committed=4, sealing=5, a="stream", b="stream"))
    assert told[1:] == [TablePhaseChanged("shop.b", "snapshot", "stream"), SnapshotDone("shop.a", 10)]
    lives.heard(status(sealed=5, committed=5, a="stream", b="stream"))
    lives.heard(status(sealed=6, committed=6, a="stream", b="stream"))
    assert told[3:] == [SnapshotDone("shop.b", 10), SnapshotsDone(2)]


def test_a_table_that_the_state_had_is_not_told_of_again_and_one_too_quick_to_be_seen_is() -> None:
    told: list[PhaseEvent] = []
    lives = PhaseReporter({"shop.a": "stream"}, told.append)
    lives.heard(status(sealed=1, committed=0, a="stream", b="stream"))
    assert told == []
    lives.ended()
    assert told == [SnapshotDone("shop.b", 10), SnapshotsDone(1)]


def test_no_snapshot_is_said_to_be_in_a_target_where_its_table_is_parked() -> None:
    told: list[PhaseEvent] = []
    lives = PhaseReporter({"shop.old": "stream"}, told.append, refused=["shop.old"])
    lives.heard(status(sealed=1, committed=1, a="snapshot", b="snapshot", old="snapshot"))
    # All chunks are out, and then the source cannot follow `a`, and a target refuses rows of `b`.
    lives.heard(status(sealed=1, committed=1, sealing=2, a="stream", b="stream", old="snapshot"))
    lives.parked({"lake.b": refusing("shop.b")})
    lives.heard(status(sealed=2, committed=2, sealing=3, a="parked", b="stream", old="snapshot"))
    lives.heard(status(sealed=3, committed=3, sealing=4, a="parked", b="parked", old="stream"))
    # A table that was refused is told of when it was read anew.
    lives.heard(status(sealed=4, committed=4, a="parked", b="snapshot", old="stream"))
    lives.heard(status(sealed=5, committed=5, a="parked", b="stream", old="stream"))
    lives.heard(status(sealed=6, committed=6, a="parked", b="stream", old="stream"))
    done = [one for one in told if not isinstance(one, TablePhaseChanged)]
    assert done == [SnapshotDone("shop.old", 10), SnapshotDone("shop.b", 10), SnapshotsDone(2)]


def test_an_empty_table_whose_target_is_refused_is_never_done() -> None:
    told: list[PhaseEvent] = []
    lives = PhaseReporter({}, told.append)
    # The chunk without rows is published, and its target is still to be made.
    lives.heard(status(sealed=0, committed=0, chunks_out=1, a="stream"))
    lives.heard(status(sealed=1, committed=0, a="stream"))
    lives.parked({"lake.a": refusing("shop.a")})
    lives.heard(status(sealed=1, committed=1, a="stream"))
    lives.heard(status(sealed=2, committed=2, a="parked"))
    assert told == [TablePhaseChanged("shop.a", "stream", "parked")]


def test_a_table_that_is_refused_before_its_first_status_is_heard_is_not_done() -> None:
    told: list[PhaseEvent] = []
    lives = PhaseReporter({}, told.append)
    lives.parked({"lake.a": refusing("shop.a")})
    lives.heard(status(sealed=0, committed=0, a="snapshot"))
    lives.heard(status(sealed=1, committed=1, a="stream"))
    lives.heard(status(sealed=2, committed=2, a="parked"))
    assert [one for one in told if not isinstance(one, TablePhaseChanged)] == []


def refusing(source: str) -> ParkedTarget:
    return ParkedTarget(2, None, ParkReason.VALUE, "too long", 0, {source: 0})


def test_a_table_that_begins_again_in_between_is_not_done() -> None:
    told: list[PhaseEvent] = []
    lives = PhaseReporter({"shop.a": "snapshot"}, told.append)
    for phase in ("stream", "parked", "snapshot"):
        lives.heard(status(sealed=2, committed=1, a=phase))
    lives.ended()
    assert [type(one) for one in told] == [TablePhaseChanged] * 3
