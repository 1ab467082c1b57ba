"""An epoch of the Kafka sink in parts, a transaction each, on a real broker: whatever dies between them, each row once.

What all sinks promise is played with parts, too, by test_epoch_loop ("kafka-parts").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.delivery.outcomes import Recovery
from raycdc.errors import FencedError, SinkError
from raycdc.model import TableId
from raycdc.sandbox.servers import KafkaServer
from raycdc.segments import StageTask, run_in_process
from raycdc.sinks.api import STEP_APPEND, STEP_LAST, STEP_TOMBSTONE, CommitVector, TableCommit
from raycdc.sinks.kafka.sink import KafkaSink
from raycdc.sinks.kafka.tasks import WritePart
from raycdc.sinks.kafka.transactions import Cut, KafkaTarget, TransactionalProducer, read_record
from raycdc.state.manifests.manifest import Manifest
from tests.epochs.sink_world import World, as_messages, new_world, works_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

#: Parts of an epoch here: as many as there may be.
PARTS = 4


class CrashError(RuntimeError):
    """The driver is gone."""


class Dying:
    """Runs so many tasks of the epoch's rows (`PlanParts` and what follows), then dies before the next one."""

    def __init__(self, tasks: int) -> None:
        self.left = tasks
        self.done: list[str] = []

    def __call__(self, tasks: Sequence[StageTask[Any]]) -> list[Any]:
        return [self._run(task) for task in tasks]

    def _run(self, task: StageTask[Any]) -> Any:
        name = type(task).__name__
        if name == "PlanParts" or self.done:
            if not self.left:
                raise CrashError
            self.left -= 1
            self.done.append(name)
        return run_in_process([task])[0]


