"""One discovery of the cluster: its partitions, the start of new ones, the end of a bounded run. Blocks.

`KnownPartitions` has the enumerator's partitions, each with its last sealed or first position. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from raycdc.connectors.kafka.cluster.client import KafkaTopic
from raycdc.connectors.kafka.cluster.offsets import OffsetRanges, Offsets, Partition, in_range, new_states
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import LogLostError, SourceError
from raycdc.source.split import PartitionSplit
from raycdc.state.opaque import SealedSplit


class KnownPartitions:
    """The partitions that the enumerator knows. A partition's first and last offset are decided when it is found.

    Owned by the coordinator's thread. Other threads may read a snapshot: a discovery works with the partitions that
    were known when it began.
    """

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._states: dict[str, PartitionState] = {}
        #: The last sealed state of each partition. A seal decodes only states that differ from it.
        self._sealed: dict[str, SealedSplit] = {}
        #: The selected partitions that have not ended, and the partitions whose position the policy replaced.
        self._to_read: dict[str, None] = {}
        self._reset: dict[str, int] = {}
        self._selects = cache(config.selects)
        #: The ends of partitions for this run only, as found at its first discovery.
        self._ends: dict[str, int] = {}
        #: The partitions whose state is in no manifest yet: found in this run, or with a replaced position.
        self._unsealed: set[str] = set()
        #: `found_once` is True if any run has completed a discovery, `discovered` if this run has.
        self.found_once = False
        self.discovered = False

    def __len__(self) -> int:
        return len(self._states)

    def seal(self, splits: Mapping[str, SealedSplit]) -> list[str]:
        """Keep the states after an epoch, and return the partitions that ended in it."""
        others = {name: state for name, state in splits.items() if self._sealed.get(name) != state}
        for name, state in others.items():
            self._sealed[name] = state
            self.keep(PartitionState.of(state))
        return [name for name in others if self.ended(name)]

    def states(self) -> list[PartitionState]:
        return list(self._states.values())

    def restore(self, states: Iterable[PartitionState], *, found_once: bool) -> None:
        """Set the partitions of a manifest."""
        for state in states:
            self._put(state)
        self.found_once = found_once

    def take(self, states: Sequence[PartitionState], ends: Mapping[str, int]) -> None:
        """Add a discovery's new partitions, and known ones with a replaced position.

        `ends` are used at the first discovery only.
        """
        for state in states:
            self._put(state)
        self._unsealed.update(state.split_id for state in states)
        if not self.discovered:
            self._ends = dict(ends)
            for state in self.states():
                self._put(state)
        self.found_once = self.discovered = True

    def keep(self, sealed: PartitionState) -> None:
        """Set a partition's state to the sealed one, unless its position was replaced here since."""
        known = self._states.get(sealed.split_id)
        if known is None or sealed.resets >= known.resets:
            self._put(sealed)
            self._unsealed.discard(sealed.split_id)

    def _put(self, state: PartitionState) -> None:
        """Replace a partition's state; no other method does."""
        split_id = state.split_id
        self._states[split_id] = state
        if self._selects(state.topic) and not self.ended(split_id):
            self._to_read[split_id] = None
        else:
            self._to_read.pop(split_id, None)
        if state.resets:
            self._reset[split_id] = state.resets

    def split(self, split_id: str) -> PartitionSplit:
        return PartitionSplit(split_id, self._states[split_id].sealed(), self._ends.get(split_id))

    def ended(self, split_id: str) -> bool:
        return self._states[split_id].ended(self._ends.get(split_id))

    def selected(self) -> list[str]:
        """Return the partitions of topics that the configuration selects now."""
        return [split_id for split_id, state in self._states.items() if self._selects(state.topic)]

    def to_read(self) -> Collection[str]:
        """Return the selected partitions that have not ended."""
        return self._to_read.keys()

    def unreported(self, waiting: Iterable[str]) -> list[PartitionState]:
        """Return the states that a manifest must hold itself because no reader reports them.

        They are the states of `waiting` and of unsealed partitions.
        """
        return [self._states[split_id] for split_id in sorted({*waiting, *self._unsealed})]

    def problems(self) -> dict[str, str]:
        return {
            split_id: f"did not have its position {resets} times: on_out_of_range said where to go on"
            for split_id, resets in self._reset.items()
        }

    def check(self, topics: Sequence[KafkaTopic]) -> None:
        """Raise an error for a missing topic, and for one that was replaced by another topic of the same name."""
        identities = {topic.name: topic.identity for topic in topics}
        missing = [name for name in self._config.topics if name not in identities]
        if missing:
            raise SourceError(
                f'Topic "{missing[0]}" does not exist at {self._config.bootstrap_servers}. Create it, or correct '
                "source.topics; topics that come later are found by source.topic_pattern."
            )
        for state in self._states.values():
            now = identities.get(state.topic)
            if now is not None and now != state.identity and self._config.selects(state.topic):
                raise LogLostError(
                    f"Topic {state.topic} was deleted and created again: offset {state.offset} of partition "
                    f"{state.partition} is of the old one. Start another pipeline for the new topic."
                )


#: The advice if a partition does not have the sealed position.
ANOTHER_POSITION = (
    'Accept that messages are missing or come again with source.on_out_of_range = "earliest" or "latest", or start '
    "another pipeline."
)


class ClusterQuestions(Offsets, Protocol):
    """The enumerator's queries to the cluster. They block, and run off the coordinator's thread."""

    def topics(self) -> list[KafkaTopic]: ...


@dataclass(frozen=True, slots=True)
class Discovery:
    """The new partitions with their offsets, and the ends of a bounded run.

    `states` also has known partitions whose position the policy moved.
    """

    topics: Sequence[KafkaTopic]
    states: Sequence[PartitionState]
    ends: Mapping[str, int]


def discover(
    cluster: ClusterQuestions, config: KafkaSourceConfig, known: KnownPartitions, *, bounded: bool
) -> Discovery:
    """Query the cluster for new partitions and this run's ends. Runs off the coordinator's thread.

    Raises `SourceUnavailableError` while the cluster is unavailable.
    """
    topics = cluster.topics()
    found = [(topic.name, number) for topic in topics for number in topic.partitions]
    before = {(state.topic, state.partition) for state in known.states()}
    identities = {topic.name: topic.identity for topic in topics}
    states = new_states(
        cluster,
        [partition for partition in found if partition not in before],
        identities,
        OffsetRanges.of(config, first=not known.found_once),
        now_ms=time.time_ns() // 1_000_000,
    )
    if not known.discovered:
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
    """Return the partitions of earlier runs without our position, if the policy gives them another one.

    A partition that ends before our position would otherwise count as read up to its end, including future messages.
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
