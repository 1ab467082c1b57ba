"""Chunks that wait for a reader are ones of their table's present beginning."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from raycdc.errors import SourceUnavailableError, TableLockedError
from raycdc.model import TableId
from raycdc.source.protocol.api import TableCounts
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator import snapshot_planning
from raycdc.source.snapshot.enumerator.enumerator_state import SealedPlanning
from raycdc.source.snapshot.enumerator.snapshot_plan import (
    PLANNED_AHEAD,
    PlanChunks,
    PlannedChunks,
    StartPoint,
    TablePlan,
)
from raycdc.source.snapshot.enumerator.snapshot_planning import SnapshotPlanning, note_dropped
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.resnapshots import unread
from raycdc.source.tables.table_life import ParkingCause, Unknown, first_state, parked_from
from raycdc.state.opaque import PlannerState, Position
from raycdc.testing.epochs import simple_schema

TABLE = TableId("shop", "orders")


@pytest.fixture(autouse=True)
def nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does."""
    monkeypatch.setattr(snapshot_planning, "_SLOW_S", math.inf)


def planning_of(incarnation: int) -> SnapshotPlanning:
    """Of a table that is cut to its end."""
    unused = cast("Any", None)
    planning = SnapshotPlanning(unused, unused, document=unused, on_planned=lambda: None)
    planning.restore({TABLE: SealedPlanning("f", None, None, 2, 0, 2, incarnation)}, [])
    return planning


def chunk(incarnation: int) -> SnapshotSplit:
    return SnapshotSplit(TABLE, 0, "id", None, None, incarnation=incarnation)


def test_a_chunk_that_a_reader_had_comes_back_unless_its_table_began_again() -> None:
    planning = planning_of(incarnation=2)
    planning.put_back(chunk(1))
    assert not planning.pending
    planning.put_back(chunk(2))
    assert [(split.incarnation, split.attempt) for split in planning.pending] == [(2, 1)]


def test_a_table_that_was_dropped_has_ended_until_another_one_takes_its_name() -> None:
    planning = planning_of(incarnation=2)
    note_dropped(planning, [TABLE, TableId("shop", "elsewhere")].__contains__)
    assert [one.phase for one in planning.changes.counted.tables().values()] == ["ended"]
    planning.know(TABLE, "f", incarnation=2)
    assert [one.phase for one in planning.changes.counted.tables().values()] == ["stream"]


def test_a_table_that_was_made_again_is_not_said_to_have_ended() -> None:
    planning = planning_of(incarnation=2)
    planning.put_back(chunk(2))
    note_dropped(planning, [TABLE].__contains__)
    followed = StreamState(Position.unknown(), 9, {TABLE: first_state("f", None)})
    assert planning.follow(followed) == [TABLE]
    assert [one.phase for one in planning.changes.counted.tables().values()] == ["stream"]
    assert planning.follow(followed) == []
    assert not planning.is_of_now(chunk(2))


def test_a_refusal_of_an_earlier_beginning_says_nothing_of_this_one() -> None:
    planning = planning_of(incarnation=2)
    planning.leave_alone(chunk(1))
    assert not planning.held.over
    planning.leave_alone(chunk(2))
    assert planning.held.over == {TABLE}


def test_a_chunk_of_an_earlier_beginning_that_found_no_table_ends_no_chunk_of_this_one() -> None:
    planning = planning_of(incarnation=2)
    planning.put_back(chunk(2))
    planning.table_dropped(chunk(1))
    assert planning.pending
    planning.table_dropped(chunk(2))
    assert not planning.pending


def test_all_tables_together_are_counted_as_their_chunks_come_and_go() -> None:
    planning = planning_of(incarnation=2)
    told = [planning.changes.counted.counts()]
    for count in (+1, -1, +2):
        planning.changes.counted.published(TABLE, count, ())
        told.append(planning.changes.counted.counts())
    planning.changes.counted.published(TABLE, -1, ())
    planning.finished(TABLE, ())
    told.append(planning.changes.counted.counts())
    assert told == [
        TableCounts(1, 1, 0, 2),
        TableCounts(1, 1, 1, 1),
        TableCounts(1, 1, 0, 2),
        TableCounts(1, 0, 2, 0),
        TableCounts(1, 0, 2, 0),
    ]


