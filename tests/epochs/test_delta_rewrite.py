"""Few rows into small files of a Delta table: what a merge would make of them, whoever else writes there."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableMerger

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.model.evolution.events import DropColumnEvent
from raycdc.sinks.api import STEP_LAST, CommitVector
from raycdc.sinks.delta import commits as delta_commits
from raycdc.sinks.delta.commits import DeltaCommits
from raycdc.sinks.delta.small_merge import SMALL_FILES_MAX, Action, rewrite
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.rows import DELETED
from raycdc.sinks.steps import CommitMetadata

Row = dict[str, Any]

PLAIN = pa.schema([("k", pa.int64()), ("v", pa.string())])


def stamp(epoch: int, generation: int = 1) -> CommitMetadata:
    return CommitMetadata(CommitVector(epoch, STEP_LAST, generation), {})


def target_of(folder: Path, schema: pa.Schema = PLAIN) -> DeltaTarget:
    target = DeltaTarget(folder, TableId("shop", "t"), "raycdc:test:1")
    target.refresh()
    DeltaCommits(target).create(schema, stamp(1))
    return target


def changes_of(schema: pa.Schema, upserted: Sequence[Row], deleted: Sequence[Row] = ()) -> pa.Table:
    lines = [*({**row, DELETED: False} for row in upserted), *({**row, DELETED: True} for row in deleted)]
    return pa.Table.from_pylist(lines, schema.append(pa.field(DELETED, pa.bool_())))


def merge(target: DeltaTarget, epoch: int, upserted: dict[int, str], deleted: Sequence[int] = ()) -> None:
    target.refresh()
    rows = changes_of(PLAIN, [{"k": k, "v": v} for k, v in upserted.items()], [{"k": k, "v": None} for k in deleted])
    DeltaCommits(target).merge(rows, ["k"], stamp(epoch))


def rows_of(folder: Path) -> list[Row]:
    found: list[Row] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return found


def pairs_of(folder: Path) -> list[tuple[int, str]]:
    return sorted((row["k"], row["v"]) for row in rows_of(folder))


@pytest.fixture
def no_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where delta-rs would merge."""

    def refuse(_merger: TableMerger) -> None:
        pytest.fail("delta-rs merged")

    monkeypatch.setattr(TableMerger, "execute", refuse)


KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int32(), lambda n: n - 20),
    "text": (pa.string(), lambda n: f"key {n:x} \U0001f600"),
    "binary": (pa.binary(), lambda n: bytes([0, n])),
    "decimal": (pa.decimal128(20, 0), lambda n: Decimal(2**63 + n)),
    "day": (pa.date32(), lambda n: dt.date(1000, 1, 1) + dt.timedelta(n)),
    "instant": (pa.timestamp("us", "UTC"), lambda n: dt.datetime(9999, 12, 31, 23, 59, 59, n, tzinfo=dt.UTC)),
    "wall": (pa.timestamp("us"), lambda n: dt.datetime(1000, 1, 1, 0, 0, 0, n)),  # noqa: DTZ001 - has no zone
}


@pytest.mark.usefixtures("no_merge")
@pytest.mark.parametrize("keys", [[name] for name in KEYS] + [["int", "text"], ["decimal", "wall", "int"]])
def test_random_epochs_leave_what_a_dictionary_would(tmp_path: Path, keys: list[str]) -> None:
    schema = pa.schema([*((name, KEYS[name][0]) for name in keys), ("v", pa.int64())])
    target = target_of(tmp_path, schema)
    chance = random.Random(len(keys))
    wanted: dict[tuple[Any, ...], int] = {}
    for epoch in range(2, 14):
        chosen = chance.sample([tuple(KEYS[name][1](n % (7 + i)) for i, name in enumerate(keys)) for n in range(40)], 8)
        upserted: dict[tuple[Any, ...], int] = {}
        deleted: set[tuple[Any, ...]] = set()
        for key in chosen:
            if chance.random() < 0.3:
                deleted.add(key)
                upserted.pop(key, None)
            elif key not in deleted:
                upserted[key] = epoch * 100 + len(upserted)
        lines = [dict(zip(keys, key, strict=True)) | {"v": value} for key, value in upserted.items()]
        gone = [dict(zip(keys, key, strict=True)) | {"v": None} for key in deleted]
        target.refresh()
        DeltaCommits(target).merge(changes_of(schema, lines, gone), keys, stamp(epoch))
        wanted = {key: value for key, value in wanted.items() if key not in deleted} | upserted
        assert {tuple(row[name] for name in keys): row["v"] for row in rows_of(tmp_path)} == wanted
        assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == len(wanted)


