"""The one place where librdkafka's clients are made, for source and sink; its refusals become errors for the user.

Properties go to librdkafka as they are, so only it knows their names, values and files; it says so when a client is
made. `tests/unit/test_tidy.py` finds a client that is made elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from raycdc.errors import ConfigError
from raycdc.source.checks import CheckResult, readable_on_the_way

T = TypeVar("T")


def admin_client(properties: Mapping[str, str | int | float], *, section: str) -> AdminClient:
    """A client for questions. `ConfigError` at ``{section}.properties`` for what librdkafka refuses."""
    return _made(lambda: AdminClient(dict(properties)), section)


def consumer_client(properties: Mapping[str, str | int | float], *, section: str) -> Consumer:
    """A consumer, whose log goes to librdkafka's own. Errors as of `admin_client`."""
    return _made(lambda: Consumer(dict(properties), logger=None), section)


def producer_client(properties: Mapping[str, str | int | float], *, section: str) -> Producer:
    """A producer, whose log goes to librdkafka's own. Errors as of `admin_client`."""
    return _made(lambda: Producer(dict(properties), logger=None), section)


def messages_in_the_open(
    bootstrap_servers: str, properties: Mapping[str, str | int | float], *, section: str
) -> list[CheckResult]:
    """A warning where messages travel unencrypted to brokers beyond this machine."""
    protocol = str(properties.get("security.protocol", "plaintext")).lower()
    servers = [server.strip().rpartition("://")[2] for server in bootstrap_servers.split(",")]
    return readable_on_the_way(
        bootstrap_servers,
        [(server.rpartition(":")[0] or server).strip("[]") for server in servers],
        encrypted=not protocol.endswith("plaintext"),
        fix=f'Set {section}.properties: security.protocol = "ssl" or "sasl_ssl", and ssl.ca.location.',
    )


def _made(make: Callable[[], T], section: str) -> T:
    try:
        return make()
    except KafkaException as cause:
        raise ConfigError(
            f"{section}.properties: librdkafka refuses them: {cause.args[0].str().strip()}. Correct the property; "
            "librdkafka's CONFIGURATION.md has their names and values."
        ) from cause
