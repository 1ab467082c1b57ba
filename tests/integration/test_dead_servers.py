"""A server that dies under a run is tried twice a second at most by the whole process, and the run goes on after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from raycdc.clients.kafka import consumer_client
from raycdc.config import config_from_dict
from raycdc.config.mongodb import parse_mongodb_uri
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.messages import PartitionStart
from raycdc.connectors.kafka.reading.partition_reader import KafkaPartitionReader
from raycdc.core.activity import ActivityTracker, Stage
from raycdc.core.retry import SPACING_S
from raycdc.observe.events import Committed, RunEvent, Warned
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import MariaDbServer, MongoDb, PostgresServer
from raycdc.source.reader.split_reader import SplitsAddition
from tests.support.servers.gate import Gate, GateMode

pytestmark = pytest.mark.server

TABLES = 4
ROWS = 200
#: Clients have clocks of their own, which are a little inexact.
PAUSE_S = SPACING_S - 0.1


class Running:
    """A run in a thread of its own."""

    def __init__(self, config: dict[str, Any], *, until: str | None = "caught-up") -> None:
        self._until = until
        self._pipeline = Pipeline.from_config(config_from_dict(config))
        self._error: BaseException | None = None
        self._news = threading.Condition()
        self.events: list[RunEvent] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Warned)]

    def wait_for_commit(self) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self._error or any(isinstance(e, Committed) for e in self.events), 120)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._pipeline.stop()
        self.end()

    def end(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._pipeline.run(until=self._until, local=True, listener=self._listen)
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            with self._news:
                self._error = error
                self._news.notify_all()

    def _listen(self, event: RunEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()


@pytest.fixture
def tables(mariadb: MariaDbServer, mariadb_database: str) -> list[str]:
    names = [f"t{number}" for number in range(TABLES)]
    for name in names:
        mariadb.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)",
            f"INSERT INTO {name} SELECT seq, seq FROM seq_1_to_{ROWS}",
            database=mariadb_database,
        )
    return names


def config(server: MariaDbServer, port: int, database: str, folder: Path, sink: dict[str, Any]) -> dict[str, Any]:
    # So few rows a second that the server dies in the middle of chunks.
    snapshot = {"chunk_rows": 50, "rows_per_second": 400, "connections": 8}
    return {
        "pipeline": {"name": "dead", "state": str(folder / "state"), "epoch_interval": "300ms"},
        "source": {
            "type": "mysql",
            "host": server.host,
            "port": port,
            "user": "cdc",
            "password": "cdc",
            "tables": [rf"{database}\..*"],
            "snapshot": snapshot,
        },
        "readers": {"min": 2, "max": 2, "fetchers": 4},
        "sink": sink,
    }


@contextmanager
def died(gate: Gate, *, knocks: int) -> Iterator[None]:
    """The server is away within the block, until so many have knocked."""
    with gate.being(GateMode.SHUT):
        yield
        gate.wait_for_knocks(knocks)
    assert gate.is_spared(PAUSE_S)


def test_a_source_that_dies_hears_of_all_its_readers_twice_a_second(
    mariadb: MariaDbServer, mariadb_database: str, tables: list[str], tmp_path: Path
) -> None:
    with Gate(mariadb.host, mariadb.port) as gate:
        sink = {"type": "jsonl", "path": str(tmp_path / "lake"), "write": "changelog"}
        run = Running(config(mariadb, gate.port, mariadb_database, tmp_path, sink))
        run.wait_for_commit()
        with died(gate, knocks=4):
            pass
        run.end()
    waited = [text for text in run.warnings if "It is tried again for 5 minutes; see that it answers." in text]
    assert waited
    assert len(waited) <= 4, waited
    written = sorted((tmp_path / "lake").rglob("*.jsonl"))
    assert sum(len(path.read_text().splitlines()) for path in written) == TABLES * ROWS


def test_a_target_that_dies_hears_of_all_commits_twice_a_second(
    mariadb: MariaDbServer, mariadb_database: str, tables: list[str], postgres: PostgresServer, tmp_path: Path
) -> None:
    with postgres.fresh_database() as database, Gate(postgres.host, postgres.port) as gate:
        url = f"jdbc:postgresql://{gate.host}:{gate.port}/{database}"
        sink = {"type": "jdbc", "url": url, "user": postgres.user, "password": postgres.password}
        run = Running(config(mariadb, mariadb.port, mariadb_database, tmp_path, sink))
        run.wait_for_commit()
        with died(gate, knocks=4):
            pass
        run.end()
    assert any("The sink is waited for" in text for text in run.warnings)


def test_a_mongodb_that_dies_hears_of_all_clients_of_the_process_twice_a_second(
    mongodb: MongoDb, tmp_path: Path
) -> None:
    parsed = parse_mongodb_uri(mongodb.uri)
    host, _, port = parsed.where.rpartition("://")[2].partition("/")[0].partition(",")[0].rpartition(":")
    with mongodb.fresh_database() as database, Gate(host, int(port)) as gate:
        with mongodb.client() as client:
            for name in ("a", "b"):
                client[database][name].insert_many([{"_id": number} for number in range(ROWS)])
        running = Running(
            {
                "pipeline": {"name": "dead", "state": str(tmp_path / "state"), "epoch_interval": "300ms"},
                "source": {
                    "type": "mongodb",
                    "uri": f"mongodb://{gate.host}:{gate.port}/?directConnection=true",
                    "collections": [rf"{database}\..*"],
                },
                "readers": {"min": 2, "max": 2},
                "sink": {"type": "jsonl", "path": str(tmp_path / "lake"), "write": "changelog"},
            },
            until=None,
        )
        running.wait_for_commit()
        with gate.being(GateMode.SHUT):
            gate.wait_for_knocks(8)
        assert gate.is_spared(PAUSE_S)
        running.stop()


def test_a_broker_that_closes_each_connection_hears_of_a_client_no_more_than_twice_a_second() -> None:
    with Gate("127.0.0.1", 1, way=GateMode.SHUT) as gate:
        properties: dict[str, str | int | float] = {
            "bootstrap.servers": f"{gate.host}:{gate.port}",
            "group.id": "g",
            "log_level": 0,
        }
        consumer = consumer_client(properties, section="source", lasting=True)
        consumer.assign([TopicPartition("t", 0, 0)])
        while len(gate.knocks) < 4:
            consumer.poll(0.2)
        consumer.close()
        assert gate.is_spared(PAUSE_S)


def test_brokers_that_are_away_are_a_trouble_of_the_log_that_outlasts_a_fetch() -> None:
    board = ActivityTracker()
    log = board.lasting(Stage.LOG, "fetches and decodes")
    with Gate("127.0.0.1", 1, way=GateMode.SHUT) as gate:
        servers = f"{gate.host}:{gate.port}"
        settings: dict[str, Any] = {"bootstrap_servers": servers, "topics": ["t"], "format": "maxwell-json"}
        config = KafkaSourceConfig(**settings)
        with closing(KafkaPartitionReader(config)) as reader:
            reader.handle_splits_changes(SplitsAddition((PartitionStart("t", 0, 0),)))
            while not board.stalled():
                with log.turn():
                    reader.fetch()
    (stands,) = board.stalled()
    assert stands.note.startswith(f"Kafka at {servers} does not answer")
