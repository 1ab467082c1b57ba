"""Tables of lakes that the pipeline optimises itself: the same stories in each, whoever else writes there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.sinks.delta import maintenance as delta_upkeep
from raycdc.sinks.delta.maintenance import compaction as compaction_of
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.lakes.maintenance import RUN_BYTES_MAX, small_groups
from tests.epochs.sink_world import World, new_world, play, works_of
from tests.epochs.upkept_lakes import DELTAS, ICEBERGS, ORDERS, DeltaLake, lake_of

KINDS = (*DELTAS, *ICEBERGS)
LAKES = ("delta-upsert", "iceberg-upsert")


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return new_world(request.param, tmp_path)


def test_a_table_that_is_optimised_after_each_epoch_has_the_same_rows(world: World) -> None:
    play(world, epochs=5)
    world.loop(lake_of(world.kind).sink(world)).run()
    world.check()
    assert lake_of(world.kind).optimised(world) > 0
    assert world.told == []


def failures() -> Iterator[Any]:
    """Each kind at each point; upkeep that was done before is the same work for all of them."""
    points = ("before_optimize", "after_optimize", "in_commit", "after_commit")
    for kind, point, count in product(KINDS, points, (1, 3)):
        yield pytest.param(
            kind, point, count, marks=pytest.mark.long(suite="sinks") if count == 3 and kind not in LAKES else ()
        )


@pytest.mark.long_variants(
    "*-tasks-*", "*partitioned*-before_optimize-*", "*partitioned*-after_*", "iceberg-upsert-*-3", suite="sinks"
)
@pytest.mark.parametrize(("world", "point", "count"), list(failures()), indirect=["world"])
def test_whatever_dies_rows_are_neither_lost_nor_doubled(
    world: World, point: str, count: int, fail_at: Callable[[str, int], None]
) -> None:
    play(world, epochs=4)
    fail_at(point, count)
    with pytest.raises(FailpointError):
        world.loop(lake_of(world.kind).sink(world)).run()
    world.restart(sink=lake_of(world.kind).sink(world))
    world.check()


def test_an_epoch_that_is_staged_meanwhile_keeps_its_files(world: World) -> None:
    orders = world.script.table("shop.orders")
    orders.read([{"id": number, "name": "n", "qty": number % 3} for number in range(100, 200)])
    first = world.script.seal()
    orders.read([{"id": number, "name": "n", "qty": number % 3} for number in range(200, 300)])
    orders.update((100,), qty=7)
    second = world.script.seal(final=True)
    sink = lake_of(world.kind).sink(world)
    loop = world.loop(sink)
    works = {work.target: work for work in works_of(loop, first)}
    later = {work.target: work for work in works_of(loop, second)}
    for work in works.values():
        sink.apply_schema(work)
    staged = sink.stage(list(works.values()))
    waiting = sink.stage(list(later.values()))
    for one, result in ((works, staged), (later, waiting)):
        for target, work in one.items():
            sink.commit(work, result[target])
    assert len(world.rows(orders)) == (200 if world.write == "upsert" else 202)


@pytest.mark.parametrize("kind", LAKES)
def test_a_driver_that_was_fenced_does_not_optimise(tmp_path: Path, kind: str) -> None:
    world, lake = new_world(kind, tmp_path), lake_of(kind)
    play(world, epochs=2)
    world.loop().run()
    lake.small_files(world)
    held = world.sink().committed(world.script.table("shop.orders").id)
    assert held is not None
    lake.after_commit(world, held.generation - 1)
    assert lake.optimised(world) == 0
    lake.after_commit(world, held.generation)
    assert lake.optimised(world) == 1


@pytest.mark.parametrize("kind", LAKES)
def test_it_is_done_when_it_is_time_also_across_starts(tmp_path: Path, kind: str) -> None:
    world, lake = new_world(kind, tmp_path), lake_of(kind)
    play(world, epochs=2)
    world.loop().run()
    began = time.time()
    done = []
    for minutes in (0, 30, 59, 61):
        lake.small_files(world)
        now = began + minutes * 60
        lake.after_commit(world, every=timedelta(hours=1), clock=lambda now=now: now)  # type: ignore[misc]
        done.append(lake.optimised(world))
    assert done == [0, 0, 0, 1]
    files = len(list((world.root / "lake/shop/orders").rglob("*.parquet")))
    assert files > lake.files(world), "nothing is deleted unless a retention is given"


def test_so_much_is_done_at_once_and_the_rest_later() -> None:
    files = [("a", 3 << 28), ("b", 1 << 28), ("a", 2 << 28), ("a", 3 << 28), ("b", 7), ("c", 7), ("a", 1 << 30)]

    def groups(given: list[tuple[str, int]]) -> tuple[list[list[tuple[str, int]]], bool]:
        return small_groups(given, target_bytes=5 << 28, size=lambda file: file[1], partition=lambda file: file[0])

    assert groups(files) == ([[files[0], files[2]]], False)
    assert sum(size for _, size in (files[0], files[2])) > RUN_BYTES_MAX
    assert groups([files[1], files[3], files[4], files[5], files[6]]) == ([[files[1], files[4]]], True)


def test_less_is_done_at_once_where_others_are_faster_down_to_two_files() -> None:
    files = [("a", 10), ("a", 20), ("a", 5), ("b", 4), ("b", 4)]

    def groups(run_bytes: int) -> tuple[list[list[tuple[str, int]]], bool]:
        return small_groups(
            files, target_bytes=100, size=lambda file: file[1], partition=lambda file: file[0], run_bytes=run_bytes
        )

    assert groups(100) == ([files[:3], files[3:]], True)
    assert groups(40) == ([files[:3]], False)
    assert groups(34) == ([files[:2]], False)
    assert groups(1) == ([files[:2]], False)


def test_a_delta_table_beside_a_busy_writer_is_tried_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, lake = new_world("delta-upsert", tmp_path), DeltaLake()
    play(world, epochs=2)
    world.loop().run()
    own, asked = compaction_of, []

    def compaction(*args: Any, **more: Any) -> Any:
        asked.append(more["run_bytes"])
        found = own(*args, **more)
        lake.small_files(world)
        return found

    monkeypatch.setattr(delta_upkeep, "compaction", compaction)
    target = DeltaTarget(world.root / "lake/shop/orders", ORDERS, world.store.app_id)
    assert target.refresh()
    now = [time.time()]
    kept = delta_upkeep.DeltaMaintenance(
        lake.options(timedelta(hours=1)), upsert=True, clock=lambda: now[0], warn=world.told.append
    )
    kept.after_commit(target, world.script.generation)
    now[0] += 7200
    for _ in range(20):
        kept.after_commit(target, world.script.generation)
        now[0] += 5
    assert asked == [RUN_BYTES_MAX >> number for number in range(4)]
    (told,) = world.told
    assert "shop.orders" in told
