"""A pipeline into a lake whose target somebody touches: what the stories of touched targets share."""

from __future__ import annotations

from pathlib import Path

from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.state.parked import ParkedTarget
from tests.epochs.sink_world import World, commit, new_world, works_of

#: Each way in which rows of lakes are updated.
LAKES = (
    "delta-upsert",
    "delta-tasks-upsert",
    "delta-partitioned-upsert",
    "iceberg-upsert",
    "iceberg-partitioned-upsert",
)
EACH = ("delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog", "parquet", "jsonl")


def folder(world: World) -> Path:
    return world.root / "lake" / "shop" / "items"


class TouchedTarget:
    """Two tables in a sink whose driver goes on, while somebody touches the target of shop.items."""

    def __init__(self, kind: str, root: Path) -> None:
        self.world = new_world(kind, root)
        self.items = self.world.script.table("shop.items")
        self.sink = self.world.sink()
        self.loop = self.world.loop(sink=self.sink, parking=ParkingPolicy())
        for name in ("shop.orders", "shop.items"):
            self.world.script.table(name).read([{"id": n, "name": "read", "qty": n} for n in range(1, 5)])
        commit(self.loop, self.world.script.seal())

    def goes_on(self, key: int) -> None:
        """One more epoch in the same driver."""
        self.items.update((key,), name="changed")
        commit(self.loop, self.world.script.seal())

    def starts_again(self, key: int) -> None:
        """One more epoch in the next driver."""
        self.items.update((key,), name="changed")
        self.world.script.seal()
        self.world.loop(parking=ParkingPolicy()).recover()

    def is_read_anew(self) -> None:
        """The advice of messages, once the target was mended: its source table begins again."""
        self.items.truncate()
        self.items.insert({"id": 20, "name": "anew", "qty": 1})
        (work,) = works_of(self.loop, self.world.script.seal(), begun=True)
        sink = self.world.sink()
        sink.apply_schema(work)
        sink.commit(work, sink.stage([work])[work.target])
        assert [row["id"] for row in self.world.rows(self.items)] == [20]

    @property
    def parked(self) -> ParkedTarget | None:
        record = self.world.store.last_commit()
        assert record is not None
        assert set(record.parked) <= {"shop.items"}
        return record.parked.get("shop.items")
