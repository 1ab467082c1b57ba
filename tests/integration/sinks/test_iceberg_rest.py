"""Iceberg tables of a REST catalog: a server that keeps them in a folder, and loses an answer where a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

from raycdc.bridge import run_in_process
from raycdc.epochs.parked_targets import Parking
from raycdc.errors import SinkError
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.sinks.iceberg.sink import IcebergSink
from tests.epochs.sink_world import World, new_world, play


class Server:
    """The part of the REST catalog's protocol that a pipeline needs."""

    def __init__(self, folder: Path) -> None:
        self.catalog = HadoopCatalog("server", folder)
        self.commits = 0
        #: The commit after which the answer is lost.
        self.silent_at = 0
        self.asked: set[str | None] = set()
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                own.asked.add(self.headers.get("Authorization"))
                status, told = own.answer([part for part in self.path.split("/") if part][1:], body)
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.uri = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: list[str], body: Any) -> tuple[int, Any]:
        try:
            return self._answered(path, body)
        except NoSuchTableError as error:
            return 404, told("NoSuchTableException", error, 404)
        except (CommitFailedException, TableAlreadyExistsError) as error:
            return 409, told(type(error).__name__, error, 409)

    def _answered(self, path: list[str], body: Any) -> tuple[int, Any]:
        match path, body:
            case ["config"], None:
                return 200, {"defaults": {}, "overrides": {}}
            case ["namespaces"], _:
                return 200, {"namespace": body["namespace"], "properties": {}}
            case ["namespaces", space, "tables"], _:
                name = (space, body["name"])
                schema = Schema.model_validate(body["schema"])
                self.catalog.create_table(name, schema, properties=body["properties"])
            case ["namespaces", space, "tables", table], None:
                name = (space, table)
            case ["namespaces", space, "tables", table], _:
                name = (space, table)
                request = CommitTableRequest.model_validate(body)
                self.catalog.commit_table(self.catalog.load_table(name), request.requirements, request.updates)
                self.commits += 1
                if self.commits == self.silent_at:
                    return 502, told("BadGateway", Exception("the answer is lost"), 502)
            case _:
                raise AssertionError(path)
        loaded = self.catalog.load_table(name)
        metadata = json.loads(loaded.metadata.model_dump_json(exclude_none=True))
        return 200, {"metadata-location": loaded.metadata_location, "metadata": metadata, "config": {}}


def told(kind: str, error: Exception, code: int) -> Any:
    return {"error": {"message": str(error), "type": kind, "code": code}}


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
