"""A file of a lake's table that somebody deleted or damaged parks that table, with the file's name.

Every kind of file is damaged in each way, while the pipeline runs and before a start. A file that the pipeline does not
read may be damaged without an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raycdc.errors import TableRefusedError, TargetModifiedError
from tests.epochs.sink_world import World, new_world

DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "overwritten": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "another": lambda path: path.write_bytes(b"{}"),
}
FILES = {
    "iceberg-upsert": ("metadata/snap-*.avro", "metadata/*-m*.avro", "metadata/v*.metadata.json", "data/*.parquet"),
    "iceberg-changelog": ("metadata/snap-*.avro", "metadata/*-m*.avro"),
    "delta-upsert": ("_delta_log/*.json", "*.parquet"),
    "delta-changelog": ("_delta_log/*.json",),
}
MOMENTS = ("commit", "truncation", "start", "question")


def cells() -> Iterator[object]:
    for kind, patterns in FILES.items():
        for pattern in patterns:
            for damage in DAMAGES:
                for moment in MOMENTS:
                    yield pytest.param(kind, pattern, damage, moment, id=f"{kind}: {pattern} {damage}, {moment}")


def begun(kind: str, root: Path) -> World:
    world = new_world(kind, root)
    for _ in range(2):
        world.script.random_epoch(operations=20)
        world.script.seal()
    world.script.random_epoch(operations=20)
    world.script.seal(final=True)
    return world


@pytest.mark.parametrize(("kind", "pattern", "damage", "moment"), list(cells()))
def test_a_damaged_file_parks_its_table(tmp_path: Path, kind: str, pattern: str, damage: str, moment: str) -> None:
    world = begun(kind, tmp_path)
    sink = world.sink()
    loop = world.loop(sink)
    loop.run()
    table = world.script.table("shop.orders")
    newest = max((tmp_path / "lake/shop/orders").glob(pattern), key=lambda path: path.stat().st_mtime_ns)
    DAMAGES[damage](newest)
    if moment == "truncation":
        table.truncate()
    world.script.random_epoch(operations=20)
    world.script.seal(final=True)
    error: TableRefusedError | None = None
    try:
        match moment:
            case "start":
                world.restart()
            case "question":
                world.sink(looks=True).committed(table.id)
            case _:
                loop.run()
    except TableRefusedError as refused:
        error = refused
    finally:
        sink.close()
    if error is None:
        return
    assert "shop.orders" in str(error) or "shop/orders" in str(error)
    if pattern.endswith(".avro"):
        assert isinstance(error, TargetModifiedError)
        assert re.search(r"file \S+\.avro is missing or damaged", str(error)), error
