"""The reading beside the log, when it is lost: opened again alone, given up after a while, and right in between."""

from __future__ import annotations

from collections import deque
from typing import cast

import pytest

from raycdc.core.retry import RetryPolicy
from raycdc.errors import LogLostError, RaycdcError, SchemaError, SourceError, SourceUnavailableError
from raycdc.source.protocol.api import Availability, ReaderOutput
from raycdc.source.protocol.metrics import CatchUpOutage
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.snapshot.log.log_unit import LogPosition, LogProgress, LogTransactions, LogUnit, TransactionPart
from raycdc.source.snapshot.rereading.catch_up_stream import CatchUpStream
from raycdc.source.split import StreamSplit
from raycdc.source.tables.table_life import LeftAt
from tests.support.simulation.network import NoThreads
from tests.unit.source.test_catch_up import BESIDE, HERE, TABLE, Resumed, rows_at, whole

POLICY = RetryPolicy(first_s=1.0, longest_s=4.0, jitter=0.0, retry_s=120.0)
LOST = SourceUnavailableError("The connection was lost. If this repeats, ask.")
REASON = "The connection was lost."


class Second:
    """A second reading that gives what it is told to; an error ends it."""

    seen_ms: int | None = None

    def __init__(self, units: list[LogUnit | RaycdcError]) -> None:
        self._units = deque(units)
        self.closed = False

    def poll(self) -> LogUnit | None:
        unit = self._units.popleft() if self._units else None
        if isinstance(unit, RaycdcError):
            raise unit
        return unit

    def close(self) -> None:
        self.closed = True


class Beside:
    """A log at 40 with a table that goes on from 10, and `readings` of it that are opened one after the other."""

    def __init__(self, *readings: list[LogUnit | RaycdcError] | RaycdcError, resnapshots_lost: bool = False) -> None:
        self.now_s = 0.0
        self.resumed = Resumed(TABLE)
        self.log = self.resumed.log
        self.availability = Availability()
        self._readings = deque(readings)
        self.opened: list[StreamSplit] = []
        self.seconds: list[Second] = []
        context = ReaderContext(
            cast("ReaderOutput", None),
            send=lambda _: None,
            availability=self.availability,
            now_s=lambda: self.now_s,
            epoch_bytes_max=1000,
            threads=NoThreads(),
        )
        self.reading = CatchUpStream(self.log, self._open, context, policy=POLICY, resnapshots_lost=resnapshots_lost)
        self.reading.open(self.log.catch_up.splits(self.log.state())[1])

    def _open(self, split: StreamSplit) -> Second:
        self.opened.append(split)
        units = self._readings.popleft()
        if isinstance(units, RaycdcError):
            raise units
        self.seconds.append(Second(units))
        return self.seconds[-1]

    @property
    def rows(self) -> list[int]:
        return self.resumed.output.epoch

    @property
    def numbers(self) -> list[int]:
        """The numbers of the rows of the open epoch."""
        return self.resumed.output.numbers

    def steps(self, count: int = 1) -> list[bool]:
        return [self.reading.step() for _ in range(count)]

    def at(self, now_s: float) -> list[bool]:
        """A step at that time."""
        self.now_s = now_s
        self.availability.begin()
        return self.steps()


def test_a_reading_that_is_lost_is_closed_alone_and_opened_after_a_pause_where_it_is() -> None:
    beside = Beside([whole(20, 30), LOST], [whole(31, 35), whole(60)])
    assert beside.steps(2) == [True, True]
    assert beside.seconds[0].closed
    assert beside.log.ready
    assert (beside.at(0.9), beside.availability.due_s) == ([False], 1.0)
    assert beside.at(1.0) == [True]
    assert beside.opened[1].state.ordinal == 30
    assert beside.rows == [20, 30, 31, 35]
    assert beside.steps() == [True]
    assert beside.log.catch_up.reopens  # It has something behind the log's place, so the tables join.


def test_the_pauses_grow_and_begin_again_with_a_unit() -> None:
    beside = Beside(LOST, LOST, [whole(20), LOST], [whole(30)])
    assert beside.at(0.5) == [False]
    assert beside.at(1.0) == [False]  # The second attempt fails, too.
    assert (beside.at(2.9), beside.availability.due_s) == ([False], 3.0)
    assert beside.at(3.0) == [True]
    assert beside.steps() == [True]
    assert (beside.at(3.1), beside.availability.due_s) == ([False], 4.0)
    assert beside.at(4.0) == [True]
    assert beside.rows == [20, 30]


