"""Collections copied from MongoDB to MongoDB: documents of every type, compared byte by byte."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from raycdc.cli.planning.check import check_config
from raycdc.config import config_from_dict
from raycdc.errors import ExitCode, SchemaError
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import MongoDb
from raycdc.sinks.mongodb import sink as sink_module

pytestmark = pytest.mark.server

_RAW: bson.CodecOptions[RawBSONDocument] = bson.CodecOptions(document_class=RawBSONDocument)
_NESTED = {
    "int": 1,
    "long": bson.Int64(1),
    "double": 1.0,
    "decimal": bson.Decimal128("1.10"),
    "list": [1, bson.Int64(2), 3.0, None, {"deep": [bson.ObjectId(), b"x"]}],
    "early": bson.DatetimeMS(-62_135_596_800_001),
    "empty": {},
    "none": [],
    "$oid": "not one",
}
#: Values of every type that the emulated server takes, and such as text or columns lose; of the others there are tests
#: without a server.
VALUES: list[Any] = [
    True,
    7,
    -(2**31),
    bson.Int64(7),
    2**63 - 1,
    7.0,
    -0.0,
    float("nan"),
    float("-inf"),
    5e-324,
    bson.Decimal128("1.10"),
    bson.Decimal128("-0E+3"),
    bson.Decimal128("NaN"),
    bson.Decimal128("9" * 34),
    "text",
    "",
    'quotes " \\ and \0 and ü𝄞',
    bson.ObjectId(),
    bson.Binary(uuid.uuid4().bytes, 4),
    bson.Binary(uuid.uuid4().bytes, 3),
    b"",
    b"\0bytes",
    bson.DatetimeMS(0),
    bson.DatetimeMS(-1),
    bson.DatetimeMS(2**62),
    bson.Timestamp(1, 0),
    bson.Regex("^a.*", "im"),
    bson.Code("f()"),
    bson.MinKey(),
    bson.MaxKey(),
    bson.DBRef("c", bson.ObjectId(), "d"),
    None,
    _NESTED,
    [_NESTED, []],
    [],
]
KEYS: list[Any] = [
    1,
    bson.Int64(2),
    3.5,
    2**40,
    float("nan"),
    bson.Decimal128("4.50"),
    "key",
    bson.ObjectId(),
    bson.Binary(uuid.uuid4().bytes, 4),
    b"key",
    b"k",
    bson.DatetimeMS(17),
    {"a": 1, "b": bson.Int64(2)},
    True,
    None,
    bson.MinKey(),
]
_DECLARED = {
    "_id": "json",
    "n": "int",
    "price": "decimal(10,2)",
    "day": "day",
    "who": "uuid",
    "f": "float",
    "v": "json",
}


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("copy") as name:
        yield name


def values_for(mongodb: MongoDb) -> list[Any]:
    """`VALUES`, without the moments that a server cannot hold."""

    def held(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: held(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [held(inner) for inner in value]
        far = isinstance(value, bson.DatetimeMS) and abs(int(value)) > 62_000_000_000_000
        return bson.DatetimeMS(1) if far else value

    return VALUES if mongodb.far_dates else [held(value) for value in VALUES]


def documents(values: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"_id": f"value {number:03d}", "v": value, "n": number, f"only {number}": value}
        for number, value in enumerate(values)
    ]
    found += [{"_id": key, "n": value} for key, value in zip(KEYS, values, strict=False)]
    found += [
        {"_id": f"typed {number}", "z": 1, "price": price, "day": day, "who": who, "f": f, "A": 1, "a": 2}
        for number, (price, day, who, f) in enumerate(
            [
                (bson.Decimal128("1.50"), bson.DatetimeMS(86_400_000), bson.Binary(uuid.uuid4().bytes, 4), 0.5),
                (bson.Decimal128("1.5"), bson.DatetimeMS(86_400_001), bson.Binary(uuid.uuid4().bytes, 3), 0.1),
                (bson.Decimal128("-0.00"), bson.DatetimeMS(-86_400_000), None, 1),
                (15, None, "text", float("nan")),
            ]
        )
    ]
    return [*found, {"_id": "nothing more"}]


def copy(tmp_path: Path, mongodb: MongoDb, database: str, **options: Any) -> None:
    more = {name: options.pop(name, {}) for name in ("pipeline", "sink", "parts")}
    config = config_from_dict(
        {
            "pipeline": {
                "name": "copy",
                "state": str(tmp_path / "state"),
                "epoch_interval": "100ms",
                **more["pipeline"],
            },
            "source": {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{database}.orders"], **options},
            "sink": {"type": "mongodb", "uri": mongodb.uri, "record": f"{database}_record", **more["sink"]},
            "route": [{"table": f"{database}.orders", "to": f"{database}_copy.orders"}],
            "readers": {"min": 1, "max": 2},
            **more["parts"],
        }
    )
    Pipeline.from_config(config).run(local=True, until="caught-up")


def raw(mongodb: MongoDb, database: str) -> list[bytes]:
    with mongodb.client() as client:
        collection: Any = client[database].get_collection("orders", codec_options=_RAW)
        return sorted(one.raw for one in collection.find())


def elements(document: bytes) -> dict[bytes, bytes]:
    """The fields of a document as their bytes, by their names."""
    at, found = 4, {}
    while at < len(document) - 1:
        kind, stop = document[at], document.index(b"\0", at + 1)
        value = stop + 1
        length = int.from_bytes(document[value : value + 4], "little")
        if kind == 0x0B:
            over = document.index(b"\0", document.index(b"\0", value) + 1) + 1
        else:
            over = value + _SIZES.get(kind, length + _BEFORE.get(kind, 0))
        found[document[at + 1 : stop]] = document[at:over]
        at = over
    assert at == len(document) - 1
    return found


def in_any_order(found: list[bytes]) -> list[dict[bytes, bytes]]:
    return sorted(map(elements, found), key=lambda one: one[b"_id"])


#: Bytes of values by their types, and of others those that their length does not count.
_SIZES = {1: 8, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 127: 0, 255: 0}
_BEFORE = {2: 4, 5: 5, 13: 4}
MODES: dict[str, dict[str, Any]] = {
    "document": {"schema": "document"},
    "inferred": {},
    "declared": {"schema": "declared", "on_type_mismatch": "rest"},
}


@pytest.mark.parametrize(
    ("mode", "parts"),
    [("document", False), ("inferred", True), ("declared", False)],
    ids=["document", "inferred, in parts", "declared"],
)
def test_a_copy_is_equal_to_its_collection_after_a_snapshot_and_after_changes(
    mongodb: MongoDb, database: str, tmp_path: Path, mode: str, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "SMALL_BYTES_MAX", 0 if parts else 4 << 20)
    options = dict(MODES[mode])
    if mode == "declared":
        options["columns"] = {f"{database}.orders": _DECLARED}

    def require_equal() -> None:
        copy(tmp_path, mongodb, database, **options)
        source, target = raw(mongodb, database), raw(mongodb, f"{database}_copy")
        assert len(source) == len(target)
        assert in_any_order(source) == in_any_order(target)
        if mode == "document":
            assert source == target

    with mongodb.client() as client:
        orders = client[database].orders
        values = values_for(mongodb)
        orders.insert_many(documents(values))
        require_equal()
        for number, value in enumerate(values):
            orders.update_one({"_id": f"value {number:03d}"}, {"$set": {"v": values[-number], "new": value}})
        for key in KEYS[::2]:
            orders.replace_one({"_id": {"$eq": key}}, {"other": 1, "n": None}, upsert=True)
        for key in KEYS[1::2]:
            orders.delete_one({"_id": {"$eq": key}})
        orders.update_many({"z": 1}, {"$unset": {"price": "", "A": ""}, "$set": {"n": bson.Int64(1)}})
        orders.insert_many([{"_id": key, "again": True} for key in KEYS[1::4]])
        # The same key for the server, of another type.
        orders.delete_one({"_id": 1})
        orders.insert_one({"_id": 1.0, "n": "one"})
        require_equal()


def test_what_a_server_would_change_is_refused_by_name(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        empty = struct.pack("<i", 25) + b"\x10_id\0\x07\0\0\0\x11t\0" + bytes(8) + b"\0"
        client[database].orders.insert_one(RawBSONDocument(empty))
        if raw(mongodb, database) != [empty]:
            pytest.skip("the server made a time of it")
    with pytest.raises(SchemaError, match=r"Column document has an empty timestamp as a field.* its key in \(_id\)"):
        copy(tmp_path, mongodb, database, schema="document")


def test_text_that_is_asked_for_is_text(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        key = bson.ObjectId()
        client[database].orders.insert_one({"_id": key, "o": {"a": 1}, "u": bson.Binary(bytes(16), 4)})
        copy(tmp_path, mongodb, database, schema={"json": "canonical"})
        (found,) = client[f"{database}_copy"].orders.find()
    text = '{"a":{"$numberInt":"1"}}'
    assert found == {"_id": key, "o": text, "u": bson.Binary(bytes(16), 4), "_rest": None}


def test_documents_of_others_are_not_copied_over(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1})
        client[f"{database}_copy"].orders.insert_one({"_id": 1, "theirs": True})
    with pytest.raises(SchemaError, match="documents are copied as a whole"):
        copy(tmp_path, mongodb, database, pipeline={"on_existing": "merge"})


def test_check_says_what_is_not_hidden_and_what_becomes_text(
    mongodb: MongoDb, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "name": "Anna"})
    config = tmp_path / "copy.toml"
    said = []
    for schema in ("", 'schema = { json = "relaxed" }'):
        config.write_text(f"""
