"""`raycdc check` warns of connections that others can read, and of no others."""

from __future__ import annotations

import pytest

from raycdc.clients.kafka import messages_in_the_open
from raycdc.config.checks import readable_on_the_way
from raycdc.config.mongodb import open_hosts


@pytest.mark.parametrize(
    ("uri", "hosts"),
    [
        ("mongodb://u:p@db1:27017/?replicaSet=rs0", ["db1"]),
        ("mongodb://127.0.0.1,db2:1", ["127.0.0.1", "db2"]),
        ("mongodb://db1/?tls=true", []),
        ("mongodb://db1/?ssl=true", []),
        ("mongodb://%2Ftmp%2Fmongodb-27017.sock", []),
        ("mongodb+srv://cluster.example.com", []),
        ("mongodb+srv://cluster.example.com/?tls=false", ["a mongodb+srv host"]),
    ],
)
def test_hosts_of_a_connection_string_that_are_reached_in_the_open(uri: str, hosts: list[str]) -> None:
    assert open_hosts(uri) == hosts


@pytest.mark.parametrize(
    ("servers", "protocol", "warned"),
    [
        ("127.0.0.1:9092,localhost:9093,[::1]:9094", "", False),
        ("127.0.0.1:9092,kafka1:9092", "", True),
        ("kafka1", "plaintext", True),
        ("kafka1:9092", "SASL_PLAINTEXT", True),
        ("kafka1:9092", "sasl_ssl", False),
        ("SSL://kafka1:9092", "ssl", False),
    ],
)
def test_brokers_that_are_read_in_the_open(servers: str, protocol: str, warned: bool) -> None:
    properties = {"security.protocol": protocol} if protocol else {}
    assert bool(messages_in_the_open(servers, properties, section="sink")) is warned


def test_the_warning_says_what_to_do_and_ends_nothing() -> None:
    (result,) = readable_on_the_way("db1:1", ["db1"], encrypted=False, fix="Set this.")
    assert str(result).startswith("warning: The connection to db1:1 is not encrypted")
    assert str(result).endswith("Set this.")
    assert readable_on_the_way("db1:1", ["db1"], encrypted=True, fix="") == []
