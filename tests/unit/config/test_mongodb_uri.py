"""Connection strings of MongoDB: what is shown of them, and what is refused without a word of them."""

from __future__ import annotations

import pytest

from raycdc.config import Secret, config_from_dict
from raycdc.config.mongodb import parse_mongodb_uri
from raycdc.connectors.mongodb.server.client import connect, probe
from raycdc.errors import ConfigError, SinkError, SourceUnavailableError
from raycdc.sinks.mongodb.plugin import MongoDbSinkConfig
from raycdc.sinks.mongodb.server import Server

WRONG = [
    "mongodb://cdc:2024/Secret@127.0.0.1:27017/?replicaSet=rs0",
    "mongodb://cdc:2024?Secret@127.0.0.1:27017/",
    "mongodb://cdc:Secret/x@127.0.0.1:27017/?replicaSet=rs0",
    "mongodb://cdc:Secret%ZZ@127.0.0.1:27017/",
    "mongodb://cdc:Secret@@127.0.0.1:27017/",
    "mongodb://cdc:Se:Secret@127.0.0.1:27017/",
    "mongodb://cdc:12:Secret/x",
    "mongodb://cdc:x@h:Secret/",
    "mongodb+srv://cdc:2024/Secret@cluster.example/",
    "mongodb+srv://cdc:Secret%@cluster.example/",
]


@pytest.mark.parametrize("uri", WRONG)
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(uri: str) -> None:
    source = {"type": "mongodb", "uri": uri, "collections": ["a.b"], "startup": "snapshot"}
    sink = {"type": "mongodb", "uri": uri}
    pipeline = {"name": "shop", "state": "./state"}
    with pytest.raises(ConfigError, match=r"source\.uri") as refused:
        config_from_dict({"pipeline": pipeline, "source": source, "sink": sink})
    with pytest.raises(SinkError) as of_server:
        Server(uri, "raycdc")
    assert "sink.uri" in str(refused.value)
    for caught in (refused, of_server):
        assert "Secret" not in str(caught.value)
        assert "2024" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "where"),
    [
        ("mongodb://cdc:a%2Fb%40c@h:1,[::1]:2/db?replicaSet=rs0", "mongodb://h:1,[::1]:2"),
        ("mongodb://cdc:@127.0.0.1/?authSource=admin", "mongodb://127.0.0.1:27017"),
        ("mongodb+srv://cdc:a%2Fb@cluster.example/db?x=y", "mongodb+srv://cluster.example"),
        ("mongodb://h", "mongodb://h:27017"),
    ],
)
def test_hosts_are_shown_and_nothing_else(uri: str, where: str) -> None:
    assert parse_mongodb_uri(uri).where == where
    config = MongoDbSinkConfig(uri=Secret(uri))
    assert Server(config.uri.reveal(), "raycdc").where == where


def test_secrets_are_taken_out_of_texts() -> None:
    server = Server("mongodb://cdc:a%2Fb%40c@h:1/", "raycdc")
    assert server.text_of(ValueError("raycdc: a/b@c and a%2Fb%40c, full error: {}")) == "raycdc: *** and ***"


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    nobody = connect(Secret("mongodb://me:s3cret@127.0.0.1:1/?serverSelectionTimeoutMS=50"))
    with nobody, pytest.raises(SourceUnavailableError) as refused:
        probe(nobody)
    text = str(refused.value)
    assert text.endswith("Connection refused. Check source.uri and that the server is running.")
    assert "s3cret" not in text
