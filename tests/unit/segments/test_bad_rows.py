"""What becomes of bad rows, how they are kept, and how many there were."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.batch import SYMBOLS
from raycdc.segments.bad_rows import SKIP, BadRecords, DeadLetterFile, PendingDeadLetterFile, counting, judged
from raycdc.state.bad_row_counts import add_bad_rows, bad_rows
from raycdc.state.store import CheckpointStore

OPS = np.array(
    [
        RowKind.INSERT,
        RowKind.UPDATE_BEFORE,
        RowKind.UPDATE_AFTER,
        RowKind.UPDATE_BEFORE,
        RowKind.UPDATE_AFTER,
        RowKind.DELETE,
    ],
    np.int8,
)


@pytest.mark.parametrize(
    ("upsert", "partial", "bad", "becomes"),
    [
        (False, False, "111111", {}),
        (False, True, "111111", {5: "-D"}),
        (True, False, "111111", {1: "-D", 3: "-D", 5: "-D"}),
        (True, True, "111111", {0: "-D", 1: "-D", 2: "-D", 3: "-D", 4: "-D", 5: "-D"}),
        (True, False, "010010", {0: "+I", 1: "-D", 2: "+I", 3: "-D", 5: "-D"}),
        (False, False, "010010", {0: "+I", 2: "+I", 3: "-D", 5: "-D"}),
    ],
)
def test_a_bad_row_that_goes_is_the_deletion_of_its_key_where_rows_are_updated(
    upsert: bool, partial: bool, bad: str, becomes: dict[int, str]
) -> None:
    every = np.ones(len(OPS), np.bool_)
    wrong = np.array([text == "1" for text in bad])
    made, kept = judged(OPS, np.arange(len(OPS)), every, wrong, BadRecords(SKIP, "", upsert, partial))
    assert {int(place): SYMBOLS[made[place]] for place in np.flatnonzero(kept)} == becomes


@pytest.mark.parametrize(
    ("records", "wanted", "becomes"),
    [
        (BadRecords(upsert=True), "110110", {0: "+I", 1: "-D", 3: "-U", 4: "+U"}),
        (BadRecords(upsert=True, partial=True), "110110", {0: "+I", 1: "-D", 3: "-U", 4: "+U", 5: "-D"}),
        (BadRecords(upsert=True, partial=True), "001000", {0: "-D", 2: "+I", 4: "-D", 5: "-D"}),
        (BadRecords(upsert=True, partial=True, keeps_unwanted=True), "001000", {2: "+I"}),
        (BadRecords(partial=True), "001000", {2: "+I"}),
    ],
)
def test_a_row_that_a_filter_does_not_want_deletes_its_key_where_nothing_shows_the_row_before_it(
    records: BadRecords, wanted: str, becomes: dict[int, str]
) -> None:
    keep, bad = np.array([text == "1" for text in wanted]), np.zeros(len(OPS), np.bool_)
    made, kept = judged(OPS, np.arange(len(OPS)), keep, bad, records)
    assert {int(place): SYMBOLS[made[place]] for place in np.flatnonzero(kept)} == becomes


def test_an_update_without_the_row_before_it_that_leaves_the_filter_deletes_its_key() -> None:
    alone = np.array([RowKind.UPDATE_AFTER, RowKind.DELETE], np.int8)
    no, bad = np.zeros(2, np.bool_), np.zeros(2, np.bool_)
    made, kept = judged(alone, np.arange(2), no, bad, BadRecords(upsert=True, partial=True))
    assert (kept.tolist(), [SYMBOLS[op] for op in made]) == ([True, True], ["-D", "-D"])


@pytest.mark.parametrize(("kind", "becomes"), [("backfill", ["+I", "-D", "-D"]), ("snapshot", ["+I", "-D"])])
def test_a_bad_row_that_is_read_again_leaves_no_older_one_behind(kind: str, becomes: list[str]) -> None:
    """A backfill's rows may be there as they were before; those of a snapshot are appended."""
    ops = np.array([RowKind.INSERT, RowKind.INSERT, RowKind.DELETE], np.int8)
    records = BadRecords(SKIP, "", upsert=True).of_kind(kind)
    wrong = np.array([False, True, True])
    made, kept = judged(ops, np.arange(3), np.ones(3, np.bool_), wrong, records)
    assert [SYMBOLS[op] for op in made[kept]] == becomes


def test_counts_told_again_for_some_tables_keep_those_of_the_others(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, pipeline="shop")
    add_bad_rows(store, 1, {"a": 1, "b": 1}, committed=0)
    add_bad_rows(store, 2, {"a": 3, "b": 2}, committed=1)
    add_bad_rows(store, 2, {"b": 2}, committed=1)
    assert bad_rows(store, 1) == {"a": 1, "b": 1}
    assert bad_rows(store, 2) == {"a": 4, "b": 3}
    add_bad_rows(store, 3, {"c": 1}, committed=2)
    assert bad_rows(store, 3) == {"a": 4, "b": 3, "c": 1}


def test_letters_tell_floats_that_are_no_json_numbers_from_null(tmp_path: Path) -> None:
    kinds = {"d": TypeKind.FLOAT64, "f": TypeKind.FLOAT32}
    values = [float("nan"), float("inf"), float("-inf"), None, 1.5]
    schema = TableSchema(tuple(Column(name, LogicalType(kind)) for name, kind in kinds.items()))
    rows = pa.record_batch(
        {
            "d": pa.array(values, pa.float64()),
            "f": pa.array(values, pa.float32()),
            "_op": pa.array([RowKind.INSERT] * 5, pa.int8()),
            "_seq": pa.array(range(5), pa.int64()),
            "_ts_ms": pa.array([0] * 5, pa.int64()),
            "_pos": pa.array(["p"] * 5),
        }
    )
    waiting = PendingDeadLetterFile(1, "0000000001-rows.jsonl", 1, "rows")
    letters = DeadLetterFile(tmp_path, waiting)
    letters.append(rows, ["bad"] * 5, table=TableId("shop", "orders"), schema=schema)
    letters.close()
    kept = [json.loads(line)["row"] for line in (tmp_path / waiting.file).read_text().splitlines()]
    told = ["NaN", "Infinity", "-Infinity", None, 1.5]
    assert kept == [{"d": value, "f": value} for value in told]


def test_of_a_share_that_two_drivers_staged_the_letters_of_the_newer_one_count() -> None:
    def files(driver: int, *names: str, share: str, epoch: int = 7) -> list[str]:
        return [PendingDeadLetterFile(epoch, f"{epoch:010d}-{name}.jsonl", driver, share).file for name in names]

    first = [*files(3, "t-a", "t-b", share="t"), *files(3, "u-a", share="u")]
    second = files(12, "t-c", share="t")
    beside = [*files(12, "t-c", share="t", epoch=8), "0000000007-shown.jsonl", ".x.jsonl.part"]
    assert counting([*first, *second, *beside], 7) == {
        second[0]: "0000000007-t-c.jsonl",
        first[2]: "0000000007-u-a.jsonl",
    }
