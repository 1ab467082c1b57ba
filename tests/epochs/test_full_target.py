"""The epoch loop over a target whose disk is full: waited for, and then nothing is missing and nothing twice."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.core.retry import POLICY, RetryPolicy
from raycdc.core.stopping import StoppedWaitingError, StopRequest
from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy
from raycdc.errors import SinkError
from tests.epochs.sink_world import World, new_world


class SmallDisk:
    """A file system of its own for the targets of `world`, which can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Fill the disk, and give back `leave_bytes`, so that some later write is the one that fails."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue
        os.truncate(self._ballast, max(0, self._ballast.stat().st_size - leave_bytes))

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


#: Enough rows that a file's first bytes are written before its last ones.
MANY_ROWS = 3000
PAGE_BYTES = 4096


@pytest.mark.parametrize("pages", [0, 1, 3, 5, 8])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("kind", KINDS)
def test_whichever_write_meets_the_full_disk_is_repeated(
    kind: str, first: bool, pages: int, tmp_path: Path, disk: SmallDisk
) -> None:
    """A note, a staged file's rows or its footer, a log entry: each page that is left lets the next one be the one."""
    world = new_world(kind, tmp_path)
    world.foresees = False
    tables = [world.script.table(name) for name in ("shop.orders", "shop.items")]
    for table in tables:
        table.read([{"id": i, "name": "snapshot", "qty": i} for i in range(50)])
    if not first:
        world.script.seal()
        world.restart()
        for table in tables:
            for i in range(100, 100 + MANY_ROWS):
                table.insert({"id": i, "name": f"log{i * 7919 % 10007}", "qty": i})
    world.script.seal(final=True)
    disk.fill(leave_bytes=pages * PAGE_BYTES)
    waiting = SinkOutagePolicy(str(disk.folder), lambda _text: disk.make_room())
    world.restart(parking=ParkingPolicy(on_parked=lambda new: pytest.fail(f"parked: {new}"), waiting=waiting))
    world.check()


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


def test_a_stop_while_a_full_disk_is_waited_for_ends_the_loop_at_once_and_in_order(
    tmp_path: Path, disk: SmallDisk
) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world, disk)
    before = {name: len(world.rows(world.script.table(name))) for name in ("shop.orders", "shop.items")}
    stop = StopRequest()
    parking = ParkingPolicy(waiting=SinkOutagePolicy(str(disk.folder), lambda _text: stop.ask()))
    began_s = time.monotonic()
    with pytest.raises(StoppedWaitingError):
        world.restart(parking=parking, stopping=stop)
    assert time.monotonic() - began_s < POLICY.retry_s / 10
    disk.make_room()
    world.restart(parking=ParkingPolicy())
    check(world, before)
