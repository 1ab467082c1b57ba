"""Transforms without Spark: projections taken apart, plain ones resolved, schema changes as targets get them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent, CreateTableEvent, DropColumnEvent, RenameColumnEvent
from raycdc.model.evolution.events import AlterColumnTypeEvent, AlterPrimaryKeyEvent, TruncateTableEvent
from raycdc.model.rules.transform import (
    Constant,
    Expression,
    Item,
    Lookup,
    LookupColumn,
    Renamed,
    Star,
    Transform,
    Transforms,
    items_of,
)
from raycdc.model.view import RowView
from raycdc.segments.reading import stored_names, viewed
from raycdc.transform import PlainResolver, ResolvedTransform, TransformedTables, TransformUse
from raycdc.transform.expression_settings import expression_settings
from raycdc.transform.resolved import Uses
from raycdc.transform.tables import transformed_changes
from raycdc.transform.target_rules import TargetRules

ORDERS = TableId("shop", "orders")
INT, BIG, TEXT = (LogicalType(kind) for kind in (TypeKind.INT32, TypeKind.INT64, TypeKind.STRING))
SCHEMA = TableSchema(
    (Column("id", BIG, nullable=False), Column("Name", TEXT), Column("qty", INT), Column("note", TEXT)), ("id",)
)


@pytest.mark.parametrize(
    ("projection", "items"),
    [
        ("*", [Star((), 0)]),
        (" * except (`a``b`, C) , x", [Star(("a`b", "C"), 1), Renamed("x", "x", 24)]),
        ("id AS number, `my col` other", [Renamed("id", "number", 0), Renamed("my col", "other", 14)]),
        ("1 AS one, 'it' t, TRUE yes", [Constant(1, "one", 0), Constant("it", "t", 10), Constant(True, "yes", 18)]),
        ("concat(a, ',') AS x, b", [Expression("concat(a, ',') AS x", 0), Renamed("b", "b", 21)]),
        (r"'a\',b' AS x", [Expression(r"'a\',b' AS x", 0)]),
        (r"r'a\', b", [Expression(r"r'a\'", 0), Renamed("b", "b", 7)]),
        ("a[1] b, NULL, 3000000000 AS n", [Expression("a[1] b", 0), Expression("NULL", 8),
                                           Expression("3000000000 AS n", 14)]),
        ("current_date", [Expression("current_date", 0)]),
    ],
)  # fmt: skip
def test_a_projection_is_taken_apart_where_commas_separate_columns(projection: str, items: list[Item]) -> None:
    assert list(items_of(projection)) == items


@pytest.mark.parametrize(
    ("projection", "text"),
    [
        ("", "character 1: an expression is missing"),
        ("a,, b", "character 3: an expression is missing"),
        ("a, f(b", r"character 5: \( is never closed"),
        ("a, f(b])", r"character 7: nothing is open that \] closes"),
        ("a, 'b", "character 4: ' is never closed"),
        ("a -- b", "character 3: comments cannot be in it"),
        ("*, *", "more than once"),
        ("* EXCEPT a", r"character 1: '\* EXCEPT a' is neither"),
    ],
)
def test_what_is_no_list_of_columns_is_refused_with_its_place(projection: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        items_of(projection)


def test_the_first_transform_that_matches_is_the_tables() -> None:
    exact, every = Transform(table="shop.orders"), Transform(table=r"shop\..*", projection="id")
    transforms = Transforms([exact, every])
    assert transforms.of(ORDERS) is exact
    assert transforms.of(TableId("shop", "items")) is every
    assert transforms.of(TableId("other", "items")) is None
    assert transforms.key_path(TableId("shop", "items")) == "transform[1]"
    assert exact.identity() != every.identity()
    assert exact.identity() == Transform(table="x.y").identity()


def resolved(projection: str = "*", schema: TableSchema = SCHEMA, **options: object) -> ResolvedTransform:
    transform = Transform(table="shop.orders", projection=projection, **options)  # type: ignore[arg-type]
    return PlainResolver().resolve(ORDERS, transform, schema, "transform[0]")


def test_a_plain_projection_keeps_types_and_the_key_under_its_new_name() -> None:
    found = resolved("ID AS number, name, * EXCEPT (id, NAME), _db AS origin, 5 AS five", on_delete="soft")
    assert found.schema == TableSchema(
        (
            Column("number", BIG, nullable=False),
            Column("Name", TEXT),
            Column("qty", INT),
            Column("note", TEXT),
            Column("origin", TEXT),
            Column("five", INT, nullable=False),
            Column("is_deleted", LogicalType(TypeKind.BOOLEAN)),
        ),
        ("number",),
    )
    assert not found.has_new_key


@pytest.mark.parametrize(
    ("projection", "options", "text"),
    [
        ("id, nam", {}, r"projection, character 5: there is no column 'nam'. The table has id, Name, qty, note"),
        ("* EXCEPT (x)", {}, "character 1: there is no column 'x'"),
        ("*, qty AS NAME", {}, "the column 'NAME' is in the result twice"),
        ("id, _ts_ms", {}, r"_ts_ms needs a name of its own: _ts_ms AS"),
        ("id, qty AS _deleted", {}, "column '_deleted' has a name that raycdc uses"),
        ("id", {"primary_keys": ("name",)}, "primary_keys names 'name', which the projection does not give"),
        ("id, _pos AS p", {"primary_keys": ("p",)}, "primary_keys names 'p', which is _pos"),
        ("*, 1 AS is_deleted", {"on_delete": "soft"}, "the column 'is_deleted' is in the result twice"),
    ],
)
def test_a_projection_that_the_columns_do_not_allow_is_refused(
    projection: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(SchemaError, match=rf"^transform\[0\]: shop\.orders: .*{text}"):
        resolved(projection, **options)


@pytest.mark.parametrize(
    ("use", "options", "text"),
    [
        (
            TransformUse(),
            {"filter": "qty > 1"},
            "filter: whether a changelog has a deletion or an update depends on the",
        ),
        (TransformUse(upsert=True), {"on_delete": "soft"}, 'on_delete = "soft" keeps the deleted row'),
        (TransformUse(upsert=True), {"filter": "qty > 1"}, ""),
        (TransformUse(), {"filter": "id > 1"}, ""),
    ],
)
def test_a_transform_that_needs_the_row_before_a_change_is_refused_where_changes_lack_it(
    use: TransformUse, options: dict[str, Any], text: str
) -> None:
    class Filtering(PlainResolver):
        def resolve(self, table: TableId, transform: Transform, schema: TableSchema, place: str) -> ResolvedTransform:
            return replace(super().resolve(table, replace(transform, filter=""), schema, place), transform=transform)

    transforms = Transforms((Transform(table="shop.orders", **options),))
    rules = TargetRules(transforms=transforms, upsert=use.upsert)
    assert bool(rules.needs_row_before(ORDERS, ("id",))) == bool(text)
    assert not replace(rules, keeps_rows=True).needs_row_before(ORDERS, ("id",))
    assert TransformedTables(transforms, Filtering(), use).resolved(ORDERS, SCHEMA) is not None
    why = "json has no row before a change"
    lacking = TransformedTables(transforms, Filtering(), replace(use, why_key_only=why))
    if not text:
        assert lacking.resolved(ORDERS, SCHEMA) is not None
        return
    wanted = rf"^transform\[0\]: shop\.orders: {text}.*, which a change may lack, because {why}\. With source.changelog"
    with pytest.raises(ConfigError, match=wanted):
        lacking.resolved(ORDERS, SCHEMA)


def test_a_filter_cannot_be_combined_with_an_order_in_which_nothing_is_deleted() -> None:
    class Filtering(PlainResolver):
        def resolve(self, table: TableId, transform: Transform, schema: TableSchema, place: str) -> ResolvedTransform:
            return replace(super().resolve(table, replace(transform, filter=""), schema, place), transform=transform)

    transforms = Transforms((Transform(table="shop.orders", filter="qty > 1"),))
    with pytest.raises(ConfigError, match=r"with source\.order_by nothing is deleted, so a row whose newer version"):
        TransformedTables(transforms, Filtering(), TransformUse(upsert=True, order_by="qty")).resolved(ORDERS, SCHEMA)


def test_what_needs_spark_is_refused_without_it() -> None:
    with pytest.raises(ConfigError, match=r"transform\[0\]: Spark computes .* without --local"):
        resolved("*, qty + 1 AS more")


@pytest.mark.parametrize(
    ("use", "options", "text"),
    [
        (
            TransformUse(True, leaves_out=True),
            {"on_delete": "soft"},
            'on_delete = "soft" keeps the row that is deleted',
        ),
        (
            TransformUse(True, leaves_out=True),
            {"primary_keys": ("name",)},
            "with primary_keys, which row of the target a row that",
        ),
        (
            TransformUse(True, leaves_out=True, adopts=True),
            {},
            'with pipeline.on_existing = "merge" the target may have',
        ),
        (TransformUse(True, "", "qty", leaves_out=True), {}, "as with source.order_by nothing is deleted"),
    ],
)
def test_rows_left_out_that_cannot_be_deletions_of_their_keys_are_refused(
    use: TransformUse, options: dict[str, Any], text: str
) -> None:
    class Filtering(PlainResolver):
        def resolve(self, table: TableId, transform: Transform, schema: TableSchema, place: str) -> ResolvedTransform:
            return replace(super().resolve(table, replace(transform, filter=""), schema, place), transform=transform)

    transforms = Transforms([Transform(table="shop.orders", filter="1 / qty > 0", **options)])
    with pytest.raises(ConfigError, match=rf"^transform\[0\]: shop\.orders: .*{text}.*on_bad_record = .fail.\.$"):
        TransformedTables(transforms, Filtering(), use).resolved(ORDERS, SCHEMA)
    strict = replace(use, leaves_out=False)
    TransformedTables(transforms, Filtering(), replace(strict, order_by="")).resolved(ORDERS, SCHEMA)

    def looking_up(*, drop: bool) -> Transforms:
        added = (LookupColumn("name", "user_name", TEXT),)
        lookup = Lookup(number=0, table="shop.orders", dimension="d", key="QTY", field="_id", columns=added, drop=drop)
        return Transforms([Transform(table="shop.orders", **options)], [lookup])

    with pytest.raises(
        ConfigError,
        match=rf"^transform\[0\]: shop\.orders: .*{text.replace('a row that', 'a row without')}.*missing = .null.\.$",
    ):
        TransformedTables(looking_up(drop=True), use=strict).resolved(ORDERS, SCHEMA)
    TransformedTables(looking_up(drop=False), use=strict).resolved(ORDERS, SCHEMA)


@pytest.mark.parametrize(
    ("use", "projection", "options", "text"),
    [
        (TransformUse(upsert=True), "Name", {}, r"does not keep the key \(id\)"),
        (TransformUse(upsert=False), "*, _op AS kind", {}, "a before-image would not equal .* with _op"),
        (TransformUse(upsert=False), "*", {"on_delete": "soft"}, 'on_delete = "soft" updates the row'),
        (TransformUse(True), "*", {"primary_keys": ("name",), "on_delete": "soft"}, "a deleted row would keep its key"),
        (
            TransformUse(True, "it cannot."),
            "*",
            {"primary_keys": ("name",)},
            "primary_keys: the sink must find out whether .*, and it cannot",
        ),
        (TransformUse(True, order_by="qty"), "id, Name", {}, "must keep qty, which source.order_by goes by"),
    ],
)
def test_what_the_sink_cannot_hold_is_refused(
    use: TransformUse, projection: str, options: dict[str, object], text: str
) -> None:
    transform = Transform(table="shop.orders", projection=projection, **options)  # type: ignore[arg-type]
    with pytest.raises((SchemaError, ConfigError), match=text):
        TransformedTables(Transforms([transform]), use=use).resolved(ORDERS, SCHEMA)


def with_column(name: str, type_: LogicalType = TEXT, schema: TableSchema = SCHEMA) -> TableSchema:
    return TableSchema((*schema.columns, Column(name, type_)), schema.primary_key)


def test_an_added_column_comes_before_those_behind_the_star() -> None:
    added = AddColumnEvent(ORDERS, Column("more", TEXT, default="d"))
    found = resolved("*, 1 AS one", with_column("more"))
    (change,) = transformed_changes(found, None, [added])
    assert isinstance(change, AddColumnEvent)
    assert (change.column.name, change.column.default) == ("more", "d")
    assert str(change.position) == "After(column='note')"
    assert transformed_changes(resolved("id, qty", with_column("more")), None, [added]) == []
    with pytest.raises(SchemaError, match="the column 'more' is in the result twice"):
        resolved("*, 1 AS more", with_column("more"))


def test_changes_that_the_result_does_not_show_are_none() -> None:
    smaller = TableSchema((SCHEMA.columns[0], SCHEMA.columns[2]), ("id",))
    drop, truncate = DropColumnEvent(ORDERS, "note"), TruncateTableEvent(ORDERS)
    assert transformed_changes(resolved("id, qty", smaller), None, [drop, truncate]) == [truncate]
    assert transformed_changes(resolved("*, 1 AS one", smaller), None, [drop]) == [drop]
    keyed = AlterPrimaryKeyEvent(ORDERS, ("id",))
    assert transformed_changes(resolved("*", primary_keys=("name",)), None, [keyed]) == []
    renamed = resolved("id AS number, qty")
    changed = transformed_changes(renamed, None, [keyed])
    assert changed == [AlterPrimaryKeyEvent(ORDERS, ("number",))]


def test_a_created_table_has_the_columns_of_the_result() -> None:
    found = resolved("id, 1 AS one")
    changes = transformed_changes(found, None, [CreateTableEvent(ORDERS, SCHEMA), DropColumnEvent(ORDERS, "x")])
    assert changes == [CreateTableEvent(ORDERS, found.schema)]


def test_a_column_that_is_named_takes_its_new_type() -> None:
    wider = TableSchema(tuple(Column(c.name, BIG) if c.name == "qty" else c for c in SCHEMA.columns), ("id",))
    change = AlterColumnTypeEvent(ORDERS, "qty", BIG)
    before = resolved("id, qty AS amount").schema
    changes = transformed_changes(resolved("id, qty AS amount", wider), before, [change])
    assert changes == [AlterColumnTypeEvent(ORDERS, "amount", BIG, nullable=True)]
    assert transformed_changes(resolved("*", wider), SCHEMA, [change]) == [change]


@pytest.mark.parametrize("change", [
    DropColumnEvent(ORDERS, "QTY"), RenameColumnEvent(ORDERS, "qty", "x"), RenameColumnEvent(ORDERS, "x", "qty"),
    AddColumnEvent(ORDERS, Column("qty", INT)),
])  # fmt: skip
def test_a_change_of_a_column_that_is_named_is_refused(change: DropColumnEvent) -> None:
    with pytest.raises(SchemaError, match=r"shop.orders: \w+ of column .*, which the table's transform names"):
        transformed_changes(resolved("id, qty AS amount"), None, [change])


def test_rows_are_looked_at_as_the_projection_says() -> None:
    found = resolved("id AS number, _op AS kind, 'c' AS c", on_delete="soft")
    view = RowView.from_json(RowView(found.schema, found.schema, projection=found.projection()).to_json())
    names = ["c", "number", "is_deleted", "kind", "_op"]
    assert stored_names(view, names) == ["id", "_op"]
    ops = [RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE, RowKind.TRUNCATE]
    stored = pa.RecordBatch.from_pydict({"id": [1, 1, 2, 2, None], "_op": pa.array(map(int, ops), pa.int8())})
    assert viewed(stored, view, names, table=ORDERS).to_pylist() == [
        {"c": "c", "number": 1, "is_deleted": False, "kind": "+I", "_op": 0},
        {"c": "c", "number": 1, "is_deleted": True, "kind": "-U", "_op": 2},
        {"c": "c", "number": 2, "is_deleted": False, "kind": "+U", "_op": 2},
        {"c": "c", "number": 2, "is_deleted": True, "kind": "-D", "_op": 2},
        {"c": None, "number": None, "is_deleted": None, "kind": "T", "_op": 4},
    ]


def test_a_type_that_changed_under_an_expression_is_refused_if_the_source_did_not_judge_it() -> None:
    wide, narrow = LogicalType(TypeKind.INT64), LogicalType(TypeKind.INT32)
    transform = resolved("*, name AS other")
    computed = replace(transform, uses=Uses(frozenset({"qty"})))
    for was, use, refused in ((narrow, computed, True), (None, computed, False), (narrow, transform, False)):
        change = AlterColumnTypeEvent(transform.table, "qty", wide, was=was)
        if refused:
            with pytest.raises(SchemaError, match="column 'qty', which the table's transform computes with, was int"):
                transformed_changes(use, None, [change])
        else:
            assert transformed_changes(use, None, [change]) == [change]


ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"


@pytest.mark.parametrize(
    ("conf", "other"),
    [
        ({}, False),
        ({ZONE: "UTC", ANSI: "True"}, False),
        ({"spark.driver.memory": "9g", "spark.sql.shuffle.partitions": "9", "spark.sql.catalog.lake.uri": "x"}, False),
        ({"spark.sql.execution.arrow.maxRecordsPerBatch": "7"}, False),
        ({ZONE: "Europe/Berlin"}, True),
        ({ANSI: "false"}, True),
        ({"spark.sql.decimalOperations.allowPrecisionLoss": "false"}, True),
        ({"spark.sql.legacy.sizeOfNull": "true"}, True),
        ({"spark.sql.aSettingOfALaterVersion": "1"}, True),
    ],
)
def test_expressions_that_are_computed_with_other_settings_are_another_transform(
    conf: dict[str, str], other: bool
) -> None:
    table = TableId("shop", "orders")
    computed, plain = (
        Transforms([Transform(table="shop.orders", projection=projection)]) for projection in ("id, f(at) AS x", "id")
    )

    def identity(transforms: Transforms, conf: dict[str, str]) -> str:
        use = TransformUse(settings=expression_settings(conf))
        return TransformedTables(transforms, use=use).identity(table)

    assert (identity(computed, conf) != identity(computed, {})) is other
    assert identity(plain, conf) == identity(plain, {})


def test_a_state_knows_the_time_zone_of_its_expressions_in_the_same_form_as_before() -> None:
    assert expression_settings({ZONE: "Europe/Berlin"}) == "Europe/Berlin"
    assert expression_settings({ZONE: "Europe/Berlin", ANSI: "FALSE"}) == f"Europe/Berlin;{ANSI}=false"
    assert expression_settings({"spark.sql.b": "2", ANSI: "false"}) == f";{ANSI}=false;spark.sql.b=2"
