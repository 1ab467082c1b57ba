"""Keys that the server takes for the same have one spelling, and all others have their own."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Decimal128, Int64

from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.layout import OnTypeMismatch, Spelling, declared, parse_type


def spelled(keys: list[Any], spelling: Spelling) -> list[str]:
    made = declared(
        {"_id": parse_type("json"), "v": parse_type("json")}, json=spelling, on_type_mismatch=OnTypeMismatch.FAIL
    )
    decoder = DocumentDecoder(made, collection="shop.orders")
    documents = b"".join(bson.encode({"_id": key, "v": Decimal128("1.00")}) for key in keys)
    found: list[str] = []
    for batch in (*decoder.decode(documents), *decoder.flush()):
        found += batch.column("_id").to_pylist()
        # What is no key stays as it is.
        assert set(batch.column("v").to_pylist()) == {'{"$numberDecimal":"1.00"}'}
    return found


@pytest.mark.parametrize("spelling", [Spelling.RELAXED, Spelling.CANONICAL])
@pytest.mark.parametrize(
    "keys",
    [
        [1, Int64(1), 1.0, Decimal128("1"), Decimal128("1.00"), Decimal128("10E-1")],
        [0, 0.0, -0.0, Decimal128("0"), Decimal128("-0.00"), Decimal128("0E+5")],
        [0.5, Decimal128("0.5"), Decimal128("0.500")],
        [-2.25, Decimal128("-2.250")],
        [100, 100.0, Decimal128("1E+2")],
        [2**62, 2.0**62, Decimal128(str(2**62))],
        [-(2**63), -(2.0**63)],
        [3_000_000_000, 3e9],
        [Decimal128("1.1"), Decimal128("1.10")],
        [Decimal128("-1E+30"), Decimal128("-10E+29")],
        [float("nan"), Decimal128("NaN")],
        [float("-inf"), Decimal128("-Infinity")],
        [{"a": 1, "b": [2, 0.5]}, {"a": 1.0, "b": [Int64(2), Decimal128("0.50")]}],
    ],
)
def test_equal_numbers_are_one_key(keys: list[Any], spelling: Spelling) -> None:
    assert len(set(spelled(keys, spelling))) == 1


@pytest.mark.parametrize("spelling", [Spelling.RELAXED, Spelling.CANONICAL])
def test_other_keys_stay_apart(spelling: Spelling) -> None:
    keys = [
        *(1, -1, 0, True, "1", 0.1, Decimal128("0.1"), 1.5, 2**53, 2**53 + 1, 1e300, float("inf")),
        *(Decimal128("1E+30"), Decimal128("1E+31"), Decimal128("12345678901234567890.5"), {"a": 1}, {"a": "1"}),
        *(bson.DatetimeMS(1), bson.Timestamp(0, 1), float("nan")),
    ]
    assert len(set(spelled(keys, spelling))) == len(keys)


def test_a_key_is_spelled_as_its_value() -> None:
    keys = [1.0, Decimal128("2.50"), Decimal128("1.10"), 2**40, -0.0]
    assert spelled(keys, Spelling.RELAXED) == ["1", "2.5", '{"$numberDecimal":"1.1"}', str(2**40), "0"]
    assert spelled(keys[:1], Spelling.CANONICAL) == ['{"$numberInt":"1"}']
