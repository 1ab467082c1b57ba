"""MongoDB's extended JSON: only the known forms are unwrapped, with nothing beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.formats.format_messages import batch, decoder, rows_of

OID = "5f43a1b2c3d4e5f6a7b8c9d0"


def of(*values: Any, **options: Any) -> list[Any]:
    """The column `v` of documents that have these values there."""
    events = [
        {
            "op": "c",
            "after": json.dumps({"_id": number, "v": value}),
            "source": {"db": "s", "table": "t", "connector": "mongodb"},
        }
        for number, value in enumerate(values)
    ]
    done = decoder("debezium-json", **options).decode(batch(events))
    assert done.failure is None
    return [row["v"] for _, row in rows_of(done)]


@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "users", "$id": {"$oid": OID}, "$db": "x"},
        {"$price": 5, "$cur": "EUR"},
        {"$price": 5},
        {"$minKey": 1},
        {"$maxKey": 1},
        {"$undefined": True},
        {"$timestamp": {"t": 1, "i": 2}},
        {"$regularExpression": {"pattern": "a", "options": "i"}},
        {"$code": "f()", "$scope": {}},
        {"$oid": OID, "more": 1},
        {"$oid": 5},
        {"$oid": None},
        {"$numberLong": {"a": 1}},
        {"$date": 5, "$cur": 1},
        {"$date": {"$numberLong": "x"}},
        {"$date": {"$numberLong": "5", "a": 1}},
        {"$date": None},
        {"$binary": {"base64": "AQI=", "subType": "00", "more": 1}},
        {"$binary": {"base64": "AQI="}},
        {"$binary": {"hex": "00", "subType": "00"}},
        {"$binary": "AQI=", "$cur": "00"},
        {"$": 1},
        {"$oidx": OID},
        {"$numberIntx": "1"},
        {},
        {"$date": {}},
        {"$binary": {}},
    ],
)
def test_any_other_object_stays_as_it_is(value: Any) -> None:
    (found,) = of(value)
    assert json.loads(found) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"$oid": OID}, OID),
        ({"$uuid": "c8edabc3-f738-4ca3-b68d-ab92a91478a3"}, "c8edabc3-f738-4ca3-b68d-ab92a91478a3"),
        ({"$symbol": "a\nb"}, "a\nb"),
        ({"$code": "f()"}, "f()"),
        ({"$numberInt": "-7"}, -7),
        ({"$numberLong": "9007199254740993"}, 9007199254740993),
        ({"$numberDouble": "2.5"}, 2.5),
        ({"$numberDecimal": "12.50"}, "12.50"),
        ({"$binary": {"base64": "AQI=", "subType": "00"}}, b"\x01\x02"),
        ({"$binary": {"subType": "00", "base64": "AQI="}}, b"\x01\x02"),
        ({"$binary": "AQI=", "$type": "00"}, b"\x01\x02"),
    ],
)
def test_a_known_form_is_the_value_inside(value: Any, expected: Any) -> None:
    assert of(value) == [expected]


@pytest.mark.parametrize(
    "value",
    [
        {"$date": -86_400_000},
        {"$date": {"$numberLong": "-86400000"}},
        {"$date": "1969-12-31T00:00:00Z"},
    ],
)
def test_a_date_before_1970_is_a_date_in_each_form(value: Any) -> None:
    (found,) = of(value)
    assert found.isoformat() == "1969-12-31T00:00:00+00:00"


@pytest.mark.parametrize("form", [{"$date": 1577836800500}, {"$binary": {"base64": "AQI=", "subType": "00"}}])
def test_a_column_that_becomes_a_text_shows_what_its_values_were(form: Any) -> None:
    assert of(form, "text") == [json.dumps(form), "text"]
    assert of(form, columns="_id BIGINT, v STRING, PRIMARY KEY (_id)") == [json.dumps(form)]
    assert of({"$oid": OID}, "text", {"$numberLong": "5"}, {"$numberDecimal": "1.0"}) == [OID, "text", "5", "1.0"]
