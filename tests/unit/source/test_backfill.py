"""Backfills as the enumerator keeps them: given out chunk by chunk, over with a reason, and in the state as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from raycdc.errors import StateError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.source.protocol.api import BackfillProgress
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.enumerator_state import SealedEnumerator
from raycdc.source.snapshot.enumerator.snapshot_plan import PlannedChunks
from raycdc.source.snapshot.handoff.fold import deletes, left_alone
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.rereading.backfill import Backfill, Backfills
from raycdc.source.snapshot.rereading.backfill_keys import distinct_lists, keys_of_text, lists_of_keys, text_of_keys
from raycdc.source.split import BackfillRows, SnapshotSplit
from raycdc.source.tables.parking import Requests, RowsRequest
from raycdc.source.tables.table_life import Live
from raycdc.state.opaque import PlannerState, Position
from tests.protocol.pair import segment

TABLE = TableId("shop", "orders")
SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64)), Column("v", LogicalType(TypeKind.INT64))), ("id",))
DOCUMENT = SchemaDocument.of(SCHEMA)
WHERE = RowsRequest("c1", TABLE, where="v > 3")
STATE = StreamState(Position.unknown(), 1, {TABLE: Live(DOCUMENT.fingerprint, announced=True, incarnation=0)})

ORDER = "as numbers"

#: As states have it: this must be readable for ever.
GOLDEN: dict[str, Any] = {
    "backfills": [
        {
            "request": {"backfill": "c1", "table": "shop.orders", "where": "v > 3", "parts": []},
            "queue": [
                {
                    "kind": "snapshot",
                    "table": "shop.orders",
                    "index": 1,
                    "key": "id",
                    "lower": 5,
                    "upper": None,
                    "includes_null": False,
                    "only_null": False,
                    "incarnation": 0,
                    "attempt": 0,
                    "again": {"backfill": "c1", "where": "v > 3", "keys": ""},
                }
            ],
            "planner": None,
            "document": None,
            "planned": 2,
            "rows": 7,
            "over": None,
        }
    ],
    "version": 2,
    "started": True,
    "high": 9,
    "tables": {},
    "unfinished": [],
}


class TwoChunks:
    """Two chunks, planned one by one."""

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first: int) -> PlannedChunks:
        split = SnapshotSplit(table, first, "id", 5 * first or None, 5 * first + 5, as_of=3)
        rest = PlannerState.from_json({"next": 1}) if first == 0 else None
        return PlannedChunks((split,), rest, 2, order=ORDER)


class Context:
    """Calls are made when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None]) -> None:
        self.calls.append(lambda: handler(call()))


def backfills(*requests: RowsRequest, state: StreamState = STATE) -> tuple[Backfills, Context]:
    context: Any = Context()
    dialect: Any = TwoChunks()
    made = Backfills(context, dialect, on_planned=lambda: None)
    made.begin(requests, state, lambda _: DOCUMENT)
    return made, context


def planned(made: Backfills, context: Context) -> SnapshotSplit:
    """The next chunk, which is planned first."""
    assert made.next_of(TABLE) is None
    assert made.next_of(TABLE) is None
    (call,) = context.calls
    context.calls.clear()
    call()
    split = made.next_of(TABLE)
    assert split is not None
    return split


def test_chunks_of_a_predicate_are_planned_and_given_out_one_by_one() -> None:
    made, context = backfills(WHERE)
    first = planned(made, context)
    assert first == SnapshotSplit(TABLE, 0, "id", None, 5, again=BackfillRows("c1", "v > 3", order=ORDER))
    assert SnapshotSplit.from_json(first.to_json()) == first
    made.finished(first, (segment(first.split_id),))
    last = planned(made, context)
    made.finished(last, ())
    (sealed,) = made.sealed()
    assert (sealed.over, sealed.rows, sealed.planned, made.has_changes) == ("", segment("s").rows, 2, False)
    assert made.tables() == []


def test_how_far_it_is_can_be_told_until_it_is_over_also_after_a_restart() -> None:
    told: list[tuple[TableId, BackfillProgress | None]] = []
    context: Any = Context()
    dialect: Any = TwoChunks()
    made = Backfills(context, dialect, on_planned=lambda: None, on_progress=lambda *one: told.append(one))
    made.begin([WHERE], STATE, lambda _: DOCUMENT)
    made.report_progress(TABLE)
    first, rows = planned(made, context), segment("s").rows
    made.finished(first, (segment(first.split_id),))
    sealed = [Backfill.from_json(each.to_json()) for each in made.sealed()]
    again = Backfills(context, dialect, on_planned=lambda: None, on_progress=lambda *one: told.append(one))
    again.restore(sealed, {"c1": WHERE})
    again.begin([], STATE, lambda _: DOCUMENT)
    again.report_progress(TABLE)
    again.finished(planned(again, context), ())
    half = BackfillProgress(1, 2, rows)
    so_far = [BackfillProgress(), BackfillProgress(0, 2), half, half, half, BackfillProgress(2, 2, rows), None]
    assert told == [(TABLE, progress) for progress in so_far]
    assert [progress.percent for progress in (BackfillProgress(), half)] == [None, 50.0]


