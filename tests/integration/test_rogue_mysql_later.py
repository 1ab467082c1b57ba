"""A server that turns rogue after the first connection, and one that answers with what no server sends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from raycdc.clients import mysql
from raycdc.clients.mysql import MySqlSettings, connect, query
from raycdc.config.tls import TlsMode
from raycdc.connectors.mysql.binlog.wire import stream as event_buffer
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_end, probe
from raycdc.connectors.mysql.snapshot import resultset as packets
from raycdc.connectors.mysql.snapshot.resultset import stream_query
from raycdc.errors import CorruptLogError, DataError, RaycdcError, SinkError, SourceError
from raycdc.model import TableId
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.servers.certificates import write_certificates
from raycdc.sinks.jdbc.mysql import MySqlDatabase
from raycdc.sinks.jdbc.plugin import Address
from tests.integration.rogue_mysql import Meddler, Turncoat, packet
from tests.support.jobs import Job

pytestmark = pytest.mark.server
MIB = 1 << 20


@pytest.fixture
def table(mariadb: MariaDbServer, mariadb_database: str) -> TableId:
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", database=mariadb_database)
    mariadb.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')", database=mariadb_database)
    return TableId(mariadb_database, "t")


@dataclass
class Through(Job):
    """A pipeline that reaches its server through a proxy."""

    port: int = 0

    def source_section(self) -> str:
        return super().source_section().replace(f"port = {self.server.port}", f"port = {self.port}")


@pytest.mark.parametrize("honest", [2, 6])
@pytest.mark.parametrize("certificate", [False, True], ids=["no TLS", "another certificate"])
def test_a_run_tells_nothing_to_a_server_that_turns_rogue(
    honest: int, certificate: bool, mariadb: MariaDbServer, table: TableId, tmp_path: Path
) -> None:
    certificates = tmp_path / "rogue"
    write_certificates(certificates)
    with closing(Turncoat(mariadb.port, honest=honest, certificates=certificates if certificate else None)) as turncoat:
        job = Through(tmp_path, mariadb, table.db, (table.table,), local=True, port=turncoat.port)
        job.source = f'tls = {{ mode = "verify-identity", ca = "{mariadb.ca_path}" }}'
        ended = job.start("--until", "caught-up")
        assert ended.wait() == 3, ended.story()
        assert "No TLS connection" in ended.story()
        assert turncoat.betrayed
    assert not turncoat.received


def settings(port: int) -> MySqlSettings:
    return MySqlSettings("127.0.0.1", port, "cdc", "cdc", TlsMode.DISABLED, read_timeout_s=20)


def ask(port: int, table: TableId) -> None:
    with closing(connect(settings(port))) as connection:
        query(connection, "SELECT 'meddle'")


def read_chunk(port: int, table: TableId) -> None:
    with closing(connect(settings(port))) as connection:
        described = load_table(connection, table)
        list(stream_query(connection, f"SELECT /* meddle */ id, v FROM {table.db}.t", described))


def read_log(port: int, table: TableId) -> None:
    connection = connect(settings(port))
    place = current_end(connection, probe(connection))
    with closing(BinlogStream(connection, server_id=os.getpid() % 100000 + 7, offset=place, heartbeat_s=5)) as stream:
        while True:
            stream.read(bytes_max=1, timeout_s=20)


def local_file() -> Iterator[bytes]:
    yield packet(1, b"\xfb/etc/passwd")


def cut_short() -> Iterator[bytes]:
    yield packet(1, b"\x03")
    yield packet(2, b"\x03d")
    yield packet(3, b"\xfc")
    yield packet(4, b"\xff")


def lengths_beyond() -> Iterator[bytes]:
    yield packet(1, b"\xfe" + b"\xff" * 8)
    yield packet(2, b"\x03def\xfe" + b"\xff" * 8 + b"abc")
    yield packet(3, b"\xfd\xff\xff\xff")


def endless() -> Iterator[bytes]:
    number = 1
    yield b"\xff\xff\xff" + bytes([number, 0])
    yield bytes(0xFFFFFF - 1)
    while True:
        number = (number + 1) % 256
        yield b"\xff\xff\xff" + bytes([number]) + bytes(0xFFFFFF)


def write(port: int, table: TableId) -> None:
    database = MySqlDatabase(Address("mysql", "127.0.0.1", port, table.db, "root", "root", TlsMode.DISABLED))
    with closing(database), database.session() as session:
        session.rows("SELECT 'meddle'")


WAYS: dict[str, tuple[bytes, Callable[[int, TableId], None]]] = {
    "a statement": (b"meddle", ask),
    "a chunk": (b"meddle", read_chunk),
    "the registration of the log": (rb"\A\x15", read_log),
    "the log": (rb"\A\x12", read_log),
    "a sink": (b"meddle", write),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answers", [local_file, cut_short, lengths_beyond], ids=lambda answers: answers.__name__)
def test_an_answer_that_no_server_gives_is_a_named_error(
    way: str, answers: Callable[[], Iterator[bytes]], mariadb: MariaDbServer, table: TableId
) -> None:
    asked, read = WAYS[way]
    with closing(Meddler(mariadb.port, asked, answers)) as meddler, pytest.raises(RaycdcError) as refused:
        read(meddler.port, table)
    assert isinstance(refused.value, SourceError | DataError | SinkError)
    assert "127.0.0.1" in str(refused.value) or str(table) in str(refused.value)
    if answers is local_file and read in (ask, read_chunk, write):
        assert "a request for a file of this machine" in str(refused.value)
    assert b"root:" not in meddler.received


@pytest.mark.parametrize("way", ["a statement", "a chunk", "the log"])
def test_an_answer_without_end_takes_no_more_memory_than_its_bound(
    way: str, mariadb: MariaDbServer, table: TableId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "ANSWER_BYTES_MAX", 32 * MIB)
    monkeypatch.setattr(packets, "ROW_BYTES_MAX", 32 * MIB)
    monkeypatch.setattr(event_buffer, "EVENT_BYTES_MAX", 32 * MIB)
    asked, read = WAYS[way]
    refused = pytest.raises((SourceError, DataError, CorruptLogError), match=r"more than 32 MiB|larger than \d+ bytes")
    with closing(Meddler(mariadb.port, asked, endless)) as meddler, refused:
        read(meddler.port, table)
    assert meddler.taken <= 160 * MIB
