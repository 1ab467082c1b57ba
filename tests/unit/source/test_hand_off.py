"""The hand-off's judgement of single rows: drop, hold or emit, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.errors import ProtocolError
from raycdc.model import RowKind, TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.handoff.hand_off import (
    FoldChunkRequest,
    HandOff,
    HandOffStatistics,
    LogRows,
    PublishChunkRequest,
    RetryChunkRequest,
    RowMemory,
)
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.table_life import InSnapshot, SnapshotState, TableStates, reading
from tests.protocol.pair import segment

TABLE = TableId("shop", "orders")
SCHEMA = pa.schema([("id", pa.int64()), ("grp", pa.int64()), ("_op", pa.int8())])

INSERT, BEFORE, AFTER, DELETE = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE

Image = tuple[RowKind, int, int | None]


class Numbers:
    """Chunk keys that are numbers, in their natural order."""

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None: ...

    def forget(self, table: TableId) -> None: ...

    def bound(self, table: TableId, raw: Any) -> int:
        return int(raw)

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[int]) -> np.ndarray:
        return np.array([-1 if k is None else sum(b <= k for b in bounds) for k in keys.to_pylist()], np.int64)


def hand_off(*, key: str | None = "id", foldable: bool = True, needs_null: bool = False, **how: Any) -> HandOff:
    snapshot = SnapshotState(key, foldable=foldable, needs_null=needs_null)
    made = HandOff(Numbers(), lives(snapshot), ring_s=how.pop("ring_s", 0.0), memory=RowMemory(**how))
    made.add_table(TABLE, primary_key=("id",) if foldable else ())
    return made


def lives(snapshot: SnapshotState, *tables: TableId) -> TableStates:
    begun = InSnapshot("f", announced=True, incarnation=0, snapshot=snapshot)
    return TableStates(dict.fromkeys((TABLE, *tables), begun))


def chunk(index: int, lower: int | None, upper: int | None, *, attempt: int = 0, **options: Any) -> SnapshotSplit:
    return SnapshotSplit(TABLE, index, options.pop("key", "id"), lower, upper, attempt=attempt, **options)


def log(*images: Image, at: int = 1) -> LogRows:
    ops, ids, groups = ([image[n] for image in images] for n in (0, 1, 2))
    batch = pa.record_batch([pa.array(ids, pa.int64()), pa.array(groups, pa.int64()), pa.array(ops, pa.int8())], SCHEMA)
    return LogRows(TABLE, batch, np.full(len(images), at, np.int64))


def shown(rows: LogRows | Iterable[LogRows] | None) -> list[tuple[RowKind, int]]:
    parts = [rows] if isinstance(rows, LogRows) else rows or []
    return [(RowKind(r["_op"]), r["id"]) for part in parts for r in part.batch.to_pylist()]


def close(made: HandOff, split: SnapshotSplit, *, high: int, log_end: int = 0, exact: bool = False) -> None:
    segments = (segment(split.split_id),)
    made.close(split.chunk_id, high=high, log_end=max(high, log_end), exact=exact, segments=segments)


def publish(made: HandOff, split: SnapshotSplit, *, high: int = 0) -> PublishChunkRequest:
    made.open(split, now_s=0)
    close(made, split, high=high)
    (decision,) = made.advance(high, now_s=0)
    assert isinstance(decision, PublishChunkRequest)
    return decision


def test_rows_of_unknown_tables_go_out() -> None:
    rows = LogRows(TableId("shop", "other"), log((INSERT, 1, None)).batch, np.array([1], np.int64))
    assert hand_off().rows(rows, now_s=0) is rows


def test_a_row_is_dropped_held_or_emitted_by_its_own_chunk() -> None:
    made = hand_off()
    publish(made, chunk(0, None, 10))
    made.open(chunk(1, 10, 20), now_s=0)
    rows = log((INSERT, 5, None), (INSERT, 15, None), (INSERT, 25, None))
    assert shown(made.rows(rows, now_s=0)) == [(INSERT, 5)]
    close(made, chunk(1, 10, 20), high=0)
    (decision,) = made.advance(1, now_s=0)
    assert isinstance(decision, PublishChunkRequest)
    assert shown(decision.released) == [(INSERT, 15)]


def test_a_chunk_without_changes_is_published_as_it_was_read() -> None:
    decision = publish(hand_off(), chunk(0, None, None))
    assert decision == PublishChunkRequest(chunk(0, None, None), (segment(chunk(0, None, None).split_id),), ())


def test_a_chunk_waits_until_the_log_has_passed_its_high_watermark() -> None:
    made = hand_off()
    made.open(chunk(0, None, None), now_s=0)
    close(made, chunk(0, None, None), high=7)
    assert made.advance(6, now_s=0) == []
    assert [type(d) for d in made.advance(7, now_s=0)] == [PublishChunkRequest]


def test_a_chunk_waits_until_the_log_has_said_which_tables_had_its_name_up_to_the_end_of_its_select() -> None:
    made = hand_off()
    made.open(chunk(0, None, None), now_s=0)
    made.rows(log((INSERT, 1, None), at=8), now_s=0)
    close(made, chunk(0, None, None), high=7, log_end=9, exact=True)
    assert made.advance(8, now_s=0) == []
    (decision,) = made.advance(9, now_s=0)
    assert isinstance(decision, PublishChunkRequest)
    assert shown(decision.released) == [(INSERT, 1)]


def test_a_statement_about_the_table_before_the_end_of_the_select_voids_the_chunk() -> None:
    made = hand_off()
    made.open(chunk(0, None, None), now_s=0)
    close(made, chunk(0, None, None), high=7, log_end=9, exact=True)
    assert made.advance(8, now_s=0) == []
    assert made.void_table(TABLE, now_s=0) == [chunk(0, None, None)]
    assert made.advance(9, now_s=0) == []


def test_a_chunk_whose_table_did_not_fit_is_read_again_where_the_log_must_have_said_why() -> None:
    made = hand_off()
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None), at=2), now_s=0)
    made.schema_mismatch(split.chunk_id, high=7, reason="no column b", now_s=0)
    assert made.statistics().held_bytes == 0
    assert made.rows(log((INSERT, 3, None), at=6), now_s=0) is None
    assert made.statistics() == HandOffStatistics(tables=1, open_chunks=1, held_bytes=0, dropped_bytes=0)
    assert made.advance(6, now_s=0) == []
    # The log said nothing: the change was not logged, and somebody must give up at last.
    assert made.advance(7, now_s=0) == [RetryChunkRequest(split, "no column b")]
    assert made.rows(log((INSERT, 2, None), at=8), now_s=0) is None


def test_what_a_chunk_held_that_did_not_fit_is_remembered_where_its_next_select_may_not_see_it() -> None:
    made = hand_off(ring_s=10)
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None), at=2), now_s=1)
    made.schema_mismatch(split.chunk_id, high=7, reason="no column b", now_s=2)
    made.rows(log((INSERT, 2, None), at=6), now_s=3)
    assert made.advance(7, now_s=4) == [RetryChunkRequest(split, "no column b")]
    again = chunk(0, None, None, attempt=1)
    made.open(again, now_s=5)
    close(made, again, high=9)
    (fold,) = made.advance(9, now_s=6)
    assert isinstance(fold, FoldChunkRequest)
    assert shown(fold.delta) == [(INSERT, 1), (INSERT, 2)]


def test_changes_up_to_the_high_watermark_are_folded_and_later_ones_follow_the_chunk() -> None:
    made = hand_off()
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None), at=1), now_s=0)
    made.rows(log((INSERT, 2, None), at=2), now_s=0)
    close(made, split, high=1)
    (fold,) = made.advance(2, now_s=0)
    assert isinstance(fold, FoldChunkRequest)
    assert shown(fold.delta) == [(INSERT, 1)]
    made.rows(log((INSERT, 3, None), at=3), now_s=0)
    assert made.advance(3, now_s=0) == []
    close(made, split, high=1)
    (decision,) = made.advance(3, now_s=0)
    assert isinstance(decision, PublishChunkRequest)
    assert shown(decision.released) == [(INSERT, 2), (INSERT, 3)]


def test_a_chunk_read_at_an_exact_position_needs_no_folding() -> None:
    made = hand_off(key=None, foldable=False)
    split = chunk(0, None, None, key=None, includes_null=True)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None), at=1), now_s=0)
    made.rows(log((DELETE, 2, None), at=3), now_s=0)
    close(made, split, high=2, exact=True)
    (decision,) = made.advance(3, now_s=0)
    assert isinstance(decision, PublishChunkRequest)
    assert shown(decision.released) == [(DELETE, 2)]


def test_a_table_without_key_is_read_again_when_it_changed_meanwhile() -> None:
    made = hand_off(key=None, foldable=False)
    split = chunk(0, None, None, key=None, includes_null=True)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None), at=1), now_s=0)
    close(made, split, high=2)
    assert [type(d) for d in made.advance(2, now_s=0)] == [RetryChunkRequest]
    assert made.rows(log((INSERT, 1, None), at=3), now_s=0) is None


def test_an_update_between_chunks_is_a_delete_and_an_insert() -> None:
    made = hand_off()
    publish(made, chunk(0, None, 10))
    assert shown(made.rows(log((BEFORE, 5, None), (AFTER, 15, None)), now_s=0)) == [(DELETE, 5)]
    assert shown(made.rows(log((BEFORE, 15, None), (AFTER, 5, None)), now_s=0)) == [(INSERT, 5)]
    assert shown(made.rows(log((BEFORE, 5, None), (AFTER, 6, None)), now_s=0)) == [(BEFORE, 5), (AFTER, 6)]


def test_an_update_cut_in_half_is_refused() -> None:
    with pytest.raises(ProtocolError, match="after-image"):
        hand_off().rows(log((BEFORE, 5, None)), now_s=0)


def test_null_keys_have_the_chunk_that_includes_them() -> None:
    made = hand_off(key="grp", needs_null=True)
    nulls = chunk(0, None, None, key="grp", includes_null=True, only_null=True)
    publish(made, nulls)
    assert shown(made.rows(log((INSERT, 1, None), (INSERT, 2, 5)), now_s=0)) == [(INSERT, 1)]
    assert made.complete_tables() == []
    publish(made, chunk(1, None, None, key="grp"))
    assert made.complete_tables() == [TABLE]


def test_a_voided_chunk_is_unopened_again_and_a_late_close_of_it_is_ignored() -> None:
    made = hand_off()
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None)), now_s=0)
    assert made.void(split.chunk_id, now_s=0)
    close(made, split, high=0)
    assert made.advance(5, now_s=0) == []
    assert not made.void(split.chunk_id, now_s=0)
    assert publish(made, chunk(0, None, None, attempt=1), high=5).released == ()


def test_an_older_attempt_does_not_replace_a_newer_one() -> None:
    made = hand_off()
    made.open(chunk(0, None, None, attempt=2), now_s=0)
    assert not made.open(chunk(0, None, None, attempt=1), now_s=0)
    assert made.open(chunk(0, None, None, attempt=2), now_s=0)


def test_dropped_rows_of_the_last_seconds_are_held_by_a_chunk_opened_over_them() -> None:
    made = hand_off(ring_s=10)
    made.rows(log((INSERT, 1, None), (INSERT, 2, None), at=1), now_s=0)
    made.rows(log((INSERT, 3, None), at=2), now_s=5)
    split = chunk(0, 2, None)
    made.open(split, now_s=9)
    close(made, split, high=2)
    (fold,) = made.advance(2, now_s=9)
    assert isinstance(fold, FoldChunkRequest)
    assert shown(fold.delta) == [(INSERT, 2), (INSERT, 3)]


def test_dropped_rows_are_forgotten_when_they_must_be_visible() -> None:
    made = hand_off(ring_s=10)
    made.rows(log((INSERT, 1, None)), now_s=0)
    assert publish_at(made, 11) == []


@pytest.mark.parametrize("folding", [False, True])
def test_what_a_voided_chunk_held_is_remembered_once_for_its_next_attempt(folding: bool) -> None:
    made = hand_off(ring_s=10)
    made.rows(log((INSERT, 1, None), at=1), now_s=0)
    split = chunk(0, None, None)
    made.open(split, now_s=1)
    made.rows(log((INSERT, 2, None), at=2), now_s=1)
    made.rows(log((INSERT, 3, None), at=3), now_s=1)
    if folding:
        close(made, split, high=2)
        made.advance(3, now_s=1)
    made.void(split.chunk_id, now_s=2)
    assert publish_at(made, 3, attempt=1) == [(INSERT, 1), (INSERT, 2), (INSERT, 3)]


def test_a_schema_change_voids_open_chunks_and_ends_what_is_remembered() -> None:
    made = hand_off(ring_s=10)
    made.rows(log((INSERT, 1, None)), now_s=0)
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    assert made.void_table(TABLE, now_s=0) == [split]
    assert publish_at(made, 1, attempt=1) == []


def publish_at(made: HandOff, now_s: float, *, attempt: int = 0) -> list[tuple[RowKind, int]]:
    """Open and close a chunk of everything; what it has to fold."""
    split = chunk(0, None, None, attempt=attempt)
    made.open(split, now_s=now_s)
    close(made, split, high=100)
    (decision,) = made.advance(100, now_s=now_s)
    return shown(decision.delta) if isinstance(decision, FoldChunkRequest) else []


def test_a_chunk_that_a_row_left_for_another_one_is_read_again() -> None:
    made = hand_off(key="grp")
    split = chunk(0, None, 10, key="grp")
    made.open(split, now_s=0)
    made.rows(log((BEFORE, 1, 5), (AFTER, 1, 15), at=3), now_s=0)
    close(made, split, high=2)
    assert [type(d) for d in made.advance(3, now_s=0)] == [RetryChunkRequest]


def test_a_chunk_follows_what_the_epoch_has_removed_in_the_next_epoch() -> None:
    made = hand_off(key="grp")
    publish(made, chunk(0, None, 10, key="grp"))
    split = chunk(1, 10, None, key="grp")
    made.open(split, now_s=0)
    assert shown(made.rows(log((BEFORE, 1, 5), (AFTER, 1, 15), at=3), now_s=0)) == [(DELETE, 1)]
    close(made, split, high=3, exact=True)
    assert made.advance(3, now_s=0) == []
    made.begin_epoch()
    assert [type(d) for d in made.advance(3, now_s=0)] == [PublishChunkRequest]


def test_state_is_what_is_closed_and_never_what_is_held() -> None:
    made = hand_off(needs_null=True)
    publish(made, chunk(1, 10, 20))
    publish(made, chunk(0, None, 10))
    made.open(chunk(2, 20, None), now_s=0)
    made.rows(log((INSERT, 25, None)), now_s=0)
    state = reading(made._table_states[TABLE])
    assert state is not None
    assert state.snapshot == SnapshotState("id", foldable=True, needs_null=True, closed=((None, 20),))
    restored = HandOff(Numbers(), lives(state.snapshot))
    restored.add_table(TABLE, primary_key=("id",))
    assert shown(restored.rows(log((INSERT, 19, None), (INSERT, 20, None)), now_s=0)) == [(INSERT, 19)]


class Down:
    """Rows that were put down in a test."""

    def __init__(self, rows: Sequence[LogRows]) -> None:
        self.rows: Sequence[LogRows] = list(rows)
        self.deleted = False

    def __iter__(self) -> Iterator[LogRows]:
        assert not self.deleted
        return iter(self.rows)

    def delete(self) -> None:
        self.deleted = True


def spilling(**how: Any) -> tuple[HandOff, list[Down]]:
    """A hand-off whose chunks hold one row in memory at most."""
    down: list[Down] = []

    def put_down(rows: Sequence[LogRows]) -> Down:
        down.append(Down(rows))
        return down[-1]

    return hand_off(bytes_max=log((INSERT, 1, None)).batch.nbytes, spill=put_down, **how), down


def test_rows_that_were_put_down_are_folded_and_released_in_their_order_and_deleted_then() -> None:
    made, down = spilling()
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    for number in range(1, 6):
        made.rows(log((INSERT, number, None), at=number), now_s=0)
    assert (len(down), made.statistics().held_bytes <= log((INSERT, 1, None)).batch.nbytes) == (2, True)
    close(made, split, high=3)
    (fold,) = made.advance(5, now_s=0)
    assert isinstance(fold, FoldChunkRequest)
    assert shown([*fold.delta]) == [(INSERT, 1), (INSERT, 2), (INSERT, 3)]
    close(made, split, high=3)
    (published,) = made.advance(5, now_s=0)
    assert isinstance(published, PublishChunkRequest)
    assert not any(rows.deleted for rows in down)
    assert shown([*published.released]) == [(INSERT, 4), (INSERT, 5)]
    assert all(rows.deleted for rows in down)


@pytest.mark.parametrize("how", ["void", "void_table", "drop_table", "misfit"])
def test_rows_that_were_put_down_are_deleted_with_whatever_ends_their_chunk(how: str) -> None:
    made, down = spilling()
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    for number in range(1, 4):
        made.rows(log((INSERT, number, None), at=number), now_s=0)
    assert down
    match how:
        case "void":
            made.void(split.chunk_id, now_s=0)
        case "void_table":
            made.void_table(TABLE, now_s=0)
        case "drop_table":
            made.drop_table(TABLE)
        case _:
            made.schema_mismatch(split.chunk_id, high=3, reason="another", now_s=0)
    assert all(rows.deleted for rows in down)


def test_what_was_put_down_and_may_be_invisible_to_the_next_select_is_waited_for_instead_of_remembered() -> None:
    made, down = spilling(ring_s=10)
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    for number in range(1, 4):
        made.rows(log((INSERT, number, None), at=number), now_s=1)
    assert made.opens_from_s(TABLE) == 0
    made.void(split.chunk_id, now_s=2)
    assert (all(rows.deleted for rows in down), made.opens_from_s(TABLE)) == (True, 12)


class PutDown:
    """Rows that were put down, and stay in memory all the same."""

    def __init__(self, rows: Sequence[LogRows]) -> None:
        self._rows = list(rows)

    def __iter__(self) -> Iterator[LogRows]:
        return iter(self._rows)

    def delete(self) -> None:
        self._rows = []


def test_what_is_remembered_of_dropped_rows_has_a_bound_and_chunks_open_later_instead() -> None:
    bound = 20 * log((INSERT, 1, 1)).batch.nbytes
    made = hand_off(ring_s=60.0, bytes_max=bound, spill=PutDown)
    most = 0
    for number in range(2000):
        made.rows(log((INSERT, number, 1), at=number), now_s=number / 100)
        most = max(most, made.statistics().dropped_bytes)
    assert most == bound
    # The newest that was forgotten came with number 1979.
    assert made.opens_from_s(TABLE) == pytest.approx(19.79 + 60)
    # What is remembered is for the chunk, as before.
    assert made.open(chunk(0, None, None), now_s=80.0)
    assert made.statistics().held_bytes == 0
    made.rows(log((INSERT, 5000, 1), at=5000), now_s=80.0)
    assert made.statistics().held_bytes > 0


def test_tables_share_the_bound_and_the_largest_gives_way() -> None:
    row = log((INSERT, 1, 1))
    other = TableId("shop", "items")
    both = lives(SnapshotState("id", foldable=True, needs_null=False), other)
    made = HandOff(Numbers(), both, ring_s=60.0, memory=RowMemory(3 * row.batch.nbytes, PutDown))
    for table in both:
        made.add_table(table, primary_key=("id",))
    for second in range(3):
        made.rows(row, now_s=second)
    made.rows(LogRows(other, row.batch, row.ordinals), now_s=3)
    assert (made.opens_from_s(TABLE), made.opens_from_s(other)) == (60.0, 0.0)
    assert made.statistics().dropped_bytes == 3 * row.batch.nbytes


def test_a_table_whose_null_chunk_is_unread_is_not_complete() -> None:
    made = hand_off(needs_null=True)
    publish(made, chunk(0, None, None))
    assert made.complete_tables() == []
    publish(made, chunk(1, None, None, includes_null=True, only_null=True))
    assert made.complete_tables() == [TABLE]


def test_only_the_attempt_that_is_open_can_be_voided_closed_or_found_misfit() -> None:
    made = hand_off()
    split, older = chunk(0, None, None, attempt=2), chunk(0, None, None, attempt=1)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None), at=2), now_s=0)
    assert not made.void(older.chunk_id, now_s=0)
    made.schema_mismatch(older.chunk_id, high=1, reason="another", now_s=0)
    close(made, older, high=1)
    assert made.advance(5, now_s=0) == []
    assert made.statistics().held_bytes > 0
    close(made, split, high=1)
    (decision,) = made.advance(5, now_s=0)
    assert isinstance(decision, PublishChunkRequest)
    assert shown(decision.released) == [(INSERT, 1)]


def test_opening_the_attempt_that_is_open_again_keeps_what_it_holds() -> None:
    made = hand_off()
    split = chunk(0, None, None)
    made.open(split, now_s=0)
    made.rows(log((INSERT, 1, None), at=2), now_s=0)
    assert made.open(split, now_s=0)
    close(made, split, high=1)
    (decision,) = made.advance(5, now_s=0)
    assert isinstance(decision, PublishChunkRequest)
    assert shown(decision.released) == [(INSERT, 1)]


def test_a_chunk_does_not_enter_the_epoch_that_truncated_its_table() -> None:
    made = hand_off()
    made.truncate(TABLE)
    made.open(chunk(0, None, None), now_s=0)
    close(made, chunk(0, None, None), high=1)
    assert made.advance(5, now_s=0) == []
    made.begin_epoch()
    assert [type(decision) for decision in made.advance(5, now_s=0)] == [PublishChunkRequest]
