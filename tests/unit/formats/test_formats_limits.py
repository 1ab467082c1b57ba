"""Values at the limits of types: each is written exactly, or its message is bad by name."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.unit.formats.format_messages import batch, decode, decoder, failure, rows_of


def described(value: Any, semantic: str, type_: str = "int64", **parameters: str) -> dict[str, Any]:
    """Return one of Debezium's events with one described column."""
    column = {"field": "v", "type": type_, "optional": True, "name": semantic, "parameters": parameters}
    fields = [{"field": "after", "type": "struct", "fields": [column]}]
    return {"schema": {"type": "struct", "fields": fields}, "payload": {"after": {"v": value}, "op": "c"}}


def read(message: dict[str, Any], **options: Any) -> Any:
    ((_, row),) = decode("debezium-json", message, **options)
    return row["v"]


NANOS, NANO_TIME = "io.debezium.time.NanoTimestamp", "io.debezium.time.NanoTime"


@pytest.mark.parametrize(
    ("semantic", "value", "text"),
    [
        (NANOS, 1704164645123456700, "2024-01-02 03:04:05.123456700"),
        (NANOS, 0, "1970-01-01 00:00:00.000000000"),
        (NANOS, -1, "1969-12-31 23:59:59.999999999"),
        (NANOS, -(2**63), "1677-09-21 00:12:43.145224192"),
        (NANOS, 2**63 - 1, "2262-04-11 23:47:16.854775807"),
        (NANO_TIME, 86399999999900, "23:59:59.999999900"),
    ],
)
def test_seven_digits_after_the_point_are_kept(semantic: str, value: int, text: str) -> None:
    assert read(described(value, semantic)) == text


def test_a_declared_type_keeps_six_digits_or_refuses() -> None:
    columns = "v DATETIME(6)"
    assert str(read(described(1704164645123456000, NANOS), columns=columns)) == "2024-01-02 03:04:05.123456"
    assert "more digits after the point" in failure(
        "debezium-json", described(1704164645123456700, NANOS), columns=columns
    )
    assert read(described(1704164645123456700, NANOS), columns="v STRING") == "2024-01-02 03:04:05.123456700"
    zoned = described("2024-01-02T03:04:05.1234567Z", "io.debezium.time.ZonedTimestamp", "string")
    assert "more digits after the point" in failure("debezium-json", zoned)
    assert read(zoned, columns="v STRING") == "2024-01-02T03:04:05.1234567Z"


@pytest.mark.parametrize(
    "message",
    [
        described(9223372036825200000, "io.debezium.time.MicroTimestamp"),
        described(-9223372036832400000, "io.debezium.time.MicroTimestamp"),
        described(253402300800000, "io.debezium.time.Timestamp"),
        described(-62135596800001, "io.debezium.time.Timestamp"),
        described(-(2**63), "io.debezium.time.Timestamp"),
        described(-(2**63), "org.apache.kafka.connect.data.Timestamp"),
        described(2147483647, "io.debezium.time.Date", "int32"),
        described(-719163, "io.debezium.time.Date", "int32"),
        *(
            described(text, "io.debezium.time.ZonedTimestamp", "string")
            for text in ("infinity", "-infinity", "+292278994-08-16T23:00:00Z", "-0043-03-15T00:00:00Z")
        ),
        *(
            described(text, "io.debezium.time.ZonedTimestamp", "string")
            for text in ("0000-12-31T23:59:59Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999-01:00")
        ),
        described("0044-03-15 BC", "io.debezium.time.IsoDate", "string"),
    ],
)
def test_infinite_moments_and_those_outside_the_years_of_targets_are_named(message: dict[str, Any]) -> None:
    error = failure("debezium-json", message)
    assert "is infinite, before the year 1 or after the year 9999" in error
    assert "column 'v'" in error