class Several:
    """A dialect of tables that have `chunks` each, and a context that makes its calls when it is told to.

    Notes which tables were planned together. Of a table in `as_of` the chunks are read as of one place.
    """

    failover = None
    chunk_readers_max = 0
    now_s = 0.0

    def __init__(self, chunks: Mapping[TableId, int], *, as_of: Collection[TableId] = ()) -> None:
        self._chunks, self._as_of = chunks, as_of
        #: Tables that cannot be planned, and those that somebody has locked.
        self.failing: set[TableId] = set()
        self.locked: set[TableId] = set()
        #: Pauses before calls that were put off, and the tables of which was asked who has them locked.
        self.pauses: list[float] = []
        self.asked: list[tuple[TableId, ...]] = []
        self.together: list[list[TableId]] = []
        self._calls: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        if after_s:
            self.pauses.append(after_s)
        self._calls.append((call, handler))

    @property
    def is_idle(self) -> bool:
        return not self._calls

    def locked_by(self, names: Sequence[TableId]) -> dict[TableId, str]:
        self.asked.append(tuple(names))
        return {table: "by session 7" if table in self.locked else "" for table in names[:2]}

    def run(self) -> None:
        """Make the call that was asked for first."""
        call, handler = self._calls.popleft()
        handler(call())

    @contextmanager
    def planning(self) -> Iterator[PlanChunks]:
        self.together.append([])
        yield self._plan

    def _plan(self, _: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        self.together[-1].append(table)
        if table in self.failing:
            raise SourceUnavailableError(f"{table} is away")
        if table in self.locked:
            raise TableLockedError(f"{table} is locked")
        at = 1 if table in self._as_of else None
        most = min(self._chunks[table], first_index + PLANNED_AHEAD)
        splits = tuple(SnapshotSplit(table, n, "id", None, None, as_of=at) for n in range(first_index, most))
        return PlannedChunks(splits, planner if most < self._chunks[table] else None, self._chunks[table])


def tables(count: int) -> list[TableId]:
    return [TableId("shop", f"t{number:02}") for number in range(count)]


def begun(several: Several, names: Iterable[TableId]) -> SnapshotPlanning:
    unused, document = cast("Any", None), SchemaDocument.of(simple_schema())
    several_: Any = several
    planning = SnapshotPlanning(several_, several_, document=unused, on_planned=lambda: None)
    plans = tuple(TablePlan(table, document.fingerprint, document, unread("id")) for table in names)
    planning.begin(StartPoint(Position.from_json({}), 0, plans))
    return planning


def planned_to_the_end(several: Several, planning: SnapshotPlanning) -> list[tuple[TableId, int]]:
    """Chunks as readers that take each at once are given them."""
    given: list[tuple[TableId, int]] = []
    while not planning.is_done:
        planning.plan()
        several.run()
        given += [(split.table, split.index) for split in planning.pending]
        planning.pending.clear()
    return given


def test_the_first_table_is_planned_alone_and_later_ones_together() -> None:
    names = tables(40)
    several = Several(dict.fromkeys(names, 1))
    assert planned_to_the_end(several, begun(several, names)) == [(table, 0) for table in names]
    assert [len(together) for together in several.together] == [1, 2, 4, 8, 16, 9]


def test_a_table_of_many_chunks_ends_what_is_planned_together() -> None:
    names = tables(6)
    chunks = dict.fromkeys(names, 1) | {names[3]: PLANNED_AHEAD + 5}
    several = Several(chunks)
    wanted = [(table, index) for table in names for index in range(chunks[table])]
    assert sorted(planned_to_the_end(several, begun(several, names))) == wanted
    assert several.together == [names[:1], names[1:3], names[3:4], names[3:6]]


def test_a_table_that_cannot_be_planned_keeps_back_no_chunk_of_those_that_were_planned_before_it() -> None:
    names = tables(7)
    several = Several(dict.fromkeys(names, 1))
    planning = begun(several, names)
    for _ in range(2):
        planning.plan()
        several.run()
    several.failing = {names[5]}
    planning.plan()
    several.run()
    assert [split.table for split in planning.pending] == names[:5]
    planning.plan()
    with pytest.raises(SourceUnavailableError):
        several.run()
    assert several.together[-2:] == [names[3:6], names[5:6]]


def test_no_further_table_is_planned_after_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_planning, "_SLOW_S", -1.0)
    names = tables(4)
    several = Several(dict.fromkeys(names, 1))
    assert planned_to_the_end(several, begun(several, names)) == [(table, 0) for table in names]
    assert several.together == [[table] for table in names]


