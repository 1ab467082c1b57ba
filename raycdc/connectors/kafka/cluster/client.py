"""Connections to a cluster: librdkafka's properties, its errors translated, and the enumerator's blocking queries.

Reading is in `partition_reader`.

`Refusals` and `ClusterOutage` track the problems of a long-lived consumer: the cluster does not answer, or refuses the
account. The consumer waits without limit for unavailable brokers, because librdkafka reconnects by itself. If the
account is refused, its password is read again repeatedly, because users change a password first at the cluster and then
for raycdc. If the refusals last longer than the retry policy allows, reading ends with the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec

from raycdc.clients.kafka import (
    REFUSED_ACCOUNT,
    admin_client,
    answer_of,
    consumer_client,
    list_topics,
    login_accepted,
    may_pass,
    renew_account,
)
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.core import activity
from raycdc.core.retry import RetryPolicy
from raycdc.errors import SourceError, SourceUnavailableError

#: The time limit of one query to the cluster.
TIMEOUT_S = 20.0

#: Errors that a retry may resolve, because the cluster or a part of it is unavailable.
_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)

#: Errors for a topic or a partition that does not exist.
DROPPED_CODES = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

T = TypeVar("T")
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic as the cluster has it now. `identity` changes when the topic is deleted and created again."""

    name: str
    identity: str
    partitions: tuple[int, ...]


def client_properties(config: KafkaSourceConfig) -> dict[str, Any]:
    """Return the properties of every client of `config`'s cluster."""
    return {"bootstrap.servers": config.bootstrap_servers, "client.id": "raycdc", "log_level": 0, **config.properties}


def consumer_properties(config: KafkaSourceConfig) -> dict[str, Any]:
    """Return the properties of a consumer with assigned partitions that never commits by itself."""
    rate_limit = config.rate_limit
    # Read-ahead messages of librdkafka cannot be held back any more.
    ahead = {"queued.min.messages": str(rate_limit.rows_at_once(100_000))} if rate_limit else {}
    return {
        "fetch.wait.max.ms": "100",
        "queued.max.messages.kbytes": str(rate_limit.bytes_at_once(64 << 20) >> 10),
        **ahead,
        **client_properties(config),
        "group.id": config.group_id or "raycdc",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        "isolation.level": config.isolation,
        "allow.auto.create.topics": "false",
    }


def _retention_ms(options: Mapping[str, str | None]) -> int | None:
    if "delete" not in (options.get("cleanup.policy") or "delete"):
        return -1  # Compaction keeps the last message of each key.
    if (options.get("retention.bytes") or "-1") != "-1":
        return None
    return int(options.get("retention.ms") or -1)


def is_unreachable(error: KafkaError) -> bool:
    """Return True if the cluster or a broker is only temporarily unavailable."""
    return error.code() in _UNREACHABLE or error.retriable()


def source_error(error: KafkaError, where: str) -> SourceError:
    """Return the error to raise for librdkafka's `error`."""
    kind = SourceUnavailableError if is_unreachable(error) else SourceError
    fix = "Is the broker running and reachable?" if is_unreachable(error) else "See the broker's log and ACLs."
    if error.code() == KafkaError._SSL or error.code() in REFUSED_ACCOUNT:
        return kind(f"Kafka at {where}: {error.str()}")
    return kind(f"Kafka at {where}: {error.str()} ({error.name()}). {fix}")


