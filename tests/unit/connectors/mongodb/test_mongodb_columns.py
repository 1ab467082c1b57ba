"""Columns of collections: types as the configuration writes them, and those a sample shows."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.bson.documents import RAW
from raycdc.connectors.mongodb.layout import (
    CollectionLayout,
    OnTypeMismatch,
    Spelling,
    declared,
    parse_type,
    whole_documents,
)
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import inferred
from raycdc.model import LogicalType, TypeKind


def columns(*documents: dict[str, Any], most: int = 100) -> dict[str, str]:
    raw = [RawBSONDocument(bson.encode(document), RAW) for document in documents]
    return {name: logical.native for name, logical in inferred(raw, fields_max=most).items()}


def test_a_field_has_the_type_that_all_its_values_have() -> None:
    found = columns(
        {"_id": bson.ObjectId(), "i": 1, "l": 2**40, "f": 0.5, "s": "x", "b": True, "u": bson.Binary(bytes(16), 4)},
        {"_id": bson.ObjectId(), "i": 2**40, "f": 3, "d": bson.DatetimeMS(5), "m": bson.Decimal128("1.5"), "y": b"x"},
        {"_id": bson.ObjectId(), "i": None, "s": None, "n": None, "o": {"a": 1}, "a": [1], "e": bson.Binary(b"x", 6)},
    )
    assert found == {
        "_id": "objectId",
        "i": "long",
        "l": "long",
        "f": "double",
        "s": "string",
        "b": "bool",
        "u": "binData(4)",
        "d": "date",
        "m": "decimal128",
        "y": "binData(0)",
        "n": "json",
        "o": "json",
        "a": "json",
        "e": "binData(6)",
    }


def test_values_of_several_types_are_json() -> None:
    found = columns({"_id": 1, "a": 1, "b": "x"}, {"_id": 2, "a": "1", "b": bson.ObjectId()})
    assert found == {"_id": "long", "a": "json", "b": "json"}
    assert columns({"_id": 1}, {"_id": "a"})["_id"] == "json"


def test_keys_that_are_equal_for_some_target_only_are_json() -> None:
    """Doubles and decimals have several texts for one value, and NaN equals nothing."""
    assert columns({"_id": 1.5})["_id"] == "json"
    assert columns({"_id": 1}, {"_id": 1.5})["_id"] == "json"
    assert columns({"_id": bson.Decimal128("1")})["_id"] == "json"


def test_names_that_targets_cannot_have_and_rare_fields_are_no_columns() -> None:
    found = columns(
        {"_id": 1, "a": 1, "A": 2, "b c": 3, "_op": 4, "": 5, "x.y": 6, "_rest": 7, "rare": 8},
        {"_id": 2, "a": 1, "often": 1},
        {"_id": 3, "often": 2},
        most=3,
    )
    assert found == {"_id": "long", "a": "long", "often": "long"}


def test_an_empty_collection_has_a_key() -> None:
    assert columns() == {"_id": "json"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", LogicalType(TypeKind.INT32, native="int")),
        ("decimal(38, 2)", LogicalType(TypeKind.DECIMAL, 38, 2, native="decimal(38,2)")),
        ("binData", LogicalType(TypeKind.BINARY, native="binData(0)")),
        ("date", LogicalType(TypeKind.TIMESTAMP, fsp=3, native="date")),
    ],
)
def test_types_are_read(text: str, expected: LogicalType) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize("text", ["integer", "decimal", "decimal(39,0)", "decimal(2,3)", "binData(256)", ""])
def test_other_types_are_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"digits|is none of the types bool, int, long"):
        parse_type(text)


@pytest.mark.parametrize(
    "layout",
    [
        declared({"_id": parse_type("uuid")}, json=Spelling.CANONICAL, on_type_mismatch=OnTypeMismatch.NULL),
        declared(
            {"a": parse_type("int"), "_id": parse_type("json")},
            json=Spelling.RELAXED,
            on_type_mismatch=OnTypeMismatch.REST,
        ),
        whole_documents(None, json=Spelling.RELAXED),
    ],
)
def test_a_layout_in_a_schema_document_is_read_back(layout: CollectionLayout) -> None:
    assert CollectionLayout.from_document(layout.document()) == layout
    assert layout.columns[0].name == "_id"


def config(**options: Any) -> MongoDbSourceConfig:
    plain = {"type": "mongodb", "uri": "mongodb://db", "collections": ["shop.orders"], "startup": "snapshot"}
    return MongoDbSourceConfig.model_validate({**plain, **options})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"columns": {"shop.orders": {"n": "int"}}}, "name the type of _id"),
        ({"columns": {"shop.orders": {"_id": "int", "n": "integer"}}}, '"integer" is none of the types'),
        ({"columns": {"shop.orders": {"_id": "int", "n": "int", "N": "int"}}}, "differ in case only"),
        ({"columns": {"shop.orders": {"_id": "int", "_op": "int"}}}, "a name that raycdc uses"),
        ({"columns": {"shop.orders": {"_id": "int", "_rest": "json"}}}, "_rest is what"),
        ({"columns": {"shop.users": {"_id": "int"}}}, "columns: shop.users is not one of the captured collections"),
        (
            {"snapshot": {"per_collection": {"shop.users": "single"}}},
            "shop.users is not one of the captured collections",
        ),
        ({"columns": {"shop.orders": {"_id": "int", "a.b": "int"}}}, "'a.b' is no field of a document itself"),
        ({"schema": "document", "columns": {"shop.orders": {"_id": "int", "a": "int"}}}, "names other fields"),
        ({"schema": "declared"}, "needs columns"),
        ({"startup": "earliest"}, "snapshot"),
        ({"startup": "timestamp"}, "needs timestamp_ms"),
        ({"snapshot": "bucket"}, "splitVector"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        config(**options)


def test_the_password_shows_nowhere() -> None:
    assert "s3cret" not in repr(config(uri="mongodb://me:s3cret@db"))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"txn": "_txn"}, "'txn' is none of database, collection"),
        ({"txn_number": "_seq"}, "has a name that raycdc uses"),
        ({"txn_number": "_id"}, "a name of its own"),
        ({"txn_number": "t", "wall_time": "T"}, "a name of its own"),
        ({"txn_number": "a b"}, "cannot have a column 'a b'"),
        ({"txn_number": "N"}, "shop.orders has the column n in columns"),
    ],
)
def test_columns_for_what_is_known_of_changes_have_names_of_their_own(metadata: dict[str, str], message: str) -> None:
    told = {
        "type": "mongodb",
        "uri": "mongodb://db",
        "collections": ["shop.orders"],
        "columns": {"shop.orders": {"_id": "long", "n": "long"}},
    }
    assert MongoDbSourceConfig.model_validate({**told, "metadata": {"txn_number": "_txn"}}).metadata
    with pytest.raises(ValueError, match=message):
        MongoDbSourceConfig.model_validate({**told, "metadata": metadata})