def test_one_that_is_refused_by_now_is_over_with_the_reason() -> None:
    refused = replace(WHERE, refused="its target is shared")
    made, context = backfills(refused)
    assert (made.tables(), made.has_changes, context.calls) == ([], True, [])
    (sealed,) = made.sealed()
    assert (sealed.over, sealed.rows) == ("its target is shared", 0)
    # Also one that a manifest says goes on.
    going = Backfill.from_json(GOLDEN["backfills"][0])
    later, _ = backfills()
    assert later.restore([going], {"c1": RowsRequest.from_json(refused.to_json())}) == []
    (sealed,) = later.sealed()
    assert (sealed.over, sealed.rows, later.tables()) == ("its target is shared", 7, [])


def test_all_is_done_when_nothing_is_left_to_give_out() -> None:
    made, context = backfills(WHERE)
    planned(made, context)
    last = [made.is_done]
    planned(made, context)
    assert [*last, made.is_done] == [False, True]


def test_a_restart_reads_the_chunks_again_that_no_manifest_has() -> None:
    made, context = backfills(WHERE)
    made.finished(planned(made, context), ())
    planned(made, context)
    sealed = made.sealed()
    again, _ = backfills()
    assert again.restore(sealed, {"c1": WHERE}) == []
    split = again.next_of(TABLE)
    assert split is not None
    assert (split.index, split.attempt) == (1, 1)


def test_one_that_is_over_is_remembered_while_it_is_asked_for() -> None:
    made, _ = backfills(WHERE)
    made.end(TABLE, "the table is paused: paused by the user")
    assert made.has_changes
    sealed = made.sealed()
    kept, forgotten = backfills()[0], backfills()[0]
    assert kept.restore(sealed, {"c1": WHERE}) == []
    assert [each.over for each in kept.sealed()] == ["the table is paused: paused by the user"]
    assert kept.tables() == []
    forgotten.restore(sealed, {})
    assert forgotten.sealed() == ()


def test_one_of_a_table_that_nobody_follows_is_over_at_once() -> None:
    made, _ = backfills(WHERE, state=StreamState(Position.unknown(), 1))
    assert [each.over for each in made.sealed()] == ["the table is not followed"]


def test_parts_are_read_as_they_are_given_and_never_as_of_a_place() -> None:
    part = SnapshotSplit(TABLE, 9, "id", 1, 4, as_of=3, again=BackfillRows("?", keys="keys"))
    made, _ = backfills(RowsRequest("c2", TABLE, parts=(part, part)))
    assert made.next_of(TABLE) == SnapshotSplit(TABLE, 0, "id", 1, 4, again=BackfillRows("c2", keys="keys"))


def test_the_state_reads_what_was_written_and_writes_it_so() -> None:
    split = SnapshotSplit(TABLE, 1, "id", 5, None, again=BackfillRows("c1", "v > 3"))
    state = SealedEnumerator(True, 9, backfills=(Backfill(WHERE, (split,), planned=2, rows=7),))
    assert state.sealed().to_json() == GOLDEN
    assert SealedEnumerator.of(state.sealed()) == state


def test_a_state_without_backfills_is_one_that_older_versions_read() -> None:
    assert SealedEnumerator(True).sealed().to_json()["version"] == 1


def test_a_backfill_that_is_planned_has_all_that_planning_needs() -> None:
    begun = Backfill.begun(WHERE, DOCUMENT)
    assert Backfill.from_json(begun.to_json()) == begun


def test_requests_keep_backfills_until_they_are_over() -> None:
    requests = Requests(rows={"c1": WHERE})
    assert Requests.from_json(requests.to_json()) == requests
    assert requests.left(STATE) == requests
    assert requests.left(STATE, {"c1"}) == Requests()


def test_keys_are_a_text_and_come_back_as_they_were() -> None:
    keys = pa.table({"id": pa.array([1, 2**60]), "name": pa.array(["é", ""])})
    assert keys_of_text(text_of_keys(keys)).equals(keys)
    assert text_of_keys(keys.slice(0, 0)) == ""
    with pytest.raises(StateError, match="A list of keys cannot be read"):
        keys_of_text("bm8=")


def test_deletes_of_keys_have_nothing_but_the_key() -> None:
    batch = deletes(pa.table({"id": pa.array([4], pa.int32())}), SCHEMA, first=2, read_ms=5)
    assert batch.to_pylist() == [{"id": 4, "v": None, "_op": 3, "_seq": 2, "_ts_ms": 5, "_pos": None}]


def test_keys_that_the_log_told_of_are_left_out_whatever_it_said() -> None:
    rows = pa.Table.from_batches([deletes(pa.table({"id": [1, 2, 3]}), SCHEMA, first=0, read_ms=5)])
    changed = pa.Table.from_batches([deletes(pa.table({"id": [2]}), SCHEMA, first=9, read_ms=6)])
    left = left_alone(rows, changed, key=("id",))
    assert left.select(["id", "_seq"]).to_pylist() == [{"id": 1, "_seq": 0}, {"id": 3, "_seq": 1}]


def test_keys_of_several_targets_are_read_again_once_each() -> None:
    def keys(*numbers: int) -> pa.Table:
        return pa.table({"id": pa.array(numbers, pa.int64()), "name": pa.array([f"n{n}" for n in numbers])})

    first, second = lists_of_keys(keys(1, 2, 3)), lists_of_keys(keys(3, 2, 4))
    lists, count = distinct_lists([*first, *second, ""])
    assert count == 4
    found = pa.concat_tables([keys_of_text(text) for text in lists])
    assert sorted(found.column("id").to_pylist()) == [1, 2, 3, 4]
    assert distinct_lists([]) == ([], 0)