class KafkaCluster:
    """Blocking queries to the cluster. Each takes up to `TIMEOUT_S` and raises `SourceError`."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._admin = admin_client(client_properties(config), section="source")

    def topics(self) -> list[KafkaTopic]:
        """Return the selected topics that exist, with their partitions."""
        servers = self._config.bootstrap_servers
        metadata = self._ask(lambda: list_topics(self._admin, servers, timeout_s=TIMEOUT_S))
        names = sorted(name for name, t in metadata.topics.items() if t.error is None and self._config.selects(name))
        if not names:
            return []
        described = self._ask(lambda: self._admin.describe_topics(TopicCollection(names)))
        identities = {name: str(self._result(future).topic_id) for name, future in described.items()}
        return [KafkaTopic(name, identities[name], tuple(sorted(metadata.topics[name].partitions))) for name in names]

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition still has."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the present end of each partition, for readers of our isolation level (the last stable offset)."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        """Return the readable range of each partition: its first offset, and the offset after its last message.

        Messages of transactions that are still open count as well.
        """
        asked = list(partitions)
        first = self.earliest(asked)
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        last = self._offsets(asked, end, level=IsolationLevel.READ_UNCOMMITTED)
        return {p: (first[p], last[p]) for p in asked}

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]:
        """Return the offset of the first message at or after a time. Partitions without such a message are left out."""
        offsets = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        return {partition: offset for partition, offset in offsets.items() if offset >= 0}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Return the topics of which only the last message of each key stays, as far as the account may see it."""
        settings = self._settings(topics)
        return {name for name, found in settings.items() if "compact" in ((found or {}).get("cleanup.policy") or "")}

    def retention_ms(self, topics: Iterable[str]) -> dict[str, int | None]:
        """Return how long each topic keeps its messages (-1: for ever).

        The time is None if the topic deletes by size, or if the account may not read the setting.
        """
        settings = self._settings(topics)
        return {name: None if found is None else _retention_ms(found) for name, found in settings.items()}

    def _settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | None]:
        """Return the settings of each topic; None if the account may not read them."""
        asked = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(topics)}
        if not asked:
            return {}
        try:
            futures = self._ask(lambda: self._admin.describe_configs([*asked.values()]))
            options = {name: self._result(futures[resource]) for name, resource in asked.items()}
        except SourceUnavailableError:
            raise
        except SourceError:
            return dict.fromkeys(asked)
        return {name: {key: entry.value for key, entry in found.items()} for name, found in options.items()}

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offsets that the consumer group has committed. Partitions without one are left out."""
        consumer = consumer_client(consumer_properties(self._config), section="source")
        try:
            asked = [TopicPartition(*p) for p in partitions]
            answers = self._ask(lambda: consumer.committed(asked, timeout=TIMEOUT_S))
        finally:
            consumer.close()
        return {(a.topic, a.partition): a.offset for a in answers if a.offset >= 0}

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Set the group's committed offsets."""
        consumer = consumer_client(consumer_properties(self._config), section="source")
        try:
            wanted = [TopicPartition(*p, offset) for p, offset in offsets.items()]
            self._ask(lambda: consumer.commit(offsets=wanted, asynchronous=False))
        finally:
            consumer.close()

    def _offsets(
        self, partitions: Iterable[Partition], spec: Any, *, level: IsolationLevel | None = None
    ) -> dict[Partition, int]:
        asked = {TopicPartition(*p): spec for p in partitions}
        if not asked:
            return {}
        if level is None:
            committed = self._config.isolation == "read_committed"
            level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        futures = self._ask(lambda: self._admin.list_offsets(asked, isolation_level=level, request_timeout=TIMEOUT_S))
        return {(p.topic, p.partition): self._result(future).offset for p, future in futures.items()}

    def _result(self, future: Any) -> Any:
        return self._ask(lambda: answer_of(future, TIMEOUT_S, self._admin))

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except KafkaException as cause:
            raise source_error(cause.args[0], self._config.bootstrap_servers) from cause


#: How often an unavailable cluster is queried again, and how long the fetches wait for its answer.
AGAIN_EVERY_S = 5.0
ASKED_S = 0.5
#: Librdkafka reports a continuing refusal every half minute. After this time without a report, the refusals are over.
REFUSAL_LASTS_S = 60.0


