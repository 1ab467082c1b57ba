"""Every rule about tables that go on from where they were paused is needed: without it the simulation fails."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from raycdc.errors import RaycdcError
from raycdc.source.snapshot.enumerator.snapshot_planning import SnapshotPlanning
from raycdc.source.snapshot.log.log_reader import LogReader
from raycdc.source.snapshot.log.log_unit import NOWHERE, LogUnit, SchemaChange
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.reader.incremental_reader import IncrementalReader
from raycdc.source.snapshot.rereading.catch_up import CatchUp, RowNumbers
from raycdc.source.snapshot.rereading.catch_up_stream import CatchUpStream
from raycdc.source.tables.table_life import CatchingUp, LeftAt
from tests.simulation.missing_rules import Switch, name_of, require_noticed
from tests.simulation.test_simulation import seeds
from tests.support.simulation import Settings, Simulation, TableKind, Visibility

SEEDS = 12
CALM = Settings(Visibility.SNAPSHOT, (TableKind.PLAIN,), 1200, 0.0, 0.0, 1, 0.3, pauses=0.004)
CRASHES = replace(CALM, crashes=0.006, pauses=0.006)
REFUSALS = replace(CRASHES, refusals=0.15, pauses=0.01)
TRUNCATIONS = replace(CALM, truncations=0.8, pauses=0.01)
DEATHS = replace(CALM, crashes=0.02, pauses=0.008)
BESIDE_AS_OF = replace(
    CALM, kinds=(TableKind.PLAIN, TableKind.AS_OF, TableKind.AS_OF), truncations=0.5, unfollowed=0.3, pauses=0.01
)
BREAKS = replace(CALM, pauses=0.008, breaks=0.15)
FILLS = replace(CALM, pauses=0.01, fills=0.02, stretches=0.4, overtaken=0.9)
FAILOVERS = replace(CRASHES, visibility=Visibility.WAIT, failovers=0.006)


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_paused_tables_go_on_and_the_sinks_equal_the_source_whatever_fails(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 1500)
    Simulation(seed, settings=replace(drawn, pauses=0.006, unfollowed=0.1)).run()


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_a_reading_beside_the_log_that_is_lost_again_and_again_costs_nobody_a_row(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 1500)
    Simulation(seed, settings=replace(drawn, pauses=0.006, unfollowed=0.1, breaks=0.15, purges=0.05)).run()


def test_another_server_takes_over_while_tables_are_paused() -> None:
    for seed in range(4):
        Simulation(seed, settings=FAILOVERS).run()


def test_the_log_waits_for_a_table_that_is_read_as_of_a_place_while_another_is_caught_up() -> None:
    for seed in range(6):
        Simulation(seed, settings=BESIDE_AS_OF).run()


def test_tables_are_caught_up_in_the_runs_that_are_to_show_it() -> None:
    joined = 0
    for seed in range(4):
        simulation = Simulation(seed, settings=TRUNCATIONS)
        simulation.run()
        joined += simulation.joined
    assert joined >= 3


def join_where_the_table_was_left(patch: pytest.MonkeyPatch) -> None:
    """The rows between are in no epoch."""

    def meet(self: CatchUp, *, now_s: float) -> None:
        if self.tables and not self.wants_cut:
            self._end_tables()

    patch.setattr(CatchUp, "meet", meet)


def go_on_with_the_log_as_it_is_read(patch: pytest.MonkeyPatch) -> None:
    """The reader of the log has read ahead, and passed over rows of the table."""
    real = IncrementalReader._reopen

    def reopen(self: IncrementalReader, log: LogReader, beside: CatchUpStream) -> None:
        source = self._log_source
        assert source is not None
        patch.setattr(source, "close", lambda: None, raising=False)
        real(self, log, beside)
        self._log_source = source

    patch.setattr(IncrementalReader, "_reopen", reopen)


def pass_rows_on_that_are_the_logs_to_tell(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("raycdc.source.snapshot.rereading.catch_up._up_to", lambda unit, ordinal: unit)


def leave_the_last_rows_to_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("raycdc.source.snapshot.rereading.catch_up._up_to", lambda unit, ordinal: replace(unit, rows=()))


def forget_how_far_a_table_was_caught_up(patch: pytest.MonkeyPatch) -> None:
    """After a crash, rows come again that epochs have."""
    patch.setattr(CatchUp, "seal", lambda self: None)


def cut_inside_a_transaction_that_is_read_beside_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogReader, "can_cut", property(lambda self: not self._cursor.in_transaction))


def let_a_statement_into_the_epoch_of_rows_before_it(patch: pytest.MonkeyPatch) -> None:
    def pass_on(self: CatchUp, *, now_s: float) -> None:
        cursor = self._cursor
        assert cursor is not None
        before = self._epoch.changed, self._log.moved, cursor.moved
        self._epoch.changed = self._log.moved = cursor.moved = False
        real(self, now_s=now_s)
        self._epoch.changed |= before[0]
        self._log.moved |= before[1]
        cursor.moved |= before[2]

    real = CatchUp._pass_on
    patch.setattr(CatchUp, "_pass_on", pass_on)


def begin_at_the_logs_own_place(patch: pytest.MonkeyPatch) -> None:
    real = StreamState.catch_up

    def catch_up(self: StreamState, table: Any, *, number: int) -> StreamState:
        state = real(self, table, number=number)
        going_on = state.catching_up[table]
        here = CatchingUp(
            going_on.schema, going_on.announced, self.position, LeftAt(going_on.incarnation, self.ordinal)
        )
        return replace(state, catching_up={**state.catching_up, table: here})

    patch.setattr(StreamState, "catch_up", catch_up)


def go_on_as_another_beginning(patch: pytest.MonkeyPatch) -> None:
    """A target that refused the beginning before takes the rows behind those that it lacks."""
    real = StreamState.catch_up

    def catch_up(self: StreamState, table: Any, *, number: int) -> StreamState:
        state = real(self, table, number=number)
        going_on = state.catching_up[table]
        anew = replace(going_on, left=replace(going_on.left, incarnation=number))
        return replace(state, catching_up={**state.catching_up, table: anew})

    patch.setattr(StreamState, "catch_up", catch_up)


def compare_places_of_two_servers(patch: pytest.MonkeyPatch) -> None:
    def elsewhere(self: StreamState, position: Any, ordinal: int) -> StreamState:
        return replace(self, position=position, ordinal=ordinal)

    patch.setattr(StreamState, "elsewhere", elsewhere)


def end_before_all_tables_are_caught_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CatchUp, "is_over", property(lambda self: True))
    real = SnapshotPlanning.follow

    def follow(self: SnapshotPlanning, stream: StreamState) -> Any:
        ended = real(self, stream)
        self._to_begin -= set(stream.catching_up)
        return ended

    patch.setattr(SnapshotPlanning, "follow", follow)


def number_a_statements_rows_before_its_epoch(patch: pytest.MonkeyPatch) -> None:
    on_unit, of_catch_up = CatchUp.on_unit, RowNumbers.of_catch_up

    def numbered(self: CatchUp, unit: LogUnit, *, now_s: float) -> None:
        on_unit(self, of_catch_up(self.numbers, unit), now_s=now_s)

    patch.setattr(CatchUp, "on_unit", numbered)
    patch.setattr(RowNumbers, "of_catch_up", lambda self, unit: unit)


def take_a_table_in_snapshot_for_one_that_can_go_on(patch: pytest.MonkeyPatch) -> None:
    real = StreamState.pause

    def pause(self: StreamState, table: Any, parking: Any, *, number: int) -> StreamState:
        state = real(self, table, parking, number=number)
        paused = state.parked[table]
        if paused.left is None and table in self.followed:
            left = LeftAt(self.followed[table].incarnation, self.ordinal)
            return replace(state, parked={**state.parked, table: replace(paused, left=left)})
        return state

    patch.setattr(StreamState, "pause", pause)


def leave_a_statement_to_the_next_unit_of_its_transaction(patch: pytest.MonkeyPatch) -> None:
    """That may have something behind the log's place, which is the log's to tell, and the statement is before it."""
    nowhere = property(lambda self: NOWHERE if self.in_transaction else self.place.ordinal)
    patch.setattr(SchemaChange, "end", nowhere)


def pass_on_what_waited_though_the_log_says_it_again(patch: pytest.MonkeyPatch) -> None:
    """Both readings are opened anew from what was sealed, which is before the unit that waited for a table."""
    real = LogReader.after_cut

    def after_cut(self: LogReader, *, now_s: float) -> None:
        waited = self._halt if self.catch_up.reopens else None
        real(self, now_s=now_s)
        self._halt = self._halt or waited

    patch.setattr(LogReader, "after_cut", after_cut)


def number_rows_from_the_beginning_when_the_reading_is_opened_again(patch: pytest.MonkeyPatch) -> None:
    """They come before rows of the same epoch that they are behind."""

    def read_again(self: RowNumbers) -> None:
        self._catch_up_number, self._behind = None, 0
        self._next = 0

    patch.setattr(RowNumbers, "read_again", read_again)


def read_again_what_was_passed_on(patch: pytest.MonkeyPatch) -> None:
    """From where the last epoch ends, though the open one has more."""
    real = CatchUp.read_again

    def read_again(self: CatchUp) -> None:
        real(self)
        numbers = self.numbers
        self.begin()
        self.numbers = numbers

    patch.setattr(CatchUp, "read_again", read_again)


def open_the_reading_again_inside_a_transaction(patch: pytest.MonkeyPatch) -> None:
    real = CatchUpStream._act_on

    def act_on(self: CatchUpStream, error: RaycdcError) -> None:
        cursor = self._log.catch_up._cursor
        assert cursor is not None
        cursor.in_transaction = False
        real(self, error)

    patch.setattr(CatchUpStream, "_act_on", act_on)


#: Rule, circumstances in which it matters, and a seed that is known to miss it (only to be quick).
RULES: list[tuple[Switch, Settings, int]] = [
    (join_where_the_table_was_left, CALM, 0),
    (go_on_with_the_log_as_it_is_read, CALM, 12),
    (pass_rows_on_that_are_the_logs_to_tell, CALM, 12),
    (leave_the_last_rows_to_the_log, CALM, 12),
    (forget_how_far_a_table_was_caught_up, CRASHES, 16),
    (cut_inside_a_transaction_that_is_read_beside_the_log, DEATHS, 31),
    (let_a_statement_into_the_epoch_of_rows_before_it, CALM, 1),
    (begin_at_the_logs_own_place, CALM, 0),
    (go_on_as_another_beginning, REFUSALS, 89),
    (compare_places_of_two_servers, FAILOVERS, 12),
    (end_before_all_tables_are_caught_up, CALM, 0),
    (number_a_statements_rows_before_its_epoch, TRUNCATIONS, 0),
    (take_a_table_in_snapshot_for_one_that_can_go_on, CALM, 2),
    (leave_a_statement_to_the_next_unit_of_its_transaction, FILLS, 0),
    (pass_on_what_waited_though_the_log_says_it_again, BESIDE_AS_OF, 11),
    (number_rows_from_the_beginning_when_the_reading_is_opened_again, BREAKS, 0),
    (read_again_what_was_passed_on, BREAKS, 1),
    (open_the_reading_again_inside_a_transaction, BREAKS, 9),
]


@pytest.mark.parametrize(("switch", "circumstances", "first"), RULES, ids=name_of)
def test_a_run_without_the_rule_is_noticed(
    switch: Switch, circumstances: Settings, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_noticed(switch, circumstances, first, monkeypatch)
