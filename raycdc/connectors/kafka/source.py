"""The Kafka source: created from its configuration in every process, with the parts for that process.

`log_retention` returns how long the brokers keep the unread messages of topics. `KafkaPartitionTrial` reads a topic's
partitions like a job's reader, for ``raycdc bench splits``: rows are discarded, no offset is committed, and topics are
read from their beginning, whatever the configured start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from raycdc.connectors.kafka.cluster.checks import (
    check_source,
    require_readable_tombstones,
    tables_of_last_messages,
)
from raycdc.connectors.kafka.cluster.client import KafkaCluster
from raycdc.connectors.kafka.cluster.discovery import ANOTHER_POSITION, in_range
from raycdc.connectors.kafka.cluster.identities import Identities, TopicQuestions
from raycdc.connectors.kafka.decoding import keeps_dead_letters, open_format
from raycdc.connectors.kafka.enumeration.enumerator import KafkaEnumerator
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.held_partitions import KafkaReaderSettings
from raycdc.connectors.kafka.reading.messages import Fetched, PartitionStart, within
from raycdc.connectors.kafka.reading.partition_reader import KafkaPartitionReader
from raycdc.connectors.kafka.reading.reader import KafkaReader
from raycdc.connectors.kafka.reading.statements import DdlMessages
from raycdc.connectors.kafka.split import PartitionState, offset_of, partition_of
from raycdc.errors import SourceError
from raycdc.formats import warm_up as warm_up_formats
from raycdc.formats.options import DEAD_LETTERS
from raycdc.model import TableId
from raycdc.source.connector import (
    LogRetention,
    Source,
    SourceFindings,
    SourceTable,
)
from raycdc.source.protocol.api import EnumeratorStart, SplitEnumeratorContext
from raycdc.source.reader.fetcher_manager import Multiplexed
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.reader.split_reader import SplitsAddition, SplitsRemoval
from raycdc.source.trials import Piece, TrialPartition
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import Position

Partition = tuple[str, int]

#: Each query halves the possible range for the write time of the oldest unread message: from a week to three minutes.
_QUESTIONS = 12


class Brokers(Protocol):
    """The offset queries to the brokers (`raycdc.connectors.kafka.cluster.client.KafkaCluster`)."""

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...
    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]: ...
    def retention_ms(self, topics: Iterable[str]) -> dict[str, int | None]: ...


def log_retention(brokers: Brokers, offsets: Mapping[Partition, int], now_ms: int) -> LogRetention | None:
    """Return the least retention of the partitions after `offsets`; None if a partition deletes messages by size.

    Brokers delete a segment a fixed time after its newest message was written (``retention.ms``), so a message is kept
    for at least that time. The write time of the oldest unread message is found by queries for offsets by time.
    """
    retention = brokers.retention_ms({topic for topic, _ in offsets})
    if any(time_ms is None for time_ms in retention.values()):
        return None
    ends = brokers.latest(offsets)
    finite = {topic: time_ms for topic, time_ms in retention.items() if time_ms is not None and time_ms >= 0}
    kept_s = [time_ms / 1000 for time_ms in finite.values()]
    if not finite:
        return LogRetention(forever=True)
    behind = [p for p, offset in offsets.items() if p[0] in finite and offset < ends.get(p, offset)]
    # The oldest unread message of each partition was written at `low` or later, and before `high`.
    low, high = {p: now_ms - finite[p[0]] for p in behind}, dict.fromkeys(behind, now_ms)
    for _ in range(_QUESTIONS if behind else 0):
        for time_ms, asked in _by_time({p: (low[p] + high[p]) // 2 for p in behind}).items():
            found = brokers.at_time(asked, time_ms)
            for partition in asked:
                first = found.get(partition)
                older = first is None or first > offsets[partition]
                (high if older else low)[partition] = time_ms
    kept_s += [max(0, finite[p[0]] - (now_ms - low[p])) / 1000 for p in behind]
    return LogRetention(kept_s=min(kept_s))


def _by_time(times: Mapping[Partition, int]) -> dict[int, list[Partition]]:
    asked: dict[int, list[Partition]] = {}
    for partition, time_ms in times.items():
        asked.setdefault(time_ms, []).append(partition)
    return asked


#: A partition that is silent for this long is not waited for any longer.
SILENT_S = 60.0


@dataclass(frozen=True, slots=True)
class KafkaPartitionTrial:
    """A trial reading of the topics of `config` (`raycdc.source.trials.PartitionTrial`)."""

    config: KafkaSourceConfig

    def partitions(self) -> Sequence[TrialPartition]:
        cluster = KafkaCluster(self.config)
        found = [(topic.name, number) for topic in cluster.topics() for number in topic.partitions]
        first, end = cluster.earliest(found), cluster.latest(found)
        return [TrialPartition(f"{t}:{n}", t, n, first[t, n], end[t, n]) for t, n in sorted(found)]

    def reader(self) -> KafkaTrialReader:
        return KafkaTrialReader(self.config)

    def warm_up(self) -> None:
        warm_up_formats()


class KafkaTrialReader:
    """One consumer, and a decoder for each partition. For one thread."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._format = open_format(config.format)
        self._where = config.bootstrap_servers
        self._reader = KafkaPartitionReader(config)

    def read(self, messages_max: Mapping[TrialPartition, int]) -> Iterator[Piece]:
        """Yield the pieces of at most so many messages of each partition; see `TrialReader.read`."""
        ends = {
            partition.name: min(partition.first + count, partition.end) for partition, count in messages_max.items()
        }
        wanted = {partition.name: partition for partition in messages_max if ends[partition.name] > partition.first}
        decoders = {name: self._format.decoder(positions=True) for name in wanted}
        starts = (PartitionStart(p.topic, p.number, p.first) for p in wanted.values())
        self._reader.handle_splits_changes(SplitsAddition(tuple(starts)))
        yield from (
            Piece(partition.name, 0, 0, 0, 0.0, done=True) for partition in messages_max if partition.name not in wanted
        )
        heard_s = time.monotonic()
        while wanted:
            records = self._reader.fetch()
            fetched = [] if records is None else [r.batch for r in records.records if isinstance(r.batch, Fetched)]
            for each in fetched:
                if each.split_id not in wanted:
                    continue
                heard_s = time.monotonic()
                mine = within(each, first=wanted[each.split_id].first, end=ends[each.split_id])
                done = mine.next_offset >= ends[each.split_id]
                if done:
                    del wanted[each.split_id]
                    self._reader.handle_splits_changes(SplitsRemoval((each.split_id,)))
                rows = 0
                if mine.batch is not None:
                    decoded = decoders[each.split_id].decode(mine.batch)
                    if decoded.failure is not None:
                        raise decoded.failure
                    rows = decoded.rows
                fraction = 0 if mine.batch is None else len(mine.batch)
                size = mine.bytes * fraction // max(1, 0 if each.batch is None else len(each.batch))
                yield Piece(each.split_id, fraction, rows, size, time.monotonic() - heard_s, done)
            if time.monotonic() > heard_s + SILENT_S:
                raise SourceError(f"{min(wanted)} of {self._where} gave no message for {SILENT_S:g} seconds.")

    def close(self) -> None:
        self._reader.close()


