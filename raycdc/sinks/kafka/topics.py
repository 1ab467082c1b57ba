"""The topics of a cluster: which there are, with how many partitions, and whether anything was written to them."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic, TopicPartition

from raycdc.clients.kafka import admin_client, answer_of
from raycdc.clients.kafka_reachable import list_topics
from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from raycdc.sinks.kafka.transactions import TIMEOUT_S, Target, is_away, topic_error

#: As older brokers have it, whose topics have no ids.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class Topics:
    """See the module's docstring. `SinkError` where the cluster does not answer."""

    def __init__(self, config: KafkaSinkConfig, properties: dict[str, str]) -> None:
        self._config = config
        self._properties = properties
        self._admin = admin_client({**properties, "log_level": 0}, section="sink")

    def require(self) -> None:
        """`SinkError` where the cluster cannot be reached."""
        servers = self._config.bootstrap_servers
        try:
            list_topics(self._admin, servers, timeout_s=TIMEOUT_S)
        except KafkaException as cause:
            text = f"Kafka at {servers} cannot be reached: {cause.args[0].str()} ({cause.args[0].name()})"
            if is_away(cause.args[0]):
                raise SinkUnavailableError(text) from cause
            raise SinkError(text) from cause

    def __contains__(self, topic: str) -> bool:
        return topic in self._listed()

    def partitions(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions; none where there is no such topic."""
        return self._listed().get(topic, [])

    def _listed(self) -> dict[str, list[int]]:
        """The partitions of all topics: asking for one alone would create it where brokers do that."""
        try:
            topics = list_topics(self._admin, self._config.bootstrap_servers, timeout_s=TIMEOUT_S).topics
        except KafkaException as cause:
            refusal = SinkUnavailableError if is_away(cause.args[0]) else SinkError
            raise refusal(f"Kafka at {self._config.bootstrap_servers}: {cause.args[0]}") from cause
        return {name: list(topic.partitions) for name, topic in topics.items()}

    def id_of(self, topic: str) -> str:
        """What tells the topic from a later one of its name; empty where the cluster does not say."""
        try:
            (asked,) = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S).values()
            found = str(answer_of(asked, TIMEOUT_S, self._admin).topic_id)
        except KafkaException as cause:
            if is_away(error := cause.args[0]):
                raise topic_error(Target(self._properties, topic, ""), error) from cause
            return ""
        return "" if found == _NO_ID else found

    def create(self, topic: str, partitions: int, *, is_tables: bool = True) -> None:
        """Make a topic that is one table's own, or for all; one that is there already stays."""
        new = NewTopic(topic, num_partitions=partitions, replication_factor=self._config.replication_factor)
        try:
            answer_of(self._admin.create_topics([new])[topic], TIMEOUT_S, self._admin)
        except KafkaException as cause:
            if cause.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                error = topic_error(Target(self._properties, topic, ""), cause.args[0])
                is_whose = is_tables or isinstance(error, SinkUnavailableError)
                raise (error if is_whose else SinkError(str(error))) from cause

    def has_messages(self, topic: str) -> bool:
        """Whether the topic has any message now."""
        partitions = [TopicPartition(topic, number) for number in self.partitions(topic)]
        first: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        end: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(partitions, first) != self._offsets(partitions, end)

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
        asked = self._admin.list_offsets(dict.fromkeys(partitions, spec))
        try:
            return {
                partition.partition: answer_of(future, TIMEOUT_S, self._admin).offset
                for partition, future in asked.items()
            }
        except KafkaException as cause:
            raise topic_error(Target(self._properties, partitions[0].topic, ""), cause.args[0]) from cause
