"""Names of fields are exact, and Debezium's placeholder for a missing value is no value in any of its shapes."""

from __future__ import annotations

import base64
import json
import uuid
from hashlib import md5
from typing import Any

import pytest

from tests.unit.formats.format_messages import decode, failure, make


def test_names_that_differ_in_case_alone_are_two_columns() -> None:
    row = {"id": 1, "name": "a", "Name": "b"}
    assert decode("json", row) == [("+I", row)]
    # Also where one comes later.
    assert decode("json", {"id": 1, "name": "a"}, {"id": 2, "Name": "b"})[1] == (
        "+I",
        {"id": 2, "name": None, "Name": "b"},
    )
    source = {"db": "s", "table": "t", "connector": "mongodb"}
    event = {"op": "c", "after": json.dumps({"_id": 1, "v": 1, "V": 2}), "source": source}
    assert decode("debezium-json", event) == [("+I", {"_id": 1, "v": 1, "V": 2})]


def test_a_column_that_the_user_gives_may_be_spelled_otherwise() -> None:
    assert decode("json", {"ID": 1}, columns="id BIGINT") == [("+I", {"id": 1})]
    assert decode("json", {"ID": 1, "id": 2}, columns="id BIGINT") == [("+I", {"id": 2})]
    assert decode("json", {"id": 2, "ID": 1}, columns="id BIGINT") == [("+I", {"id": 2})]


DEFAULT = "__debezium_unavailable_value"


def shapes(text: str) -> list[Any]:
    raw = text.encode()
    return [
        text,
        base64.b64encode(raw).decode(),
        raw.hex(),
        [text],
        [base64.b64encode(raw).decode()],
        [str(uuid.UUID(bytes=md5(raw).digest(), version=3))],
        list(raw),
        [float(byte) for byte in raw],
        {text: text},
        json.dumps({text: text}),
        json.dumps({text: text}, separators=(",", ":")),
    ]


def update(value: Any, before: Any = None) -> dict[str, Any]:
    row = {"id": 1, "v": value}
    old = {"id": 1, "v": before} if before is not None else {"id": 1}
    return {"op": "u", "before": old, "after": row, "source": {"db": "s", "table": "t"}}


@pytest.mark.parametrize("number", range(len(shapes(DEFAULT))))
def test_a_placeholder_is_never_a_value(number: int) -> None:
    value = shapes(DEFAULT)[number]
    why = "UnrepresentableValueError: topic/3@1: table s.t, column 'v': a value was left out by the connector"
    assert failure("debezium-json", update(value)).startswith(why)
    # The image before has the value.
    assert [row["v"] for _, row in decode("debezium-json", update(value, ["old"]))] == ['["old"]'] * 2
    other = shapes("gone!")[number]
    assert len(decode("debezium-json", update(other))) == 2
    assert "was left out by the connector" in failure("debezium-json", update(other), placeholder="gone!")
    assert "was left out" in failure("debezium-json", update(other), placeholder="hex:" + b"gone!".hex())
    assert len(decode("debezium-json", update(value), placeholder="gone!")) == 2


def test_only_the_whole_value_is_a_placeholder() -> None:
    values: list[Any] = [
        DEFAULT + "!",
        [DEFAULT, DEFAULT],
        {DEFAULT: 1},
        {DEFAULT: DEFAULT, "a": 1},
        [1],
        [],
        {},
        [[]],
        [{}],
    ]
    for value in values:
        assert len(decode("debezium-json", update(value))) == 2
    with pytest.raises(ValueError, match="hex"):
        make("debezium-json", placeholder="hex:xy")


def test_a_long_placeholder_is_known_in_every_shape_or_refused() -> None:
    text = "\x01" * 5_000
    for value in shapes(text):
        assert "was left out by the connector" in failure("debezium-json", update(value), placeholder=text)
    with pytest.raises(ValueError, match="longer than 5,000 bytes"):
        make("debezium-json", placeholder="é" * 2_501)
