"""Folding a window of the log into a chunk gives what a SELECT after the window would have seen."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from raycdc.model import Column, LogicalType, RowKind, TableSchema, TypeKind, changelog_schema
from raycdc.source.snapshot.handoff.fold import fold

SCHEMA = TableSchema(
    (
        Column("grp", LogicalType(TypeKind.STRING), nullable=False),
        Column("id", LogicalType(TypeKind.INT64), nullable=False),
        Column("val", LogicalType(TypeKind.INT64)),
    ),
    ("grp", "id"),
)

Key = tuple[str, int]
Rows = dict[Key, int]
Image = tuple[RowKind, Key, int]


def table_of(images: list[Image], *, ts_ms: int = 5) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"grp": key[0], "id": key[1], "val": value, "_op": int(op), "_seq": n + 100, "_ts_ms": ts_ms, "_pos": f"p{n}"}
        for n, (op, key, value) in enumerate(images)
    ]
    return pa.Table.from_pylist(rows, schema=changelog_schema(SCHEMA))


keys = st.tuples(st.sampled_from("ab"), st.integers(0, 3))
steps = st.lists(st.tuples(keys, keys, st.sampled_from(["put", "remove", "move"])), max_size=14)


def run(rows: Rows, plan: list[tuple[Key, Key, str]]) -> list[Image]:
    """Apply the plan to `rows`; returns its log. Values are unique, so that no state looks like an earlier one."""
    log: list[Image] = []
    for value, (key, other, action) in enumerate(plan, start=1000):
        if key not in rows:
            if action == "put":
                log.append((RowKind.INSERT, key, value))
                rows[key] = value
        elif action == "remove":
            log.append((RowKind.DELETE, key, rows.pop(key)))
        else:
            target = other if action == "move" and other not in rows else key
            log.append((RowKind.UPDATE_BEFORE, key, rows.pop(key)))
            log.append((RowKind.UPDATE_AFTER, target, value))
            rows[target] = value
    return log


@given(st.dictionaries(keys, st.integers(0, 99)), steps, st.data())
def test_fold_equals_replay_whatever_part_of_the_window_the_select_saw(
    start: Rows, plan: list[tuple[Key, Key, str]], data: st.DataObject
) -> None:
    rows = dict(start)
    seen = data.draw(st.integers(0, len(plan)))
    log = run(rows, plan[:seen])
    chunk = [(RowKind.INSERT, key, value) for key, value in rows.items()]
    log += run(rows, [(k, o, a) for k, o, a in plan[seen:]])
    if not log:
        return
    folded = fold(table_of(chunk), table_of(log), key=SCHEMA.primary_key)
    assert {(row["grp"], row["id"]): row["val"] for row in folded.to_pylist()} == rows
    assert folded.num_rows == len(rows)


def test_folded_rows_are_inserts_without_position_numbered_from_zero() -> None:
    chunk = table_of([(RowKind.INSERT, ("a", 1), 1), (RowKind.INSERT, ("a", 2), 2)], ts_ms=7)
    log = table_of([(RowKind.UPDATE_BEFORE, ("a", 1), 1), (RowKind.UPDATE_AFTER, ("a", 1), 3)], ts_ms=9)
    folded = fold(chunk, log, key=SCHEMA.primary_key)
    assert folded.schema == chunk.schema
    assert folded.to_pylist() == [
        {"grp": "a", "id": 2, "val": 2, "_op": 0, "_seq": 0, "_ts_ms": 7, "_pos": None},
        {"grp": "a", "id": 1, "val": 3, "_op": 0, "_seq": 1, "_ts_ms": 7, "_pos": None},
    ]


def test_a_chunk_whose_rows_were_all_deleted_folds_to_nothing() -> None:
    chunk = table_of([(RowKind.INSERT, ("a", 1), 1)])
    assert fold(chunk, table_of([(RowKind.DELETE, ("a", 1), 1)]), key=SCHEMA.primary_key).num_rows == 0


def test_half_an_update_that_left_the_chunk_removes_its_row() -> None:
    chunk = table_of([(RowKind.INSERT, ("a", 1), 1)])
    assert fold(chunk, table_of([(RowKind.UPDATE_BEFORE, ("a", 1), 1)]), key=SCHEMA.primary_key).num_rows == 0


def test_both_zeros_are_one_key() -> None:
    schema = TableSchema((Column("id", LogicalType(TypeKind.FLOAT64), nullable=False),), ("id",))

    def rows(*images: tuple[RowKind, float]) -> pa.Table:
        found = [{"id": key, "_op": int(op), "_seq": n, "_ts_ms": 1} for n, (op, key) in enumerate(images)]
        return pa.Table.from_pylist(found, schema=changelog_schema(schema))

    chunk = rows((RowKind.INSERT, 0.0), (RowKind.INSERT, 1.0))
    delta = rows((RowKind.UPDATE_BEFORE, 0.0), (RowKind.UPDATE_AFTER, -0.0))
    assert [str(key) for key in fold(chunk, delta, key=["id"]).column("id").to_pylist()] == ["1.0", "-0.0"]


def test_more_text_than_one_array_holds_is_folded() -> None:
    text = Column("text", LogicalType(TypeKind.STRING))
    schema = TableSchema((Column("id", LogicalType(TypeKind.INT64), nullable=False), text), ("id",))
    images = [{"id": key, "text": "x" * (40 << 20), "_op": 0, "_seq": key, "_ts_ms": 1} for key in (1, 2)]
    batch = pa.Table.from_pylist(images, schema=changelog_schema(schema)).to_batches()[0]
    chunk = pa.Table.from_batches([batch] * 28)
    folded = fold(chunk, chunk, key=["id"])
    assert folded.column("id").to_pylist() == [1, 2]
