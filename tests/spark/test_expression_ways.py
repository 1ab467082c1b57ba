"""Each expression on each way by which Spark computes it: the same values in the same types, whatever the time zone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.segments import SegmentWriter, read_segment
from raycdc.segments.access import HERE, SpoolAddress
from raycdc.segments.bad_rows import BadRecords
from raycdc.segments.writing import SegmentContents
from raycdc.spark import derive
from raycdc.spark.derive import Deriver
from raycdc.spark.transforms import SparkResolver, TransformSession
from raycdc.state.manifests.manifest import Segment
from raycdc.transform import ResolvedTransform

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TABLE = TableId("shop", "t")
SCHEMA = TableSchema(
    (
        Column("id", LogicalType(TypeKind.INT64), nullable=False),
        Column("at", LogicalType(TypeKind.TIMESTAMP, fsp=6)),
        Column("wall", LogicalType(TypeKind.DATETIME, fsp=6)),
        Column("day", LogicalType(TypeKind.DATE)),
        Column("price", LogicalType(TypeKind.DECIMAL, precision=10, scale=3)),
        Column("f", LogicalType(TypeKind.FLOAT32)),
        Column("x", LogicalType(TypeKind.FLOAT64)),
        Column("s", LogicalType(TypeKind.STRING)),
        Column("b", LogicalType(TypeKind.BINARY)),
        Column("u", LogicalType(TypeKind.UINT64)),
    ),
    ("id",),
)
#: An expression for each type that a result may have, of columns of each type.
EXPRESSIONS = (
    "at + INTERVAL 1 HOUR",
    "CAST(wall AS TIMESTAMP)",
    "CAST(at AS TIMESTAMP_NTZ)",
    "wall + INTERVAL 1 DAY",
    "CAST(at AS DATE)",
    "date_trunc('DAY', at)",
    "date_format(at, 'yyyy-MM-dd HH:mm:ss')",
    "date_add(day, 1)",
    "hour(at)",
    "unix_timestamp(wall)",
    "to_timestamp('2024-03-31 02:30:00')",
    "price * 2",
    "CAST(price AS STRING)",
    "CAST(f AS STRING)",
    "f * 2",
    "x / 3",
    "CAST(x AS DECIMAL(20, 5))",
    "concat(s, '!')",
    "upper(s)",
    "CAST(s AS BINARY)",
    "concat(b, b)",
    "hash(id, s, price)",
    "u + 1",
    "CAST(id AS TINYINT)",
    "id > 3",
    "coalesce(at, TIMESTAMP '1970-01-01 00:00:00')",
    "CAST(NULL AS TIMESTAMP)",
)
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns")
MOMENTS = ("1969-12-31T23:59:59.999999", "2024-03-31T01:30:00", "2024-10-27T01:30:00.5", "2242-03-16T12:56:31", None)


def rows() -> pa.RecordBatch:
    moments = [None if text is None else dt.datetime.fromisoformat(text) for text in MOMENTS]
    count = len(moments)
    columns = [
        list(range(count)),
        [None if moment is None else moment.replace(tzinfo=dt.UTC) for moment in moments],
        moments,
        [None if moment is None else moment.date() for moment in moments],
        [Decimal("0.100"), Decimal("-5.000"), Decimal("9999999.999"), Decimal(0), None],
        [0.1, -0.0, float("nan"), float("inf"), None],
        [0.1, -0.0, 1e300 / 1e290, -1.5, None],
        ["", "Straße", "\U0001f600", "a'b", None],
        [b"", b"\x00\xff", b"a", b"b", None],
        [Decimal(0), Decimal(2**64 - 2), Decimal(5), Decimal(2**63), None],
    ]
    arrays = [pa.array(values, column.type.arrow()) for values, column in zip(columns, SCHEMA.columns, strict=True)]
    meta = [np.full(count, RowKind.INSERT, np.int8), np.arange(count), np.zeros(count, np.int64)]
    return pa.RecordBatch.from_arrays(
        [*arrays, *map(pa.array, meta), pa.nulls(count, pa.string())], schema=changelog_schema(SCHEMA)
    )


def segment(folder: Path) -> Segment:
    writer = SegmentWriter(SpoolAddress(folder), SegmentContents(TABLE, "v", "log", "log"), name="given.arrow")
    writer.append(rows())
    return writer.finish()


def each_way(
    session: Any, resolved: ResolvedTransform, given: Segment, folder: Path, patch: pytest.MonkeyPatch
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows as each way of `Deriver` makes them."""
    for way in ("here", "in workers", "one by one", "here, forgiving", "in workers, forgiving"):
        with patch.context() as patched:
            patched.setattr(derive, "IN_PROCESS_BYTES_MAX", 1 << 30 if way.startswith("here") else 0)
            deriver = Deriver(session, folder)
            deriver._local = "workers" in way
            if way.endswith("forgiving"):
                task = derive._Task(resolved, folder, HERE, BadRecords(), 1, upsert=False, forgiving=True)
                run = deriver._here if way.startswith("here") else deriver._in_workers
                (made,) = run([given], task, deriver._forgiving(session()))
            else:
                (made,) = deriver([given], resolved, 1)
        assert made.segment is not None
        yield way, pa.Table.from_batches(list(read_segment(made.segment)))


def _same(session: Any) -> Any:
    return session


def shown(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values so that NaN equals itself, and -0.0 is not 0.0."""
    return column.cast(pa.string()) if pa.types.is_floating(column.type) else column


@pytest.mark.parametrize("zone", ZONES)
def test_an_expression_gives_one_result_on_every_way(
    zone: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(EXPRESSIONS))
    transform = Transform(table="shop.t", projection=f"id, {items}", filter="hour(at) IS NULL OR at IS NOT NULL")
    own = spark.newSession()
    for name, value in (("spark.sql.session.timeZone", zone), ("spark.sql.execution.arrow.pyspark.enabled", "true")):
        own.conf.set(name, value)
    session = TransformSession(lambda: own, Transforms([transform]))
    resolved = SparkResolver(session).resolve(TABLE, transform, SCHEMA, "transform[0]")
    given = segment(tmp_path / "given")
    types = [column.type.arrow() for column in resolved.computed]
    found = dict(each_way(session, resolved, given, tmp_path / "made", monkeypatch))
    first = found["here"]
    for way, made in found.items():
        computed = [name for name in made.column_names if name.startswith("_raycdc_computed_")]
        assert [made.schema.field(name).type for name in computed] == types, way
        for name, sql in zip(computed, EXPRESSIONS, strict=True):
            assert shown(made.column(name)).equals(shown(first.column(name))), (way, sql)


def test_what_is_computed_in_another_zone_is_written_like_in_utc(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instant is the same in every zone."""
    transform = Transform(table="shop.t", projection="id, at + INTERVAL 1 HOUR AS later")
    made = []
    for zone in ZONES:
        own = spark.newSession()
        own.conf.set("spark.sql.session.timeZone", zone)
        session = TransformSession(partial(_same, own), Transforms([transform]))
        resolved = SparkResolver(session).resolve(TABLE, transform, SCHEMA, "transform[0]")
        folder = tmp_path / zone.replace("/", "_")
        given = segment(folder / "given")
        made += [table for _, table in each_way(session, resolved, given, folder / "made", monkeypatch)]
    assert all(
        table.select(["id", "_raycdc_computed_0"]) == made[0].select(["id", "_raycdc_computed_0"]) for table in made
    )
    assert resolved.computed[0].type.arrow() == pa.timestamp("us", "UTC")
