"""How far the cutting of a table is: its steps, and its form in the state."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from raycdc.connectors.mysql.snapshot.planning.chunk_keys import KeyColumns
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkPlan, ChunkPlanPhase, ChunkRange
from raycdc.connectors.mysql.snapshot.planning.chunks import ChunkPlanner, ChunkSettings
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import StateError
from raycdc.model import TableId

COLUMNS = (MySqlColumn("id", "int", nullable=False), MySqlColumn("code", "varbinary(9)", nullable=False))
TABLE = MySqlTable(TableId("shop", "orders"), COLUMNS, ("id", "code"))
KEY = KeyColumns.named(TABLE, "id")


def chunk(lower: Any, upper: Any, key: Any, *, only_null: bool = False) -> dict[str, Any]:
    return {"lower": lower, "upper": upper, "includes_null": False, "only_null": only_null, "key": key}


#: As the state has plans: of one column, of several, by estimates, and cut to the end with chunks to return.
STORED: list[Any] = [
    {
        "version": 1, "phase": "even", "key": "id", "queue": [chunk(None, 1, "id"), chunk(900, None, "id")],
        "next": 101, "max": 900, "step": 100, "rows": 100, "planned": 32, "estimate": 41, "factor": 0.0,
    },
    {
        "version": 1, "phase": "sampled", "key": ["id", "code"],
        "queue": [chunk(None, None, ["id", "code"], only_null=True), chunk([1, {"bytes": "ff"}], [2], ["id", "code"])],
        "next": [2], "max": [9, {"bytes": "00"}], "step": 7, "rows": 5, "planned": 0, "estimate": 9, "factor": 1.75,
    },
    {
        "version": 1, "phase": "uneven", "key": "code", "queue": [], "next": {"bytes": "6162"}, "max": {"bytes": "7a"},
        "step": 0, "rows": 10, "planned": 3, "estimate": 4, "factor": 0.0,
    },
    {
        "version": 1, "phase": "done", "key": None,
        "queue": [{"lower": None, "upper": None, "includes_null": True, "only_null": False, "key": None}],
        "next": None, "max": None, "step": 0, "rows": 10, "planned": 0, "estimate": 1, "factor": 0.0,
    },
]  # fmt: skip


@pytest.mark.parametrize("stored", STORED, ids=[f"{stored['phase']}" for stored in STORED])
def test_a_stored_plan_is_read_and_written_as_it_is(stored: Any) -> None:
    plan = ChunkPlan.restored(stored, TABLE, rows=7)
    assert json.loads(json.dumps(plan.to_json())) == stored


def test_a_plan_of_before_there_was_a_factor_has_none() -> None:
    stored: Any = {name: value for name, value in STORED[0].items() if name != "factor"}
    assert ChunkPlan.restored(stored, TABLE, rows=7) == ChunkPlan.restored(STORED[0], TABLE, rows=7)


def test_a_state_that_has_the_key_alone_begins_the_plan() -> None:
    assert ChunkPlan.restored({"key": "id"}, TABLE, rows=7) == ChunkPlan(KEY, 7)
    assert ChunkPlan.restored({"key": None}, TABLE, rows=7) == ChunkPlan(None, 7)


@pytest.mark.parametrize(("name", "value"), [("version", 2), ("phase", "backwards")])
def test_a_plan_that_nobody_can_read_is_a_named_error(name: str, value: Any) -> None:
    stored: Any = {**STORED[0], name: value}
    with pytest.raises(StateError, match=r"shop\.orders: the chunk plan has"):
        ChunkPlan.restored(stored, TABLE, rows=7)


def test_an_even_inside_is_cut_into_steps_without_a_connection_left_open() -> None:
    class Connection:
        def close(self) -> None:
            closed.append(self)

    closed: list[Connection] = []
    plan = ChunkPlan(KEY, 100, ChunkPlanPhase.EVEN, next=0, last=250, step=100, estimate=3)

    def connect() -> Any:
        return closing(Connection())

    planner = ChunkPlanner(connect, TABLE, ChunkSettings(), plan)
    assert planner.next_chunks(2) == [ChunkRange(0, 100, key="id"), ChunkRange(100, 200, key="id")]
    assert (planner.plan.done, planner.plan.estimated_total) == (False, 3)
    assert planner.next_chunks(2) == [ChunkRange(200, 250, key="id")]
    assert (planner.plan.done, planner.plan.estimated_total, len(closed)) == (True, 3, 2)


def test_what_is_left_becomes_one_chunk() -> None:
    begun = ChunkPlan(KEY, 100)
    assert begun.with_rest_as_one().queue == (ChunkRange(includes_null=True, key="id"),)
    half = ChunkPlan(KEY, 100, ChunkPlanPhase.UNEVEN, next=10, last=20, planned=2)
    rest = half.with_rest_as_one()
    assert (rest.queue, rest.phase) == ((ChunkRange(10, 20, key="id"),), ChunkPlanPhase.DONE)
    assert rest.with_rest_as_one() == rest


def test_a_failed_query_consumes_nothing() -> None:
    def connect() -> Any:
        raise ConnectionError

    plan = ChunkPlan(KEY, 100, ChunkPlanPhase.UNEVEN, (ChunkRange(None, 10, key="id"),), 10, 20)
    planner = ChunkPlanner(connect, TABLE, ChunkSettings(), plan)
    with pytest.raises(ConnectionError):
        planner.next_chunks(2)
    assert planner.plan == plan
    assert planner.next_chunks(1) == [ChunkRange(None, 10, key="id")]
