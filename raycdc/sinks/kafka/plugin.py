"""The section ``[sink] type = "kafka"`` of the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import JsonValue, field_validator

from raycdc.config import KeptText, SinkConfig, Size, appends_only, flattened_texts, option
from raycdc.errors import ConfigError
from raycdc.formats.plugins import load_format
from raycdc.model import TableId
from raycdc.model.rules.names import NAMES, NameRules, topic_name
from raycdc.plugins import Plugin
from raycdc.sinks.task_inputs import TASK_BYTES_MIN

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FIELDS = re.compile(r"\{(db|table)\}")


class KafkaSinkConfig(SinkConfig):
    """``[sink] type = "kafka"``: every change as a message of a CDC format."""

    type: Literal["kafka"] = option("kafka", help="Kafka topics.")
    write: Literal["changelog"] = option("changelog", help="Every change is a message.")
    bootstrap_servers: str = option(help="Brokers to ask first.", example="127.0.0.1:9092", min_length=1)
    topic: str = option("{db}.{table}", help="Topic of a table; {db} and {table} stand for its name.")
    format: Mapping[str, JsonValue] = option(help="Format of the messages.", example={"type": "debezium-json"})
    tombstones: bool = option(default=False, help="A message without value after each delete, for compacted topics.")
    include_schema: bool = option(default=False, help="Put the schema into every message (Debezium).")
    ddl_topic: str | None = option(
        None,
        help="Topic for schema changes, where the format has messages for them. A change may come a second time, if "
        "its epoch was lost with a node or a spool and is read again.",
    )
    partitions: int = option(1, help="Partitions of topics that are created.", ge=1, le=10_000)
    replication_factor: int = option(-1, help="Replicas of topics that are created; -1 leaves it to the broker.")
    task_bytes: Size = option(
        TASK_BYTES_MIN,
        help="So many bytes of an epoch get a task and a transaction of their own, in topics with several partitions.",
        unit="size",
    )
    properties: dict[str, KeptText] = option(
        {}, help="Further properties of librdkafka: TLS, SASL and tuning.", repr=False
    )

    @field_validator("write", mode="before")
    @classmethod
    def _cannot_update(cls, write: Any) -> Any:
        return appends_only("kafka", write)

    @field_validator("format", mode="before")
    @classmethod
    def _short_format(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        try:
            options = {name: option for name, option in value.items() if name != "type"}
            load_format(str(value.get("type", "")), key_path="sink.format", **options)
        except ConfigError as cause:
            raise ValueError("; ".join(cause.problems)) from cause
        return value

    @field_validator("properties", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return flattened_texts(value) if isinstance(value, dict) else value

    @field_validator("topic")
    @classmethod
    def _topic_name(cls, value: str) -> str:
        if not _NAME.fullmatch(_FIELDS.sub("x", value)):
            raise ValueError(f'"{value}" makes no topic name: letters, digits, ".", "_", "-", {{db}} and {{table}}')
        return value

    @property
    def names(self) -> NameRules:
        rules = NAMES["kafka"]
        # A topic that all tables share may also contain the schema changes. A single table's topic may not.
        statements = {self.ddl_topic} if self.ddl_topic and not self.shared else set()
        return replace(rules, topic=self.topic, topics=rules.topics | statements)

    @property
    def shared(self) -> bool:
        """Return True if several tables may write to one topic."""
        return "{table}" not in self.topic

    @property
    def has_tombstones(self) -> bool:
        """Return True if deletes are followed by tombstones."""
        return self.tombstones or bool(self.format.get("tombstones"))

    @property
    def message_format(self) -> Mapping[str, JsonValue]:
        """Return the section of the format with the options that other keys of the sink imply.

        In a shared topic each key names its table. Otherwise rows of two tables could have the same key, and both
        compaction and a reader of tombstones would take one row for the other.
        """
        implied: dict[str, JsonValue] = {
            "tombstones": self.tombstones,
            "include_schema": self.include_schema,
            "table_in_key": self.shared,
        }
        return {**self.format, **{name: True for name, wanted in implied.items() if wanted}}

    def topic_of(self, table: TableId) -> str:
        """Return the topic of `table`. Raises `ConfigError` if its name is not valid for a topic."""
        name = topic_name(self.topic, table)
        if not _NAME.fullmatch(name):
            raise ConfigError(f'sink.topic makes "{name}" of {table}, which cannot be a topic. Give a fixed name.')
        return name


KAFKA = Plugin(
    "kafka", "Kafka topics in any CDC format, changelog", KafkaSinkConfig, "raycdc.sinks.kafka.sink:KafkaSink"
)
