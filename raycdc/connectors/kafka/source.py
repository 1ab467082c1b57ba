"""The Kafka source: made from its configuration in every process, it hands out that process's part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.opaque import Position
from raycdc.connectors.kafka.checks import check_source, tables_of_last_messages
from raycdc.connectors.kafka.client import Cluster
from raycdc.connectors.kafka.decoding import keeps_dead_letters, open_format
from raycdc.connectors.kafka.discovery import ANOTHER_POSITION
from raycdc.connectors.kafka.enumerator import KafkaEnumerator
from raycdc.connectors.kafka.held import ReaderSettings
from raycdc.connectors.kafka.identities import Identities, TopicQuestions
from raycdc.connectors.kafka.offsets import in_range
from raycdc.connectors.kafka.partition_reader import KafkaPartitionReader
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reader import KafkaReader
from raycdc.connectors.kafka.room import log_room
from raycdc.connectors.kafka.split import PartitionState, offset_of, partition_of
from raycdc.connectors.kafka.statements import Statements
from raycdc.connectors.kafka.trial import KafkaTrial
from raycdc.errors import SourceError
from raycdc.formats.options import DEAD_LETTERS
from raycdc.formats.warm_up import compile_all
from raycdc.model import TableId
from raycdc.source.connector import (
    LogRoom,
    Source,
    SourceFindings,
    SourceTable,
)
from raycdc.source.protocol.api import EnumeratorStart, SplitEnumeratorContext
from raycdc.source.reader.context import ReaderContext
from raycdc.source.reader.fetcher_manager import Multiplexed


class KafkaSource(Source[KafkaSourceConfig]):
    """See the module's docstring. Picklable: it holds the configuration, never a connection."""

    knows_tables = False

    def __repr__(self) -> str:
        return f"KafkaSource({self.config.bootstrap_servers})"

    def warm_up(self) -> None:
        compile_all()

    def check(self, last: Manifest | None, *, names_told: bool) -> SourceFindings:
        states = None if last is None else [PartitionState.of(state) for state in last.to_splits.values()]
        return SourceFindings(*check_source(self.config, states, now_ms=time.time_ns() // 1_000_000))

    def tables(self) -> dict[TableId, SourceTable]:
        """The tables that the topics' last messages are of, with the columns known by them."""
        schemas = tables_of_last_messages(self.config)
        return {table: SourceTable(schema) for table, schema in sorted(schemas.items())}

    def partition_trial(self) -> KafkaTrial:
        return KafkaTrial(self.config)

    def log_room(self, last: Manifest) -> LogRoom | None:
        states = [PartitionState.of(state) for state in last.to_splits.values()]
        offsets = {(state.topic, state.partition): state.offset for state in states}
        return log_room(Cluster(self.config), offsets, time.time_ns() // 1_000_000) if offsets else None

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Set the group's offsets, which show others the progress."""
        if self.config.group_id is not None:
            offsets = {partition_of(split_id): offset_of(position) for split_id, position in positions.items()}
            Cluster(self.config).commit(offsets)

    def preflight(self, last: Manifest | None) -> None:
        cluster = Cluster(self.config)
        topics = cluster.topics()
        missing = [name for name in self.config.topics if name not in {topic.name for topic in topics}]
        if missing:
            raise SourceError(
                f'Topic "{missing[0]}" does not exist at {self.config.bootstrap_servers}. '
                "Create it, or correct source.topics."
            )
        if last is None or self.config.on_out_of_range != "fail":
            return
        states = [PartitionState.of(state) for state in last.to_splits.values()]
        identities = {(topic.name, number): topic.identity for topic in topics for number in topic.partitions}
        in_range(
            cluster,
            {
                (s.topic, s.partition): s.offset
                for s in states
                if identities.get((s.topic, s.partition)) == s.identity and not s.ended()
            },
            policy="fail",
            ways_out=ANOTHER_POSITION,
        )

    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> KafkaEnumerator:
        enumerator = KafkaEnumerator(context, self.config, cluster=lambda: Cluster(self.config), until=start.until)
        if start.last is not None:
            enumerator.restore(start.last, document=start.document)
        return enumerator

    def create_reader(self, context: ReaderContext) -> KafkaReader:
        opened = open_format(self.config.format)
        alignment = self.config.alignment
        return KafkaReader(
            context,
            context.threads.start(lambda: KafkaPartitionReader(self.config), name="log_read", threading=Multiplexed()),
            make_decoder=partial(opened.decoder, positions=True),
            identities=Identities(
                TopicQuestions(self.config, context.availability.notify),
                where=self.config.bootstrap_servers,
                now_s=context.now_s,
            ),
            settings=ReaderSettings(
                idle_after_s=alignment.idle_after.total_seconds(),
                aligned=alignment.max_drift is not None,
                dead_letters=keeps_dead_letters(self.config.format),
                order_by=self.config.order_by,
                hiding=self.context.hiding,
                statements=self._statements(),
            ),
        )

    def _statements(self) -> Statements:
        section = self.config.format
        tables = section.get("tables") or {}
        return Statements(
            self.context.read_statement,
            given=lambda table: bool(section.get("columns")) or str(table) in tables,
            left_out=self.context.left_out,
            follow=section.get("ddl", "follow") == "follow",
            masks=self.context.hiding.masks,
            ours=[DEAD_LETTERS] if keeps_dead_letters(section) else [],
        )
