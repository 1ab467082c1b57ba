"""Values that targets can never have are told by row and column, and no others."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.sinks.jdbc.types import mysql_unrepresentable, postgres_unrepresentable
from raycdc.sinks.mongodb.types import DOCUMENT_BYTES_MAX
from raycdc.sinks.mongodb.writing import DocumentLayout
from raycdc.sinks.rows import halved, reasons

TEXT, BLOB, FLOAT = (LogicalType(kind) for kind in (TypeKind.STRING, TypeKind.BINARY, TypeKind.FLOAT64))
DATE, MOMENT = LogicalType(TypeKind.DATE), LogicalType(TypeKind.TIMESTAMP, fsp=3, native="date")
MYSQLS = LogicalType(TypeKind.TIMESTAMP, native="timestamp(6)")


def places(found: pa.Array) -> list[int]:
    return [place for place, text in enumerate(found.to_pylist()) if text is not None]


def postgres(kind: LogicalType, *values: object, encoding: str = "UTF8") -> list[int]:
    rows = pa.RecordBatch.from_pydict({"c": pa.array(values, kind.arrow())})
    return places(postgres_unrepresentable(rows, [Column("c", kind)], encoding))


def mysql(kind: LogicalType, *values: object, bytes_max: int = 1 << 20) -> list[int]:
    rows = pa.RecordBatch.from_pydict({"c": pa.array(values, kind.arrow())})
    return places(mysql_unrepresentable(rows, [Column("c", kind)], (), bytes_max=bytes_max))


def test_the_first_reason_of_a_row_counts() -> None:
    masks = [(pa.array([True, False, None, False]), "a"), (pa.array([True, True, None, None]), "b")]
    assert reasons(4, masks).to_pylist() == ["a", "b", None, None]


def test_rows_that_are_refused_are_found_among_many() -> None:
    rows = pa.RecordBatch.from_pydict({"c": list(range(1000))})
    bad = {3, 4, 998}
    asked = 0

    def refusal(part: pa.RecordBatch) -> str:
        nonlocal asked
        asked += 1
        return "bad" if bad & set(part.column(0).to_pylist()) else ""

    assert places(halved(rows, refusal)) == sorted(bad)
    assert asked < 100


def test_postgresql_has_no_nul_in_a_text() -> None:
    assert postgres(TEXT, "a", "\0", None, "a\0b", "") == [1, 3]
    assert postgres(BLOB, b"\0") == []


@pytest.mark.parametrize(
    ("encoding", "bad"),
    [
        ("UTF8", []),
        ("SQL_ASCII", []),
        ("EUC_JP", []),
        ("LATIN1", [1, 2]),
        ("LATIN9", [2]),
        ("WIN1252", [2]),
        ("KOI8R", [0, 1]),
    ],
)
def test_a_database_has_the_characters_of_its_encoding(encoding: str, bad: list[int]) -> None:
    assert postgres(TEXT, "ä", "€", "ж", "[a-z]\\ -^", None, encoding=encoding) == bad


def test_days_and_moments_have_the_years_of_their_types() -> None:
    assert postgres(DATE, dt.date(1, 1, 1), -2_500_000) == [1]
    assert mysql(DATE, dt.date(1, 1, 1), dt.date(9999, 12, 31), 2_932_897, -719_529) == [2, 3]
    last = 253_402_300_799_999_999
    assert mysql(MOMENT, dt.datetime(1969, 1, 1, tzinfo=dt.UTC), last, last + 1, None) == [2]
    # MariaDB's newest versions know moments after 2038; the server says so.
    assert mysql(MYSQLS, 0, 1_000_000, 1 << 52) == [0]


def test_mysql_has_no_number_that_is_none_and_no_row_beyond_its_packet() -> None:
    assert mysql(FLOAT, 1.0, math.nan, math.inf, None, -math.inf) == [1, 2, 4]
    assert mysql(BLOB, b"x" * 80, b"x" * 100, None, bytes_max=100) == [1]


def test_mongodb_has_no_document_beyond_its_size_and_no_id_that_is_none() -> None:
    id_ = Column("id", LogicalType(TypeKind.INT64), nullable=False)
    schema = TableSchema(
        (id_, Column("b", BLOB), Column("o", LogicalType(TypeKind.STRING, native="objectId"))), ("id",)
    )
    rows = pa.RecordBatch.from_pydict(
        {"id": [1, 2, 3], "b": [b"", b"x" * (DOCUMENT_BYTES_MAX + 1), b""], "o": ["0" * 24, None, "none"]},
        schema=schema.arrow(),
    )
    found = halved(rows, DocumentLayout(TableId("shop", "t"), schema, "").refusal)
    assert places(found) == [1, 2]
    assert "Column o has a text that is no objectId" in found.to_pylist()[2]
