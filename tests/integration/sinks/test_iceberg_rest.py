"""Iceberg tables of a REST catalog: a server that keeps them in a folder, and is away, loses an answer or is late
where a test wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate

from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg.sink import IcebergSink
from tests.epochs.sink_world import World, new_world, play
from tests.epochs.upkept_lakes import IcebergLake
from tests.integration.sinks.iceberg_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "lake")
    yield started
    started.close()


def sink(world: World, server: Server) -> IcebergSink:
    plugin = load_plugin(PluginGroup.SINKS, "iceberg")
    place = {"type": "rest", "uri": server.uri, "properties": {"token": "secret-token"}}
    made: IcebergSink = plugin.create(plugin.config(type="iceberg", catalog=place))
    made.open(SinkContext(world.store.app_id, "upsert", run_in_process))
    return made


def test_all_epochs_reach_the_tables_of_a_server_once(tmp_path: Path, server: Server) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    world.loop(sink(world, server)).run()
    world.check()
    assert server.asked == {"Bearer secret-token"}


def run(world: World, sink: IcebergSink) -> list[str]:
    """A run to its end, in which no table may be parked; what it told of waiting."""
    told: list[str] = []
    world.loop(sink, parking=ParkingPolicy(waiting=SinkOutagePolicy(notify=told.append))).run()
    record = world.store.last_commit()
    assert record is not None
    assert record.parked == {}
    return told


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_a_commit_whose_answer_is_lost_is_found_by_the_next_try(tmp_path: Path, server: Server, lost: int) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    server.silent_at = lost
    told = run(world, sink(world, server))
    world.check()
    at = server.uri.removeprefix("http://")
    cause = f"cannot be written, because the rest catalog of the Iceberg sink at {at} is away: CommitStateUnknown"
    assert [text for text in told if cause in text] == told
    assert len(told) == 1


@pytest.mark.parametrize("late_first", [True, False])
@pytest.mark.parametrize("late", range(1, 8))
def test_a_change_that_the_server_carries_out_after_it_was_given_up_is_made_once(
    tmp_path: Path, server: Server, late: int, late_first: bool
) -> None:
    """Before the next try's it is found, behind it the server refuses it: it asks for the snapshot before."""
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    server.late_at, server.late_first = late, late_first
    told = run(world, sink(world, server))
    world.check()
    assert server.late_done is late_first
    assert len(told) == 1
    world.restart(sink=sink(world, server), parking=ParkingPolicy())
    world.check()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_server_that_is_away_is_waited_for(tmp_path: Path, server: Server, status: int) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    opened = sink(world, server)
    server.guard.away = status
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        server.guard.away = 0

    world.loop(opened, parking=ParkingPolicy(waiting=SinkOutagePolicy(notify=tell))).run()
    world.check()
    assert server.uri.removeprefix("http://") in told[0]


def test_a_server_that_lacks_is_waited_for(tmp_path: Path, server: Server) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    opened = sink(world, server)
    server.close()
    told: list[str] = []

    def tell(text: str) -> None:
        if not told:
            server.start()
        told.append(text)

    world.loop(opened, parking=ParkingPolicy(waiting=SinkOutagePolicy(notify=tell))).run()
    world.check()
    assert f"at {server.uri.removeprefix('http://')} is away: ConnectionError" in told[0]


def test_a_compaction_whose_answer_is_lost_keeps_its_files(tmp_path: Path, server: Server) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world, epochs=5)
    lost = []

    def is_first_replace(request: CommitTableRequest) -> bool:
        replaced = [
            one
            for one in request.updates
            if isinstance(one, AddSnapshotUpdate)
            and one.snapshot.summary is not None
            and one.snapshot.summary.operation is Operation.REPLACE
        ]
        lost.extend(replaced)
        return len(lost) == len(replaced) == 1

    server.loses = is_first_replace
    made = sink(world, server)
    made._maintenance = IcebergLake().upkeep(world)
    assert run(world, made) == []
    assert lost
    world.check()
    assert [text for text in world.told if text.startswith("sink.optimize: ") and "CommitStateUnknown" in text]
    world.restart(sink=sink(world, server), parking=ParkingPolicy())
    world.check()
