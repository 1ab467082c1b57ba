"""A key that passes from one row to another in one epoch: the last message of each key is that of its present row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pytest

from raycdc.errors import MergedKeyRefusedError
from raycdc.formats.plugins import load_format
from raycdc.model import META_FIELDS, Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.keys import OWNER
from raycdc.sinks.kafka.passed_keys import by_owner

SCHEMA = TableSchema((Column("k", LogicalType(TypeKind.STRING)), Column("v", LogicalType(TypeKind.INT64))), ("k",))
INSERT, BEFORE, AFTER, DELETE = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE
#: The owner of a row, its key, and its value.
Row = tuple[int, str, int]
Change = tuple[RowKind, Row]
State = Mapping[int, tuple[str, int]]


def batch(changes: Sequence[Change], *, first: int = 0) -> pa.RecordBatch:
    count = len(changes)
    columns = {
        "k": pa.array([row[1] for _, row in changes], pa.string()),
        "v": pa.array([row[2] for _, row in changes], pa.int64()),
        "_op": pa.array([int(op) for op, _ in changes], pa.int8()),
        "_seq": pa.array(range(first, first + count), pa.int64()),
        "_ts_ms": pa.array([1] * count, pa.int64()),
        "_pos": pa.nulls(count, pa.string()),
        OWNER: pa.array([str(row[0]).encode() for _, row in changes], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def settled(changes: Sequence[Change]) -> list[tuple[RowKind, str, int]]:
    rows = [row for found in by_owner([batch(changes)], ["k"], target="t") for row in found.to_pylist()]
    return [(RowKind(row["_op"]), row["k"], row["v"]) for row in rows]


def changed(owner: int, was: tuple[str, int] | None, now: tuple[str, int] | None) -> list[Change]:
    """The rows of one change, as a changelog with a new key has them: a new key is a deletion and an insert."""
    same = was is not None and now is not None and was[0] == now[0]
    rows: list[Change] = []
    if was is not None:
        rows.append((BEFORE if same else DELETE, (owner, *was)))
    if now is not None:
        rows.append((AFTER if same else INSERT, (owner, *now)))
    return rows


def read(topic: dict[str, int], messages: Iterable[tuple[RowKind, str, int]]) -> dict[str, int]:
    """What a reader of a changelog has, who demands that each before-image is what it has."""
    for op, key, value in messages:
        if op in (BEFORE, DELETE):
            assert topic.pop(key) == value
        else:
            assert key not in topic
            topic[key] = value
    return topic


def by_key(state: State) -> dict[str, int]:
    return dict(state.values())


@pytest.mark.parametrize("count", [2, 3, 4])
def test_however_rows_exchange_their_keys_each_key_has_its_present_row(count: int) -> None:
    start: State = {owner: ("abcd"[owner], owner) for owner in range(count)}
    for keys in itertools.permutations("abcd"[:count]):
        end = {owner: (key, owner) for owner, key in enumerate(keys)}
        for order in itertools.permutations(range(count)):
            changes = [row for owner in order for row in changed(owner, start[owner], end[owner])]
            assert read(by_key(start), settled(changes)) == by_key(end)


def test_every_history_with_one_row_for_each_key_at_its_ends_is_followed() -> None:
    compared = 0
    for seed in range(2000):
        dice = random.Random(seed)
        start: dict[int, tuple[str, int]] = {0: ("a", 0), 1: ("b", 1)} if dice.random() < 0.8 else {0: ("a", 0)}
        state, changes = dict(start), []
        for step in range(dice.randint(1, 5)):
            owner = dice.randrange(4)
            was = state.pop(owner, None)
            now = (dice.choice("abc"), 10 + step) if was is None or dice.random() < 0.7 else None
            changes += changed(owner, was, now)
            if now is not None:
                state[owner] = now
        if len({key for key, _ in state.values()}) < len(state):
            continue
        compared += 1
        assert read(by_key(start), settled(changes)) == by_key(state), seed
    assert compared > 500


def test_keys_of_one_row_keep_all_their_changes_in_order() -> None:
    changes = [*changed(1, ("a", 0), ("a", 1)), *changed(1, ("a", 1), ("a", 2)), *changed(1, ("a", 2), None)]
    swap = [*changed(2, ("b", 1), ("c", 1)), *changed(3, ("c", 2), ("b", 2))]
    kept = [(op, key, value) for op, (_, key, value) in changes]
    assert settled([*changes, *swap])[: len(kept)] == kept
    assert sorted(settled([*changes, *swap])[len(kept) :]) == [(BEFORE, "b", 1), (BEFORE, "c", 2), (AFTER, "b", 2), (AFTER, "c", 1)]  # fmt: skip # noqa: E501


def test_a_key_that_a_row_had_only_within_the_epoch_may_be_that_of_another_row() -> None:
    assert settled([*changed(1, None, ("a", 1)), *changed(1, ("a", 1), None)]) == []


def test_rows_of_other_partitions_come_in_the_order_of_the_log() -> None:
    taken = batch(changed(2, None, ("a", 2)), first=10)
    left = batch(changed(1, ("a", 1), None), first=5)
    rows = [row for found in by_owner([taken, left], ["k"], target="t") for row in found.to_pylist()]
    assert [(row["_op"], row["v"]) for row in rows] == [(BEFORE, 1), (AFTER, 2)]


def test_a_truncation_ends_what_came_before_it() -> None:
    emptied = (RowKind.TRUNCATE, (0, "", 0))
    changes = [*changed(1, ("a", 1), None), emptied, *changed(2, None, ("a", 2))]
    assert settled(changes) == [(DELETE, "a", 1), (RowKind.TRUNCATE, "", 0), (INSERT, "a", 2)]


def test_two_rows_with_one_key_at_the_end_are_refused() -> None:
    with pytest.raises(MergedKeyRefusedError, match="more than one row has the same key"):
        settled([*changed(1, None, ("a", 1)), *changed(2, None, ("a", 2))])


def test_no_present_row_has_a_tombstone_as_its_last_message() -> None:
    encoder = load_format("debezium-json", tombstones=True).encoder(TableId("d", "t"), SCHEMA)
    changes = [*changed(1, ("a", 1), ("b", 1)), *changed(2, ("b", 2), ("a", 2)), *changed(9, None, ("c", 9)),
               *changed(3, ("c", 3), None), *changed(4, ("d", 4), None)]  # fmt: skip
    wanted = [field.name for field in (*SCHEMA.arrow(), *META_FIELDS)]
    last: dict[bytes, bool] = {}
    for found in by_owner([batch(changes)], ["k"], target="t"):
        encoded = encoder.encode(found.select(wanted))
        there = [value is not None for value in encoded.values.to_pylist()]
        last.update(zip(encoded.keys.to_pylist(), there, strict=True))
    assert last == {b'{"k":"a"}': True, b'{"k":"b"}': True, b'{"k":"c"}': True, b'{"k":"d"}': False}
