"""From the parts of epochs, their seals and their figures to one trace of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from raycdc.core.activity import ActivityTracker, EndedPart, EpochPart, Stage
from raycdc.delivery.outcomes import EpochStatistics, FollowedChange
from raycdc.errors import ParkReason
from raycdc.model import TableId
from raycdc.model.engines import EngineName, EngineRows
from raycdc.observe.tracing import epoch_traces
from raycdc.observe.tracing.epoch_traces import Attribute, EpochTraces, Span, SpanEvent
from raycdc.source.protocol.api import TableProgress
from raycdc.source.protocol.job_status import JobStatus, Seals, SealTimes, TableStatus
from raycdc.state.parked import ParkedTarget
from tests.support.clocks import ManualClock

MS = 1_000_000
ORDERS = "shop.orders"

Attributes = dict[str, Attribute]


class TracedEpochs:
    """Traces that are made at once, by a clock that says `now_ms`."""

    def __init__(self, keeps: Callable[[], bool] = lambda: True, parked: tuple[str, ...] = ()) -> None:
        self.now_ms = 1000
        self.made: list[Span] = []
        self.traces = EpochTraces(
            "shop",
            self.made.append,
            generation=lambda: 7,
            parked=parked,
            keeps=keeps,
            now_ns=lambda: self.now_ms * MS,
        )

    def part(self, epoch: int, stage: Stage, began_ms: int, ended_ms: int, error: str = "", rows: int = 3) -> None:
        part = EpochPart(epoch, rows, 10 * rows)
        self.traces.part(EndedPart(part, stage, ORDERS, began_ms * MS, ended_ms * MS, error))

    def committed(self, epoch: int, changes: tuple[FollowedChange, ...] = ()) -> None:
        self.traces.committed(figures(epoch, changes))

    def heard(self, sealed: int, *seals: SealTimes, phase: str = "stream") -> None:
        tables = {TableId.parse(ORDERS): TableStatus(TableProgress(phase))}
        self.traces.heard(JobStatus(1, sealed, 0, tables=tables, seals=Seals(newest=seals)))


def figures(epoch: int, changes: tuple[FollowedChange, ...] = ()) -> EpochStatistics:
    return EpochStatistics(
        epoch=epoch,
        bytes=30,
        tables={ORDERS: 3, "shop.empty": 0},
        staging_s=0.1,
        commit_s=0.1,
        committed_ms=1000,
        sealed_ms=900,
        watermark_ms=400,
        final=False,
        schema_changes=changes,
        engines=EngineRows({EngineName.RAY: 3}, {EngineName.SPARK: 2, EngineName.DRIVER: 1}),
    )


def test_an_epoch_is_a_tree_of_its_parts_from_the_request_to_seal_to_the_record() -> None:
    world = TracedEpochs()
    world.part(4, Stage.STAGE, 910, 940)
    world.part(4, Stage.COMMIT, 940, 960)
    world.part(4, Stage.RECORD, 960, 970)
    world.committed(4, (FollowedChange(ORDERS, "lake.orders", ("add_column note",)),))
    assert world.made == []
    world.heard(4, SealTimes(4, 800, 905, {0: 850, 1: 900}))
    of: Attributes = {"raycdc.epoch": 4}
    amount: Attributes = {"raycdc.rows": 3, "raycdc.bytes": 30}
    target: Attributes = {"raycdc.target": ORDERS, **of}
    assert world.made == [
        Span(
            "epoch",
            800 * MS,
            1000 * MS,
            {
                **of,
                **amount,
                "raycdc.pipeline": "shop",
                "raycdc.generation": 7,
                "raycdc.committed": True,
                "raycdc.tables": (ORDERS, "shop.empty"),
                "raycdc.table_rows": (3, 0),
                "raycdc.final": False,
                "raycdc.watermark_lag_ms": 600,
                "raycdc.read_by": ("ray",),
                "raycdc.written_by": ("spark", "driver"),
                "raycdc.rows_written_by": (2, 1),
            },
            (
                SpanEvent(
                    "schema changed",
                    1000 * MS,
                    {"raycdc.table": ORDERS, "raycdc.target": "lake.orders", "raycdc.changes": ("add_column note",)},
                ),
            ),
            children=(
                Span(
                    "seal",
                    800 * MS,
                    905 * MS,
                    of,
                    children=(
                        Span("reader", 800 * MS, 850 * MS, {**of, "raycdc.reader": 0}),
                        Span("reader", 800 * MS, 900 * MS, {**of, "raycdc.reader": 1}),
                    ),
                ),
                Span("stage", 910 * MS, 940 * MS, {**target, **amount, "raycdc.targets": 1}),
                Span("commit", 940 * MS, 960 * MS, {**target, **amount}),
                Span("record", 960 * MS, 970 * MS, {**target, "raycdc.targets": 1}),
            ),
        )
    ]
    # It is not told again, whatever later statuses say.
    world.heard(4, SealTimes(4, 800, 905, {}))
    world.traces.ended()
    assert len(world.made) == 1


def test_several_targets_that_are_staged_at_once_are_counted_and_not_called_by_one_of_them() -> None:
    world = TracedEpochs()
    both = EpochPart(4, 3, 30, targets=2)
    world.traces.part(EndedPart(both, Stage.STAGE, f"{ORDERS} and 1 more", 900 * MS, 910 * MS))
    world.traces.ended()
    (stage,) = world.made[0].children
    assert stage.attributes == {"raycdc.epoch": 4, "raycdc.targets": 2, "raycdc.rows": 3, "raycdc.bytes": 30}


def test_a_status_that_is_older_than_the_epoch_is_waited_out_and_one_of_an_earlier_run_has_no_seal() -> None:
    world = TracedEpochs()
    world.part(4, Stage.COMMIT, 940, 960)
    world.committed(4)
    world.heard(3)
    assert world.made == []
    # This coordinator did not seal it.
    world.heard(4)
    (trace,) = world.made
    assert [child.name for child in trace.children] == ["commit"]


def test_seals_are_remembered_until_their_epoch_is_committed_and_no_longer() -> None:
    world = TracedEpochs()
    for epoch in range(1, 50):
        world.heard(epoch, SealTimes(epoch, 10 * epoch, 10 * epoch + 1, {}))
    for epoch in range(1, 50):
        world.part(epoch, Stage.COMMIT, 1000, 1001)
        world.committed(epoch)
        world.heard(49, *(SealTimes(number, 10 * number, 10 * number + 1, {}) for number in range(34, 50)))
    assert [trace.children[0].began_ns for trace in world.made] == [10 * epoch * MS for epoch in range(1, 50)]
    assert repr(world.traces) == "EpochTraces([], 0 seals)"


def test_a_part_that_failed_and_was_done_again_is_no_error_of_its_epoch() -> None:
    world = TracedEpochs()
    world.part(4, Stage.STAGE, 910, 920, "SegmentUnavailableError")
    world.part(4, Stage.STAGE, 920, 930)
    world.committed(4)
    world.heard(4)
    (trace,) = world.made
    assert (trace.error, [child.error for child in trace.children]) == ("", ["SegmentUnavailableError", ""])


def test_an_epoch_that_parks_a_target_has_the_error_that_did_it() -> None:
    world = TracedEpochs()
    world.part(4, Stage.COMMIT, 940, 960, "ValueRefusedError")
    entry = ParkedTarget(4, None, ParkReason.VALUE, "a text with a value: 4711", 1000, {ORDERS: 1})
    world.traces.parked({"lake.orders": entry})
    world.committed(4)
    # The source parks the table, too, which is no news.
    world.heard(4, phase="parked")
    (trace,) = world.made
    assert trace.error == "ValueRefusedError"
    assert trace.events == (
        SpanEvent("parked", 1000 * MS, {"raycdc.target": "lake.orders", "raycdc.reason": ParkReason.VALUE.value}),
    )
    assert "4711" not in repr(trace)


def test_a_target_that_refuses_the_next_epoch_while_one_is_recorded_belongs_to_the_next() -> None:
    world = TracedEpochs()
    world.part(4, Stage.COMMIT, 940, 960)
    world.traces.parked({ORDERS: ParkedTarget(5, None, ParkReason.NAME, "a text", 1000, {ORDERS: 1})})
    world.committed(4)
    world.heard(4)
    # Epochs have been dropped since then: what was to be 5 is 6.
    world.part(6, Stage.COMMIT, 940, 960)
    world.committed(6)
    world.heard(6)
    assert [trace.error for trace in world.made] == ["", "parked"]
    assert [event.attributes["raycdc.target"] for event in world.made[1].events] == [ORDERS]


def test_a_table_that_its_source_parks_belongs_to_the_next_epoch_once_each_time() -> None:
    world = TracedEpochs()
    world.heard(3, phase="parked")
    world.heard(3, phase="parked")
    for epoch in (4, 5):
        world.part(epoch, Stage.COMMIT, 940, 960)
        world.committed(epoch)
        world.heard(epoch, phase="parked")
    assert [trace.error for trace in world.made] == ["parked", ""]
    assert world.made[0].events == (SpanEvent("parked", 1000 * MS, {"raycdc.table": ORDERS}),)
    world.heard(5, phase="stream")
    world.heard(5, phase="parked")
    world.part(6, Stage.COMMIT, 940, 960)
    world.committed(6)
    world.heard(6, phase="parked")
    assert world.made[-1].error == "parked"


def test_a_table_that_was_parked_when_the_run_began_is_no_news() -> None:
    world = TracedEpochs(parked=(ORDERS,))
    world.part(4, Stage.COMMIT, 940, 960)
    world.committed(4)
    world.heard(4, phase="parked")
    assert [trace.error for trace in world.made] == [""]


def test_epochs_that_were_dropped_or_that_a_failing_run_left_have_the_error() -> None:
    world = TracedEpochs()
    world.part(4, Stage.STAGE, 910, 920, "SegmentUnavailableError")
    world.part(6, Stage.COMMIT, 940, 960)
    world.committed(6)
    assert [(t.attributes["raycdc.epoch"], t.error) for t in world.made] == [(4, "SegmentUnavailableError")]
    world.part(7, Stage.STAGE, 970, 980)
    world.traces.ended("SinkError")
    told = [(t.attributes["raycdc.epoch"], t.attributes["raycdc.committed"], t.error) for t in world.made[1:]]
    assert told == [(6, True, ""), (7, False, "SinkError")]


def test_an_orderly_end_before_a_commit_is_no_error() -> None:
    world = TracedEpochs()
    world.part(4, Stage.STAGE, 910, 920)
    world.traces.ended()
    (trace,) = world.made
    assert (trace.error, trace.attributes["raycdc.committed"]) == ("", False)


def test_only_so_many_epochs_are_told_but_all_with_an_error() -> None:
    chances = iter([True, False, False])
    world = TracedEpochs(keeps=lambda: next(chances))
    for epoch in range(1, 4):
        world.part(epoch, Stage.COMMIT, 940, 960)
        world.committed(epoch)
    world.heard(3)
    world.part(4, Stage.COMMIT, 940, 960)
    world.traces.ended("SinkError")
    assert [trace.attributes["raycdc.epoch"] for trace in world.made] == [1, 4]


def test_of_very_many_parts_those_that_failed_are_told_and_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_traces, "PARTS_MAX", 3)
    world = TracedEpochs()
    world.part(4, Stage.COMMIT, 100, 101, "ValueRefusedError")
    for took in range(20):
        world.part(4, Stage.COMMIT, 100, 100 + took)
    world.committed(4)
    world.heard(4)
    (trace,) = world.made
    assert len(trace.children) + cast("int", trace.attributes["raycdc.parts_left_out"]) == 21
    assert {"ValueRefusedError"} < {child.error for child in trace.children}
    assert max(child.ended_ns for child in trace.children) == 119 * MS


def test_a_board_tells_of_each_part_of_an_epoch_with_its_times_and_its_error() -> None:
    clock, ended = ManualClock(100.0), list[EndedPart]()
    board = ActivityTracker(clock)
    with board.doing(Stage.STAGE, "writes rows", part=EpochPart(4, 1, 2)):
        """Nobody listens yet."""
    board.on_part = ended.append
    with board.doing(Stage.STAGE, "writes rows", table=ORDERS, part=EpochPart(4, 1, 2)):
        clock.s += 3
    with board.doing(Stage.INSPECT, "asks"):
        """No part of an epoch."""
    with pytest.raises(KeyError), board.doing(Stage.COMMIT, "commits", table=ORDERS, part=EpochPart(4, 1, 2)):
        raise KeyError("a value")
    assert [(one.stage, one.table, one.error) for one in ended] == [
        (Stage.STAGE, ORDERS, ""),
        (Stage.COMMIT, ORDERS, "KeyError"),
    ]
    assert ended[0].ended_ns - ended[0].began_ns == 3_000_000_000
    assert ended[1].began_ns == ended[1].ended_ns