def test_the_first_and_the_last_moment_are_written() -> None:
    assert str(read(described(253402300799999, "io.debezium.time.Timestamp"))) == "9999-12-31 23:59:59.999000"
    assert str(read(described(-62135596800000, "io.debezium.time.Timestamp"))) == "0001-01-01 00:00:00"
    assert str(read(described(-719162, "io.debezium.time.Date", "int32"))) == "0001-01-01"


DECIMAL, VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"


def base64_of(number: int) -> str:
    return base64.b64encode(number.to_bytes(16, "big", signed=True)).decode()


@pytest.mark.parametrize(
    ("number", "scale", "precision", "value"),
    [(123, -2, 5, 12300), (-1, -3, 1, -1000), (0, -2, 5, 0), (10**35 - 1, -2, 36, (10**35 - 1) * 100)],
)
def test_decimals_of_negative_scale_are_whole_numbers(number: int, scale: int, precision: int, value: int) -> None:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    assert int(read(described(base64_of(number), DECIMAL, "bytes", **parameters))) == value


def test_a_decimal_of_negative_scale_with_too_many_digits_is_named() -> None:
    message = described(base64_of(10**36), DECIMAL, "bytes", scale="-2", **{"connect.decimal.precision": "38"})
    assert "is out of range" in failure("debezium-json", message)
    wide = described(base64_of(2**126), DECIMAL, "bytes", scale="-30", **{"connect.decimal.precision": "38"})
    assert "is out of range" in failure("debezium-json", wide)


@pytest.mark.parametrize(("number", "scale", "text"), [(5, -2, "500"), (-5, -1, "-50"), (0, -3, "0"), (5, 2, "0.05")])
def test_decimals_of_any_scale_become_text(number: int, scale: int, text: str) -> None:
    message = described({"scale": scale, "value": base64_of(number)}, VARIABLE, "struct")
    assert read(message) == text


def test_bits_beyond_64_become_bytes() -> None:
    bits = bytes(range(1, 14))
    spelled = base64.b64encode(bits).decode()
    assert read(described(spelled, "io.debezium.data.Bits", "bytes", length="100")) == bits
    assert read(described("/////////38=", "io.debezium.data.Bits", "bytes", length="63")) == 2**63 - 1


def mongodb(op: str, **images: Any) -> dict[str, Any]:
    source = {"db": "shop", "collection": "c", "connector": "mongodb", "ts_ms": 1}
    event = {"op": op, "source": source, "before": None, "after": None}
    return {**event, **{side: json.dumps(image) for side, image in images.items()}}


def test_an_update_whose_look_up_found_nothing_is_left_out_if_the_connector_looks_up() -> None:
    created, missing = mongodb("c", after={"_id": 1, "n": 1}), mongodb("u")
    deleted = mongodb("d", before={"_id": 1, "n": 1})
    for messages in ([created, missing], [missing]):
        error = failure("debezium-json", *messages)
        assert error.startswith("PartialRowError")
        assert 'missing_after = "skip"' in error
    opened = decoder("debezium-json", missing_after="skip")
    decoded = opened.decode(batch([created, missing, mongodb("u", before={"_id": 1, "n": 1}), deleted]))
    assert decoded.failure is None
    assert [op for op, _ in rows_of(decoded)] == ["+I", "-D"]
    assert decoded.ignored == 2
    table = {"op": "u", "source": {"db": "shop", "table": "t"}, "before": None, "after": None}
    assert "it holds no row" in failure("debezium-json", table, missing_after="skip")


@pytest.mark.parametrize("word", ["geometry", "point", "multipolygon"])
def test_maxwells_geometries_are_text_also_where_definitions_name_their_type(word: str) -> None:
    columns = [{"name": "id", "type": "int"}, {"name": "g", "type": word}]
    table = {"database": "s", "table": "t", "ts": 1}
    defined = {**table, "type": "table-create", "def": {"columns": columns, "primary-key": ["id"]}}
    rows = decode("maxwell-json", defined, {**table, "type": "insert", "data": {"id": 1, "g": "POINT (1 2)"}})
    assert rows == [("+I", {"id": 1, "g": "POINT (1 2)"})]
