"""`raycdc check` warns of sinks whose rows others can read on the way.

0.0.0.0 is this machine, and does not look so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.cli import main
from raycdc.sandbox.servers import KafkaServer, PostgresServer
from raycdc.sandbox.servers.mongodb import MongoDb

CONFIG = """
[pipeline]
name = "open"
[source]
type = "datagen"
tables = ["shop.orders"]
rows = 1
events = 0
[sink]
"""
SINKS = {
    "postgres": """type = "jdbc"
url = "postgresql://HOST:PORT/postgres"
user = "postgres"
password = "postgres"
tls = { mode = "disabled" }
""",
    "kafka": """type = "kafka"
bootstrap_servers = "HOST:PORT"
format = { type = "maxwell-json" }
""",
}


def warned(folder: Path, sink: str, capsys: pytest.CaptureFixture[str]) -> bool:
    config = folder / "open.toml"
    config.write_text(CONFIG + sink)
    main(["check", str(config)])
    return "is not encrypted: passwords and rows can be read" in " ".join(capsys.readouterr().out.split())


@pytest.mark.server
@pytest.mark.parametrize("kind", SINKS)
def test_rows_that_go_to_a_database_or_a_topic_in_the_open(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = request.getfixturevalue(kind)
    assert isinstance(server, KafkaServer | PostgresServer)
    for host, open_to_readers in (("0.0.0.0", True), ("127.0.0.1", False)):
        port = server.bootstrap_servers.rpartition(":")[2] if isinstance(server, KafkaServer) else str(server.port)
        sink = SINKS[kind].replace("HOST", host).replace("PORT", port)
        assert warned(tmp_path, sink, capsys) is open_to_readers


@pytest.mark.server
def test_documents_that_go_to_a_server_in_the_open(
    mongodb: MongoDb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for host, open_to_readers in (("0.0.0.0", True), ("127.0.0.1", False)):
        sink = f'type = "mongodb"\nuri = "{mongodb.uri.replace("127.0.0.1", host).replace("localhost", host)}"\n'
        assert warned(tmp_path, sink, capsys) is open_to_readers
