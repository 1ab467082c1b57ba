"""Golden messages of each format, as the tools write them, and the changelog they mean."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from raycdc.formats.api import RowsItem
from raycdc.model import LogicalType, TableId, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    TruncateTableEvent,
)
from raycdc.model.evolution.events import After
from tests.unit.formats.format_messages import Message, batch, decode, decoder, events_of, failure, rows_of

PRODUCT = "id BIGINT, name STRING, description STRING, weight FLOAT"


def maxwell(kind: str, data: dict[str, Any], old: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"database": "test", "table": "product", "type": kind, "ts": 1596684883, "xid": 7201}
    message |= {"commit": True, "data": data, **more}
    return message if old is None else message | {"old": old}


SCOOTER = {"id": 111, "name": "scooter", "description": "Big 2-wheel scooter ", "weight": 5.25}


# -- Maxwell


def test_maxwell_inserts_updates_and_deletes() -> None:
    rows = decode(
        "maxwell-json",
        maxwell("insert", SCOOTER),
        maxwell("update", {**SCOOTER, "weight": 5.5}, {"weight": 5.25}),
        maxwell("delete", {**SCOOTER, "weight": 5.5}),
        columns=PRODUCT,
    )
    assert rows == [
        ("+I", SCOOTER),
        ("-U", SCOOTER),
        ("+U", {**SCOOTER, "weight": 5.5}),
        ("-D", {**SCOOTER, "weight": 5.5}),
    ]


def test_absent_from_old_is_unchanged_and_null_in_old_was_null() -> None:
    after = {"id": 1, "name": "a", "description": None, "weight": 2.0}
    rows = decode("maxwell-json", maxwell("update", after, {"name": None, "description": "x"}), columns=PRODUCT)
    assert rows == [("-U", {**after, "name": None, "description": "x"}), ("+U", after)]


def test_an_update_of_nothing_is_two_equal_rows() -> None:
    assert decode("maxwell-json", maxwell("update", SCOOTER, {}), columns=PRODUCT) == [("-U", SCOOTER), ("+U", SCOOTER)]


def test_bootstraps_insert_between_marks_and_tombstones_are_nothing() -> None:
    mark = {"database": "test", "table": "product", "type": "bootstrap-start", "ts": 1, "data": {}}
    messages = [mark, maxwell("bootstrap-insert", SCOOTER), {**mark, "type": "bootstrap-complete"}, None, b"", "null"]
    decoded = decoder("maxwell-json", columns=PRODUCT).decode(batch(messages))
    assert (rows_of(decoded), decoded.tombstones, decoded.ignored) == ([("+I", SCOOTER)], 3, 2)


def test_maxwell_spells_sets_json_and_binary_its_own_way() -> None:
    data = {"s": ["b,1", "c"], "j": {"k": [1, "ü"]}, "t": "plain", "b": "AP8Q", "bit": True, "e": "x"}
    columns = "s SET('a'), j JSON, t JSON, b VARBINARY(9), bit BIT(1), e ENUM('x')"
    [(_, row)] = decode("maxwell-json", maxwell("insert", data), columns=columns)
    assert row == {"s": "b,1,c", "j": '{"k": [1, "ü"]}', "t": '"plain"', "b": b"\x00\xff\x10", "bit": 1, "e": "x"}


def test_a_definition_gives_the_table_its_types_and_an_alter_changes_them() -> None:
    def definition(*columns: dict[str, Any]) -> dict[str, Any]:
        return {"database": "test", "table": "e", "columns": list(columns), "primary-key": ["id"]}

    ident = {"type": "int", "name": "id", "signed": True}
    wide = {"type": "bigint", "name": "torvalds", "signed": False}
    old, new = definition(ident, {"type": "double", "name": "m"}), definition(ident, wide)
    create = {"type": "table-create", "database": "test", "table": "e", "def": old, "ts": 1, "sql": "create table e"}
    alter = {"type": "table-alter", "database": "test", "table": "e", "old": old, "def": new, "ts": 2, "sql": "alter"}
    row = {"database": "test", "table": "e", "type": "insert", "ts": 3, "data": {"id": 1, "m": 1.5}}
    last = {**row, "data": {"id": 2, "torvalds": 18446744073709551615}}
    decoded = decoder("maxwell-json").decode(batch([create, row, alter, last]))
    assert rows_of(decoded) == [("+I", {"id": 1, "m": 1.5}), ("+I", {"id": 2, "torvalds": Decimal(2**64 - 1)})]
    created, dropped, added = events_of(decoded)
    assert isinstance(created, CreateTableEvent)
    assert created.schema.primary_key == ("id",)
    assert dropped == DropColumnEvent(TableId("test", "e"), "m")
    assert isinstance(added, AddColumnEvent)
    assert (added.column.name, added.column.type.kind, added.position) == ("torvalds", TypeKind.UINT64, After("id"))


def test_envelope_fields_become_columns() -> None:
    names = {"xid": "_xid", "commit": "_commit", "database": "_db_name", "primary_key_columns": "_keys"}
    message = maxwell("insert", {"id": 1}, primary_key_columns=["id"])
    [(_, row)] = decode("maxwell-json", message, message, columns="id INT", metadata=names)[:1]
    assert row == {"id": 1, "_xid": 7201, "_commit": True, "_db_name": "test", "_keys": '["id"]'}


def test_several_tables_keep_to_themselves_and_in_order() -> None:
    messages: list[Message] = [
        {"database": "d", "table": f"t{i % 3}", "type": "insert", "ts": 1, "data": {"id": i}} for i in range(10)
    ]
    decoded = decoder("maxwell-json", exclude=("d.t1",)).decode(batch(messages))
    assert [row["id"] for _, row in rows_of(decoded)] == [0, 2, 3, 5, 6, 8, 9]


# -- Canal

MYSQL_TYPE = {"id": "int(11)", "name": "varchar(255)", "price": "decimal(10,2)", "raw": "varbinary(9)", "j": "json"}


def canal(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "data": data, "database": "shop", "es": 1589373515000, "id": 3, "isDdl": False, "mysqlType": MYSQL_TYPE,
        "old": old, "pkNames": ["id"], "sql": "", "sqlType": {"id": 4}, "table": "p", "ts": 1589373515477, "type": kind,
        **more,
    }  # fmt: skip


def test_canal_holds_several_rows_and_says_their_types() -> None:
    one = {"id": "1", "name": "a", "price": "1.50", "raw": "\x00ÿ", "j": '{"k": "v"}'}
    two = {"id": "2", "name": None, "price": "-0.05", "raw": None, "j": None}
    rows = decode("canal-json", canal("INSERT", [one, two]), canal("UPDATE", [one, two], [{"name": "b"}, {"id": "9"}]))
    first = {"id": 1, "name": "a", "price": Decimal("1.50"), "raw": b"\x00\xff", "j": '{"k": "v"}'}
    second = {"id": 2, "name": None, "price": Decimal("-0.05"), "raw": None, "j": None}
    assert rows == [
        ("+I", first),
        ("+I", second),
        ("-U", {**first, "name": "b"}),
        ("+U", first),
        ("-U", {**second, "id": 9}),
        ("+U", second),
    ]


def test_canal_deletes_and_ddl_and_new_columns() -> None:
    types = {**MYSQL_TYPE, "extra": "bigint unsigned"}
    ddl = canal("ALTER", None, isDdl=True, mysqlType=None, sql="ALTER TABLE p ADD extra BIGINT UNSIGNED")
    truncate = canal("TRUNCATE", None, isDdl=True, mysqlType=None, sql="TRUNCATE p")
    decoded = decoder("canal-json").decode(
        batch(
            [
                canal("DELETE", [{**dict.fromkeys(MYSQL_TYPE), "id": "1"}]),
                ddl,
                truncate,
                canal("INSERT", [{**dict.fromkeys(types), "id": "2", "extra": "7"}], mysqlType=types),
            ]
        )
    )
    assert [(op, row["id"], row.get("extra")) for op, row in rows_of(decoded)] == [("-D", 1, None), ("+I", 2, 7)]
    created, truncated, added = events_of(decoded)
    assert isinstance(created, CreateTableEvent)
    assert created.schema.primary_key == ("id",)
    assert truncated == TruncateTableEvent(TableId("shop", "p"))
    assert isinstance(added, AddColumnEvent)
    assert added.column.type.kind is TypeKind.UINT64


# -- Debezium

DOTTED = (("public", "products"), ("a", "b.c"), ("a.b", "c"))


def debezium(op: str, before: Any, after: Any, **source: Any) -> dict[str, Any]:
    where = {"connector": "mysql", "db": "inventory", "table": "products", "ts_ms": 1589362330000, **source}
    return {"before": before, "after": after, "source": where, "op": op, "ts_ms": 1589362330904, "transaction": None}


def test_a_schema_with_a_dot_is_not_taken_for_a_part_of_the_tables_name() -> None:
    messages = [debezium("c", None, SCOOTER, schema=schema, table=table) for schema, table in DOTTED]
    decoded = decoder("debezium-json", columns=PRODUCT).decode(batch(list(messages)))
    assert decoded.failure is None
    tables = [item.table for item in decoded.items if isinstance(item, RowsItem)]
    assert tables == [
        TableId("inventory", "public.products"),
        TableId("inventory", "a.b.c"),
        TableId("inventory", "`a.b`.c"),
    ]


def test_debezium_with_and_without_its_envelope() -> None:
    after = {**SCOOTER, "weight": 5.5}
    plain = [debezium("c", None, SCOOTER), debezium("u", SCOOTER, after), debezium("d", after, None), None]
    wrapped: list[Any] = [None if m is None else {"payload": m} for m in plain]
    wrapped[-1] = {"schema": None, "payload": None}
    expected = [("+I", SCOOTER), ("-U", SCOOTER), ("+U", after), ("-D", after)]
    assert decode("debezium-json", *plain, columns=PRODUCT) == expected
    assert decode("debezium-json", *wrapped, columns=PRODUCT) == expected


DECIMAL = "org.apache.kafka.connect.data.Decimal"


def connect(field: str, kind: str, name: str = "", **parameters: str) -> dict[str, Any]:
    described: dict[str, Any] = {"type": kind, "optional": True, "field": field}
    return described | ({"name": name} if name else {}) | ({"parameters": parameters} if parameters else {})


def enveloped(fields: list[dict[str, Any]], payload: dict[str, Any]) -> dict[str, Any]:
    row = {"type": "struct", "fields": fields, "optional": True, "name": "server.inventory.products.Value"}
    sides = [{**row, "field": "before"}, {**row, "field": "after"}]
    return {"schema": {"type": "struct", "fields": sides, "name": "Envelope"}, "payload": payload}


def test_an_embedded_schema_says_how_values_are_spelled() -> None:
    fields = [
        connect("id", "int64"),
        connect(
            "price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2", **{"connect.decimal.precision": "10"}
        ),
        connect("day", "int32", "io.debezium.time.Date"),
        connect("at", "int64", "io.debezium.time.MicroTimestamp"),
        connect("seen", "string", "io.debezium.time.ZonedTimestamp"),
        connect("t", "int64", "io.debezium.time.MicroTime"),
        connect("bits", "bytes", "io.debezium.data.Bits", length="10"),
        connect("raw", "bytes"),
        connect("j", "string", "io.debezium.data.Json"),
        connect("v", "struct", "io.debezium.data.VariableScaleDecimal"),
        connect("ok", "boolean"),
    ]
    after = {
        "id": 2**62, "price": base64.b64encode((-1234).to_bytes(2, "big", signed=True)).decode(), "day": 18262,
        "at": 1577836800000001, "seen": "2020-01-01T02:00:00.5+02:00", "t": 45296000001,
        "bits": base64.b64encode(b"\x01\x02").decode(), "raw": "AQI=", "j": "[1]",
        "v": {"scale": 3, "value": base64.b64encode((-5).to_bytes(1, "big", signed=True)).decode()}, "ok": True,
    }  # fmt: skip
    [(_, row)] = decode("debezium-json", enveloped(fields, debezium("c", None, after)))
    assert row == {
        "id": 2**62, "price": Decimal("-12.34"), "day": date(2020, 1, 1), "at": datetime(2020, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
        "seen": datetime(2020, 1, 1, 0, 0, 0, 500000, UTC), "t": "12:34:56.000001", "bits": 513, "raw": b"\x01\x02",
        "j": "[1]", "v": "-0.005", "ok": True,
    }  # fmt: skip


def test_an_embedded_schema_that_grows_alters_the_table() -> None:
    one = enveloped([connect("id", "int32")], debezium("c", None, {"id": 1}))
    two = enveloped([connect("id", "int64"), connect("n", "string")], debezium("c", None, {"id": 2, "n": "x"}))
    decoded = decoder("debezium-json").decode(batch([one, one, two, one]))
    assert [row for _, row in rows_of(decoded)] == [{"id": 1}, {"id": 1}, {"id": 2, "n": "x"}, {"id": 1, "n": None}]
    table = TableId("inventory", "products")
    _, altered, added = events_of(decoded)
    assert altered == AlterColumnTypeEvent(table, "id", LogicalType(TypeKind.INT64))
    assert isinstance(added, AddColumnEvent)


def test_postgres_tables_have_their_schema_in_the_name_and_toast_comes_from_before() -> None:
    hole = "__debezium_unavailable_value"
    where = {"connector": "postgresql", "db": "app", "schema": "public", "table": "docs"}
    update = debezium("u", {"id": 1, "body": "long"}, {"id": 1, "body": hole}, **where)
    decoded = decoder("debezium-json").decode(batch([update]))
    assert rows_of(decoded) == [("-U", {"id": 1, "body": "long"}), ("+U", {"id": 1, "body": "long"})]
    assert decoded.items[0].table == TableId("app", "public.docs")
    assert "REPLICA IDENTITY FULL" in failure("debezium-json", debezium("c", None, {"id": 1, "body": hole}, **where))


def test_postgres_update_without_before_is_refused_with_the_fix_unless_optional() -> None:
    where = {"connector": "postgresql", "db": "app", "schema": "public", "table": "docs"}
    update = debezium("u", None, {"id": 1}, **where)
    text = failure("debezium-json", debezium("c", None, {"id": 1}, **where), update)
    assert text.startswith("MissingBeforeImageError: topic/3@2: an update without the row as it was before.")
    assert "REPLICA IDENTITY FULL" in text
    assert decode("debezium-json", update, before_image="optional") == [("+U", {"id": 1})]


def test_mongodb_documents() -> None:
    where = {"connector": "mongodb", "db": "shop", "table": None, "collection": "orders"}
    document = {
        "_id": {"$oid": "5f1b2c3d4e5f6a7b8c9d0e1f"}, "n": {"$numberLong": "42"}, "name": 'q"ü',
        "at": {"$date": 1577836800500}, "price": {"$numberDecimal": "12.50"},
        "raw": {"$binary": {"base64": "AQI=", "subType": "00"}}, "tags": ["a", 1],
    }  # fmt: skip
    text = json.dumps(document, ensure_ascii=False)
    expected = {
        "_id": "5f1b2c3d4e5f6a7b8c9d0e1f", "n": 42, "name": 'q"ü', "at": datetime(2020, 1, 1, 0, 0, 0, 500000, UTC),
        "price": "12.50", "raw": b"\x01\x02", "tags": '["a", 1]',
    }  # fmt: skip
    changed = json.dumps({**document, "name": "z"})
    rows = decode("debezium-json", debezium("c", None, text, **where), debezium("u", text, changed, **where))
    assert rows == [("+I", expected), ("-U", expected), ("+U", {**expected, "name": "z"})]


@pytest.mark.parametrize(
    ("columns", "value", "expected"),
    [
        ("v DECIMAL(10,2)", "AfA=", Decimal("4.96")),
        ("v DECIMAL(10,2)", "12.50", Decimal("12.50")),
        ("v DATE", 18262, date(2020, 1, 1)),
        ("v DATETIME(3)", 1577836800001, datetime(2020, 1, 1, 0, 0, 0, 1000)),  # noqa: DTZ001
        ("v DATETIME(6)", 1577836800000001, datetime(2020, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
        ("v TIMESTAMP", "2020-01-01T00:00:00Z", datetime(2020, 1, 1, tzinfo=UTC)),
        ("v JSON", '{"a": 1}', '{"a": 1}'),
    ],
)
def test_without_schema_debeziums_defaults_count(columns: str, value: Any, expected: Any) -> None:
    [(_, row)] = decode("debezium-json", debezium("c", None, {"v": value}), columns=columns)
    assert row == {"v": expected}


@pytest.mark.parametrize("text", ["1234", "12345678", "1E10", "1E+1"])
@pytest.mark.parametrize("scale", [0, 2])
def test_a_decimal_that_reads_both_ways_is_refused_until_told(text: str, scale: int) -> None:
    """A column without a scale at the source has whole numbers as texts, whatever scale is declared here."""
    message, columns = debezium("c", None, {"v": text}), f"v DECIMAL(38,{scale})"
    error = failure("debezium-json", message, columns=columns)
    assert 'set the format\'s option decimal = "text" or "base64"' in error
    assert decode("debezium-json", message, columns=columns, decimal="text") == [("+I", {"v": Decimal(text)})]
    number = Decimal(int.from_bytes(base64.b64decode(text), "big", signed=True)).scaleb(-scale)
    assert decode("debezium-json", message, columns=columns, decimal="base64") == [("+I", {"v": number})]


# -- OGG and plain JSON


def test_ogg_images_complete_each_other() -> None:
    def ogg(kind: str, before: Any, after: Any) -> dict[str, Any]:
        return {
            "table": "OGG.TEST", "op_type": kind, "op_ts": "2020-05-13 13:39:35.766000", "pos": "0000143",
            "current_ts": "2020-05-13 13:39:36.766000", "primary_keys": ["id"], "before": before, "after": after,
        }  # fmt: skip

    decoded = decoder("ogg-json").decode(
        batch([
            ogg("I", None, {"id": 1, "n": "a", "w": 5.5}),
            ogg("U", {"id": 1, "n": "a"}, {"id": 1, "n": "b", "w": 6.5}),
            ogg("D", {"id": 1, "n": "b", "w": 6.5}, None),
            ogg("T", None, None),
        ])
    )  # fmt: skip
    assert rows_of(decoded) == [
        ("+I", {"id": 1, "n": "a", "w": 5.5}),
        ("-U", {"id": 1, "n": "a", "w": 6.5}),
        ("+U", {"id": 1, "n": "b", "w": 6.5}),
        ("-D", {"id": 1, "n": "b", "w": 6.5}),
    ]
    assert decoded.items[0].table == TableId("OGG", "TEST")
    assert events_of(decoded)[-1] == TruncateTableEvent(TableId("OGG", "TEST"))


def test_plain_json_is_inserts_of_inferred_columns() -> None:
    assert decode("json", {"a": 1, "b": None}, {"a": 2.5, "c": {"x": [1]}}, {"a": 3, "b": "t"}) == [
        ("+I", {"a": 1.0, "b": None, "c": None}),
        ("+I", {"a": 2.5, "b": None, "c": '{"x": [1]}'}),
        ("+I", {"a": 3.0, "b": "t", "c": None}),
    ]
