"""Merged targets: types, schemas, rows seen through them, and keys of two origins."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raycdc.errors import ConfigError, DataError, SchemaError
from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.evolution.events import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.model.evolution.merge import merge_schemas, merge_types
from raycdc.model.evolution.targets import TargetEpoch, TargetSchema, targets_of
from raycdc.model.keys import OWNER
from raycdc.model.rules.routes import Route, Router
from raycdc.model.view import RowView
from raycdc.segments.reading import all_names, stored_names, turned, viewed
from raycdc.sinks.rows import DELETED
from raycdc.sinks.source_tables import CLAIMED, MergedTarget, last_per_owner
from raycdc.state.manifests.manifest import Segment

K = TypeKind


def typed(kind: TypeKind, *, fsp: int = 0, length: int = 0) -> LogicalType:
    return LogicalType(kind, fsp=fsp, length=length)


def decimal(precision: int, scale: int) -> LogicalType:
    return LogicalType(K.DECIMAL, precision=precision, scale=scale)


_PLAIN = [kind for kind in K if kind not in (K.DECIMAL, K.DATETIME, K.TIMESTAMP, K.TIME, K.BIT)]
_SCALES = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: decimal(p, s)))
_TEMPORAL = st.sampled_from([K.DATETIME, K.TIMESTAMP, K.TIME])
TYPES = st.one_of(
    st.sampled_from([typed(kind) for kind in _PLAIN]),
    st.sampled_from([LogicalType(K.ENUM, native="enum('a')"), LogicalType(K.INT32, native="int(11)")]),
    _SCALES,
    st.builds(
        lambda kind, fsp: typed(kind, fsp=fsp), st.sampled_from([K.DATETIME, K.TIMESTAMP, K.TIME]), st.integers(0, 6)
    ),
    st.integers(1, 64).map(lambda length: typed(K.BIT, length=length)),
)


@given(TYPES, TYPES)
def test_merging_two_types_does_not_depend_on_their_order(one: LogicalType, other: LogicalType) -> None:
    assert merge_types(one, other) == merge_types(other, one)


@given(TYPES, TYPES, TYPES)
@example(typed(K.FLOAT32), typed(K.INT64), decimal(20, 0))
@example(decimal(38, 0), decimal(1, 1), typed(K.INT8))
def test_merging_three_types_does_not_depend_on_which_come_first(
    a: LogicalType, b: LogicalType, c: LogicalType
) -> None:
    assert merge_types(merge_types(a, b), c) == merge_types(a, merge_types(b, c))


@given(TYPES, TYPES)
def test_a_type_that_is_in_the_merge_changes_it_no_more(one: LogicalType, other: LogicalType) -> None:
    merged = merge_types(one, other)
    assert merge_types(one, one) == one
    assert merge_types(merged, one).arrow() == merge_types(merged, merged).arrow() == merged.arrow()


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        (typed(K.INT8), typed(K.INT32), typed(K.INT32)),
        (typed(K.BOOLEAN), typed(K.INT8), typed(K.INT8)),
        (typed(K.YEAR), typed(K.INT8), typed(K.INT16)),
        (typed(K.INT64), typed(K.UINT64), decimal(20, 0)),
        (typed(K.BIT, length=3), typed(K.BIT, length=64), typed(K.BIT, length=64)),
        (typed(K.BIT, length=3), typed(K.INT8), typed(K.INT64)),
        (decimal(10, 2), decimal(6, 4), decimal(12, 4)),
        (decimal(10, 2), typed(K.INT32), decimal(12, 2)),
        (decimal(38, 0), decimal(2, 2), typed(K.STRING)),
        (typed(K.FLOAT32), typed(K.INT16), typed(K.FLOAT32)),
        (typed(K.FLOAT32), typed(K.INT32), typed(K.FLOAT64)),
        (typed(K.FLOAT64), decimal(5, 2), typed(K.STRING)),
        (typed(K.DATE), typed(K.DATETIME, fsp=3), typed(K.DATETIME, fsp=3)),
        (typed(K.DATETIME, fsp=3), typed(K.TIMESTAMP, fsp=6), typed(K.STRING)),
        (typed(K.TIMESTAMP, fsp=3), typed(K.TIMESTAMP, fsp=6), typed(K.TIMESTAMP, fsp=6)),
        (typed(K.ENUM), typed(K.SET), typed(K.STRING)),
        (typed(K.BINARY), typed(K.STRING), typed(K.STRING)),
        (typed(K.JSON), typed(K.INT8), typed(K.STRING)),
    ],
)
def test_the_table_of_merged_types(one: LogicalType, other: LogicalType, merged: LogicalType) -> None:
    assert merge_types(one, other) == merged


# -- values -------------------------------------------------------------------------------------------------------

VALUES: list[tuple[LogicalType, list[Any]]] = [
    (typed(K.BOOLEAN), [True, None, False]),
    (typed(K.INT8), [-128, 127, None]),
    (typed(K.INT16), [-32768, 32767]),
    (typed(K.INT32), [-(2**31), 2**31 - 1]),
    (typed(K.INT64), [-(2**53), 2**53]),
    (typed(K.UINT64), [Decimal(2**64 - 1), None]),
    (typed(K.YEAR), [1901, 2155]),
    (typed(K.BIT, length=63), [2**53]),
    (typed(K.BIT, length=64), [Decimal(2**64 - 1)]),
    (typed(K.FLOAT32), [1.5, None]),
    (typed(K.FLOAT64), [1e300, -0.1]),
    (decimal(10, 3), [Decimal("-1234567.001"), None]),
    (typed(K.STRING), ["ä", "", None]),
    (typed(K.BINARY), ["ü".encode(), b""]),
    (typed(K.DATE), [dt.date(1000, 1, 1), dt.date(9999, 12, 31), None]),
    (typed(K.DATETIME, fsp=2), [dt.datetime(2024, 1, 2, 3, 4, 5, 60_000)]),  # noqa: DTZ001
    (typed(K.TIMESTAMP), [dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)]),
    (typed(K.TIME), ["-838:59:59"]),
    (typed(K.JSON), ['{"a": 1}']),
]


@pytest.mark.parametrize(("have", "values"), VALUES, ids=lambda value: getattr(value, "kind", ""))
def test_every_value_survives_every_merge_of_its_type(have: LogicalType, values: list[Any]) -> None:
    array = pa.array(values, have.arrow())
    for other, _ in VALUES:
        want = merge_types(have, other)
        got = turned(array, have, want)
        assert got.type == want.arrow(), other
        assert got.null_count == array.null_count
        if pa.types.is_integer(array.type) and not pa.types.is_string(got.type):
            assert [None if v is None else int(v) for v in got.to_pylist()] == values


@pytest.mark.parametrize(
    ("have", "value", "text"),
    [
        (decimal(8, 7), Decimal("0.0000001"), "0.0000001"),
        (typed(K.DATETIME, fsp=2), dt.datetime(2024, 1, 2, 3, 4, 5, 60_000), "2024-01-02 03:04:05.06"),  # noqa: DTZ001
        (typed(K.TIMESTAMP), dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2024-01-02 03:04:05"),
        (typed(K.UINT64), Decimal(2**64 - 1), "18446744073709551615"),
        (typed(K.BOOLEAN), True, "true"),
    ],
)
def test_values_become_text_as_the_source_prints_them(have: LogicalType, value: Any, text: str) -> None:
    assert turned(pa.array([value], have.arrow()), have, typed(K.STRING)).to_pylist() == [text]


@pytest.mark.parametrize(
    ("have", "value", "want"),
    [(typed(K.INT64), 2**53 + 1, typed(K.FLOAT64)), (typed(K.BINARY), b"\xff", typed(K.STRING))],
)
def test_a_value_that_does_not_fit_is_an_error_with_table_and_column(
    have: LogicalType, value: Any, want: LogicalType
) -> None:
    view = RowView(TableSchema((Column("v", have),)), TableSchema((Column("v", want),)))
    batch = pa.RecordBatch.from_arrays([pa.array([value], have.arrow())], names=["v"])
    with pytest.raises(DataError, match=r"a\.b: a value of column 'v' \(.*\) is no (double|string), which its"):
        viewed(batch, view, ["v"], table=TableId("a", "b"))


def test_a_view_gives_the_columns_of_the_target_in_its_types() -> None:
    source = TableSchema((Column("ID", typed(K.INT32)), Column("own", typed(K.STRING))), ("ID",))
    target = TableSchema(
        (Column("id", typed(K.INT64)), Column("more", typed(K.INT8), default="7"), Column("own", typed(K.STRING))),
        ("id",),
    )
    view = RowView(source, target, fill=True)
    assert RowView.from_json(view.to_json()) == view
    assert stored_names(view, ["more"]) == ["_op"]
    names = ["more", "id", "_seq", "own"]
    assert stored_names(view, names) == ["ID", "own", "_seq"]
    batch = pa.record_batch({"ID": pa.array([1, 2], pa.int32()), "own": ["a", None], "_seq": [5, 6]})
    got = viewed(batch, view, names, table=TableId("a", "b"))
    assert got.to_pydict() == {"more": [7, 7], "id": [1, 2], "_seq": [5, 6], "own": ["a", None]}
    assert (got.schema.field("id").type, got.schema.field("more").type) == (pa.int64(), pa.int8())
    bare = viewed(batch, replace(view, fill=False), names, table=TableId("a", "b"))
    assert bare.column("more").to_pylist() == [None, None]
    assert all_names(view) == ["id", "more", "own", "_op", "_seq", "_ts_ms", "_pos"]


def test_a_view_travels_with_its_segment_to_a_task_and_into_no_manifest() -> None:
    view = RowView(TableSchema((Column("v", typed(K.INT8)),)), TableSchema((Column("v", typed(K.INT32)),)), fill=True)
    segment = Segment("state", "f.arrow", "", TableId("a", "b"), "fp", "s", 0, "log", 0, 1, 2, 3, view=view)
    assert Segment.from_json(json.loads(json.dumps(segment.to_json()))) == segment
    assert segment.stored() == replace(segment, view=None).stored()
    assert Segment.from_json(segment.stored()).view is None


# -- schemas ------------------------------------------------------------------------------------------------------

A, B, ALL = TableId("s1", "item"), TableId("s2", "item"), TableId("lake", "item")
ROUTER = Router([Route(r"s\d\.item", "lake.item")])
ID = Column("id", typed(K.INT32), nullable=False)


def schema(*columns: Column, key: Sequence[str] = ("id",)) -> TableSchema:
    return TableSchema((ID, *columns), tuple(key))


def column(name: str, kind: TypeKind = K.INT32, default: str | None = None) -> Column:
    return Column(name, typed(kind), default=default)


class Flow:
    """Epochs of the two tables, one after the other."""

    def __init__(self, *, upsert: bool = True) -> None:
        self.known: dict[TableId, TargetSchema] = {}
        self.upsert = upsert

    def epoch(self, **tables: tuple[TableSchema, Sequence[SchemaChangeEvent]]) -> tuple[TargetEpoch, list[Any]]:
        ids = {"a": A, "b": B}
        given_tables = {ids[n]: (s, events) for n, (s, events) in tables.items()}
        ((share, after),) = targets_of(given_tables, self.known, ROUTER, upsert=self.upsert)
        self.known = {ALL: after}
        return share, list(share.changes)

    @property
    def columns(self) -> dict[str, tuple[TypeKind, str | None]]:
        known = self.known[ALL].schema
        assert known is not None
        return {c.name: (c.type.kind, c.default) for c in known.columns}


def created(table: TableId, made: TableSchema) -> tuple[TableSchema, list[SchemaChangeEvent]]:
    return made, [CreateTableEvent(table, made)]


def test_tables_that_come_together_make_one_table() -> None:
    flow = Flow()
    share, changes = flow.epoch(a=created(A, schema(column("x"))), b=created(B, schema(column("y", K.STRING, "d"))))
    expected = TableSchema((ID, Column("x", typed(K.INT32)), Column("y", typed(K.STRING))), ("id",))
    assert (share.sources, share.schema) == ((A, B), expected)
    assert changes == [CreateTableEvent(ALL, expected)]


def test_a_table_that_comes_later_changes_the_target_only_as_far_as_the_merge_changes() -> None:
    flow = Flow()
    _, changes = flow.epoch(a=created(A, schema(column("x"))))
    assert changes == [CreateTableEvent(ALL, schema(column("x")))]
    wide = schema(column("x", K.INT64), column("z", K.STRING))
    share, changes = flow.epoch(b=created(B, wide))
    assert changes == [
        AlterColumnTypeEvent(ALL, "x", typed(K.INT64), nullable=True),
        AddColumnEvent(ALL, column("z", K.STRING)),
    ]
    assert share.schema == wide
    _, changes = flow.epoch(a=(schema(column("x", K.INT64)), [AlterColumnTypeEvent(A, "x", typed(K.INT64))]))
    assert changes == []
    share, changes = flow.epoch(a=(schema(), [DropColumnEvent(A, "x")]))
    assert (changes, share.schema) == ([], wide)
    assert flow.known[ALL].dropped == {"s1.item": {"x"}}


def test_the_same_default_added_in_one_table_after_the_other_is_added_once() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema()), b=created(B, schema()))
    new = column("n", default="7")
    _, changes = flow.epoch(a=(schema(new), [AddColumnEvent(A, new)]))
    assert changes == [AddColumnEvent(ALL, new)]
    _, changes = flow.epoch(b=(schema(new), [AddColumnEvent(B, new)]))
    assert changes == []
    assert flow.columns["n"] == (K.INT32, "7")


@pytest.mark.parametrize("default", [None, "8"])
def test_a_column_added_with_other_values_than_the_target_has_is_refused(default: str | None) -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema()), b=created(B, schema()))
    flow.epoch(a=(schema(column("n")), [AddColumnEvent(A, column("n", default="7"))]))
    other = column("n", default=default)
    with pytest.raises(SchemaError, match=r"s2\.item: column n was added, but lake\.item, .* \(default 7, here"):
        flow.epoch(b=(schema(other), [AddColumnEvent(B, other)]))
    changelog = Flow(upsert=False)
    changelog.known = flow.known
    assert changelog.epoch(b=(schema(other), [AddColumnEvent(B, other)]))[1] == []


def test_a_column_that_comes_again_is_refused_because_old_values_are_still_there() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema(column("x"))), b=created(B, schema(column("x"))))
    renamed = schema(column("y"))
    _, changes = flow.epoch(a=(renamed, [RenameColumnEvent(A, "x", "y")]))
    assert changes == [AddColumnEvent(ALL, column("y"), values_of="x")]
    with pytest.raises(SchemaError, match="or dropped or renamed before"):
        flow.epoch(a=(schema(column("x")), [AddColumnEvent(A, column("x"))]))


def test_a_renamed_column_has_its_values_under_both_names_in_rows_of_all_tables() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema(column("x"))), b=created(B, schema(column("x", K.INT64))))
    _, changes = flow.epoch(a=(schema(column("y")), [RenameColumnEvent(A, "x", "y")]))
    # It holds what rows of the other table have.
    assert changes == [AddColumnEvent(ALL, column("y", K.INT64), values_of="x")]
    target = flow.known[ALL]
    _, _, names = target.seen(B, schema(column("x", K.INT64)))
    assert names == {"y": "x"}
    assert target.seen(A, schema(column("y")))[2] == {}
    _, changes = flow.epoch(a=(schema(column("z")), [RenameColumnEvent(A, "y", "z")]))
    assert changes == [AddColumnEvent(ALL, column("z", K.INT64), values_of="y")]
    assert flow.known[ALL].seen(B, schema(column("x", K.INT64)))[2] == {"y": "x", "z": "x"}
    # What it was called meanwhile needs nothing, as its rows have it there.
    share, changes = flow.epoch(
        b=(schema(column("z", K.INT64)), [RenameColumnEvent(B, "x", "y"), RenameColumnEvent(B, "y", "z")])
    )
    assert changes == []
    assert [c.name for c in share.schema.columns] == ["id", "x", "y", "z"]


def test_a_name_that_a_column_had_for_a_moment_is_none_of_the_target() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema(column("x"))), b=created(B, schema(column("x"))))
    renames = [RenameColumnEvent(A, "x", "y"), RenameColumnEvent(A, "y", "z")]
    _, changes = flow.epoch(a=(schema(column("z")), renames))
    assert changes == [AddColumnEvent(ALL, column("z"), values_of="x")]
    share, changes = flow.epoch(b=(schema(column("x")), []))
    assert (changes, [c.name for c in share.schema.columns]) == ([], ["id", "x", "z"])


def test_a_rename_whose_rows_cannot_be_told_is_refused() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema(column("x"))), b=created(B, schema(column("x"), column("y"))))
    with pytest.raises(SchemaError, match=r"s1\.item: column x was renamed to y, but lake\.item, .* other values"):
        flow.epoch(a=(schema(column("y")), [RenameColumnEvent(A, "x", "y")]))
    with pytest.raises(SchemaError, match=r"s1\.item: column x was renamed to z and got another type"):
        flow.epoch(
            a=(
                schema(column("z", K.INT64)),
                [RenameColumnEvent(A, "x", "z"), AlterColumnTypeEvent(A, "z", typed(K.INT64))],
            )
        )
    flow.epoch(a=(schema(column("z")), [RenameColumnEvent(A, "x", "z")]))
    with pytest.raises(SchemaError, match=r"s2\.item: column z was added, but lake\.item"):
        flow.epoch(b=(schema(column("x"), column("y"), column("z")), [AddColumnEvent(B, column("z"))]))


def test_a_column_that_is_added_and_renamed_at_once_has_its_default_under_the_new_name() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema()), b=created(B, schema()))
    now = column("y", default="7")
    _, changes = flow.epoch(
        a=(schema(now), [AddColumnEvent(A, column("x", default="7")), RenameColumnEvent(A, "x", "y")])
    )
    assert changes == [AddColumnEvent(ALL, now)]


def test_decimals_that_are_text_grow_like_others() -> None:
    """Databases have columns for them, and must hear of it."""
    flow = Flow()

    def wide(scale: int) -> TableSchema:
        native = LogicalType(K.STRING, precision=50, scale=scale, native=f"decimal(50,{scale})")
        return schema(Column("x", native))

    flow.epoch(a=created(A, wide(2)))
    _, changes = flow.epoch(b=created(B, wide(4)))
    wider = LogicalType(K.STRING, precision=52, scale=4, native="decimal(52,4)")
    assert changes == [AlterColumnTypeEvent(ALL, "x", wider, nullable=True)]


def test_what_a_merged_target_cannot_follow_is_refused() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema()), b=created(B, schema()))
    with pytest.raises(SchemaError, match=r"s1\.item was emptied, dropped or begins again"):
        flow.epoch(a=(schema(), [TruncateTableEvent(A)]))
    with pytest.raises(SchemaError, match=r"s2\.item has the primary key \(x\), and the tables routed to lake\.item"):
        flow.epoch(b=(schema(column("x"), key=("x",)), []))
    old = Flow()
    old.known = {ALL: TargetSchema((A,), None)}
    with pytest.raises(ConfigError, match=r"route: s1\.item and s2\.item would all go to lake\.item, but the state"):
        old.epoch(b=created(B, schema()))


def test_names_that_differ_in_case_are_one_column_as_they_are_to_the_server() -> None:
    merged = merge_schemas(ALL, schema(column("Name", K.STRING)), B, schema(column("NAME", K.ENUM)))
    assert [c.name for c in merged.columns] == ["id", "Name"]


# -- keys of two origins ------------------------------------------------------------------------------------------

Event = tuple[str, RowKind, int, str]
N, U, V, D = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE


def compacted(*events: Event, beginning: Sequence[str] = ()) -> list[tuple[int, str, bool, bool]]:
    rows = pa.table(
        {
            "id": pa.array([key for _, _, key, _ in events], pa.int64()),
            "v": pa.array([value for *_, value in events], pa.string()),
            "_op": pa.array([int(op) for _, op, _, _ in events], pa.int8()),
            "_seq": pa.array(range(len(events)), pa.int64()),
            "_db": pa.array([db for db, *_ in events], pa.string()),
            "_table": pa.array(["item"] * len(events), pa.string()),
            OWNER: pa.array([b""] * len(events)),
        }
    )
    got = last_per_owner(rows, ["id"], ["id", "v"], MergedTarget("lake.item", tuple(beginning))).to_pylist()
    return sorted((row["id"], row["v"], row[DELETED], row[CLAIMED]) for row in got)


def test_each_key_keeps_its_last_row_and_inserted_ones_claim_their_key() -> None:
    assert compacted(
        ("s1", N, 1, "new"), ("s1", U, 1, "new"), ("s1", V, 1, "newer"),
        ("s2", U, 2, "was"), ("s2", V, 2, "is"),
        ("s1", D, 3, "gone"),
        ("s2", N, 4, "short"), ("s2", D, 4, "short"),
        ("s1", U, 5, "moved"), ("s1", V, 6, "moved"),
    ) == [
        (1, "newer", False, True),
        (2, "is", False, False),
        (3, "gone", True, False),
        (5, "moved", True, False),
        (6, "moved", False, True),
    ]  # fmt: skip


def test_a_row_that_moves_from_one_table_to_another_is_one_row_whatever_comes_first() -> None:
    assert compacted(("s1", D, 1, "a"), ("s2", N, 1, "b")) == [(1, "b", False, False)]
    assert compacted(("s2", N, 1, "b"), ("s1", D, 1, "a")) == [(1, "b", False, False)]


@pytest.mark.parametrize(
    "events",
    [
        [("s1", N, 1, "a"), ("s2", N, 1, "b")],
        [("s1", U, 1, "a"), ("s1", V, 1, "b"), ("s2", N, 1, "c")],
        [("s1", D, 1, "a"), ("s2", D, 1, "b")],
    ],
)
def test_a_key_of_two_tables_is_refused(events: list[Event]) -> None:
    with pytest.raises(DataError, match=r"lake\.item: a row of the same key \(id\) comes from more than one"):
        compacted(*events)


def test_keys_are_compared_as_everywhere_whatever_their_columns_are_called() -> None:
    """0.0 and -0.0 are one key, and a key column may have the name of a figure here."""
    origins = [("shop", "a"), ("shop", "b")]
    rows = pa.table(
        {
            "last": pa.array([0.0, -0.0]),
            "v": ["x", "y"],
            "_op": pa.array([RowKind.INSERT, RowKind.INSERT], pa.int8()),
            "_seq": [0, 1],
            "_db": [db for db, _ in origins],
            "_table": [table for _, table in origins],
            OWNER: pa.array([b"", b""]),
        }
    )
    with pytest.raises(DataError, match=r"a row of the same key \(last\) comes from more than one"):
        last_per_owner(rows, ["last"], ["last", "v"], MergedTarget("lake.item"))
    (kept,) = last_per_owner(rows.slice(1), ["last"], ["last", "v"], MergedTarget("lake.item")).to_pylist()
    assert (str(kept["last"]), kept["v"]) == ("-0.0", "y")


def test_a_table_that_was_emptied_cannot_be_followed() -> None:
    with pytest.raises(DataError, match=r"s2\.item was emptied or begins again, and its rows in lake\.item"):
        compacted(("s1", N, 1, "a"), ("s2", RowKind.TRUNCATE, 1, ""))


def test_emptying_a_table_of_which_the_target_has_no_row_yet_empties_nothing() -> None:
    rows = [("s1", N, 1, "a"), ("s2", N, 9, "moot"), ("s2", RowKind.TRUNCATE, 0, ""), ("s2", N, 2, "b")]
    assert compacted(*rows, beginning=["s2.item"]) == [(1, "a", False, True), (2, "b", False, True)]


def test_what_happened_to_a_table_before_its_first_row_in_the_target_concerns_no_row_there() -> None:
    flow = Flow()
    flow.epoch(a=created(A, schema(column("x"))))
    made = schema(column("x"), column("y", default="3"))
    events: list[SchemaChangeEvent] = [
        TruncateTableEvent(B),
        AddColumnEvent(B, column("y", default="3")),
        CreateTableEvent(B, made),
    ]
    share, changes = flow.epoch(b=(made, events))
    assert (share.beginning, changes) == ((B,), [AddColumnEvent(ALL, column("y"))])
