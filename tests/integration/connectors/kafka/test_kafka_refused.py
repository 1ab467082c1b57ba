"""An account that brokers refuse while a topic is read: waited for, but not for ever; brokers that are away are."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from raycdc.connectors.kafka.cluster import client as cluster_trouble
from raycdc.connectors.kafka.cluster.client import Refusals
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.messages import PartitionStart
from raycdc.connectors.kafka.reading.partition_reader import KafkaPartitionReader
from raycdc.core.retry import RetryPolicy
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.sandbox.servers import KafkaServer
from raycdc.source.reader.split_reader import SplitsAddition
from tests.support.servers.gate import Gate, GateMode

pytestmark = pytest.mark.server
SHORT = RetryPolicy(retry_s=0.0)


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_trouble, "AGAIN_EVERY_S", 0.1)


def config(servers: str, **properties: str) -> KafkaSourceConfig:
    settings: dict[str, Any] = {"bootstrap_servers": servers, "topics": ["t"], "format": "maxwell-json"}
    return KafkaSourceConfig(**settings, properties=properties)


def fetch_for_ever(reader: KafkaPartitionReader) -> None:
    while True:
        reader.fetch()


def test_one_that_stays_refused_ends_the_reading_and_says_what_to_do(kafka: KafkaServer) -> None:
    properties = {**kafka.secure_properties, "sasl.password": "S3cret-of-yesterday"}
    servers = properties.pop("bootstrap.servers")
    with closing(KafkaPartitionReader(config(servers, **properties), retry_policy=SHORT)) as reader:
        reader.handle_splits_changes(SplitsAddition((PartitionStart("t", 0, 0),)))
        with pytest.raises(SourceError) as refused:
            fetch_for_ever(reader)
    assert not isinstance(refused.value, SourceUnavailableError)
    text = str(refused.value)
    assert text.startswith(f"Kafka at {servers} has refused the user 'cdc' for 0 minutes: ")
    assert "(sasl.password of source.properties) is read at the start alone. Put the right one there" in text
    assert "S3cret" not in text


def test_brokers_that_are_away_are_waited_for_however_long_that_is() -> None:
    with Gate("127.0.0.1", 1, way=GateMode.SHUT) as gate:
        named = config(f"{gate.host}:{gate.port}", **{"reconnect.backoff.ms": "10", "reconnect.backoff.max.ms": "10"})
        with closing(KafkaPartitionReader(named, retry_policy=SHORT)) as reader:
            reader.handle_splits_changes(SplitsAddition((PartitionStart("t", 0, 0),)))
            while len(gate.knocks) < 5:
                reader.fetch()


def test_a_row_of_refusals_ends_by_an_answer_by_brokers_that_went_and_by_time() -> None:
    row = Refusals(300)
    row.came("no", 1000)
    row.came("no", 1290)
    assert row.too_long(1299) == ""
    assert row.too_long(1300) == "no"
    assert row.too_long(1351) == "", "the broker does not answer any more"
    row.over()
    row.came("no", 1340)
    assert row.too_long(1350) == ""
    row.came("never", 1340 + 361)
    assert row.too_long(1340 + 361) == "", "another row"
    row.came("never", 1340 + 661)
    assert row.too_long(1340 + 661) == "never"
