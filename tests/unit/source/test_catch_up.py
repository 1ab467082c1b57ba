"""The numbers of rows of two readings of one log, and the beginning that a table is while it is caught up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raycdc.checkpoint.opaque import LogNotes, Position, SealedSplit
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.source.parking import Requests, TableRequest, with_requests
from raycdc.source.snapshot.catch_up import RowNumbers
from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.snapshot.log_unit import LogPlace, LogUnit, Transactions, rows_of
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.table_life import AsOf, Behind, CatchingUp, InSnapshot, LeftAt, Live, Parked, Phase, SnapshotState

TABLE = TableId("shop", "orders")
OTHER = TableId("shop", "items")
HERE = Position.from_json({"at": 1})
SCHEMA = changelog_schema(TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",)))


def unit(*numbers: int) -> LogUnit:
    """A transaction whose rows have these numbers."""
    columns = [pa.array(numbers if field.name == "_seq" else [None] * len(numbers), field.type) for field in SCHEMA]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return Transactions(LogPlace(HERE, 1), (LogRows(TABLE, batch, np.arange(len(numbers), dtype=np.int64)),))


def numbers_of(one: LogUnit) -> list[int]:
    return [number for rows in rows_of(one) for number in rows.batch.column("_seq").to_pylist()]


def test_a_log_that_is_opened_anew_goes_on_behind_the_numbers_of_the_one_before() -> None:
    """Rows of that may still be held for a chunk, and come before those behind them."""
    numbers = RowNumbers()
    assert numbers_of(numbers.of_log(unit(3, 4, 900))) == [3, 4, 900]
    numbers.open_anew()
    assert numbers_of(numbers.of_log(unit(0, 1))) == [901, 902]
    numbers.open_anew()
    assert numbers_of(numbers.of_log(unit(5))) == [908]


def test_rows_that_are_read_beside_the_log_are_numbered_near_the_logs_in_each_epoch() -> None:
    numbers = RowNumbers()
    numbers.of_log(unit(1 << 40))
    first = numbers_of(numbers.of_beside(unit(7, 8)))
    assert first == [(1 << 40) + 1, (1 << 40) + 2]
    assert numbers_of(numbers.of_beside(unit(20, 21))) == [(1 << 40) + 14, (1 << 40) + 15]
    numbers.begin_epoch()
    numbers.of_log(unit((1 << 40) + 5))
    assert numbers_of(numbers.of_beside(unit(9, 10))) == [(1 << 40) + 6, (1 << 40) + 7]


def paused(state: InSnapshot | AsOf | Behind | Live | CatchingUp) -> Parked:
    """The table after a user paused it in a log at the ordinal 40."""
    notes = LogNotes({"databases": {}})
    catching_up = {TABLE: state} if isinstance(state, CatchingUp) else {}
    followed = {} if isinstance(state, CatchingUp) else {TABLE: state}
    stream = StreamState(HERE, 40, followed, changes=6, notes=notes, catching_up=catching_up)
    asked = Requests(6, {str(TABLE): TableRequest.PAUSE})
    after = with_requests(stream, asked)
    assert not asked.acts_on(str(TABLE), after)
    return after.parked[TABLE]


def test_a_paused_table_keeps_what_it_needs_to_go_on_if_all_its_chunks_are_out() -> None:
    here = LeftAt(3, 40, LogNotes({"databases": {}}))
    earlier = Position.from_json({"at": 0})
    snapshot = SnapshotState("id", foldable=True, needs_null=False)
    assert paused(Live("f", announced=True, incarnation=3)).left == here
    assert paused(Behind("f", announced=True, incarnation=3, at=40)).left == here
    assert paused(Behind("f", announced=True, incarnation=3, at=41)).left is None
    assert paused(InSnapshot("f", True, 3, snapshot)).left is None
    assert paused(AsOf("f", True, 3, snapshot, at=9)).left is None
    again = paused(CatchingUp("f", True, earlier, LeftAt(3, 11)))
    assert (again.position, again.left, again.incarnation) == (earlier, LeftAt(3, 11), 7)
    assert paused(CatchingUp("f", True, earlier, LeftAt(3, 11), gone=True)).left is None


def test_a_resumed_table_is_the_beginning_that_it_was_and_a_request_acts_on_it_once() -> None:
    left = LeftAt(3, 11, LogNotes({"x": 1}))
    before = Parked("f", True, 7, Phase.PAUSED, "paused by the user", HERE, 0, left=left)
    stream = StreamState(HERE, 40, parked={TABLE: before}, changes=7)
    asked = Requests(7, {str(TABLE): TableRequest.RESUME})
    after = with_requests(stream, asked)
    assert after.catching_up == {TABLE: CatchingUp("f", True, HERE, left)}
    assert (after.parked, after.changes) == ({}, 8)
    assert with_requests(after, asked) is after
    assert asked.left(after).tables == {}
    # A target that is parked meanwhile is told which beginning it lacks rows of.
    assert SealedSplit.from_json(after.to_json()).incarnation(str(TABLE)) == 3
    assert SealedSplit.from_json(stream.to_json()).incarnation(str(TABLE)) is None


def test_a_table_whose_place_nobody_knows_is_read_anew() -> None:
    before = Parked("f", True, 7, Phase.PAUSED, "paused by the user", HERE, 0)
    stream = StreamState(HERE, 40, parked={TABLE: before}, changes=7)
    after = with_requests(stream, Requests(7, {str(TABLE): TableRequest.RESUME}))
    assert (after.parked[TABLE].again, after.parked[TABLE].phase) == (True, Phase.PARKED)


def test_behind_a_gap_or_at_another_server_no_place_is_of_use() -> None:
    left = LeftAt(3, 11)
    there = Position.from_json({"at": 9})
    before = Parked("f", True, 7, Phase.PAUSED, "paused by the user", HERE, 0, left=left)
    stream = StreamState(
        HERE, 40, parked={OTHER: before}, changes=7, catching_up={TABLE: CatchingUp("f", True, HERE, left)}
    )
    after = stream.elsewhere(there, 5)
    assert (after.position, after.ordinal, after.changes) == (there, 5, 8)
    assert (after.parked[OTHER].left, after.parked[OTHER].phase) == (None, Phase.PAUSED)
    assert (after.parked[TABLE].phase, after.parked[TABLE].again, after.catching_up) == (Phase.PARKED, False, {})
    assert after.parked[TABLE].reason.endswith(f"raycdc tables resnapshot CONFIG {TABLE}")
