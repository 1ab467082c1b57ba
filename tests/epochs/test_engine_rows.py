"""Who read and who wrote the rows of an epoch, by the epoch loop: each row counts once, for whoever did it last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import EpochStatistics
from raycdc.delivery.ports import EpochPorts, Routing
from raycdc.model.engines import EngineName, EngineRows
from raycdc.model.rules.routes import Router
from raycdc.segments import StageTask, TaskLog, run_in_process
from raycdc.segments.tasks import ResultT
from raycdc.sinks.api import SinkContext
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript

DRIVER, RAY, SPARK = EngineName.DRIVER, EngineName.RAY, EngineName.SPARK


class Engine:
    """Runs tasks here, and says that somebody else did; `again_by` runs them once more."""

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        self.by = SPARK
        self.again_by: EngineName | None = None

    def __call__(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        results = run_in_process(tasks)
        self._log.ran(self.by, tasks)
        if self.again_by is not None:
            results = run_in_process(tasks)
            self._log.ran(self.again_by, tasks)
        return results


class EngineEpochs:
    """A Delta table of 10 rows, of which two change in the second epoch."""

    def __init__(self, folder: Path, *, from_bytes: int | None, read_by: EngineName | None = RAY) -> None:
        self.script = EpochScript(CheckpointStore(folder / "state", pipeline="shop"))
        self.log = TaskLog()
        self.engine = Engine(self.log)
        self.figures: list[EpochStatistics] = []
        orders = self.script.table("shop.orders")
        orders.read([{"id": number, "name": "n", "qty": 1} for number in range(10)])
        self.script.seal()
        orders.update((3,), qty=2)
        orders.update((4,), qty=2)
        self.script.seal(final=True)
        self._context = SinkContext(self.script.store.app_id, "upsert", self.engine, from_bytes=from_bytes)
        self._lake = str(folder / "lake")
        self._read_by = read_by

    def run(self) -> list[EngineRows]:
        """The engines of each epoch that was committed."""
        sink = DeltaSink(DeltaSinkConfig(path=self._lake))
        sink.open(self._context)
        store, script = self.script.store, self.script
        ports = EpochPorts(
            generation=lambda: script.generation,
            next_sealed=lambda after, _: next(iter(store.manifests(after)), None),
            on_committed=self.figures.append,
            read_by=lambda generation: self._read_by if generation == script.generation else None,
            routing=replace(Routing(Router(), upsert=True), log=self.log),
        )
        EpochLoop(store, sink, ports).run()
        sink.close()
        return [figures.engines for figures in self.figures]


@pytest.mark.parametrize(
    ("from_bytes", "writer"), [(None, DRIVER), (4 << 20, DRIVER), (0, SPARK)], ids=["no Spark", "4 MiB", "always"]
)
def test_rows_that_a_sink_writes_without_a_task_are_the_drivers(
    tmp_path: Path, from_bytes: int | None, writer: EngineName
) -> None:
    """A small merge into Delta has none, unless every epoch is to be a job; an update is two rows of a segment."""
    assert EngineEpochs(tmp_path, from_bytes=from_bytes).run() == [
        EngineRows({RAY: 10}, {SPARK: 10}),
        EngineRows({RAY: 4}, {writer: 4}),
    ]


def test_rows_whose_tasks_ran_in_the_driver_are_the_drivers(tmp_path: Path) -> None:
    world = EngineEpochs(tmp_path, from_bytes=0)
    world.engine.by = DRIVER
    assert world.run() == [EngineRows({RAY: 10}, {DRIVER: 10}), EngineRows({RAY: 4}, {DRIVER: 4})]


def test_epochs_that_an_earlier_run_read_count_as_written_alone(tmp_path: Path) -> None:
    world = EngineEpochs(tmp_path, from_bytes=0, read_by=None)
    assert world.run() == [EngineRows({}, {SPARK: 10}), EngineRows({}, {SPARK: 4})]


def test_rows_that_are_written_again_count_once_for_whoever_did_it_last(tmp_path: Path) -> None:
    """As where Spark is lost after it ran the tasks, and the driver runs them again."""
    world = EngineEpochs(tmp_path, from_bytes=0)
    world.engine.again_by = DRIVER
    assert world.run() == [EngineRows({RAY: 10}, {DRIVER: 10}), EngineRows({RAY: 4}, {DRIVER: 4})]


def test_nothing_is_remembered_of_epochs_that_are_recorded(tmp_path: Path) -> None:
    world = EngineEpochs(tmp_path, from_bytes=0)
    world.run()
    assert repr(world.log) == "TaskLog(0 segments by Spark)"
