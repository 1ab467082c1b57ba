"""A topic's partitions read as a job's reader reads them, for ``raycdc bench splits``: rows go nowhere, no offset is
committed, and all is read that the topics hold, wherever the configuration would begin.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raycdc.connectors.kafka.client import Cluster
from raycdc.connectors.kafka.decoding import open_format
from raycdc.connectors.kafka.messages import Fetched, PartitionStart, within
from raycdc.connectors.kafka.partition_reader import KafkaPartitionReader
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import SourceError
from raycdc.formats.warm_up import compile_all
from raycdc.source.partition_trial import Piece, TrialPartition
from raycdc.source.reader.split_reader import SplitsAddition, SplitsRemoval

#: A partition that gives nothing for so long is not waited for any more.
SILENT_S = 60.0


@dataclass(frozen=True, slots=True)
class KafkaTrial:
    """`raycdc.source.partition_trial.PartitionTrial` of the topics of `config`."""

    config: KafkaSourceConfig

    def partitions(self) -> Sequence[TrialPartition]:
        cluster = Cluster(self.config)
        found = [(topic.name, number) for topic in cluster.topics() for number in topic.partitions]
        first, end = cluster.earliest(found), cluster.latest(found)
        return [TrialPartition(f"{t}:{n}", t, n, first[t, n], end[t, n]) for t, n in sorted(found)]

    def reader(self) -> KafkaTrialReader:
        return KafkaTrialReader(self.config)

    def warm_up(self) -> None:
        compile_all()


class KafkaTrialReader:
    """One consumer, and a decoder for each partition. For one thread."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._format = open_format(config.format)
        self._where = config.bootstrap_servers
        self._reader = KafkaPartitionReader(config)

    def read(self, places: Mapping[TrialPartition, int]) -> Iterator[Piece]:
        """See `TrialReader.read`."""
        ends = {partition.name: min(partition.first + count, partition.end) for partition, count in places.items()}
        wanted = {partition.name: partition for partition in places if ends[partition.name] > partition.first}
        decoders = {name: self._format.decoder(positions=True) for name in wanted}
        starts = (PartitionStart(p.topic, p.number, p.first) for p in wanted.values())
        self._reader.handle_splits_changes(SplitsAddition(tuple(starts)))
        yield from (
            Piece(partition.name, 0, 0, 0, 0.0, done=True) for partition in places if partition.name not in wanted
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
                share = 0 if mine.batch is None else len(mine.batch)
                size = mine.bytes * share // max(1, 0 if each.batch is None else len(each.batch))
                yield Piece(each.split_id, share, rows, size, time.monotonic() - heard_s, done)
            if time.monotonic() > heard_s + SILENT_S:
                raise SourceError(f"{min(wanted)} of {self._where} gave no message for {SILENT_S:g} seconds.")

    def close(self) -> None:
        self._reader.close()
