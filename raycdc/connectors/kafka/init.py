"""The questions of ``raycdc init`` for Kafka: which topics of the cluster to read, and in which format."""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.config.init_questions import Answers, InitQuestions, Question, toml_line, toml_list, toml_text
from raycdc.connectors.kafka.cluster.client import KafkaCluster
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import SourceError
from raycdc.plugins import PluginGroup, list_plugins


class KafkaInitQuestions(InitQuestions):
    """The questions about Kafka, with a list of the cluster's topics."""

    noun = "Topics"
    chosen = "topics"
    trial = "kafka"

    def questions(self) -> tuple[Question, ...]:
        formats = ", ".join(each.type for each in list_plugins() if each.group is PluginGroup.FORMATS)
        return (
            Question("bootstrap_servers", "Brokers to ask first", "127.0.0.1:9092"),
            Question("format", f"Format of the messages ({formats})", "debezium-json"),
        )

    def choices(self, answers: Answers, wanted: Sequence[str]) -> list[str]:
        config = KafkaSourceConfig.model_validate(
            {"type": "kafka", **{key: answers[key] for key in ("bootstrap_servers", "format")}, "topic_pattern": ".*"}
        )
        names = [topic.name for topic in KafkaCluster(config).topics() if not topic.name.startswith("__")]
        missing = sorted(set(wanted) - set(names))
        if missing or not names:
            raise SourceError(
                f"The brokers {config.bootstrap_servers} do not show {', '.join(missing) or 'any topic'}. Check the "
                "names, or allow the user to describe them."
            )
        return list(wanted) or names

    def section(self, answers: Answers, chosen: Sequence[str]) -> list[str]:
        return [
            'type = "kafka"',
            f"bootstrap_servers = {toml_text(answers['bootstrap_servers'])}",
            f"topics = {toml_list(chosen)}",
            toml_line(f"format = {toml_text(answers['format'])}", "or a section of its own, [source.format]"),
            toml_line('# startup = "latest"', "default: from the beginning of each partition"),
            toml_line('# group_id = "lake"', "a consumer group whose offsets show the progress"),
            '# properties = { "security.protocol" = "SASL_SSL" }',
        ]
