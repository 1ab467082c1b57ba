"""Tables that the state did not know are told of once; those of a first start are not."""

from __future__ import annotations

from raycdc.model import TableId
from raycdc.observe.events import NewTable
from raycdc.observe.watch.run_reports import NewTables
from raycdc.source.protocol.api import TableProgress
from raycdc.source.protocol.job_status import JobStatus, TableStatus
from raycdc.source.tables.table_life import Parked, ParkedPhase
from raycdc.state.opaque import Position

PARKED = Parked(None, False, 0, ParkedPhase.PARKED, "it has no key", Position.unknown(), 0)


def status(*names: str, parked: Parked | None = None) -> JobStatus:
    tables = {TableId("shop", name): TableStatus(TableProgress("stream", parked=parked)) for name in names}
    return JobStatus(1, 0, 0, tables=tables)


def test_a_table_that_appears_while_the_run_goes_on_is_told_of_once() -> None:
    told: list[NewTable] = []
    new = NewTables(None, told.append)
    for now in (None, status(), status("a", "b"), status("a", "b", "c"), status("a", "c")):
        new.heard(now)
    assert told == [NewTable("shop.c")]


def test_a_table_that_the_state_knew_is_not_new_and_one_that_cannot_be_followed_has_its_own_line() -> None:
    told: list[NewTable] = []
    new = NewTables({"shop.a"}, told.append)
    new.heard(status("a", "b"))
    new.heard(status("c", parked=PARKED))
    assert told == [NewTable("shop.b")]
