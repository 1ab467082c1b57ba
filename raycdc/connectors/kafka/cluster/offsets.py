"""Decides the first and last offsets of partitions, once, when a partition is found; they are sealed with its state.

The enumerator calls `new_states` for new partitions, and `in_range` if the topic may not have a state's offset any
more. Everything is pure except the queries to the cluster (`Offsets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

from raycdc.connectors.kafka.plugin import KafkaSourceConfig, StartMode, StartOptions, StopMode, StopOptions
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import ConfigError, LogLostError, SourceError

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
    """Return the first offset not to read of each partition; empty if they never end.

    A configured offset that the partition has not reached yet is waited for; an offset before the partition's first
    message is out of range.
    """
    match stop.mode:
        case StopMode.NEVER:
            return {}
        case StopMode.LATEST:
            return cluster.latest(partitions)
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
    """Return the offsets to read from: `wanted`, or the earliest or latest one of a partition without that offset.

    `policy` decides which. The offset after the last message counts as existing. Raises `LogLostError` with the policy
    ``fail``; its text ends with `ways_out`.
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
    """Return the offset of each partition's first message at or after a time; its end if there is none.

    The ends are queried first, so that a message that comes between the two queries is in the answer to the second one.
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
    """The configured start and stop of partitions; without `start` they are read from their beginning.

    `policy` is for offsets that a partition does not have.
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