class Refusals:
    """A series of refusals of the account by brokers, without a successful answer in between.

    An unavailable broker is no refusal. The series ends if librdkafka reports no refusal for longer than the interval
    in which it repeats its reports.
    """

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._first_s: float | None = None
        self._last_s = 0.0
        self._text = ""

    def came(self, text: str, now_s: float) -> None:
        """Record that a broker refused the account, with the broker's message."""
        if self._first_s is None or now_s - self._last_s > self._retry_s + REFUSAL_LASTS_S:
            self._first_s = now_s
        self._last_s, self._text = now_s, text

    def over(self) -> None:
        """End the series of refusals, because a broker answered."""
        self._first_s = None

    @property
    def under_way(self) -> bool:
        """Return True if brokers have refused the account, and none has answered since."""
        return self._first_s is not None

    def too_long(self, now_s: float) -> str:
        """Return the last message if the refusals have lasted too long and continue; otherwise an empty text."""
        if self._first_s is None or now_s - self._last_s > REFUSAL_LASTS_S:
            return ""
        return self._text if now_s - self._first_s >= self._retry_s else ""


class ClusterOutage:
    """The outages of the cluster, and the refusals of the account, during one consumer's life.

    Used only by the thread that fetches. Call `watch` before any other method.
    """

    def __init__(self, config: KafkaSourceConfig, retry_policy: RetryPolicy) -> None:
        self._where = config.bootstrap_servers
        self._properties = client_properties(config)
        self._retry_policy = retry_policy
        self._refusals = Refusals(retry_policy.retry_s)
        self._consumer: Consumer | None = None
        #: The time of the next check of the cluster; None while no problem is known.
        self._poll_s: float | None = None
        #: True if the account's password has to be read again, so that librdkafka reconnects with it.
        self._renews = False

    def __repr__(self) -> str:
        return f"ClusterOutage(next look {self._poll_s}, refused={self._refusals.under_way})"

    def watch(self, consumer: Consumer) -> None:
        """Set the consumer whose errors arrive at `heard`."""
        self._consumer = consumer

    def heard(self, error: KafkaError) -> None:
        """Record an error. Librdkafka calls this during a fetch."""
        if error.code() in REFUSED_ACCOUNT:
            self.refused(error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._begins(f"does not answer: {error.str()}")

    def refused(self, error: KafkaError) -> None:
        """Record that a broker refused the account, and renew the password at the next check."""
        self._renews = True
        self._refusals.came(error.str(), time.monotonic())
        self._begins(f"refuses the account: {error.str()}")

    def see_to(self, topic: str | None, *, answered: bool) -> None:
        """Check whether the outage is over, and log its end. `answered` is True if messages arrived.

        The cluster is queried because a topic without new messages would not show that it is available again. Raises
        `SourceError` if the account was refused for too long.
        """
        if self._renews:
            self._renews = False
            self._renew()
        if self._poll_s is None or (not answered and time.monotonic() < self._poll_s):
            return
        if not answered:
            assert self._consumer is not None
            try:
                self._consumer.list_topics(topic, timeout=ASKED_S)
            except KafkaException:
                if text := self._refusals.too_long(time.monotonic()):
                    raise self._too_long(text) from None
                if self._refusals.under_way:
                    # Without a new login, librdkafka would report the same refusal half a minute later.
                    self._renew()
                self._poll_s = time.monotonic() + AGAIN_EVERY_S
                return
        self._poll_s = None
        self._refusals.over()
        login_accepted(self._properties)
        activity.over()

    def _begins(self, words: str) -> None:
        if self._poll_s is None:
            self._poll_s = time.monotonic() + AGAIN_EVERY_S
        activity.failing(f"Kafka at {self._where} {words}")

    def _renew(self) -> None:
        assert self._consumer is not None
        renew_account(self._consumer, self._properties)

    def _too_long(self, text: str) -> SourceError:
        user = self._properties.get("sasl.username", "")
        read = "was read again at each try" if may_pass(self._properties) else "is read at the start alone"
        return SourceError(
            f"Kafka at {self._where} has refused the user {user!r} for {self._retry_policy.retry_s / 60:.0f} minutes: "
            f"{text}. Its password (sasl.password of source.properties) {read}. Put the right one there, or give it to "
            "the user at the brokers, and start again; nothing is lost."
        )
