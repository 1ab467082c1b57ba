"""Defaults of added columns in rows that a Delta table has already; segments that rotted before they were written."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import SinkError
from raycdc.model import Column, LogicalType, TypeKind
from tests.epochs.sink_world import World, new_world, play
from tests.epochs.test_epoch_loop import add_column

LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 500000)  # noqa: DTZ001 - DATETIME has no zone
FIRST = dt.datetime(1000, 1, 1)  # noqa: DTZ001
DEFAULTS: list[tuple[TypeKind, dict[str, Any], str, Any]] = [
    (TypeKind.DATETIME, {"fsp": 1}, "9999-12-31 23:59:59.5", LAST),
    (TypeKind.DATETIME, {}, "1000-01-01 00:00:00", FIRST),
    (TypeKind.TIMESTAMP, {}, "2038-01-19 03:14:07", dt.datetime(2038, 1, 19, 3, 14, 7, tzinfo=dt.UTC)),
    (TypeKind.DATE, {}, "1000-01-01", dt.date(1000, 1, 1)),
    (TypeKind.BINARY, {}, "ab\0\0", b"ab\0\0"),
    (TypeKind.BIT, {"length": 5}, "21", 21),
    (TypeKind.BIT, {"length": 64}, "18446744073709551615", Decimal(18446744073709551615)),
    (TypeKind.UINT64, {}, "18446744073709551615", Decimal(18446744073709551615)),
    (TypeKind.BOOLEAN, {}, "1", True),
    (TypeKind.FLOAT32, {}, "1e-40", 9.999946101114759e-41),
    (TypeKind.STRING, {}, "it's", "it's"),
    (TypeKind.DECIMAL, {"precision": 7, "scale": 2}, "-1.24", Decimal("-1.24")),
]


@pytest.fixture
def delta(tmp_path: Path) -> World:
    return new_world("delta-upsert", tmp_path)


@pytest.mark.parametrize("behavior", ["lenient", "evolve"])
def test_rows_that_exist_get_the_default_of_every_type(delta: World, behavior: str) -> None:
    play(delta, epochs=2, final=False)
    orders = delta.script.table("shop.orders")
    for number, (kind, parameters, text, value) in enumerate(DEFAULTS):
        column = Column(f"c{number}", LogicalType(kind, **parameters), default=text)
        add_column(orders, column, fill=value)
    delta.script.seal(final=True)
    delta.loop(delta.sink(schema_change=behavior)).run()
    delta.check()


def test_a_default_that_is_no_value_of_its_type_is_named(delta: World) -> None:
    play(delta, epochs=1, final=False)
    orders = delta.script.table("shop.orders")
    add_column(orders, Column("size", LogicalType(TypeKind.INT32), default="large"))
    delta.script.seal(final=True)
    with pytest.raises(SinkError, match=r"shop\.orders: column size was added with a default that is not a value"):
        delta.loop().run()


def test_a_segment_whose_bytes_changed_is_not_written_after_a_restart(delta: World) -> None:
    play(delta, epochs=2, final=False)
    rotten = Path(delta.store.manifest(2).segments[0].path)
    content = bytearray(rotten.read_bytes())
    content[len(content) // 2] ^= 1
    rotten.write_bytes(content)
    recovery = delta.loop().recover()
    assert recovery.dropped == (2,)
