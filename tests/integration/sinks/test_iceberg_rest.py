"""Iceberg tables of a REST catalog: a server that keeps them in a folder, and loses an answer where a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.bridge import run_in_process
from raycdc.epochs.parked_targets import Parking
from raycdc.errors import SinkError
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg.sink import IcebergSink
from tests.epochs.sink_world import World, new_world, play
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


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_a_commit_whose_answer_is_lost_is_found_by_the_next_start(tmp_path: Path, server: Server, lost: int) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    server.silent_at = lost
    with pytest.raises(SinkError, match=r"shop\.(orders|items) cannot be written: CommitStateUnknown"):
        world.loop(sink(world, server), parking=Parking()).run()
    # Nobody's table is parked for what the way to the catalog lost.
    world.restart(sink=sink(world, server), parking=Parking())
    world.check()
    record = world.store.last_commit()
    assert record is not None
    assert record.parked == {}
