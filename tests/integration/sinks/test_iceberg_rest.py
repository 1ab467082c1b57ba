"""Iceberg tables of a REST catalog: a server that keeps them in a folder, and loses an answer where a test wants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from pyiceberg.exceptions import ForbiddenError, ServerError, ServiceUnavailableError, UnauthorizedError
from sqlalchemy.exc import IntegrityError, OperationalError

from raycdc.bridge import run_in_process
from raycdc.epochs.parked_targets import Parking, Waiting
from raycdc.errors import SinkUnavailableError
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg.away import is_away
from raycdc.sinks.iceberg.sink import IcebergSink
from raycdc.testing.servers.gate import Gate, Way
from tests.epochs.sink_world import World, new_world, play
from tests.integration.sinks.iceberg_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "lake")
    yield started
    started.close()


def sink(world: World, server: Server, uri: str = "") -> IcebergSink:
    plugin = load_plugin(PluginGroup.SINKS, "iceberg")
    place = {"type": "rest", "uri": uri or server.uri, "properties": {"token": "secret-token"}}
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
def test_a_commit_whose_answer_is_lost_is_found_by_the_next_try(tmp_path: Path, server: Server, lost: int) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    server.silent_at = lost
    told: list[str] = []
    world.loop(sink(world, server), parking=Parking(waiting=Waiting("", told.append))).run()
    assert len(told) == 1
    assert re.search(r"shop\.(orders|items) cannot be written: CommitStateUnknown", told[0])
    # Nobody's table is parked for what the way to the catalog lost.
    world.check()
    record = world.store.last_commit()
    assert record is not None
    assert record.parked == {}


def test_a_catalog_that_is_away_is_waited_for(tmp_path: Path, server: Server) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world)
    address = urlsplit(server.uri)
    assert address.hostname is not None
    assert address.port is not None
    with Gate(address.hostname, address.port) as gate:
        uri = f"http://{gate.host}:{gate.port}"
        away = sink(world, server, uri)
        told: list[str] = []

        def tell(text: str) -> None:
            told.append(text)
            gate.set(Way.OPEN)

        gate.set(Way.SHUT)
        with pytest.raises(SinkUnavailableError, match="rest catalog of the Iceberg sink cannot be opened"):
            sink(world, server, uri)
        world.loop(away, parking=Parking(waiting=Waiting("", tell))).run()
    assert len(told) == 1
    assert told[0].startswith("The sink is waited for: The Iceberg table shop.")
    assert told[0].endswith("It is tried again for 5 minutes; see that it answers.")
    world.check()


def test_errors_of_catalogs_that_may_not_come_again_are_told_apart() -> None:
    lost = OperationalError("SELECT 1", None, Exception("could not connect to server"))
    for error in (lost, ServerError("502"), ServiceUnavailableError("503"), requests.ConnectionError("refused")):
        assert is_away(error)
    for lasting in (UnauthorizedError("no"), ForbiddenError("no"), IntegrityError("INSERT", None, Exception("key"))):
        assert not is_away(lasting)
