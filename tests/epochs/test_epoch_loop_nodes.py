"""The epoch loop and segments in the spools of other nodes: fetched, waited for, or given up and recovered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from raycdc.core.retry import RetryPolicy
from raycdc.delivery import epoch_recovery as decisions
from raycdc.delivery import epoch_writer
from raycdc.delivery.outcomes import Recovery
from raycdc.errors import SegmentUnavailableError, SinkError, StateError
from raycdc.model import TableId
from raycdc.segments import ThreadTaskRunner
from raycdc.segments.access import SegmentAccess
from raycdc.segments.flight import FlightServer
from raycdc.sinks.api import TableCommit
from raycdc.testing.epochs import EpochScript
from tests.epochs.sink_world import World, new_world, play


@pytest.fixture(params=["delta-upsert", "jsonl"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return new_world(request.param, tmp_path)


def test_segments_of_another_node_come_through_flight(world: World) -> None:
    server = FlightServer(world.store.spool, token="secret")
    try:
        world.script = EpochScript(world.store, node="elsewhere", flight=server.endpoint)
        world.script.table("shop.items")
        play(world)
        access = SegmentAccess(token="secret")
        sink = world.sink(run=ThreadTaskRunner(2), access=access)
        world.loop(sink, access=lambda: access.as_of({"elsewhere": server.endpoint})).run()
    finally:
        server.shutdown()
    world.check()


def test_a_node_that_comes_back_in_time_is_waited_for(world: World) -> None:
    server = FlightServer(world.store.spool, token="secret")
    asked: list[int] = []
    token = SegmentAccess(token="secret")

    def access() -> SegmentAccess:
        """The node has no server when it is looked for at first."""
        asked.append(1)
        return token.as_of({"elsewhere": server.endpoint} if len(asked) > 3 else {})

    try:
        world.script = EpochScript(world.store, node="elsewhere", flight=server.endpoint)
        play(world)
        world.loop(world.sink(access=token), access=access).run()
    finally:
        server.shutdown()
    world.check()


def test_epochs_of_a_node_that_is_gone_are_dropped_unless_a_table_holds_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(world, epochs=1)
    world.loop().run()
    world.script = EpochScript(world.store, node="elsewhere", flight="")
    world.script.table("shop.late").insert({"id": 1, "name": "n", "qty": 1})
    lost = world.script.seal(final=True)
    for module in (decisions, epoch_writer):
        monkeypatch.setattr(module, "NODE_POLICY", RetryPolicy(retry_s=0.0))
    loop = world.loop()
    with pytest.raises(SegmentUnavailableError, match="on node elsewhere"):
        loop.run()
    assert loop.recover() == Recovery(1, dropped=(lost.epoch,))
    assert world.store.next_epoch() == lost.epoch + 1


def test_a_table_whose_rows_are_gone_is_to_begin_again_where_others_hold_the_epoch(world: World) -> None:
    """Rows that are whole are written; the epochs behind it go, as they do not fit a table that begins again."""
    held, whole, lost = (world.script.table(name) for name in ("shop.held", "shop.whole", "shop.lost"))
    for table in (held, whole, lost):
        table.insert({"id": 1, "name": "first", "qty": 1})
    frozen = world.script.seal()
    for table in (held, whole, lost):
        table.insert({"id": 2, "name": "later", "qty": 1})
    later = world.script.seal(final=True)

    sink = world.sink()
    commit = sink.commit

    def commit_one(work: TableCommit, staged: object) -> None:
        if work.target != held.id:
            raise SinkError(f"{work.target} cannot be reached")
        commit(work, staged)

    sink.commit = commit_one  # type: ignore[method-assign]
    with pytest.raises(SinkError, match="cannot be reached"):
        world.loop(sink).run()
    next(Path(s.path) for s in world.store.manifest(frozen.epoch).segments if s.table == lost.id).unlink()

    with pytest.raises(StateError, match=r"Epoch 1 is in shop\.held but not, or not wholly, in shop\.lost"):
        world.loop().recover()
    assert world.store.sealed_epochs(0) == [frozen.epoch, later.epoch]

    asked: list[tuple[int, Sequence[TableId]]] = []
    recovery = world.loop(
        request_resnapshot=lambda manifest, tables, _: asked.append((manifest.epoch, tables))
    ).recover()

    assert asked == [(frozen.epoch, (lost.id,))]
    assert recovery == Recovery(frozen.epoch, dropped=(later.epoch,), frozen=(frozen.epoch,))
    assert world.store.next_epoch() == later.epoch + 1
    assert world.store.sealed_epochs(0) == [frozen.epoch]
    assert [len(world.rows(table)) for table in (held, whole, lost)] == [1, 1, 0]
    assert world.loop().recover() == Recovery(frozen.epoch)