class KafkaSource(Source[KafkaSourceConfig]):
    """The Kafka source; see the module's docstring. Picklable: it holds the configuration, never a connection."""

    knows_tables = False

    def __repr__(self) -> str:
        return f"KafkaSource({self.config.bootstrap_servers})"

    def warm_up(self) -> None:
        warm_up_formats()

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        states = None if last is None else [PartitionState.of(state) for state in last.to_splits.values()]
        return SourceFindings(*check_source(self.config, states, now_ms=time.time_ns() // 1_000_000))

    def tables(self) -> dict[TableId, SourceTable]:
        """Return the tables in the topics' last messages, with the columns that these messages show."""
        schemas = tables_of_last_messages(self.config)
        return {table: SourceTable(schema) for table, schema in sorted(schemas.items())}

    def partition_trial(self) -> KafkaPartitionTrial:
        return KafkaPartitionTrial(self.config)

    def log_retention(self, last: Manifest) -> LogRetention | None:
        states = [PartitionState.of(state) for state in last.to_splits.values()]
        offsets = {(state.topic, state.partition): state.offset for state in states}
        return log_retention(KafkaCluster(self.config), offsets, time.time_ns() // 1_000_000) if offsets else None

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Commit the group's offsets, which show the progress to other tools."""
        if self.config.group_id is not None:
            offsets = {partition_of(split_id): offset_of(position) for split_id, position in positions.items()}
            KafkaCluster(self.config).commit(offsets)

    def preflight(self, last: Manifest | None) -> None:
        cluster = KafkaCluster(self.config)
        topics = cluster.topics()
        missing = [name for name in self.config.topics if name not in {topic.name for topic in topics}]
        if missing:
            raise SourceError(
                f'Topic "{missing[0]}" does not exist at {self.config.bootstrap_servers}. '
                "Create it, or correct source.topics."
            )
        require_readable_tombstones(self.config, cluster, topics)
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
        enumerator = KafkaEnumerator(context, self.config, cluster=lambda: KafkaCluster(self.config), until=start.until)
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
            settings=KafkaReaderSettings(
                idle_after_s=alignment.idle_after.total_seconds(),
                aligned=alignment.max_drift is not None,
                dead_letters=keeps_dead_letters(self.config.format),
                order_by=self.config.order_by,
                masking=self.context.masking,
                rules=self.context.rules,
                statements=self._statements(),
            ),
        )

    def _statements(self) -> DdlMessages:
        section = self.config.format
        tables = section.get("tables") or {}
        return DdlMessages(
            self.context.read_statement,
            given=lambda table: bool(section.get("columns")) or str(table) in tables,
            left_out=self.context.left_out,
            follow=section.get("ddl", "follow") == "follow",
            masks=self.context.masking.masks,
            ours=[DEAD_LETTERS] if keeps_dead_letters(section) else [],
        )
