"""Every rule about parked tables, and tables that begin again, is needed: without it the simulation fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raycdc.source.snapshot.enumerator.incremental_enumerator import IncrementalSnapshotEnumerator
from raycdc.source.snapshot.enumerator.snapshot_planning import SnapshotPlanning
from raycdc.source.snapshot.log.log_reader import LogReader
from raycdc.source.snapshot.log.log_unit import BeginTableUpdate, TransactionPart
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.log.table_changes import TableChanges
from raycdc.source.tables.parking import RefusedTables, Requests
from raycdc.source.tables.resnapshots import StatementPosition, TableProbes
from raycdc.source.tables.table_life import InSnapshot, Live, Parked
from raycdc.state.parked import ParkedTarget
from tests.simulation.missing_rules import Switch, name_of, require_noticed
from tests.simulation.test_simulation import seeds
from tests.support.simulation import Settings, Simulation, TableKind, Visibility
from tests.support.simulation.driver import SimDriver
from tests.support.simulation.history import SimHistory
from tests.support.simulation.log_source import SimLogSource


def settings(*, crashes: float = 0.0, truncations: float = 0.0) -> Settings:
    kinds = (TableKind.PLAIN, TableKind.KEYLESS)
    return Settings(Visibility.SNAPSHOT, kinds, 1200, 0.0, crashes, 2, truncations, unfollowed=0.6)


CALM = settings()
CRASHES = settings(crashes=0.008)
REFUSALS = replace(settings(crashes=0.008), refusals=0.1)
LOSSES = replace(settings(crashes=0.008), losses=1.0, half_commits=0.5)
#: Statements about a table follow one another so fast that some lie between a look at it and the place of the log.
CHANGES = replace(settings(crashes=0.008, truncations=0.4), unfollowed=0.9)


#: Tables are made while others are read and the job is started again and again.
MADE = replace(settings(crashes=0.01), unfollowed=0.0, losses=0.0, fills=0.01, stretches=0.3, selects=True)


@pytest.mark.parametrize("seed", seeds(8))
def test_tables_that_are_made_while_the_job_stands_still_are_told_from_their_first_row(seed: int) -> None:
    Simulation(seed, settings=MADE).run()


def read_tables_that_were_made_since(patch: pytest.MonkeyPatch) -> None:
    """What was changed and deleted before they are read is in no changelog."""
    patch.setattr(SimHistory, "_is_new", lambda self, table: False)


def leave_out_what_follows_the_statement_that_made_a_table(patch: pytest.MonkeyPatch) -> None:
    """A look at it was asked for, and would have counted behind those rows."""
    real = SimHistory.statement

    def statement(self: SimHistory, transaction: Any, place: StatementPosition) -> Any:
        updates, rows = real(self, transaction, place)
        for update in updates:
            if isinstance(update, BeginTableUpdate):
                self.parked.park(update.table, "a look was asked for", place, again=True)
        return updates, rows

    patch.setattr(SimHistory, "statement", statement)


def pass_over_statements_about_parked_tables(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableProbes, "invalidate", lambda self, table, ordinal: None)


def begin_again_before_the_log_is_where_the_table_was_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = TableProbes.ready
    patch.setattr(TableProbes, "ready", lambda self, ordinal: real(self, 1 << 60))


def begin_again_without_saying_that_the_rows_are_gone(patch: pytest.MonkeyPatch) -> None:
    real = SimHistory.begin_again
    patch.setattr(SimHistory, "begin_again", lambda self, place: (real(self, place)[0], ()))


def pass_rows_of_parked_tables_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimHistory, "passes_over", lambda self, table: False)


def pass_the_place_of_rows_that_do_not_fit_before_saying_so(patch: pytest.MonkeyPatch) -> None:
    """The position moves with one unit, the table is parked with the next: a run may end between."""
    real = SimLogSource._unit

    def unit(self: SimLogSource, *values: Any, **named: Any) -> Any:
        before, self.history.misfits = self.history.misfits, []
        found = real(self, *values, **named)
        if isinstance(found, TransactionPart):
            return found
        self.history.misfits = [*found.parked, *self.history.misfits]
        return replace(found, parked=tuple(before))

    patch.setattr(SimLogSource, "_unit", unit)


def take_chunks_of_any_incarnation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IncrementalSnapshotEnumerator, "_end_chunks", lambda self, table: None)
    patch.setattr(SnapshotPlanning, "is_of_now", lambda self, split: True)


def forget_where_tables_are_parked(patch: pytest.MonkeyPatch) -> None:
    real = LogReader.state

    def state(self: LogReader) -> StreamState:
        found = real(self)
        known = {t: Live(p.schema, p.announced, p.incarnation) for t, p in found.parked.items() if p.schema is not None}
        return replace(found, followed={**found.followed, **known}, parked={})

    patch.setattr(LogReader, "state", state)


def plan_anew_before_the_manifest_says_so(patch: pytest.MonkeyPatch) -> None:
    """Chunks of the new incarnation in a manifest whose log state knows only the old one."""
    real = TableChanges._resnapshot

    def begin_again(self: TableChanges, update: BeginTableUpdate) -> None:
        real(self, update)
        begun = self._table_states._states[update.table]
        assert isinstance(begun, InSnapshot)
        self._table_states._states[update.table] = replace(begun, incarnation=0)

    patch.setattr(TableChanges, "_resnapshot", begin_again)


def carry_requests_out_again_and_again(patch: pytest.MonkeyPatch) -> None:
    def acts_on(self: Requests, name: str, state: StreamState) -> bool:
        return name in self.tables and not isinstance(state.named(name), Parked)

    patch.setattr(Requests, "acts_on", acts_on)


def freeze_an_epoch_without_reading_its_tables_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requests, "and_also", lambda self, *_: self)


def write_rows_behind_an_epoch_that_the_target_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedTarget, "waits", lambda self, source, manifest: False)


def never_take_a_target_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedTarget, "waits", lambda self, source, manifest: manifest.epoch >= self.epoch)


def take_a_target_back_at_the_next_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedTarget, "waits", lambda self, source, manifest: manifest.epoch == self.epoch)


def pass_rows_of_refused_tables_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RefusedTables, "without", lambda self, unit: unit)


def record_an_epoch_without_who_refused_it(patch: pytest.MonkeyPatch) -> None:
    real = SimDriver._record

    def record(self: SimDriver, manifest: Any) -> None:
        real(self, manifest)
        self._state.parked = {}

    patch.setattr(SimDriver, "_record", record)


#: Rule, circumstances in which it matters, and a seed that is known to miss it (only to be quick).
RULES: list[tuple[Switch, Settings, int]] = [
    (read_tables_that_were_made_since, MADE, 0),
    (leave_out_what_follows_the_statement_that_made_a_table, MADE, 0),
    (pass_over_statements_about_parked_tables, CHANGES, 514),
    (begin_again_before_the_log_is_where_the_table_was_looked_at, CHANGES, 24),
    (begin_again_without_saying_that_the_rows_are_gone, CALM, 0),
    (pass_rows_of_parked_tables_on, CALM, 0),
    (pass_the_place_of_rows_that_do_not_fit_before_saying_so, CRASHES, 50),
    (take_chunks_of_any_incarnation, CALM, 0),
    (forget_where_tables_are_parked, CRASHES, 1),
    (plan_anew_before_the_manifest_says_so, CALM, 0),
    (carry_requests_out_again_and_again, CRASHES, 0),
    (freeze_an_epoch_without_reading_its_tables_again, LOSSES, 0),
    (write_rows_behind_an_epoch_that_the_target_refused, REFUSALS, 0),
    (never_take_a_target_back, REFUSALS, 0),
    (take_a_target_back_at_the_next_epoch, REFUSALS, 40),
    (pass_rows_of_refused_tables_on, REFUSALS, 0),
    (record_an_epoch_without_who_refused_it, REFUSALS, 0),
]


@pytest.mark.parametrize(("switch", "circumstances", "first"), RULES, ids=name_of)
def test_a_run_without_the_rule_is_noticed(
    switch: Switch, circumstances: Settings, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_noticed(switch, circumstances, first, monkeypatch)
