"""A table that shares a target waits for somebody to decide only where its rows, and those of others, are there."""

from __future__ import annotations

import pytest

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution.events import DropTableEvent, SchemaChangeEvent, TruncateTableEvent
from raycdc.model.rules.routes import Route, Router
from raycdc.source.tables.parked_tables import ParkedKind, ParkedTables, ParkingSetup
from raycdc.source.tables.resnapshots import StatementPosition
from raycdc.source.tables.table_life import Parked, ParkedPhase
from raycdc.state.opaque import Position
from raycdc.transform.target_rules import TargetRules

ONE, TWO, THREE = (TableId("shop", f"item_{number}") for number in (1, 2, 3))
MERGED = TargetRules(router=Router((Route(r"shop\.item_\d", "lake.items"),)), upsert=True)
HERE = StatementPosition(Position.from_json({"at": 1}), 1, 0)
SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64), nullable=False),), ("id",))


def parked(*, announced: bool, phase: ParkedPhase = ParkedPhase.PARKED) -> Parked:
    return Parked("f", announced, 1, phase, "why", Position.from_json({"at": 0}), 0)


def tables(*followed: TableId, rules: TargetRules = MERGED, **others: Parked) -> ParkedTables[str]:
    state = {TableId("shop", name): one for name, one in others.items()}
    return ParkedTables(ParkingSetup(state, rules=rules), followed=followed)


def resnapshot_requested(parked_tables: ParkedTables[str], table: TableId) -> bool:
    """Whether the table, which must be read again, begins again by itself."""
    reason = parked_tables.park(table, "why", HERE, again=True).parking.reason
    again = parked_tables[table] is ParkedKind.RESNAPSHOTS
    assert again is ("It cannot begin again by itself: its rows in lake.items cannot be told from" not in reason)
    return again


def test_one_of_two_followed_tables_waits() -> None:
    assert not resnapshot_requested(tables(ONE, TWO), ONE)


def test_a_table_that_targets_were_never_told_of_begins_by_itself() -> None:
    assert resnapshot_requested(tables(ONE, TWO), THREE)
    assert resnapshot_requested(tables(ONE, item_3=parked(announced=False)), THREE)


def test_a_table_that_targets_were_never_told_of_is_in_nobodys_way() -> None:
    assert resnapshot_requested(tables(ONE, item_3=parked(announced=False)), ONE)


@pytest.mark.parametrize("phase", list(ParkedPhase))
def test_rows_of_a_table_that_is_not_followed_any_more_are_in_the_way(phase: ParkedPhase) -> None:
    assert not resnapshot_requested(tables(ONE, item_3=parked(announced=True, phase=phase)), ONE)


def test_a_table_that_begins_is_in_the_way_from_there_on() -> None:
    both = tables(ONE)
    both.follow(THREE)
    assert not resnapshot_requested(both, THREE)
    assert not resnapshot_requested(both, ONE)


@pytest.mark.parametrize("event", [TruncateTableEvent(ONE), DropTableEvent(ONE)])
def test_a_table_is_emptied_where_no_other_has_rows(event: SchemaChangeEvent) -> None:
    alone = tables(ONE, item_3=parked(announced=False))
    assert alone.objection(ONE, SCHEMA, None, [event]) == ""
    alone.follow(THREE)
    assert "cannot be told from those of shop.item_3" in alone.objection(ONE, SCHEMA, None, [event])


def test_a_table_waits_for_nobody_where_rows_are_appended() -> None:
    assert resnapshot_requested(tables(ONE, TWO, rules=TargetRules(router=MERGED.router)), ONE)


def test_a_table_whose_rows_the_log_has_and_nobody_sees_is_for_somebody_to_decide_until_it_is_dropped() -> None:
    unseen = tables(ONE)
    unseen.met(THREE, "rows came", HERE)
    parking = unseen.end(THREE, HERE).parking
    assert (parking.phase, unseen[THREE]) == (ParkedPhase.PARKED, ParkedKind.UNDECIDED)
    assert f"the log has rows of table {THREE}, and this account sees none of that name" in parking.reason
    assert unseen.is_over(THREE)
    unseen.park(THREE, "it may be gone", HERE, again=True)
    assert unseen.end(THREE, HERE).parking.reason == f"there is no table {THREE}; nothing of it was read"


def test_a_table_that_targets_have_ends_although_its_rows_were_met() -> None:
    was = tables(ONE)
    was.met(ONE, "rows came", HERE)
    assert was.end(ONE, HERE).parking.phase is ParkedPhase.ENDED
    assert not was.is_over(ONE)
