"""Lookup joins: keys of every type of number, and documents that are great together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest

from raycdc.config import LookupOptions
from raycdc.core.stopping import StopRequest
from raycdc.delivery.lookup import canonical, open_joiner
from raycdc.delivery.lookup.joiner import LookupSegments
from raycdc.delivery.lookup.mongodb import MongoDbDimension
from raycdc.model import LogicalType, TypeKind
from raycdc.sandbox.servers import MongoDb
from raycdc.segments import SegmentWriter
from raycdc.segments.access import HERE
from raycdc.segments.bad_rows import BadRecords
from raycdc.state.documents import DriverDocuments
from raycdc.state.drivers.generations import Generations
from raycdc.state.files.folder import LocalFolder
from raycdc.transform import ResolvedColumn
from raycdc.transform.resolved import resolved_lookups
from tests.epochs.transform_world import new_world

pytestmark = pytest.mark.server


@pytest.fixture
def users(mongodb: MongoDb, mongodb_database: str) -> Iterator[Any]:
    with mongodb.client() as client:
        yield client[mongodb_database].users


def options(mongodb: MongoDb, users: Any) -> LookupOptions:
    return LookupOptions.model_validate(
        {
            "table": "shop.orders",
            "uri": mongodb.uri,
            "collection": users.full_name,
            "on": "qty",
            "columns": {"name": "string"},
            "prefix": "user_",
        }
    )


@pytest.mark.parametrize(
    "column", [pa.array([1, 2**63, 2**64 - 1, None, 2**63 - 1], kind) for kind in (pa.uint64(), pa.decimal128(20, 0))]
)
def test_a_number_that_no_key_can_equal_is_null_and_the_others_are_looked_up(column: pa.Array) -> None:
    assert canonical(column, "long", key_path="x").to_pylist() == [1, None, None, None, 2**63 - 1]
    negative = pa.array([-(2**63), -(2**63) - 1, 7], pa.decimal128(38, 0))
    assert canonical(negative, "long", key_path="x").to_pylist() == [-(2**63), None, 7]
    assert canonical(pa.array([5], pa.decimal128(3, 0)), "long", key_path="x").to_pylist() == [5]


def test_a_whole_number_finds_it_in_every_type_of_number(mongodb: MongoDb, users: Any) -> None:
    keys = [1, bson.Int64(2), 3.0, bson.Decimal128("4"), bson.Decimal128("5.00"), bson.Decimal128("6E+1"), 2**62]
    users.insert_many({"_id": key, "name": repr(key)} for key in keys)
    asked = options(mongodb, users)
    dimension = MongoDbDimension(asked, asked.lookup(0), "long")
    try:
        found = dimension.fetch(pa.array([1, 2, 3, 4, 5, 60, 2**62, 7], pa.int64())).documents.to_pydict()
    finally:
        dimension.close()
    expected = zip([1, 2, 3, 4, 5, 60, 2**62], map(repr, keys), strict=True)
    assert dict(zip(*found.values(), strict=True)) == dict(expected)


def test_an_unsigned_number_is_a_key_as_far_as_documents_can_have_it(mongodb: MongoDb, users: Any) -> None:
    lookup = options(mongodb, users).lookup(0)
    column = ResolvedColumn("qty", LogicalType(TypeKind.UINT64), stored="qty")
    (found,) = resolved_lookups("here", [lookup], [column])
    keys = canonical(pa.array([1, 2**63 - 1, 2**63, 2**64 - 1, None], pa.uint64()), found.key_type, key_path="here")
    assert keys.equals(pa.array([1, 2**63 - 1, None, None, None], pa.int64()))


def test_a_run_warns_of_nothing_to_find(mongodb: MongoDb, users: Any, tmp_path: Path) -> None:
    warnings: list[str] = []
    asked = [options(mongodb, users)]
    state = LocalFolder(tmp_path)
    answers = LookupSegments(tmp_path / "looked_up", DriverDocuments(state, Generations(state)))
    for _ in range(2):
        with ExitStack() as stack:
            stack.enter_context(open_joiner(asked, answers, BadRecords(), HERE, warnings.append, StopRequest()))
        users.replace_one({"_id": 1}, {}, upsert=True)
    (text,) = warnings
    assert text.startswith(f"lookup[0].collection: {users.full_name} has no document, so nothing is found")


def test_a_great_document_of_many_rows_is_written_in_parts(
    mongodb: MongoDb, users: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.insert_many([{"_id": 1, "name": "x" * 100}, {"_id": 2}, {"_id": 3, "name": "y" * 1000}])
    world = replace(new_world("jsonl", tmp_path), transforms=(), lookups=(options(mongodb, users),))
    numbers = [1] * 12 + [2] * 4 + [3, 3, 4, 1]
    for number, qty in enumerate(numbers):
        world.script.table("shop.orders").insert({"id": number, "name": "n", "qty": qty})
    world.script.seal(final=True)
    sizes = []

    def append(writer: SegmentWriter, batch: pa.RecordBatch, _append: Any = SegmentWriter.append) -> None:
        sizes.append(batch.num_rows)
        _append(writer, batch)

    loop = world.loop()
    monkeypatch.setattr(SegmentWriter, "append", append)
    monkeypatch.setattr("raycdc.delivery.lookup.joiner.JOINED_BYTES_MAX", 500)
    loop.run()
    world.opened[0].close()
    rows = sorted(world.target_rows("shop.orders"), key=lambda row: row["id"])
    names = {1: "x" * 100, 3: "y" * 1000}
    assert [(row["qty"], row["user_name"]) for row in rows] == [(qty, names.get(qty)) for qty in numbers]
    assert sizes == [5, 5, 6, 1, 1, 2]
