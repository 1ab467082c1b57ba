"""Lakes whose tables the pipeline optimises itself, for stories that are the same in each."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from raycdc.model import TableId
from raycdc.segments import run_in_process
from raycdc.sinks.api import Sink, SinkContext
from raycdc.sinks.delta import maintenance as delta
from raycdc.sinks.delta.plugin import DeltaOptimizeOptions
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.iceberg import maintenance as iceberg
from raycdc.sinks.iceberg.catalog import HadoopCatalog, ReopenedCatalog
from raycdc.sinks.iceberg.location import Reach
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.sink import IcebergSink
from raycdc.sinks.iceberg.snapshot_lineage import NO_EXPIRY, SnapshotLineage
from raycdc.sinks.iceberg.table import IcebergTarget
from raycdc.sinks.lakes.lake_options import OptimizeOptions
from raycdc.storage.settings import StorageSettings
from tests.epochs.sink_world import World

#: The kinds of worlds whose sink is each kind of lake.
DELTAS = (
    "delta-upsert",
    "delta-tasks-upsert",
    "delta-changelog",
    "delta-partitioned-upsert",
    "delta-tasks-partitioned-upsert",
)
ICEBERGS = (
    "iceberg-upsert",
    "iceberg-changelog",
    "iceberg-partitioned-upsert",
    "iceberg-partitioned-changelog",
)
ORDERS = TableId("shop", "orders")
ALWAYS = OptimizeOptions.model_construct(every=timedelta(0), target_file=1 << 20)


class Lake(ABC):
    """A kind of lake: a sink with upkeep after each commit, and others who write to the table of orders."""

    @abstractmethod
    def sink(self, world: World) -> Sink: ...

    def after_commit(
        self,
        world: World,
        generation: int | None = None,
        *,
        every: timedelta = timedelta(0),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """What the sink of a driver (by default the newest) does after a commit, with a handle that was refreshed."""
        after_commit = self._after_commit(world, every, clock)
        after_commit(world.script.generation if generation is None else generation)

    @abstractmethod
    def _after_commit(self, world: World, every: timedelta, clock: Callable[[], float]) -> Callable[[int], None]:
        """`after_commit` of the driver whose generation it is called with."""

    @abstractmethod
    def append(self, world: World, rows: pa.Table) -> None: ...

    @abstractmethod
    def optimised(self, world: World) -> int:
        """How often the table was."""

    @abstractmethod
    def files(self, world: World) -> int:
        """Of how many data files the table consists."""

    def small_files(self, world: World, *, first: int = 5000) -> None:
        """Another writer adds several files that an optimisation would make one."""
        for number in range(3):
            columns = {"id": pa.array([first + number], pa.int64()), "name": ["x"], "qty": pa.array([1], pa.int32())}
            self.append(world, pa.table(columns))


class DeltaLake(Lake):
    """See `Lake`. What was taken out goes at once, which no configuration could ask for."""

    def options(self, every: timedelta = timedelta(0)) -> DeltaOptimizeOptions:
        return DeltaOptimizeOptions.model_construct(
            every=every, target_file=1 << 20, z_order=(), vacuum=None if every else timedelta(0)
        )

    def sink(self, world: World) -> Sink:
        made = world.sink()
        assert isinstance(made, DeltaSink)
        made._maintenance = delta.DeltaMaintenance(self.options(), upsert=world.write == "upsert")
        return made

    def _after_commit(self, world: World, every: timedelta, clock: Callable[[], float]) -> Callable[[int], None]:
        target = DeltaTarget(world.root / "lake/shop/orders", ORDERS, world.store.app_id)
        assert target.refresh()
        return partial(delta.DeltaMaintenance(self.options(every), upsert=True, clock=clock).after_commit, target)

    def append(self, world: World, rows: pa.Table) -> None:
        table = self._table(world)
        write_deltalake(table, rows.cast(pa.schema(table.schema().to_arrow())), mode="append")

    def optimised(self, world: World) -> int:
        return sum("optimize" in commit.get("userMetadata", "") for commit in self._table(world).history())

    def files(self, world: World) -> int:
        return len(self._table(world).file_uris())

    def _table(self, world: World) -> DeltaTable:
        return DeltaTable(str(world.root / "lake/shop/orders"))


class IcebergLake(Lake):
    """See `Lake`."""

    def sink(self, world: World) -> Sink:
        made = world.sink()
        assert isinstance(made, IcebergSink)
        made._maintenance = self.upkeep(world)
        return made

    def upkeep(self, world: World, every: timedelta = timedelta(0), **more: Any) -> iceberg.IcebergMaintenance:
        context = SinkContext(world.store.app_id, world.write, run_in_process, warn=world.told.append)
        return iceberg.IcebergMaintenance(ALWAYS.model_copy(update={"every": every}), context, **more)

    def target(self, world: World) -> IcebergTarget:
        """The table as a sink has it."""
        place = IcebergCatalogOptions(type="hadoop", warehouse=str(world.root / "lake"))
        catalog, reach = ReopenedCatalog(place, StorageSettings()), Reach(StorageSettings())
        target = IcebergTarget(
            catalog, ORDERS, world.store.app_id, seen=SnapshotLineage(), reach=reach, expiry=NO_EXPIRY
        )
        assert target.refresh()
        return target

    def _after_commit(self, world: World, every: timedelta, clock: Callable[[], float]) -> Callable[[int], None]:
        return partial(self.upkeep(world, every, clock=clock).after_commit, self.target(world))

    def append(self, world: World, rows: pa.Table) -> None:
        self.table(world).append(rows)

    def optimised(self, world: World) -> int:
        return self.operations(world).count(Operation.REPLACE)

    def operations(self, world: World) -> list[Operation]:
        """What was done to the table, in order."""
        return [one.summary.operation for one in self.table(world).metadata.snapshots if one.summary is not None]

    def files(self, world: World) -> int:
        return len(list(self.table(world).scan().plan_files()))

    def table(self, world: World) -> Table:
        return HadoopCatalog("other", world.root / "lake").load_table(("shop", "orders"))


def lake_of(kind: str) -> Lake:
    """The lake of a kind of world."""
    return IcebergLake() if kind.startswith("iceberg") else DeltaLake()
