"""The strict reading of a changelog that the kill tests use, on small stories told by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from raycdc.sandbox.compare import check_changelog, final_rows


def row(seq: int, op: str, key: int, value: str | None, pos: str | None = "") -> dict[str, Any]:
    position = f"binlog.000001:{seq}:0" if pos == "" else pos
    return {"id": key, "v": value, "_op": op, "_seq": seq, "_ts_ms": 0, "_db": "d", "_table": "t", "_pos": position}


GOOD = [
    row(1, "+I", 1, "a", None),
    row(2, "+I", 2, "b", None),
    row(3, "-U", 1, "a"),
    row(4, "+U", 1, "c"),
    row(5, "-D", 2, "b"),
    row(6, "+I", 2, "d"),
]


def test_a_true_changelog_is_accepted_in_any_order_of_arrival() -> None:
    assert check_changelog(reversed(GOOD), ["id"]) == []
    held = final_rows(GOOD, ["id"], pa.schema([("id", pa.int64()), ("v", pa.string())]))
    assert sorted(held.to_pylist(), key=lambda each: int(each["id"])) == [{"id": 1, "v": "c"}, {"id": 2, "v": "d"}]


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([*GOOD, row(7, "+I", 1, "x")], "there already"),
        ([*GOOD, row(7, "-U", 1, "stale")], "does not undo"),
        ([*GOOD, row(7, "-D", 9, "x")], "not there"),
        ([*GOOD, row(7, "-U", 2, "d", "p:1"), row(8, "+U", 2, "e", "p:1"), row(9, "-U", 2, "e", "p:1")], "2 times"),
        (GOOD[1:], "not there"),
        ([*GOOD, row(7, "?", 1, "x")], "unknown"),
    ],
    ids=["insert-twice", "wrong-before-image", "delete-of-nothing", "position-twice", "lost-insert", "unknown-op"],
)
def test_a_broken_changelog_is_named(rows: list[dict[str, Any]], word: str) -> None:
    assert any(word in problem for problem in check_changelog(rows, ["id"]))


def test_a_key_update_frees_the_old_key_and_takes_the_new_one() -> None:
    moved = [row(1, "+I", 1, "a", None), row(2, "-U", 1, "a"), row(3, "+U", 5, "a"), row(4, "+I", 1, "new")]
    assert check_changelog(moved, ["id"]) == []


def test_a_truncation_empties_the_table() -> None:
    emptied = [row(1, "+I", 1, "a", None), row(2, "T", 0, None), row(3, "+I", 1, "b")]
    assert check_changelog(emptied, ["id"]) == []


def test_an_added_column_has_its_default_in_older_rows() -> None:
    before = row(1, "+I", 1, "a", None)
    after = {**row(2, "-U", 1, "a"), "points": 7}
    assert check_changelog([before, after], ["id"], added_columns={"points": 7}) == []
    assert check_changelog([before, after], ["id"], added_columns={"points": 8}) != []
