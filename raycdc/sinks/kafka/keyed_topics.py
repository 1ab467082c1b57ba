"""Refuses topics in which rows of different tables would have the same key, and a key decides about rows.

A key decides if deletes have tombstones, or if the topic is compacted: rows of two tables with one key then delete or
replace each other. Used by the sink at each schema change and commit, and by ``raycdc check``.

| rows of several tables come into one topic by | their keys |
|---|---|
| ``sink.topic`` without ``{table}`` | name the table (`FormatOptions.table_in_key`), unless the format cannot do that |
| routes into one target | are equal, because the rows belong to one table there |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigResource

from raycdc.clients.kafka import Admin, answer_of
from raycdc.errors import RoutesRefusedError
from raycdc.model import META_FIELDS, Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.sinks.api import TableCommit
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from raycdc.sinks.kafka.tasks import FormatSection, open_format
from raycdc.sinks.kafka.transactions import TIMEOUT_S

_SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))


def compacted_topics(admin: Admin, topics: Iterable[str]) -> set[str]:
    """Return the topics of which brokers keep only the last message of each key, as far as the account may see that.

    Raises `KafkaException` if the cluster does not answer.
    """
    return {name for name, policy in topic_settings(admin, topics, "cleanup.policy").items() if "compact" in policy}


def topic_settings(admin: Admin, topics: Iterable[str], setting: str) -> dict[str, str]:
    """Return the value of `setting` for each of `topics`, as far as the account may see it.

    Raises `KafkaException` if the cluster does not answer.
    """
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    found = {}
    for topic, future in admin.describe_configs(asked).items() if asked else ():
        try:
            found[topic.name] = answer_of(future, TIMEOUT_S, admin)[setting].value or ""
        except KafkaException as cause:
            if cause.args[0].retriable():
                raise
    return found


def keys_name_tables(section: FormatSection) -> bool:
    """Return True if rows of two tables with equal key columns get different keys."""
    columns = [
        pa.array([1], pa.int64()),
        pa.array([RowKind.DELETE], pa.int8()),
        *(pa.nulls(1, f.type) for f in META_FIELDS[1:]),
    ]
    row = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*_SCHEMA.arrow(), *META_FIELDS]))
    tables = (TableId("db", "a"), TableId("db", "b"))
    first, second = (open_format(section).encoder(table, _SCHEMA).encode(row).keys[0].as_py() for table in tables)
    return bool(first != second)


class KeyedTopics:
    """The topics of a sink in which keys decide about rows; see the module's docstring.

    `is_compacted` returns True for a compacted topic. Threads may use an object concurrently.
    """

    def __init__(self, config: KafkaSinkConfig, is_compacted: Callable[[str], bool]) -> None:
        self._config = config
        self._is_compacted = is_compacted
        self._is_mixed = config.shared and not keys_name_tables(config.message_format)

    def require(self, work: TableCommit) -> None:
        """Raise `RoutesRefusedError` if rows of several tables would have the same key in the topic of `work`."""
        if len(work.merged) > 1 and (why := self.no_merging(work.target)):
            merged = ", ".join(map(str, work.merged))
            raise RoutesRefusedError(f"route: {merged} all go to {work.target}, and {why}")
        if why := self.no_sharing(self._config.topic_of(work.target)):
            raise RoutesRefusedError(f"{work.target}: {why}")

    def no_merging(self, target: TableId) -> str:
        """Return why several tables cannot be routed into `target`, as the end of a sentence; empty if they can."""
        topic = self._config.topic_of(target)
        if not (by_key := self._decides(topic)):
            return ""
        return (
            f"{by_key}, so rows of different tables with the same key would replace or delete each other. Give the "
            "tables different targets; a sink.topic without {table} puts them into one topic, with the table in each "
            "key."
        )

    def no_sharing(self, topic: str) -> str:
        """Return why several tables cannot be written to `topic`; empty if they can, or if it is one table's topic."""
        if not self._is_mixed or not (by_key := self._decides(topic)):
            return ""
        identifier = self._config.format["type"]
        return (
            f"{by_key}, several tables may be in it, and keys of {identifier} do not name the table, so rows of "
            "different tables with the same key would replace or delete each other. Put {table} into sink.topic, or "
            "choose another format."
        )

    def decides(self, topic: str) -> bool:
        """Return True if the key of a message decides about rows of `topic`."""
        return bool(self._decides(topic))

    def _decides(self, topic: str) -> str:
        """Return why the key of a message decides about rows of `topic`; empty if it does not."""
        if self._config.has_tombstones:
            return f"topic {topic} gets tombstones"
        return f"topic {topic} is compacted (cleanup.policy)" if self._is_compacted(topic) else ""
