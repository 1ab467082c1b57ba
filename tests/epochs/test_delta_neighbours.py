"""A Delta table that others touch too, and values on which delta-rs alone goes wrong: nothing is lost in silence."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.api import STEP_LAST, CommitVector
from raycdc.sinks.delta import commits as delta_commits
from raycdc.sinks.delta import small_merge as delta_rewrite
from raycdc.sinks.delta.commits import DeltaCommits
from raycdc.sinks.delta.reading import RewrittenColumn
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.rows import DELETED
from raycdc.sinks.steps import CommitMetadata
from raycdc.sinks.tasks import write_parquet_file

NUMBERS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def stamp(epoch: int) -> CommitMetadata:
    return CommitMetadata(CommitVector(epoch, STEP_LAST, 1), {})


def target_of(folder: Path, schema: pa.Schema = NUMBERS) -> DeltaTarget:
    target = DeltaTarget(folder, TableId("shop", "t"), "raycdc:test:1")
    target.refresh()
    DeltaCommits(target).create(schema, stamp(1))
    return target


def merge(target: DeltaTarget, epoch: int, rows: dict[object, int | None]) -> None:
    """Upsert `rows` by key; None deletes."""
    schema = target.arrow().append(pa.field(DELETED, pa.bool_()))
    lines = [{"k": key, "v": value, DELETED: value is None} for key, value in rows.items()]
    target.refresh()
    DeltaCommits(target).merge(pa.Table.from_pylist(lines, schema), ["k"], stamp(epoch))


@pytest.fixture(params=["small", "delta-rs"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How few rows are merged: ours, and that of delta-rs, which more rows take."""
    if request.param == "delta-rs":
        monkeypatch.setattr(delta_rewrite, "CHANGES_BYTES_MAX", -1)
    return str(request.param)


def rows_of(folder: Path) -> dict[object, int]:
    rows = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    found = {row["k"]: row["v"] for row in rows}
    assert len(found) == len(rows), rows
    return found


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.decimal128(20, 0), lambda n: Decimal(2**63 + n)),
        (pa.decimal128(20, 0), lambda n: Decimal(2**53 + 1 + n)),
        (pa.decimal128(18, 4), lambda n: Decimal(10**17 + n).scaleb(-4)),
        (pa.decimal128(38, 0), lambda n: -Decimal(10**37 + n)),
        (pa.decimal128(15, 3), lambda n: Decimal(10**14 + n).scaleb(-3)),
    ],
)
def test_keys_that_no_double_can_tell_apart_stay_apart(
    tmp_path: Path, kind: pa.DataType, value: Callable[[int], Decimal]
) -> None:
    target = target_of(tmp_path, pa.schema([("k", kind), ("v", pa.int64())]))
    dice = random.Random(5)
    model: dict[object, int] = {}
    for epoch in range(2, 24):
        keys = [value(dice.randrange(9)) for _ in range(2)]
        changes: dict[object, int | None] = {key: None if dice.random() < 0.2 else dice.randrange(1000) for key in keys}
        merge(target, epoch, changes)
        model = {k: v for k, v in {**model, **changes}.items() if v is not None}
        assert rows_of(tmp_path) == model
    target.refresh()
    DeltaCommits(target).rewrite(
        [RewrittenColumn(field, field.name) for field in target.arrow()], stamp(50), empty=False
    )
    found = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    for key in model:
        assert found.to_table(filter=pc.field("k") == pa.scalar(key, kind)).num_rows == 1


EVERY_KIND = {
    "k": (pa.int64(), 1),
    "d20": (pa.decimal128(20, 0), Decimal(2**63 + 1)),
    "d10": (pa.decimal128(10, 2), Decimal("1.25")),
    "f": (pa.float64(), 1.5),
    "wall": (pa.timestamp("us"), datetime(2024, 1, 1)),  # noqa: DTZ001
    "instant": (pa.timestamp("us", "UTC"), datetime(2024, 1, 1, tzinfo=UTC)),
    "day": (pa.date32(), date(2024, 1, 1)),
    "text": (pa.string(), "x" * 5000),
    "data": (pa.binary(), b"z"),
    "flag": (pa.bool_(), True),
}


