"""A server that refuses an account: no command says with which password, though its library has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raycdc.sandbox.servers import KafkaServer, MariaDbServer, PostgresServer
from raycdc.sandbox.servers.mongodb import MongoDb
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server

PASSWORD = "S3cret-in-a-refusal-7f1"
DATAGEN = '[source]\ntype = "datagen"\ntables = ["shop.orders"]\nrows = 1\nevents = 0\n'
FILES = '[sink]\ntype = "jsonl"\npath = "out"\n'
SASL = (
    '{ "security.protocol" = "sasl_ssl", "sasl.mechanisms" = "PLAIN", "sasl.username" = "cdc", '
    '"sasl.password" = "${env:REFUSED}", "ssl.key.password" = "${env:REFUSED}", "ssl.ca.location" = "CA" }'
)


def said(folder: Path, sections: str, *, runs: bool = True) -> str:
    (folder / "c.toml").write_text('[pipeline]\nname = "refused"\n' + sections)
    environment = {**os.environ, "REFUSED": PASSWORD}
    commands = [["check", "c.toml"], ["plan", "c.toml"]]
    commands += [["run", "c.toml", "--local", "--until", "caught-up", "--verbose", "--json"]] if runs else []
    each = [completed(words, environment=environment, folder=folder) for words in commands]
    assert any(one.returncode in (3, 5) for one in each), each
    return "".join(one.stdout + one.stderr for one in each)


def nothing_told(folder: Path, text: str) -> None:
    assert PASSWORD not in text
    for path in folder.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_a_database_that_refuses(kind: str, mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path) -> None:
    port = mariadb.port if kind == "mysql" else postgres.port
    account = 'user = "cdc"\npassword = "${env:REFUSED}"\n'
    if kind == "mysql":
        source = f'[source]\ntype = "mysql"\nhost = "127.0.0.1"\nport = {port}\n{account}tables = ["shop.orders"]\n'
        nothing_told(tmp_path, said(tmp_path, source + FILES))
    sink = f'[sink]\ntype = "jdbc"\nurl = "{kind}://127.0.0.1:{port}/d"\n{account}'
    nothing_told(tmp_path, said(tmp_path, DATAGEN + sink))


@pytest.mark.parametrize("as_source", [True, False])
def test_a_mongodb_that_refuses(as_source: bool, mongodb: MongoDb, tmp_path: Path) -> None:
    uri = mongodb.uri.replace("mongodb://", "mongodb://cdc:${env:REFUSED}@", 1)
    source = f'[source]\ntype = "mongodb"\nuri = "{uri}"\ncollections = ["shop.orders"]\n'
    sink = f'[sink]\ntype = "mongodb"\nuri = "{uri}"\n'
    nothing_told(tmp_path, said(tmp_path, source + FILES if as_source else DATAGEN + sink))


@pytest.mark.long(suite="leaks")
@pytest.mark.parametrize("as_source", [True, False])
def test_a_kafka_that_refuses(as_source: bool, kafka: KafkaServer, tmp_path: Path) -> None:
    secure = kafka.secure_properties
    where = f'bootstrap_servers = "{secure["bootstrap.servers"]}"\nproperties = {SASL}\n'
    where = where.replace("CA", secure["ssl.ca.location"])
    source = f'[source]\ntype = "kafka"\n{where}topics = ["t"]\nformat = {{ type = "maxwell-json" }}\n'
    sink = f'[sink]\ntype = "kafka"\n{where}format = {{ type = "maxwell-json" }}\n'
    nothing_told(tmp_path, said(tmp_path, source + FILES if as_source else DATAGEN + sink, runs=as_source))