def test_a_locked_table_keeps_no_other_from_being_planned() -> None:
    names = tables(20)
    several = Several(dict.fromkeys(names, 1))
    several.locked = {names[0], names[4]}
    planning = begun(several, names)
    others = [table for table in names if table not in several.locked]
    given: list[TableId] = []
    for _ in range(40):  # Each call plans a table or two, or finds one locked.
        if len(given) == len(others):
            break
        planning.plan()
        several.run()
        given += [split.table for split in planning.pending]
        planning.pending.clear()
    assert given == others
    assert not planning.is_done
    assert {name for together in several.together for name in together if name in several.locked} == several.locked
    assert sum(together.count(names[0]) for together in several.together) == 1
    assert [standing.table for standing in planning.held.locked.stalled] == [str(names[0]), str(names[4])]
    several.locked.clear()
    assert planned_to_the_end(several, planning) == [(names[0], 0), (names[4], 0)]
    assert not planning.held.locked


def test_who_has_tables_locked_is_asked_ever_less_often_and_told_once() -> None:
    names = tables(3)
    several = Several(dict.fromkeys(names, 1))
    several.locked = set(names)
    planning = begun(several, names)
    for table in names:
        planning.held.locked.note(table)
        planning.held.locked.note(table)
    assert planning.held.locked.problems == {}
    for _ in range(20):
        several.run()
    assert several.pauses[3:10] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert len(several.asked) == 9
    assert planning.held.locked.problems == dict.fromkeys(map(str, names), "by session 7")
    # There was time for two of them: the third comes first then.
    assert several.asked[:3] == [tuple(names), (names[2], *names[:2]), (names[1], names[2], names[0])]
    for table in names:
        planning.held.locked.forget(table)
    while not several.is_idle:
        several.run()
    assert planning.held.locked.problems == {}


def test_chunks_of_a_locked_table_are_not_given_out_and_no_reason_to_plan_no_others() -> None:
    names = tables(2)
    several = Several({names[0]: 2 * PLANNED_AHEAD, names[1]: 1})
    planning = begun(several, names)
    planning.plan()
    several.run()
    assert len(planning.pending) == PLANNED_AHEAD
    planning.held.locked.note(names[0])
    planning.plan()
    several.run()
    several.run()
    assert planning.held.now == {names[0]}
    assert planning.chunks_waiting == 1
    assert planning.pending[-1].table == names[1]
    planning.end_chunks(names[0])
    assert not planning.held.now


def test_tables_that_are_read_as_of_one_place_are_planned_one_at_a_time() -> None:
    names = tables(5)
    several = Several(dict.fromkeys(names, 2), as_of=names)
    planned_to_the_end(several, begun(several, names))
    assert several.together == [[table] for table in names]


def test_a_table_that_is_parked_while_it_is_planned_with_others_gets_no_chunk() -> None:
    names = tables(3)
    several = Several(dict.fromkeys(names, 1))
    planning = begun(several, names)
    planning.plan()
    several.run()
    planning.plan()
    parked = parked_from(Unknown(), ParkingCause("it is odd", Position.from_json({}), 0))
    planning.follow(StreamState(Position.from_json({}), 0, {}, {names[1]: parked}))
    several.run()
    assert several.together == [names[:1], names[1:]]
    assert [split.table for split in planning.pending] == [names[0], names[2]]
