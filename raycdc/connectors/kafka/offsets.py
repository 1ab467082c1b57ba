"""Where partitions start and stop, decided once, when they are found. Pure but for the cluster it asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, assert_never

from raycdc.connectors.kafka.plugin import StartMode, StartOptions, StopMode, StopOptions
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import ConfigError, SourceError

Partition = tuple[str, int]


class Offsets(Protocol):
    """What is asked of the cluster (`raycdc.connectors.kafka.client.Cluster`)."""

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]: ...

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...


def start_offsets(cluster: Offsets, start: StartOptions, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """The first offset to read of each partition that is there at the first start."""
    match start.mode:
        case StartMode.EARLIEST:
            return cluster.earliest(partitions)
        case StartMode.LATEST:
            return cluster.latest(partitions)
        case StartMode.TIMESTAMP:
            assert start.timestamp_ms is not None
            return cluster.at_time(partitions, start.timestamp_ms)
        case StartMode.GROUP_OFFSETS:
            return _completed(cluster, start, partitions, cluster.committed(partitions), "committed")
        case StartMode.OFFSETS:
            given = _given(start.offsets, partitions, "source.start.offsets")
            return _completed(cluster, start, partitions, given, "given")
        case _:
            assert_never(start.mode)


def stop_offsets(cluster: Offsets, stop: StopOptions, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """The first offset not to read of each partition; empty where they never end."""
    match stop.mode:
        case StopMode.NEVER:
            return {}
        case StopMode.LATEST:
            return cluster.latest(partitions)
        case StopMode.TIMESTAMP:
            assert stop.timestamp_ms is not None
            return cluster.at_time(partitions, stop.timestamp_ms)
        case StopMode.OFFSETS:
            given = _given(stop.offsets, partitions, "source.stop.offsets")
            missing = [p for p in partitions if p not in given]
            if missing:
                raise ConfigError(f"source.stop.offsets does not say where {_name(missing[0])} stops")
            return given
        case _:
            assert_never(stop.mode)


def new_states(
    cluster: Offsets,
    partitions: Sequence[Partition],
    identities: dict[str, str],
    *,
    start: StartOptions | None,
    stop: StopOptions,
) -> list[PartitionState]:
    """States of partitions found just now; without `start` they begin at their beginning."""
    if not partitions:
        return []
    ends = stop_offsets(cluster, stop, partitions)
    starts = cluster.earliest(partitions) if start is None else start_offsets(cluster, start, partitions)
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
                'source.start.otherwise = "earliest" or "latest".'
            )


def _given(offsets: dict[str, int], partitions: Sequence[Partition], place: str) -> dict[Partition, int]:
    names = {_name(p): p for p in partitions}
    unknown = sorted(set(offsets) - set(names))
    if unknown:
        raise ConfigError(f'{place} names "{unknown[0]}", which is no partition of the topics read')
    return {names[name]: offset for name, offset in offsets.items()}


def _name(partition: Partition) -> str:
    return f"{partition[0]}:{partition[1]}"
