"""Finds the partitions of topics, and decides at which offsets reading of each partition begins and ends.

`discover` queries the cluster, and blocks. `KnownPartitions` holds the enumerator's partitions, each with its last
sealed position or its first one; it does no I/O. The first offset of a partition is decided once, when the partition is
found, and is sealed with its state; `new_states` decides it. `in_range` decides where reading continues if the topic
has lost the offset of a state. The offsets at which reading ends are decided at each start (`discover`): an end that an
earlier run had must not hide later messages. All these functions only query the cluster (`Offsets`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Protocol, assert_never

from raycdc.connectors.kafka.cluster.client import KafkaTopic
from raycdc.connectors.kafka.plugin import KafkaSourceConfig, StartMode, StartOptions, StopMode, StopOptions
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import ConfigError, LogLostError, SourceError
from raycdc.source.split import PartitionSplit
from raycdc.state.opaque import SealedSplit

Partition = tuple[str, int]
#: The values of ``source.on_out_of_range``.
Policy = Literal["fail", "earliest", "latest"]


class Offsets(Protocol):
    """The offset queries to the cluster (`raycdc.connectors.kafka.cluster.client.KafkaCluster`)."""

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]: ...

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]: ...

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...


def start_offsets(
    cluster: Offsets, start: StartOptions, partitions: Sequence[Partition], *, policy: Policy, now_ms: int
) -> dict[Partition, int]:
    """Return the first offset to read of each partition that exists at the first start."""
    match start.mode:
        case StartMode.EARLIEST:
            return cluster.earliest(partitions)
        case StartMode.LATEST:
            return cluster.latest(partitions)
        case StartMode.TIMESTAMP:
            assert start.timestamp_ms is not None
            return _at_time(cluster, start.timestamp_ms, partitions, "source.startup.timestamp_ms", now_ms=now_ms)
        case StartMode.GROUP_OFFSETS:
            known = in_range(cluster, cluster.committed(partitions), policy=policy)
            return _completed(cluster, start, partitions, known, "committed")
        case StartMode.OFFSETS:
            given = _given(start.offsets, partitions, "source.startup.offsets")
            return _completed(cluster, start, partitions, in_range(cluster, given, policy=policy), "given")
        case _:
            assert_never(start.mode)


def stop_offsets(
    cluster: Offsets, stop: StopOptions, partitions: Sequence[Partition], *, policy: Policy, now_ms: int
) -> dict[Partition, int]:
    """Return the offset at which reading of each partition ends; empty if partitions never end, or if a run ends at
    the last offsets of its start (`Discovery.ends`).

    If a partition has not reached a configured offset yet, its reader waits for it. An offset before the partition's
    first message is out of range.
    """
    match stop.mode:
        case StopMode.NEVER | StopMode.LATEST:
            return {}
        case StopMode.TIMESTAMP:
            assert stop.timestamp_ms is not None
            return _at_time(cluster, stop.timestamp_ms, partitions, "source.stop.timestamp_ms", now_ms=now_ms)
        case StopMode.OFFSETS:
            given = _given(stop.offsets, partitions, "source.stop.offsets")
            missing = [p for p in partitions if p not in given]
            if missing:
                raise ConfigError(f"source.stop.offsets does not say where {_name(missing[0])} stops")
            if policy == "fail":
                _check_stops(given, cluster.bounds(partitions))
            return given
        case _:
            assert_never(stop.mode)


def _check_stops(stops: Mapping[Partition, int], bounds: Mapping[Partition, tuple[int, int]]) -> None:
    for partition, stop in stops.items():
        low, high = bounds[partition]
        if stop < low:
            raise LogLostError(
                f"{_name(partition)} is to be read up to {stop}, and the topic holds only {low} to {high} of it, so "
                f"the messages before that are gone. {_WAYS_OUT}"
            )


_WAYS_OUT = (
    'Accept that messages are missing with source.on_out_of_range = "earliest" or "latest", or correct the offset in '
    "source.startup or source.stop."
)


def in_range(
    cluster: Offsets, wanted: Mapping[Partition, int], *, policy: Policy, ways_out: str = _WAYS_OUT
) -> dict[Partition, int]:
    """Return the offset to read each partition from: the offset in `wanted`, if the partition has it.

    Otherwise `policy` decides: reading begins at the earliest or the latest offset, or the policy ``fail`` raises
    `LogLostError`, with a text that ends with `ways_out`. The offset after the last message counts as existing.
    """
    if not wanted:
        return {}
    messages_max = dict(wanted)
    for partition, (low, high) in cluster.bounds(wanted).items():
        if low <= wanted[partition] <= high:
            continue
        if policy == "fail":
            key_path = f"{_name(partition)}@{wanted[partition]}"
            since = " any more" if wanted[partition] < low else ""
            raise LogLostError(f"{key_path} is not in the topic{since}: it holds {low} to {high}. {ways_out}")
        messages_max[partition] = low if policy == "earliest" else high
    return messages_max


def _at_time(
    cluster: Offsets, timestamp_ms: int, partitions: Sequence[Partition], key_path: str, *, now_ms: int
) -> dict[Partition, int]:
    """Return the offset of each partition's first message at or after a time, or the partition's end.

    The ends are queried first. A message that arrives between the two queries is then in the answer to the second
    query.
    """
    ends = cluster.latest(partitions)
    firsts = cluster.at_time(partitions, timestamp_ms)
    missing = [p for p in partitions if p not in firsts]
    if missing and timestamp_ms > now_ms:
        raise ConfigError(
            f"{key_path} lies in the future, and {_name(missing[0])} has no message of then or later, so nobody knows "
            'its offset yet. Give a time that has passed, or "latest".'
        )
    return {**ends, **firsts}


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """The configured start and stop of partitions.

    Without `start`, partitions are read from their beginning. `policy` applies to offsets that a partition does not
    have.
    """

    start: StartOptions | None
    stop: StopOptions
    policy: Policy

    @classmethod
    def of(cls, config: KafkaSourceConfig, *, first: bool) -> OffsetRanges:
        """Return the ranges of partitions that are found in the `first` discovery of a pipeline, or later."""
        return cls(config.startup if first else None, config.stop, config.on_out_of_range)


def new_states(
    cluster: Offsets,
    partitions: Sequence[Partition],
    identities: Mapping[str, str],
    limits: OffsetRanges,
    *,
    now_ms: int,
) -> list[PartitionState]:
    """Return the states of newly found partitions; `identities` are the ids of their topics."""
    if not partitions:
        return []
    ends = stop_offsets(cluster, limits.stop, partitions, policy=limits.policy, now_ms=now_ms)
    if limits.start is None:
        starts = cluster.earliest(partitions)
    else:
        starts = start_offsets(cluster, limits.start, partitions, policy=limits.policy, now_ms=now_ms)
    return [PartitionState(p[0], p[1], identities[p[0]], starts[p], ends.get(p)) for p in partitions]


def _completed(
    cluster: Offsets,
    start: StartOptions,
    partitions: Sequence[Partition],
    known: dict[Partition, int],
    how: str,
) -> dict[Partition, int]:
    missing = [p for p in partitions if p not in known]
    if not missing:
        return known
    match start.otherwise:
        case "earliest":
            return {**known, **cluster.earliest(missing)}
        case "latest":
            return {**known, **cluster.latest(missing)}
        case "fail":
            raise SourceError(
                f"{_name(missing[0])} has no {how} offset to start from. Say where such partitions begin with "
                'source.startup.otherwise = "earliest" or "latest".'
            )


def _given(offsets: dict[str, int], partitions: Sequence[Partition], key_path: str) -> dict[Partition, int]:
    names = {_name(p): p for p in partitions}
    unknown = sorted(set(offsets) - set(names))
    if unknown:
        raise ConfigError(f'{key_path} names "{unknown[0]}", which is no partition of the topics read')
    return {names[name]: offset for name, offset in offsets.items()}


def _name(partition: Partition) -> str:
    return f"{partition[0]}:{partition[1]}"


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

    def take(
        self, states: Sequence[PartitionState], ends: Mapping[str, int], stops: Mapping[str, int | None] | None = None
    ) -> None:
        """Add a discovery's new partitions, and known ones with a replaced position.

        `ends` and `stops` are used at the first discovery only.
        """
        for state in states:
            self._put(state)
        self._unsealed.update(state.split_id for state in states)
        if not self.discovered:
            self._ends = dict(ends)
            for state in self.states():
                stop = (stops or {}).get(state.split_id, state.stop)
                self._put(replace(state, stop=stop))
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
            split_id: f"did not have its position {resets} times: source.on_out_of_range gave it another one"
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

    `states` also has known partitions whose position the policy moved. `stops` has the configured stop of each
    partition that earlier runs found; None if the partition has none.
    """

    topics: Sequence[KafkaTopic]
    states: Sequence[PartitionState]
    ends: Mapping[str, int]
    stops: Mapping[str, int | None]


