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


def _made(make: Callable[[], T], section: str) -> T:
    try:
        return make()
    except KafkaException as cause:
        raise ConfigError(
            f"{section}.properties: librdkafka refuses them: {cause.args[0].str().strip()}. Correct the property; "
            "librdkafka's CONFIGURATION.md has their names and values."
        ) from cause