def test_a_reading_that_is_away_says_how_often_it_was_tried_with_what_and_for_how_long_it_still_is() -> None:
    beside = Beside(LOST, LOST, [whole(20)])
    left_s = round(POLICY.retry_s)
    assert beside.reading.outage == CatchUpOutage(1, REASON, left_s)
    beside.at(1.0)
    assert beside.reading.outage == CatchUpOutage(2, REASON, left_s - 1)
    assert beside.at(3.0) == [True]
    assert beside.reading.outage is None


def test_tables_of_which_nothing_came_for_too_long_are_parked_with_their_place_and_the_log_goes_on() -> None:
    beside = Beside([whole(20), LOST], LOST, LOST, LOST)
    beside.steps(2)
    for now_s in (1.0, 119.0, 124.0):
        assert beside.log.catch_up.tables == {TABLE}
        beside.at(now_s)
    parked = beside.log.state().parked[TABLE]
    assert parked.left == LeftAt(3, 20)
    assert parked.reason.startswith(
        f"{TABLE} cannot go on from where it was left: its log could not be read for 2 minutes: The connection "
        "was lost. Let it go on with: "
    )
    assert beside.log.wants_seal


def test_a_reading_that_is_lost_behind_a_part_that_says_nothing_comes_once() -> None:
    """A part of a transaction that does not say where it is waits for nobody."""
    nothing_of_it = TransactionPart(LogPosition(BESIDE, 10))
    beside = Beside([nothing_of_it, LOST], [LogProgress(LogPosition(BESIDE, 20)), whole(21, 30)])
    beside.steps(2)
    assert not beside.log.catch_up._waits
    beside.at(1.0)
    assert beside.log.can_cut
    beside.steps()
    assert beside.rows == [21, 30]


def test_rows_of_a_reading_that_was_opened_again_are_numbered_behind_those_before() -> None:
    beside = Beside([whole(20, 30), LOST], [whole(0, 1)])
    beside.steps(2)
    beside.at(1.0)
    assert beside.numbers == sorted(set(beside.numbers))
    assert len(beside.numbers) == 4


def test_a_reading_that_is_lost_inside_a_transaction_ends_its_reader() -> None:
    """The open epoch has a part of it, and the reading can be opened before it alone."""
    beside = Beside([TransactionPart(LogPosition(BESIDE, 10), (rows_at(20),)), LOST])
    beside.steps()
    with pytest.raises(SourceUnavailableError):
        beside.steps()


@pytest.mark.parametrize(
    ("error", "again", "goes_on", "way_out"),
    [
        (SourceError("The account may not. GRANT it."), False, True, f"raycdc tables resume CONFIG {TABLE}"),
        (LogLostError("It is purged. Read it anew."), False, False, f"with: raycdc tables resnapshot CONFIG {TABLE}"),
        (SchemaError("It does not fit. Leave it out."), False, False, f"raycdc tables resnapshot CONFIG {TABLE}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RaycdcError) else "",
)
@pytest.mark.parametrize("opens", [True, False], ids=["when-read", "when-opened"])
def test_a_reading_that_cannot_go_on_parks_its_tables_with_a_way_out(
    error: RaycdcError, again: bool, goes_on: bool, way_out: str, opens: bool
) -> None:
    beside = Beside([error] if opens else error)
    beside.steps()
    parked = beside.log.state().parked[TABLE]
    assert (parked.again, parked.left is not None) == (again, goes_on)
    assert way_out in parked.reason
    assert beside.log.catch_up.reopens


def test_tables_whose_log_is_purged_begin_again_where_the_configuration_says_so() -> None:
    beside = Beside(LogLostError("It is purged. Read it anew."), resnapshots_lost=True)
    parked = beside.log.state().parked[TABLE]
    assert (parked.again, parked.left) == (True, None)
    assert parked.reason.endswith("left: It is purged. It is read anew, as pipeline.on_log_lost says.")


def test_a_reading_that_is_closed_for_a_while_still_joins_where_it_is_at_the_log() -> None:
    beside = Beside([LogTransactions(LogPosition(BESIDE, 40), (rows_at(40),)), LOST])
    beside.steps()
    assert beside.log.catch_up.reopens
    waiting = Beside([whole(20, 30), LOST])
    waiting.steps(2)
    waiting.log.on_unit(LogProgress(LogPosition(HERE, 41)), now_s=0.0)
    assert not waiting.log.catch_up.reopens