def discover(
    cluster: ClusterQuestions, config: KafkaSourceConfig, known: KnownPartitions, *, bounded: bool
) -> Discovery:
    """Query the cluster for new partitions and this run's ends. Runs off the coordinator's thread.

    Raises `SourceUnavailableError` while the cluster is unavailable.
    """
    topics = cluster.topics()
    found = [(topic.name, number) for topic in topics for number in topic.partitions]
    before = {(state.topic, state.partition): state for state in known.states()}
    identities = {topic.name: topic.identity for topic in topics}
    now_ms = time.time_ns() // 1_000_000
    limits = OffsetRanges.of(config, first=not known.found_once)
    # `source.stop.offsets` names partitions of both kinds, but each kind is checked by itself.
    new = [partition for partition in found if partition not in before]
    fresh = replace(limits, stop=_without(limits.stop, before))
    states = new_states(cluster, new, identities, fresh, now_ms=now_ms)
    stops: dict[str, int | None] = {}
    if not known.discovered:
        there = [partition for partition in found if partition in before]
        decided = _stops_again(cluster, _without(limits.stop, new), there, now_ms=now_ms)
        stops = {_name(partition): stop for partition, stop in decided.items()}
        states += _moved(cluster, config, [replace(before[p], stop=stop) for p, stop in decided.items()], identities)
    bounded = bounded or config.stop.mode is StopMode.LATEST
    ends = {_name(partition): end for partition, end in cluster.latest(found).items()} if bounded else {}
    return Discovery(topics, states, ends, stops)