@pytest.mark.parametrize("how", ["append", "merge", "overwrite", "append to another's table"])
def test_a_reader_finds_each_row_by_each_column(tmp_path: Path, how: str) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in EVERY_KIND.items()])
    rows = pa.Table.from_pylist([{name: value for name, (_, value) in EVERY_KIND.items()}], schema)
    if how == "append to another's table":
        DeltaTable.create(str(tmp_path), schema)
        target = DeltaTarget(tmp_path, TableId("shop", "t"), "raycdc:test:1")
        target.refresh()
    else:
        target = target_of(tmp_path, schema)
    match how:
        case "merge":
            DeltaCommits(target).merge(rows.append_column(DELETED, pa.array([False])), ["k"], stamp(2))
        case "overwrite":
            DeltaCommits(target).overwrite(rows, stamp(2))
        case _:
            DeltaCommits(target).append(
                [write_parquet_file(tmp_path / "part-1.parquet", schema, rows.to_batches())], stamp(2)
            )
    found = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    for name, (_, value) in EVERY_KIND.items():
        # pyarrow has no comparison with the views that delta-rs reads the texts of its own merges as.
        if not (how == "merge" and name in ("text", "data")):
            wanted = pa.scalar(value, found.schema.field(name).type)
            assert found.to_table(filter=pc.field(name) == wanted).num_rows == 1, name


@pytest.mark.parametrize("what", ["rewrite", "overwrite"])
def test_an_optimize_while_all_rows_are_replaced_brings_none_back(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(tmp_path)
    for epoch in (2, 3, 4):
        merge(target, epoch, {epoch: epoch})
    others = [1]

    def others_first(*arguments: object, **options: object) -> None:
        if others:
            others.pop()
            assert DeltaTable(str(tmp_path)).optimize.compact()["numFilesRemoved"] > 1
        write_deltalake(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(delta_commits, "write_deltalake", others_first)
    if what == "overwrite":
        DeltaCommits(target).overwrite(pa.table({"k": [9], "v": [9]}), stamp(5))
        assert rows_of(tmp_path) == {9: 9}
    else:
        DeltaCommits(target).rewrite([RewrittenColumn(field, field.name) for field in NUMBERS], stamp(5), empty=False)
        assert rows_of(tmp_path) == {2: 2, 3: 3, 4: 4}
    assert target.vector() == CommitVector(5, STEP_LAST, 1)


def test_a_table_that_was_restored_is_refused_by_old_and_new_handles(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    for epoch in (2, 3, 4):
        merge(target, epoch, {epoch: epoch})
    DeltaTable(str(tmp_path)).optimize.compact()
    target.refresh()
    DeltaTable(str(tmp_path)).restore(1)
    assert rows_of(tmp_path) == {2: 2}
    for handle in (target, DeltaTarget(tmp_path, target.name, target.app_id)):
        with pytest.raises(SinkError, match="was restored to an older version"):
            handle.refresh()
    assert DeltaTarget(tmp_path, target.name, "raycdc:another:1").refresh()


def test_a_restore_before_the_pipelines_last_commit_is_nobodys_business(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    merge(target, 2, {2: 2})
    DeltaTable(str(tmp_path)).restore(0)
    other = DeltaTarget(tmp_path, target.name, "raycdc:another:1")
    other.refresh()
    DeltaCommits(other).create(NUMBERS, stamp(1), replaces=True)
    merge(other, 2, {3: 3})
    assert DeltaTarget(tmp_path, target.name, other.app_id).refresh()


def test_files_of_other_partitions_are_not_added(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    DeltaTable.create(str(lake), NUMBERS, partition_by=["v"])
    target = DeltaTarget(lake, TableId("shop", "t"), "raycdc:test:1")
    target.refresh()
    file = write_parquet_file(lake / "part-1.parquet", NUMBERS, pa.table({"k": [1], "v": [2]}).to_batches())
    with pytest.raises(SinkError, match="is partitioned by v, and rows were written by nothing"):
        DeltaCommits(target).append([file], stamp(2))
    merge(target, 2, {1: 2})
    assert rows_of(lake) == {1: 2}


def test_what_counts_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    target = target_of(tmp_path)
    monkeypatch.setattr(os, "fsync", noted)
    merge(target, 2, {1: 1, 2: 2})
    table = DeltaTable(str(tmp_path))
    expected = {str(tmp_path), str(tmp_path / "_delta_log"), str(tmp_path / "_delta_log" / f"{1:020d}.json")}
    assert synced >= expected | {uri.removeprefix("file://") for uri in table.file_uris()}
