"""One look at the cluster: which partitions there are, where new ones start, where this run ends. Blocks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from raycdc.connectors.kafka.client import Topic
from raycdc.connectors.kafka.known_partitions import KnownPartitions
from raycdc.connectors.kafka.offsets import Limits, Offsets, Partition, in_range, new_states
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.split import PartitionState

#: What to do about a sealed position that a partition does not have.
ANOTHER_POSITION = (
    'Accept that messages are missing or come again with source.on_out_of_range = "earliest" or "latest", or start '
    "another pipeline."
)


class ClusterQuestions(Offsets, Protocol):
    """The enumerator's questions to the cluster. Blocks; called off the coordinator's thread."""

    def topics(self) -> list[Topic]: ...


@dataclass(frozen=True, slots=True)
class Discovery:
    """New partitions with their offsets, and this run's ends when it is bounded.

    `states` has known partitions too, where the policy moved their position.
    """

    topics: Sequence[Topic]
    states: Sequence[PartitionState]
    ends: Mapping[str, int]


def discover(
    cluster: ClusterQuestions, config: KafkaSourceConfig, known: KnownPartitions, *, bounded: bool
) -> Discovery:
    """Runs off the coordinator's thread. Raises `SourceUnavailableError` while the cluster is away."""
    topics = cluster.topics()
    found = [(topic.name, number) for topic in topics for number in topic.partitions]
    before = {(state.topic, state.partition) for state in known.states()}
    identities = {topic.name: topic.identity for topic in topics}
    states = new_states(
        cluster,
        [partition for partition in found if partition not in before],
        identities,
        Limits.of(config, first=not known.found_once),
        now_ms=time.time_ns() // 1_000_000,
    )
    if not known.looked:
        states += _moved(cluster, config, known, identities, before & set(found))
    ends = {f"{t}:{p}": end for (t, p), end in cluster.latest(found).items()} if bounded else {}
    return Discovery(topics, states, ends)


def _moved(
    cluster: ClusterQuestions,
    config: KafkaSourceConfig,
    known: KnownPartitions,
    identities: Mapping[str, str],
    there: set[Partition],
) -> list[PartitionState]:
    """Partitions of earlier runs that do not reach (back) to our position, where the policy has them go on.

    One that ends before our position would otherwise count as read up to its end, whatever comes there.
    """
    wanted = {
        (s.topic, s.partition): s
        for s in known.states()
        if (s.topic, s.partition) in there and not s.ended() and s.identity == identities[s.topic]
    }
    offsets = in_range(
        cluster,
        {partition: state.offset for partition, state in wanted.items()},
        policy=config.on_out_of_range,
        ways_out=ANOTHER_POSITION,
    )
    return [s.reset(offsets[p]) for p, s in wanted.items() if offsets[p] != s.offset]
