"""Partitioned tables of lakes: what is the same in Delta and Iceberg."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from raycdc.core.failpoints import FailpointError
from raycdc.errors import SinkError
from tests.epochs.sink_world import World, iceberg_table, new_world, play
from tests.epochs.test_epoch_loop import POINTS

DELTA, ICEBERG = "delta-partitioned-upsert", "iceberg-partitioned-upsert"
#: Each way in which rows of a partition are updated.
UPSERTS = (DELTA, "delta-tasks-partitioned-upsert", ICEBERG)
#: By one column, by several, by the key.
PARTITIONS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "delta": (("qty",), ("name",), ("qty", "name"), ("id",)),
    "iceberg": (("qty",), ("name",), ("truncate(2, name)", "bucket(3, id)"), ("bucket(2, qty)",)),
}
#: Texts that would be something else in a path, a URL or a log.
ODD = ("a b", "x/y=1", "ä%C3", "..", "a\nb", 'it\'s "it"', "null", " ", "b\u2028c\u2029d\x85e", None)


def properties_of(world: World) -> Mapping[str, str | None]:
    place = world.root / "lake" / "shop" / "orders"
    if world.kind.startswith("delta"):
        return DeltaTable(str(place)).metadata().configuration
    return iceberg_table(place).metadata.properties


@pytest.mark.parametrize(
    ("kind", "other", "there"),
    [
        (DELTA, "name", r"is partitioned by qty, and partition_by asks for name: a table keeps"),
        (ICEBERG, "bucket(3, name)", r"by truncate\[10\]\(qty\), bucket\[2\]\(name\), and partition_by asks"),
    ],
)
def test_other_partitions_than_those_of_the_table_are_refused(
    kind: str, other: str, there: str, tmp_path: Path
) -> None:
    world = new_world(kind, tmp_path)
    play(world)
    world.loop().run()
    world.partition_by = (other,)
    world.script.table("shop.orders").update((100,), qty=5)
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=there):
        world.restart()
    world.partition_by = ()
    world.restart()
    world.check()


@pytest.mark.parametrize(
    ("kind", "first", "then"),
    [
        (
            DELTA,
            {"delta.logRetentionDuration": "interval 7 days"},
            {"delta.logRetentionDuration": "interval 8 days", "delta.checkpointInterval": "20"},
        ),
        (ICEBERG, {"write.parquet.compression-codec": "zstd"}, {"write.parquet.compression-codec": "snappy"}),
    ],
)
def test_properties_are_set_when_a_table_is_made_and_when_they_change(
    kind: str, first: dict[str, str], then: dict[str, str], tmp_path: Path
) -> None:
    world = new_world(kind, tmp_path)
    world.table_options = tuple({**first, "team": "shop"}.items())
    play(world)
    world.loop().run()
    assert properties_of(world).items() >= {**first, "team": "shop"}.items()
    world.table_options = tuple(then.items())
    for _ in range(2):
        world.script.table("shop.orders").update((100,), qty=4)
        world.script.seal(final=True)
        world.restart()
    world.check()
    assert properties_of(world).items() >= {**then, "team": "shop"}.items()
    if kind == DELTA:
        # Two epochs, and one commit of properties: the second start finds them set.
        commits = [commit["operation"] for commit in DeltaTable(str(tmp_path / "lake/shop/orders")).history(3)]
        assert commits.count("SET TBLPROPERTIES") == 1


@pytest.mark.long_variants("*-2", "*-3", suite="sinks")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", UPSERTS)
def test_partitions_make_no_difference_to_rows_whatever_dies(
    kind: str, seed: int, tmp_path: Path, fail_at: Callable[[str, int], None]
) -> None:
    """Rows move between partitions of odd names, with an error at a random place."""
    world, chosen = new_world(kind, tmp_path), random.Random(seed)
    world.partition_by = PARTITIONS[kind.partition("-")[0]][seed]
    orders = world.script.table("shop.orders")
    orders.read([{"id": number, "name": name, "qty": number} for number, name in enumerate(ODD, 1000)])
    for number in range(5):
        world.script.random_epoch(operations=chosen.randrange(5, 60))
        for key in chosen.sample(sorted(orders.rows), k=min(5, len(orders.rows))):
            orders.update(key, qty=chosen.choice([None, 0, 7]), name=chosen.choice([None, "moved", "x/y"]))
        if chosen.random() < 0.2:
            orders.truncate()
        world.script.seal(final=number == 4)
    fail_at(chosen.choice([p for p in POINTS if p not in ("half_written", "after_parts")]), chosen.randrange(1, 4))
    with pytest.raises(FailpointError):
        world.loop().run()
    world.restart()
    world.check()
