"""The Kafka source as a plug-in: its section of the configuration, and the factory of the source."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config import Duration, KeptText, Options, SourceConfig, flattened_texts, option
from raycdc.formats.options import FormatOptions
from raycdc.model import TableId
from raycdc.plugins import Plugin

#: Kafka's rule for topic names (Kafka's documentation, "Topic names"). A partition's name is TOPIC:NUMBER.
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class StartMode(StrEnum):
    """The start position in partitions that exist at the first start; later partitions are read from their
    beginning.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP_OFFSETS = "group-offsets"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


class StopMode(StrEnum):
    """The position at which partitions end."""

    NEVER = "never"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


class StartOptions(Options):
    """The start of reading; used only while the pipeline has no state."""

    mode: StartMode = option(StartMode.EARLIEST, help="earliest, latest, group-offsets, offsets or timestamp.")
    offsets: dict[str, int] = option({}, help="With offsets: first offset per partition.", example={"orders:0": 42})
    timestamp_ms: int | None = option(None, help="With timestamp: the first message at or after this time.")
    otherwise: Literal["earliest", "latest", "fail"] = option(
        "earliest", help="For partitions without a committed or given offset."
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        _check_complete(self.mode.value, self.offsets, self.timestamp_ms)
        return self


class StopOptions(Options):
    """The end of reading, decided at each start. A pipeline with an end is bounded."""

    mode: StopMode = option(StopMode.NEVER, help="never, latest (at each start), offsets or timestamp.")
    offsets: dict[str, int] = option(
        {}, help="With offsets: the first offset not read any more, per partition; waited for."
    )
    timestamp_ms: int | None = option(None, help="With timestamp: stop before the first message at or after it.")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        _check_complete(self.mode.value, self.offsets, self.timestamp_ms)
        return self


def _check_complete(mode: str, offsets: dict[str, int], timestamp_ms: int | None) -> None:
    if (mode == "offsets") != bool(offsets):
        raise ValueError('mode = "offsets" and offsets = { "TOPIC:PARTITION" = … } belong together')
    if (mode == "timestamp") != (timestamp_ms is not None):
        raise ValueError('mode = "timestamp" and timestamp_ms belong together')
    for name in offsets:
        topic, _, number = name.rpartition(":")
        if not _TOPIC.fullmatch(topic) or not number.isdecimal():
            raise ValueError(f'"{name}" is not TOPIC:PARTITION')


class AlignmentOptions(Options):
    """The options that keep partitions together in event time."""

    max_drift: Duration | None = option(
        None, help="A partition waits if its events are this much later than those of the slowest one.", unit="duration"
    )
    idle_after: Duration = option(
        timedelta(seconds=30),
        help="A partition without messages for this long does not hold back others.",
        unit="duration",
    )


class KafkaSourceConfig(SourceConfig):
    """``[source] type = "kafka"``: topics that carry changes."""

    type: Literal["kafka"] = option("kafka", help="Kafka.")
    bootstrap_servers: str = option(help="Brokers to ask first.", example="127.0.0.1:9092", min_length=1)
    topics: tuple[str, ...] = option((), help="Names of topics to read.", example=["maxwell"])
    topic_pattern: str | None = option(
        None, help="Regular expression that the whole name of a topic must match.", example=r"shop\..*"
    )
    format: dict[str, Any] = option(
        help="Format of the messages: its identifier, or its section.", example={"type": "maxwell-json"}
    )
    group_id: str | None = option(
        None, help="Consumer group whose offsets show the progress; raycdc itself never relies on them."
    )
    startup: StartOptions = option(StartOptions(), help="Where to begin.", example={"mode": "earliest"})
    stop: StopOptions = option(StopOptions(), help="Where to stop.", example={"mode": "latest"})
    discovery_interval: Duration | None = option(
        timedelta(seconds=30),
        help='How often new topics and partitions are searched for; "off": never.',
        unit="duration",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = option(
        "read_committed", help="Whether messages of transactions wait for their commit."
    )
    on_out_of_range: Literal["fail", "earliest", "latest"] = option(
        "fail",
        help="The reaction when a topic does not have the offset to read from, because it is gone or beyond the end.",
    )
    same_key: Literal["fail", "trust"] = option(
        "fail",
        help="The treatment of changes of one key that lie in two partitions. fail: the run ends if one run reads "
        "both. trust: any order between them is accepted.",
    )
    order_by: str | None = option(
        None,
        help="Column that orders the changes of one key in several partitions: an upsert target holds the row with its "
        "greatest value. It is for tables whose rows are not deleted.",
        example="version",
        min_length=1,
    )
    changelog: Literal["upsert", "full"] = option(
        "upsert",
        help="upsert: changes as the messages have them. full: each change has the row before it, from the last row "
        "of each key, which is kept under pipeline.state. It is for tables with a key.",
    )
    alignment: AlignmentOptions = option(AlignmentOptions(), help="Keep partitions together in event time.")
    properties: dict[str, KeptText] = option(
        {},
        help="Further properties of librdkafka: TLS, SASL and tuning.",
        example={"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"},
        repr=False,
    )

    @field_validator("startup", "stop", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """Expand the short form: ``startup = "latest"`` means ``startup = { mode = "latest" }``."""
        return {"mode": value} if isinstance(value, str) else value

    @field_validator("format", mode="before")
    @classmethod
    def _short_format(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: dict[str, Any]) -> dict[str, Any]:
        from raycdc.connectors.kafka.decoding import open_format

        open_format(value)
        return value

    @field_validator("discovery_interval", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return None if value == "off" else value

    @field_validator("topics", mode="before")
    @classmethod
    def _one_topic(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("topics")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _TOPIC.fullmatch(name):
                raise ValueError(f'"{name}" cannot be a topic: letters, digits, ".", "_" and "-" (use topic_pattern)')
        return value

    @field_validator("topic_pattern")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f'"{value}" is not a regular expression: {error.msg}') from error
        return value

    @field_validator("properties", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return flattened_texts(value) if isinstance(value, dict) else value

    def captures(self, table: TableId) -> bool:
        """Return True if rows of `table` may come from this source.

        The format decodes them from messages, or the table keeps messages that cannot be decoded.
        """
        from raycdc.connectors.kafka.decoding import keeps_dead_letters
        from raycdc.formats.options import DEAD_LETTERS

        if table == DEAD_LETTERS and keeps_dead_letters(self.format):
            return True
        filters = {key: self.format[key] for key in ("include", "exclude") if key in self.format}
        selector = FormatOptions(type=self.format["type"], **filters).selector()
        return selector is None or selector.matches(table)

    @model_validator(mode="after")
    def _one_way_to_name_topics(self) -> Self:
        if bool(self.topics) == (self.topic_pattern is not None):
            raise ValueError("name the topics in topics or by topic_pattern, one of the two")
        return self

    @model_validator(mode="after")
    def _starts_before_it_stops(self) -> Self:
        start, stop = self.startup, self.stop
        for name, offset in start.offsets.items():
            if stop.offsets.get(name, offset) < offset:
                raise ValueError(f'"{name}" is to stop at {stop.offsets[name]}, before it starts at {offset}')
        if start.timestamp_ms is not None and stop.timestamp_ms is not None and stop.timestamp_ms < start.timestamp_ms:
            raise ValueError("stop.timestamp_ms is earlier than startup.timestamp_ms")
        return self

    @model_validator(mode="after")
    def _full_or_ordered(self) -> Self:
        if self.changelog == "full" and self.order_by is not None:
            raise ValueError('order_by keeps the row with the greatest value, and changelog = "full" the last one')
        return self

    @property
    def repeats_inserts(self) -> bool:  # type: ignore[override]
        """Return True if inserts may repeat.

        Producers repeat messages, and some begin with a bootstrap of older ones.
        """
        return not self.full_changelog

    @property
    def address(self) -> str:
        return self.bootstrap_servers

    @property
    def order_column(self) -> str:
        return self.order_by or ""

    @property
    def table_patterns(self) -> tuple[str, ...]:
        return tuple(text for key in ("include", "exclude") for text in self.format.get(key, ()))

    @property
    def full_changelog(self) -> bool:
        return self.changelog == "full"

    @property
    def why_key_only(self) -> str:
        if self.full_changelog:
            return ""
        if self.format.get("before_image") == "optional":
            return 'source.format.before_image = "optional" allows changes without it'
        if self.format.get("type") == "json":
            return "a message of json is the row after its change, or a tombstone with the key alone"
        return ""

    @property
    def stops(self) -> bool:
        """Return True if the partitions have an end."""
        return self.stop.mode is not StopMode.NEVER

    def selects(self, topic: str) -> bool:
        """Return True if `topic` is to be read."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return topic in self.topics


PLUGIN = Plugin(
    name="kafka",
    summary="Kafka topics that carry changes, in any of the formats",
    config=KafkaSourceConfig,
    factory="raycdc.connectors.kafka.source:KafkaSource",
    init="raycdc.connectors.kafka.init:KafkaInitQuestions",
)
