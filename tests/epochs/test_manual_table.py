"""The manual's table of what others may do to a lake's target: each of its cells is played, here or elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from tests.epochs import test_demanding_targets as demanding
from tests.epochs import test_staged_files as staged
from tests.epochs import test_touched_targets as touched
from tests.epochs.sink_world import World, commit, new_world
from tests.epochs.test_touched_targets import iceberg
from tests.epochs.touched_story import Story, folder

MANUAL = Path(__file__).parents[2] / "raycdc" / "manual" / "targets.md"
DELTA, ICEBERG, FILES = "Delta", "Iceberg", "Parquet, JSON Lines"
KINDS = {DELTA: "delta", ICEBERG: "iceberg", FILES: "jsonl"}

Cause = Callable[[World], None]


def delete_target(world: World) -> None:
    shutil.rmtree(folder(world))


def iceberg_made_anew(world: World) -> None:
    schema = iceberg(world).schema().as_arrow()
    delete_target(world)
    table = HadoopCatalog("raycdc", world.root / "lake").create_table(("shop", "items"), schema)
    table.append(pa.Table.from_pylist([{"id": 100, "name": "theirs", "qty": 1}], schema=table.schema().as_arrow()))


def files_made_anew(world: World) -> None:
    delete_target(world)
    files_append(world)


def files_append(world: World) -> None:
    folder(world).mkdir(parents=True, exist_ok=True)
    (folder(world) / "theirs.jsonl").write_text('{"_op": "+I", "_seq": 0, "id": 50, "name": "theirs", "qty": 1}\n')


def files_change(world: World) -> None:
    for path in folder(world).glob("*.jsonl"):
        path.write_text(path.read_text().replace("read", "READ"))


def files_take(world: World) -> None:
    for path in folder(world).glob("*.jsonl"):
        path.unlink()


def iceberg_roll_back(world: World) -> None:
    snapshot = iceberg(world).current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id is not None
    iceberg(world).manage_snapshots().rollback_to_snapshot(snapshot.parent_snapshot_id).commit()


def iceberg_delete(world: World) -> None:
    iceberg(world).delete("id = 3")


def nothing(_: World) -> None:
    """A target is as it was."""


@dataclass(frozen=True)
class Play:
    """Somebody does `cause` to a target that gets epochs: it is `parked`, or goes on. With `write`, else upsert."""

    cause: Cause
    parked: bool
    write: str = "upsert"
    adopted: bool = False


#: Where a cell is played that is no story of a cause between two epochs, or has one of its own.
TOLD_BY = {
    "add a column and give it values": touched.test_a_column_of_others_keeps_its_values_when_rows_are_updated,
    "vacuum or clean up files that are staged": staged.test_staged_files_that_a_cleaning_tool_took_are_staged_again,
    'replace it from another pipeline (`on_existing = "replace"`)': (
        touched.test_a_pipeline_whose_target_another_one_replaced_writes_no_more
    ),
    "add CHECK or NOT NULL": demanding.test_a_constraint_that_others_gave_a_delta_table_holds_for_every_commit,
    "make it with a generated column": (
        demanding.test_a_generated_column_of_an_adopted_delta_table_is_computed_or_refused
    ),
    "make it with an identity column": demanding.test_an_identity_column_of_a_delta_table_is_refused_by_name,
}
DELETED = "delete rows of a changelog, or of a table that was adopted"
CELLS: dict[tuple[str, str], list[Play]] = {
    ("append rows", DELTA): [Play(touched.append_row, parked=False)],
    ("append rows", ICEBERG): [Play(touched.append_to_iceberg, parked=False)],
    ("append rows", FILES): [Play(files_append, parked=False)],
    ("compact, expire, vacuum", DELTA): [Play(touched.compact, parked=False), Play(touched.vacuum, parked=False)],
    ("compact, expire, vacuum", ICEBERG): [Play(touched.compact_iceberg, parked=False)],
    ("take files of rows away", FILES): [Play(files_take, parked=False)],
    ("delete or overwrite rows of an upsert target that raycdc made", DELTA): [
        Play(touched.delete_rows, parked=True),
        Play(touched.overwrite_rows, parked=True),
    ],
    ("delete or overwrite rows of an upsert target that raycdc made", ICEBERG): [
        Play(touched.iceberg_delete, parked=True),
        Play(touched.iceberg_overwrite, parked=True),
    ],
    ("change values in such rows (UPDATE, MERGE)", DELTA): [Play(touched.update_rows, parked=True)],
    ("change values in such rows (UPDATE, MERGE)", ICEBERG): [Play(touched.iceberg_update, parked=True)],
    ("change values in such rows (UPDATE, MERGE)", FILES): [Play(files_change, parked=False)],
    (DELETED, DELTA): [
        Play(touched.delete_rows, parked=False, write="changelog"),
        Play(touched.delete_rows, parked=False, adopted=True),
    ],
    (DELETED, ICEBERG): [
        Play(iceberg_delete, parked=False, write="changelog"),
        Play(iceberg_delete, parked=False, adopted=True),
    ],
    (DELETED, FILES): [Play(files_take, parked=False)],
    ("restore or roll back to before the last epoch", DELTA): [Play(touched.restore_before, parked=True)],
    ("restore or roll back to before the last epoch", ICEBERG): [Play(iceberg_roll_back, parked=True)],
    ("restore or roll back to before the last epoch", FILES): [Play(files_take, parked=False)],
    ("restore to the last epoch", DELTA): [Play(touched.restore_ours, parked=False)],
    ("restore to the last epoch", ICEBERG): [Play(touched.delete_and_roll_back, parked=False)],
    **{("delete the target", store): [Play(delete_target, parked=True)] for store in KINDS},
    ("delete it and make it anew", DELTA): [Play(touched.made_anew, parked=True)],
    ("delete it and make it anew", ICEBERG): [Play(iceberg_made_anew, parked=True)],
    ("delete it and make it anew", FILES): [Play(files_made_anew, parked=True)],
}
PLAYS = [(store, play) for (_, store), plays in CELLS.items() for play in plays]


def rows_of_the_table() -> dict[str, dict[str, str]]:
    """The outcome in each cell of the manual, by row and store."""
    text = MANUAL.read_text().partition("## Others touch a target")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    stores = lines[0][1:]
    return {row[0]: dict(zip(stores, row[1:], strict=True)) for row in lines[1:]}


def test_each_cell_of_the_manual_is_played() -> None:
    said = rows_of_the_table()
    assert len(said) >= 16
    cells = {(row, store) for row, outcomes in said.items() for store, outcome in outcomes.items() if outcome != "–"}
    assert {cell for cell in cells if cell[0] not in TOLD_BY} == CELLS.keys()
    assert said.keys() >= TOLD_BY.keys()
    for (row, store), plays in CELLS.items():
        assert {play.parked for play in plays} == {said[row][store] == "parks"}, (row, store)
        assert said[row][store] in ("parks", "harmless", "not noticed")


def taken_over(kind: str, root: Path) -> Story:
    """A story of a target that was there, with rows, before the pipeline came."""
    (root / "before").mkdir()
    first = Story(kind, root / "before")
    first.goes_on(1)
    (root / "now").mkdir()
    shutil.copytree(root / "before" / "lake", root / "now" / "lake")
    world = new_world(kind, root / "now")
    story = Story.__new__(Story)
    story.world, story.items = world, world.script.table("shop.items")
    story.sink = world.sink(on_existing="merge")
    story.loop = world.loop(sink=story.sink, parking=ParkingPolicy())
    story.items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 5)])
    commit(story.loop, world.script.seal())
    return story


@pytest.mark.parametrize(
    ("store", "play"), PLAYS, ids=[f"{KINDS[store]}-{play.cause.__name__}-{play.write}" for store, play in PLAYS]
)
def test_the_outcome_is_what_the_manual_says(store: str, play: Play, tmp_path: Path) -> None:
    kind = KINDS[store] if store == FILES else f"{KINDS[store]}-{play.write}"
    story = taken_over(kind, tmp_path) if play.adopted else Story(kind, tmp_path)
    story.goes_on(1)
    play.cause(story.world)
    story.goes_on(2)
    assert (story.parked is not None) == play.parked, story.parked
    if not play.parked:
        assert 2 in {row["id"] for row in story.world.rows(story.items) if row["name"] == "changed"}