@pytest.mark.usefixtures("no_merge")
def test_rows_of_others_stay_even_those_with_equal_keys(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    merge(target, 2, {1: "ours", 2: "ours"})
    write_deltalake(str(tmp_path), pa.table({"k": [7, 7], "v": ["a", "b"]}, schema=PLAIN), mode="append")
    merge(target, 3, {2: "new", 9: "new"})
    assert pairs_of(tmp_path) == [(1, "ours"), (2, "new"), (7, "a"), (7, "b"), (9, "new")]


@pytest.mark.usefixtures("no_merge")
@pytest.mark.parametrize("others", ["append", "optimize", "delete"])
def test_what_another_writer_does_meanwhile_is_kept(
    tmp_path: Path, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(tmp_path)
    for key in (1, 2, 3):
        merge(target, key + 1, {key * 1_000_000: "first"})
    pending = [others]

    def others_first(table: DeltaTable, *rest: Any) -> list[Action] | None:
        planned = rewrite(table, *rest)
        match pending.pop() if pending else "":
            case "append":
                write_deltalake(str(tmp_path), pa.table({"k": [5], "v": ["theirs"]}, schema=PLAIN), mode="append")
            case "optimize":
                assert DeltaTable(str(tmp_path)).optimize.compact()["numFilesRemoved"] > 1
            case "delete":
                DeltaTable(str(tmp_path)).delete("k = 3000000")
        return planned

    monkeypatch.setattr(delta_commits, "rewrite", others_first)
    if others == "delete":
        with pytest.raises(SinkError, match="another writer deleted or overwrote them"):
            merge(target, 5, {2_000_000: "second"}, [1_000_000])
        assert pairs_of(tmp_path) == [(1_000_000, "first"), (2_000_000, "first")]
        return
    merge(target, 5, {2_000_000: "second"}, [1_000_000])
    wanted = [(2_000_000, "second"), (3_000_000, "first")]
    theirs = {"append": [(5, "theirs"), *wanted], "optimize": wanted}
    assert pairs_of(tmp_path) == theirs[others]
    assert target.vector() == CommitVector(5, STEP_LAST, 1)


def file_names(folder: Path) -> list[str]:
    names: list[str] = pa.table(DeltaTable(str(folder)).get_add_actions()).column("path").to_pylist()
    return names


@pytest.mark.usefixtures("no_merge")
def test_a_driver_that_woke_up_does_not_write_its_epoch_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, awake = target_of(tmp_path), DeltaTarget(tmp_path, TableId("shop", "t"), "raycdc:test:1")
    merge(ours, 2, {1: "a"})
    pending = [True]

    def others_first(table: DeltaTable, *rest: Any) -> list[Action] | None:
        planned = rewrite(table, *rest)
        if pending:
            pending.pop()
            merge(ours, 3, {1: "b"})
            merge(ours, 4, {1: "c"})
        return planned

    monkeypatch.setattr(delta_commits, "rewrite", others_first)
    merge(awake, 3, {1: "b"})
    assert pairs_of(tmp_path) == [(1, "c")]
    assert awake.vector() == CommitVector(4, STEP_LAST, 1)


@pytest.mark.usefixtures("no_merge")
def test_an_epoch_that_changes_nothing_is_held_and_writes_no_rows(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    merge(target, 2, {1: "a", 3: "c"})
    files = file_names(tmp_path)
    merge(target, 3, {}, [2])
    assert file_names(tmp_path) == files
    assert target.vector() == CommitVector(3, STEP_LAST, 1)
    merge(target, 4, {}, [1, 3])
    assert (file_names(tmp_path), rows_of(tmp_path)) == ([], [])


@pytest.mark.usefixtures("no_merge")
def test_files_of_small_epochs_become_one_again(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    for epoch in range(2, 40):
        merge(target, epoch, {epoch: "new"})
    assert pairs_of(tmp_path) == [(epoch, "new") for epoch in range(2, 40)]
    assert len(file_names(tmp_path)) <= SMALL_FILES_MAX + 1


@pytest.mark.usefixtures("no_merge")
def test_columns_that_came_and_went_are_null(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    merge(target, 2, {1: "a", 2: "b"})
    # The source has `late` by now, and `v` no more.
    gone = DropColumnEvent(target.name, "v")
    DeltaCommits(target).set_options(target.ownership.note_after([gone], ["k", "v", "late"], ["k", "late"]))
    DeltaCommits(target).add_columns([pa.field("late", pa.int32())], stamp(3))
    target.refresh()
    source = pa.schema([("k", pa.int64()), ("late", pa.int32())])
    DeltaCommits(target).merge(changes_of(source, [{"k": 2, "late": 5}, {"k": 3, "late": None}]), ["k"], stamp(4))
    assert sorted(map(tuple, (row.values() for row in rows_of(tmp_path))), key=lambda row: row[0]) == [
        (1, "a", None),
        (2, None, 5),
        (3, None, None),
    ]


@pytest.mark.parametrize("special", ["change data feed", "constraint", "large", "float key"])
def test_what_is_special_is_merged_by_delta_rs(tmp_path: Path, special: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[str] = []
    execute = TableMerger.execute

    def count(merger: TableMerger) -> dict[str, Any]:
        merged.append(special)
        return execute(merger)

    monkeypatch.setattr(TableMerger, "execute", count)
    schema = pa.schema([("k", pa.float64()), ("v", pa.string())]) if special == "float key" else PLAIN
    settings = {"delta.enableChangeDataFeed": "true"} if special == "change data feed" else {}
    first = pa.Table.from_pylist([{"k": k, "v": "a"} for k in range(3)], schema)
    write_deltalake(str(tmp_path), first, configuration=settings)
    if special == "constraint":
        DeltaTable(str(tmp_path)).alter.add_constraint({"short": "k < 100"})
    if special == "large":
        monkeypatch.setattr("raycdc.sinks.delta.small_merge.REWRITE_BYTES_MAX", 100)
    target = DeltaTarget(tmp_path, TableId("shop", "t"), "raycdc:test:1")
    target.refresh()
    DeltaCommits(target).merge(changes_of(schema, [{"k": 1, "v": "b"}], [{"k": 2, "v": None}]), ["k"], stamp(2))
    assert pairs_of(tmp_path) == [(0, "a"), (1, "b")]
    assert merged == [special]
    if special == "constraint":
        with pytest.raises(SinkError, match="failed validation"):
            DeltaCommits(target).merge(changes_of(schema, [{"k": 100, "v": "no"}]), ["k"], stamp(3))


@pytest.mark.usefixtures("no_merge")
def test_bounds_of_the_new_file_are_those_a_reader_finds_rows_by(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    merge(target, 2, dict.fromkeys(range(10), "a"))
    merge(target, 3, {20: "b"}, [0, 9])
    files = pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()
    footers = [pq.read_metadata(tmp_path / file["path"]).row_group(0).column(0).statistics for file in files]
    assert [(file["min.k"], file["max.k"]) for file in files] == [(f.min, f.max) for f in footers] == [(1, 20)]
