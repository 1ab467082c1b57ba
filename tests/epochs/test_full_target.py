"""The epoch loop over a target whose disk is full: waited for, and then nothing is missing and nothing twice."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.core.retry import RetryPolicy
from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy
from raycdc.errors import SinkError
from tests.epochs.sink_world import World, new_world


class SmallDisk:
    """A file system of its own for the targets of `world`, which can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "lake"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


KINDS = ("jsonl", "parquet", "delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog")


def play(world: World, disk: SmallDisk) -> None:
    """An epoch that fits, and one that is sealed when the disk is full."""
    for name in ("shop.orders", "shop.items"):
        world.script.table(name).read([{"id": i, "name": "snapshot", "qty": i} for i in range(50)])
    world.script.seal()
    world.restart()
    for name in ("shop.orders", "shop.items"):
        table = world.script.table(name)
        table.update((3,), qty=30)
        table.insert({"id": 100, "name": "log", "qty": 0})
    world.script.seal(final=True)
    disk.fill()


def check(world: World, before: dict[str, int]) -> None:
    for name in ("shop.orders", "shop.items"):
        table = world.script.table(name)
        rows = world.rows(table)
        if world.write == "upsert":
            assert sorted(rows, key=lambda row: row["id"]) == table.contents()
        else:
            assert len({row["_seq"] for row in rows}) == len(rows) == before[name] + 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_waited_for_and_the_same_run_goes_on(kind: str, tmp_path: Path, disk: SmallDisk) -> None:
    world = new_world(kind, tmp_path)
    play(world, disk)
    before = {name: len(world.rows(world.script.table(name))) for name in ("shop.orders", "shop.items")}
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        disk.make_room()

    waiting = SinkOutagePolicy(str(disk.folder), tell)
    world.restart(parking=ParkingPolicy(on_parked=lambda new: pytest.fail(f"parked: {new}"), waiting=waiting))
    assert f"disk ({disk.folder}) takes no more" in told[0]
    check(world, before)


@pytest.mark.parametrize("kind", ["jsonl", "delta-upsert"])
def test_a_disk_that_stays_full_ends_the_run_with_its_folder(
    kind: str, tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(kind, tmp_path)
    play(world, disk)
    before = {name: len(world.rows(world.script.table(name))) for name in ("shop.orders", "shop.items")}
    monkeypatch.setattr("raycdc.delivery.targets.target_retry.POLICY", RetryPolicy(retry_s=0.1))
    with pytest.raises(SinkError, match=rf"disk \({disk.folder}\) takes no more: .*Make room there"):
        world.restart(parking=ParkingPolicy(waiting=SinkOutagePolicy(str(disk.folder))))
    disk.make_room()
    world.restart(parking=ParkingPolicy())
    check(world, before)