[pipeline]
name = "copy"
[source]
type = "mongodb"
uri = "{mongodb.uri}"
collections = ["{database}.orders"]
{schema}
[sink]
type = "mongodb"
uri = "{mongodb.uri}"
[[mask]]
columns = "{database}.orders.name"
method = "drop"
""")
        assert check_config(config, as_json=False) == ExitCode.CONFIG
        said.append(capsys.readouterr().out)
    assert all("name of" in text and "be readable in the column _rest" in text for text in said)
    assert ["become text in the copy" in text for text in said] == [False, True]


def test_a_column_that_is_looked_up_stands_for_the_field_of_its_name(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    """Also where nothing was found, and where the document has the field in what has no column."""
    with mongodb.client() as client:
        client[database].users.insert_one({"_id": 1, "city": "Rome"})
        client[database].orders.insert_many(
            [{"_id": 1, "user": 1, "city": "old", "more": 1}, {"_id": 2, "user": 9, "city": "old", "kind": 3}]
        )
    columns = {f"{database}.orders": {"_id": "int", "user": "int"}}
    table = f"{database}.orders"
    lookup = {"type": "mongodb", "table": table, "uri": mongodb.uri, "collection": f"{database}.users", "on": "user"}
    parts = {
        "lookup": [{**lookup, "columns": {"city": "string"}}],
        "transform": [{"table": table, "projection": "*, 'web' AS kind"}],
    }
    copy(tmp_path, mongodb, database, columns=columns, on_type_mismatch="rest", parts=parts)
    assert mongodb.find(f"{database}_copy", "orders") == [
        {"_id": 1, "user": 1, "city": "Rome", "kind": "web", "more": 1},
        {"_id": 2, "user": 9, "kind": "web"},
    ]
