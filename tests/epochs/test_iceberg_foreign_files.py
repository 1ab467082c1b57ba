"""Data files that others put into an Iceberg table which raycdc merges into: which rows stay, which files it reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from raycdc.errors import TargetModifiedError
from raycdc.sinks.iceberg import maintenance, target, tasks
from raycdc.sinks.iceberg.files import IcebergColumn
from raycdc.sinks.iceberg.tasks import Changed, Rewrite, WantedColumn
from raycdc.sinks.source_tables import CLAIMED
from tests.epochs.sink_world import World, new_world, play
from tests.epochs.upkept_lakes import IcebergLake

LAKE = IcebergLake()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """With a table of orders of two rows."""
    world = new_world("iceberg-upsert", tmp_path)
    world.script.table("shop.orders").read([{"id": key, "name": "n", "qty": 1} for key in (1, 1000)])
    world.script.seal()
    world.restart()
    return world


def ids_of(world: World) -> list[Any]:
    return sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))


def their_file(world: World, *ids: int, with_ids: bool = True) -> Path:
    """A data file with rows of the table of orders, which nothing names."""
    path = world.root / "lake/shop/orders/data/theirs.parquet"
    fields = [column.field() for column in LAKE.target(world).columns()]
    schema = pa.schema(fields if with_ids else [field.remove_metadata() for field in fields])
    pq.write_table(pa.Table.from_pylist([{"id": number, "name": "x", "qty": 1} for number in ids], schema=schema), path)
    return path


def listed(world: World, path: Path, least: int | None = None, most: int | None = None) -> None:
    """Another writer adds a file to the table, with these bounds of the id."""
    metadata = pq.read_metadata(path)

    def bounds(value: int | None) -> Mapping[int, bytes]:
        return {} if value is None else {1: value.to_bytes(8, "little")}

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path.as_uri(),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=metadata.num_rows,
        file_size_in_bytes=path.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds=bounds(least),
        upper_bounds=bounds(most),
        split_offsets=[4],
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
    )
    with LAKE.table(world).transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


@pytest.mark.parametrize("small_bytes_max", [target.SMALL_BYTES_MAX, 0])
def test_a_file_that_a_table_has_twice_keeps_its_rows_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, small_bytes_max: int
) -> None:
    monkeypatch.setattr(target, "SMALL_BYTES_MAX", small_bytes_max)
    theirs = their_file(world, 500, 501)
    listed(world, theirs)
    # With bounds that say it cannot have the key, this time: then both go, too, for it is one file.
    listed(world, theirs, 501, 501)
    assert ids_of(world) == [1, 500, 500, 501, 501, 1000]
    world.script.table("shop.orders").insert({"id": 500, "name": "ours", "qty": 2})
    world.script.seal()
    world.restart()
    assert ids_of(world) == [1, 500, 501, 501, 1000]


def test_upkeep_leaves_a_file_alone_that_a_table_has_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = their_file(world, 500, 501)
    listed(world, theirs)
    LAKE.small_files(world)
    listed(world, theirs)
    before = ids_of(world)
    # The second listing does not fit into the group of the first.
    monkeypatch.setattr(maintenance, "small_groups", lambda files, **_: ([files[:-1]] if len(files) > 1 else [], True))
    LAKE.after_commit(world)
    assert LAKE.optimised(world) == 1
    assert ids_of(world) == before


@pytest.mark.parametrize("merged", [True, False])
def test_rows_that_are_not_written_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, merged: bool
) -> None:
    column = IcebergColumn(1, "id", "long")
    keys, old, new = (tmp_path / f"{name}.parquet" for name in ("keys", "old", "new"))
    pq.write_table(pa.table({"id": pa.array([5], pa.int64()), CLAIMED: [False]}), keys)
    pq.write_table(pa.table([pa.array(range(10), pa.int64())], pa.schema([column.field()])), old)
    changed = Changed(("id",), (keys,), "shop.orders", alone=True) if merged else None
    rewrite = Rewrite((old, old), 0, new, (WantedColumn(column, 1),), changed=changed)
    assert [file.rows for file in rewrite.run().files] == [18 if merged else 20]
    converted = tasks._converted
    monkeypatch.setattr(tasks, "_converted", lambda *given: (batch.slice(1) for batch in converted(*given)))
    with pytest.raises(TargetModifiedError, match=r"Of 2 data files, the first one .* rows are to stay, but"):
        rewrite.run()
    assert not new.exists()


@pytest.mark.parametrize("alone", [True, False])
def test_a_merge_takes_along_no_file_of_others(world: World, monkeypatch: pytest.MonkeyPatch, *, alone: bool) -> None:
    """It has no field ids: whoever reads it refuses it."""
    monkeypatch.setattr(target, "SMALL_FILES_MAX", 1 if alone else 4)
    theirs = their_file(world, 9000, with_ids=False)
    listed(world, theirs, 9000, 9000)
    orders = world.script.table("shop.orders")
    for number in range(8):
        orders.insert({"id": 2000 + number, "name": "n", "qty": number})
        world.script.seal()
    world.restart()
    files = LAKE.target(world).data_files()
    assert theirs.as_uri() in {file.file_path for file in files}
    assert sum(file.record_count for file in files) == 2 + 1 + 8
    assert len(files) <= 5


@pytest.mark.parametrize("kind", ["iceberg-upsert", "iceberg-partitioned-upsert", "iceberg-changelog"])
def test_the_files_that_raycdc_writes_are_known_by_their_names(tmp_path: Path, kind: str) -> None:
    world = new_world(kind, tmp_path)
    play(world, epochs=3, final=False)
    world.restart()
    assert all(map(target._is_ours, LAKE.target(world).data_files()))
    LAKE.after_commit(world)
    files = LAKE.target(world).data_files()
    assert any("upkeep" in file.file_path for file in files)
    assert all(map(target._is_ours, files))
