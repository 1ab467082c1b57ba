"""The state of a partition: the content of a split in manifests, from which a reader continues."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from raycdc.errors import StateError
from raycdc.state.opaque import Opaque, Position, SealedSplit

#: Version of the state below.
STATE_VERSION = 1


class DecoderState(Opaque):
    """The state of a format's decoder after the last message read (`raycdc.formats.api`)."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Return True if a message was read."""
        return bool(self._json)


NO_DECODER_STATE = DecoderState({})


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition.

    The next message to read is the first one at or after `offset`. Messages from `stop` on are not read. Offsets are
    positions, not counts: aborted and compacted messages and transaction markers leave gaps. `identity` is the topic's
    id in the cluster. `decoder` is the state of the format's decoder after the last message read. `resets` counts how
    often the topic lacked the position, so that a policy set a new, maybe earlier position. `dropped` are columns that
    statements dropped (`raycdc.connectors.kafka.reading.statements`).

    `last` is the position after the last message read, and the leader epoch of that message. These detect a truncation
    of the log before that position. `offset` is greater than this position if markers or aborted messages follow.
    """

    topic: str
    partition: int
    identity: str
    offset: int
    stop: int | None = None
    decoder: DecoderState = NO_DECODER_STATE
    resets: int = 0
    dropped: Mapping[str, Collection[str]] = field(default_factory=dict)
    last: tuple[int, int] | None = None

    @property
    def split_id(self) -> str:
        return f"{self.topic}:{self.partition}"

    def ended(self, until: int | None = None) -> bool:
        """Return True if everything before the end was read; `until` ends this run."""
        return any(self.offset >= end for end in (self.stop, until) if end is not None)

    def moved(self, offset: int, decoder: DecoderState, last: tuple[int, int] | None = None) -> Self:
        return replace(self, offset=offset, decoder=decoder, last=last)

    def reset(self, offset: int) -> Self:
        return replace(self, offset=offset, resets=self.resets + 1, last=None)

    @classmethod
    def of(cls, state: SealedSplit) -> Self:
        """Return the inverse of `sealed`. Raises `StateError` like `from_json`."""
        return cls.from_json(state.to_json())

    def sealed(self) -> SealedSplit:
        """Return the state for manifests and messages."""
        return SealedSplit.from_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "position": {"topic": self.topic, "partition": self.partition, "offset": self.offset},
            "identity": self.identity,
            "stop": self.stop,
            "decoder": self.decoder.to_json(),
            **({"resets": self.resets} if self.resets else {}),
            **({"dropped": {table: sorted(names) for table, names in self.dropped.items()}} if self.dropped else {}),
            **({"last": list(self.last)} if self.last else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the inverse of `to_json`. Raises `StateError` for the state of another source or a newer version."""
        version = data.get("version")
        position = data.get("position")
        if not isinstance(version, int) or not isinstance(position, dict) or "topic" not in position:
            raise StateError("The state is not that of a Kafka source. Use another pipeline.name or pipeline.state.")
        if version > STATE_VERSION:
            raise StateError(
                f"The state of {position['topic']}:{position['partition']} has version {version}, newer than this "
                f"raycdc knows ({STATE_VERSION}). Upgrade raycdc."
            )
        topic, partition, offset = position["topic"], position["partition"], position["offset"]
        rest = (data["stop"], DecoderState.from_json(data["decoder"]), data.get("resets", 0), data.get("dropped", {}))
        last = data.get("last")
        return cls(topic, partition, data["identity"], offset, *rest, last=(last[0], last[1]) if last else None)


def offset_of(position: Position) -> int:
    """Return the first unread offset of a position that `PartitionState.sealed` returned."""
    return int(position.to_json()["offset"])


def partition_of(split_id: str) -> tuple[str, int]:
    """Return the inverse of `PartitionState.split_id`."""
    topic, _, number = split_id.rpartition(":")
    return topic, int(number)