@pytest.fixture
def world(kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("raycdc.sinks.kafka.sink.PARTS_MAX", PARTS)
    made = new_world("kafka-parts", tmp_path, kafka)
    del made.script.tables[TableId.parse("shop.items")]
    return made


def epoch(world: World, *, rows: int = 120) -> Manifest:
    """A snapshot and changes of the same keys, enough for all parts."""
    orders = world.script.table("shop.orders")
    first = len(orders.rows) * 10
    orders.read([{"id": first + n, "name": "read", "qty": n} for n in range(rows)])
    for n in range(0, rows, 3):
        orders.update((first + n,), qty=-n)
    for n in range(0, rows, 6):
        orders.delete((first + n,))
    world.script.random_epoch(operations=20)
    return world.script.seal()


def work_of(world: World, manifest: Manifest, **changes: Any) -> TableCommit:
    (work,) = works_of(world.loop(world.sink()), manifest)
    return replace(work, **changes)


def target_of(world: World) -> KafkaTarget:
    sink = world.sink()
    assert isinstance(sink, KafkaSink)
    return sink._target(TableId.parse("shop.orders"))


def part_task(world: World, work: TableCommit, number: int) -> WritePart:
    """The task of one part, as a driver had it in its hands."""
    kept: list[StageTask[Any]] = []

    def keep(tasks: Sequence[StageTask[Any]]) -> list[int]:
        kept.extend(tasks)
        return [PARTS for _ in tasks]

    sink = world.sink(run=keep)
    sink.commit(work, None)
    return [task for task in kept if isinstance(task, WritePart)][number]


def test_each_part_is_a_transaction_under_its_own_name_and_the_tables_record_comes_last(world: World) -> None:
    manifest = epoch(world)
    dying = Dying(100)
    sink = world.sink(run=dying)
    work = work_of(world, manifest)
    sink.apply_schema(work)
    sink.commit(work, None)
    assert dying.done == ["PlanParts", *["WritePart"] * PARTS, "WriteChanges"]
    target = target_of(world)
    whole = CommitVector(manifest.epoch, STEP_LAST, 1)
    assert [read_record(target.part(n)).vector for n in range(PARTS)] == [whole] * PARTS
    assert (read_record(target).vector, read_record(target).cut) == (whole, Cut(manifest.epoch, PARTS, PARTS))
    world.check()


@pytest.mark.long_variants("1", "2", "4", suite="sinks")
@pytest.mark.parametrize("tasks", range(PARTS + 2))
def test_a_driver_that_dies_between_any_two_commits_loses_and_doubles_nothing(world: World, tasks: int) -> None:
    epoch(world)
    with pytest.raises(CrashError):
        world.loop(world.sink(run=Dying(tasks))).run()
    sink = world.sink()
    held = sink.committed(TableId.parse("shop.orders"))
    begun, partly = CommitVector(0, STEP_LAST, 1), CommitVector(1, STEP_APPEND, 1)
    assert held == (partly if tasks > 1 else begun if tasks == 0 else CommitVector(1, 0, 1))
    epoch(world)
    assert world.restart().replayed == (1, 2)
    world.check()


def test_the_plan_holds_for_whoever_goes_on_with_the_epoch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version, another ``task_bytes``, another number of partitions: the parts are what they were."""
    epoch(world)
    with pytest.raises(CrashError):
        world.loop(world.sink(run=Dying(3))).run()
    monkeypatch.setattr("raycdc.sinks.kafka.sink.PARTS_MAX", 1)
    world.restart()
    world.check()
    epoch(world)
    world.restart()
    assert read_record(target_of(world)).cut == Cut(1, PARTS, PARTS)
    world.check()


def test_rows_of_a_part_that_are_gone_make_the_table_begin_again(world: World) -> None:
    manifest = epoch(world)
    with pytest.raises(CrashError):
        world.loop(world.sink(run=Dying(3))).run()
    work = work_of(world, manifest)
    late = part_task(world, work, 3)
    contents = [Path(segment.path).read_bytes() for segment in manifest.segments]
    for segment in manifest.segments:
        Path(segment.path).unlink()
    asked: list[Any] = []
    recovery = world.restart(request_resnapshot=lambda *told: asked.append(told[1]))
    assert recovery == Recovery(1, frozen=(1,))
    assert [list(tables) for tables in asked] == [[TableId.parse("shop.orders")]]
    assert world.sink().committed(work.target) == CommitVector(1, STEP_LAST, 2)
    written = len(world.rows(world.script.table("shop.orders")))
    # A task of the old driver wakes up, with rows that nobody else has any more.
    for segment, content in zip(manifest.segments, contents, strict=True):
        Path(segment.path).write_bytes(content)
    with pytest.raises(FencedError, match="newer driver"):
        run_in_process([late])
    assert len(world.rows(world.script.table("shop.orders"))) == written


def test_a_part_that_wakes_after_the_epoch_was_dropped_is_fenced(world: World) -> None:
    manifest = epoch(world)
    with pytest.raises(CrashError):
        world.loop(world.sink(run=Dying(1))).run()
    work = work_of(world, manifest)
    late = part_task(world, work, 2)
    for generation in (2, 3):
        # The second time is a start after a death in the middle of the first.
        world.sink().tombstone(replace(work, segments=(), generation=generation))
        assert world.sink().committed(work.target) == CommitVector(1, STEP_TOMBSTONE, 2)
    with pytest.raises(FencedError, match="newer driver"):
        run_in_process([late])
    with pytest.raises(FencedError, match="newer driver"):
        world.sink().commit(work, None)
    assert world.rows(world.script.table("shop.orders")) == []


def test_an_epoch_is_not_dropped_where_a_part_was_written_meanwhile(world: World) -> None:
    manifest = epoch(world)
    with pytest.raises(CrashError):
        world.loop(world.sink(run=Dying(1))).run()
    work = work_of(world, manifest)
    late = part_task(world, work, 2)
    sink = world.sink()
    assert sink.committed(work.target) == CommitVector(1, 0, 1)
    run_in_process([late])
    with pytest.raises(SinkError, match="rows of epoch 1 were written"):
        sink.tombstone(replace(work, segments=(), generation=2))
    # Not dropped: the next start finds it held in part.
    assert world.sink().committed(work.target) == CommitVector(1, STEP_APPEND, 1)
    world.restart()
    world.check()


def test_a_paused_part_is_fenced_by_whoever_asks_what_the_table_holds(world: World) -> None:
    manifest = epoch(world)
    with pytest.raises(CrashError):
        world.loop(world.sink(run=Dying(1))).run()
    target = target_of(world)
    with TransactionalProducer(target.part(3)) as paused:
        paused._producer.begin_transaction()
        paused._producer.produce(target.topic, b"late")
        paused._producer.flush(20)
        world.sink().committed(TableId.parse("shop.orders"))
        with pytest.raises(SinkError, match="another process took over"):
            paused._ask(lambda: paused._producer.commit_transaction(20))
    assert manifest.epoch == 1
    world.restart()
    world.check()


def test_a_topic_with_one_partition_is_written_by_one_task_in_the_order_of_the_log(
    kafka: KafkaServer, world: World
) -> None:
    topic = world.topic(world.script.table("shop.orders"))
    kafka.create_topic(topic, partitions=1)
    epoch(world)
    world.restart()
    assert read_record(target_of(world)).cut == Cut()
    table = world.script.table("shop.orders")
    changes = [(row["_op"], row["id"]) for row in world.rows(table)]
    assert changes == [(op, row["id"]) for op, row in as_messages(table)]


def test_updates_stay_whole_where_their_rows_lie_between_those_of_other_parts(world: World) -> None:
    """`-U` and `+U` of a key are one message in its part; of a row that changes its key each half goes to its part."""
    orders = world.script.table("shop.orders")
    orders.read([{"id": n, "name": "read", "qty": n} for n in range(200)])
    for n in range(200):
        orders.update((n,), qty=n + 1)
    for n in range(0, 200, 5):
        orders.update((n,), id=n + 1000)
    world.script.seal()
    world.restart()
    world.check()