def _without(stop: StopOptions, partitions: Collection[Partition]) -> StopOptions:
    """Return the configured stop without the offsets of some partitions."""
    left_out = set(map(_name, partitions))
    return stop.model_copy(update={"offsets": {n: at for n, at in stop.offsets.items() if n not in left_out}})


def _stops_again(
    cluster: Offsets, stop: StopOptions, partitions: Sequence[Partition], *, now_ms: int
) -> dict[Partition, int | None]:
    """Return the stop of each partition that an earlier run found; None if reading does not stop at an offset."""
    if not partitions:
        return {}
    # A stop whose messages are gone is no error: an earlier run may have read them. `_moved` checks the positions.
    stops = stop_offsets(cluster, stop, partitions, policy="earliest", now_ms=now_ms)
    return {partition: stops.get(partition) for partition in partitions}


def _moved(
    cluster: ClusterQuestions, config: KafkaSourceConfig, there: Sequence[PartitionState], identities: Mapping[str, str]
) -> list[PartitionState]:
    """Return new states for partitions `there` that lost the position of their state, if the policy sets a new
    position.

    Without a new position, a partition that ends before the old one would count as read to its end, and its next
    messages would be skipped.
    """
    wanted = {(s.topic, s.partition): s for s in there if not s.ended() and s.identity == identities[s.topic]}
    offsets = in_range(
        cluster,
        {partition: state.offset for partition, state in wanted.items()},
        policy=config.on_out_of_range,
        ways_out=ANOTHER_POSITION,
    )
    return [s.reset(offsets[p]) for p, s in wanted.items() if offsets[p] != s.offset]
