"""All messages between coordinator and readers, as one closed union of classes.

| message | direction | answered by |
|---|---|---|
| `ReaderRegistration` | reader → coordinator | `Registered` |
| `Registered` | coordinator → reader | – |
| `RequestSplit` | reader → coordinator | `AddSplits` or `NoMoreSplits`, as soon as possible |
| `AddSplits` | coordinator → reader | `SplitsAdded` |
| `SplitsAdded` | reader → coordinator | – |
| `RemoveSplits` | coordinator → reader | `SplitsRemoved` with the positions reached |
| `SplitsRemoved` | reader → coordinator | `AddSplits` to the new owner |
| `NoMoreSplits` | coordinator → reader | – |
| `SourceEventWrapper` | both | as the connector's events say (`raycdc.source.snapshot.chunk_events`, `…kafka.events`) |
| `SealEpoch` | coordinator → reader | `EpochSealed` |
| `EpochSealed` | reader → coordinator | `CheckpointComplete`, once the sink holds the epoch |
| `CheckpointComplete` | coordinator → reader | – |
| `RateQuotas` | coordinator → reader | its number, in the next `Heartbeat` |
| `Heartbeat` | reader → coordinator | – |
| `ReaderFailed` | reader → coordinator | `Shutdown` |
| `Shutdown` | coordinator → reader | – |

On the wire a message is ``[type name, fields…]`` in msgpack (`raycdc.core.typed_codec`), inside a packet of
`raycdc.source.protocol.link`, which numbers, acknowledges, repeats and fences. That module also decodes it into a class
of this module. An unknown type is a `ProtocolError` that names it. Split states, positions and schema documents are
JSON that only their connector can interpret.

A connector's own messages are `SourceEvent`s: frozen dataclasses, which the coordinator carries without looking inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

import msgpack

from raycdc.core.typed_codec import PACKED, CodecError, NamedUnion
from raycdc.errors import ProtocolError
from raycdc.source.protocol.metrics import NO_METRICS, NO_PROCESS_METRICS, ProcessMetrics, ReaderMetrics
from raycdc.source.protocol.rate_budget import RateDemand
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import SourceSplit
from raycdc.state.manifests.manifest import Segment, TableEpoch
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.opaque import SealedSplit

PROTOCOL_VERSION = 4


class SourceEvent:
    """Base of the messages between a connector's enumerator and readers (FLIP-27's SourceEvent).

    A subclass is a frozen dataclass whose fields `raycdc.core.typed_codec` can write. Its class name identifies it
    on the wire, so a second class with the same name is a `TypeError` when it is defined.
    """

    __slots__ = ()
    _members: ClassVar[dict[str, type[SourceEvent]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = SourceEvent._members.setdefault(cls.__name__, cls)
        # A dataclass with slots is created twice, as one class.
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__module__} and {known.__module__} both define the source event {cls.__name__}")
        SourceEvent._members[cls.__name__] = cls

    @classmethod
    def members(cls) -> Mapping[str, type[SourceEvent]]:
        """Return every kind of event that is defined in this process, by name."""
        return cls._members


@dataclass(frozen=True, slots=True)
class ReaderRegistration:
    """A new incarnation of a reader is alive on `node`; `flight` is the Arrow Flight endpoint of the node, or empty."""

    node: str
    pid: int
    flight: str


@dataclass(frozen=True, slots=True)
class Registered:
    """The registration was accepted; rows read from now on belong to `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RequestSplit:
    """The reader has room for one more bounded split (a chunk)."""


@dataclass(frozen=True, slots=True)
class AddSplits:
    """Read these splits."""

    splits: tuple[SourceSplit, ...]


@dataclass(frozen=True, slots=True)
class SplitsAdded:
    """The reader has taken over these splits."""

    split_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveSplits:
    """An order to stop reading these splits and report their positions. A chunk is removed immediately. A partition is
    removed at the reader's next cut, which seals the rows that were read of it. A split that the reader does not have
    counts as removed.
    """

    split_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitsRemoved:
    """The reader has stopped reading these splits.

    `states` are their states at the reader's last seal; no rows were read after it.
    """

    states: Mapping[str, SealedSplit | None]


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """No further bounded split will come: a reader without splits is finished."""


@dataclass(frozen=True, slots=True)
class SourceEventWrapper:
    """A connector's own event."""

    event: SourceEvent


@dataclass(frozen=True, slots=True)
class SealEpoch:
    """End the open epoch at the next transaction boundary, write it out as `epoch`, report, and go on with ``epoch +
    1``.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochSealed:
    """The reader's part of `epoch`: state of each unbounded split after it, and its segments, durable on disk.

    `tables` are the tables of the epoch, by name. `schemas` are the schema documents that this incarnation did not
    report before, by fingerprint. `finished` are bounded splits whose rows this epoch publishes. `end_of_input` is True
    if an unbounded split reached its end. If the previous report of this incarnation already had a split, `changes` has
    only the parts of its state that changed since then.
    """

    epoch: int
    splits: Mapping[str, SealedSplit] = field(metadata=PACKED)
    segments: tuple[Segment, ...]
    tables: Mapping[str, TableEpoch] = field(metadata=PACKED)
    schemas: Mapping[str, SchemaDocument] = field(metadata=PACKED)
    finished: tuple[str, ...]
    watermark_ms: int | None
    end_of_input: bool
    changes: Mapping[str, Patch] = field(default_factory=dict, metadata=PACKED)


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    """The sink holds `epoch`. `release` are segment files on the reader's node that are no longer needed. `elsewhere`
    are such segments on nodes without a reader; only one reader is asked to delete them.
    """

    epoch: int
    release: tuple[str, ...]
    elsewhere: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class RateQuotas:
    """The reader's quotas of the source's budget from now on, in millionths by lane.

    They expire if the reader does not reach the coordinator for `lease_s` (`raycdc.source.protocol.rate_budget`).
    """

    number: int
    quotas: Mapping[str, int]
    lease_s: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign that the reader is alive, with the bytes of the open epoch, figures, and `wants_seal` if the epoch must end
    early.

    `dirty` is True if the reader's position moved since the last cut, with or without rows. `rate_demand` is its demand
    of the source's budget, if that is limited.
    """

    open_bytes: int = 0
    wants_seal: bool = False
    dirty: bool = False
    metrics: ReaderMetrics = NO_METRICS
    process: ProcessMetrics = NO_PROCESS_METRICS
    rate_demand: RateDemand | None = None

    def without_epoch(self) -> Heartbeat:
        """Return the heartbeat for an empty open epoch, because the previous one is being sealed."""
        return replace(self, open_bytes=0, wants_seal=False)

    def after(self, before: Heartbeat) -> Heartbeat:
        """Return the heartbeat with the loads of the heartbeat `before` if it has no loads itself."""
        now, then = self.metrics.partitions, before.metrics.partitions
        if now is None or now.loads is not None or then is None:
            return self
        return replace(self, metrics=replace(self.metrics, partitions=replace(now, loads=then.loads)))


@dataclass(frozen=True, slots=True)
class ReaderFailed:
    """The reader met an error that must not be retried.

    `error` is a class name of `raycdc.errors`, `text` its message.
    """

    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Close and leave: the job ends, or this reader is no longer needed."""

    reason: str


Message = (
    ReaderRegistration
    | Registered
    | RequestSplit
    | AddSplits
    | SplitsAdded
    | RemoveSplits
    | SplitsRemoved
    | NoMoreSplits
    | SourceEventWrapper
    | SealEpoch
    | EpochSealed
    | CheckpointComplete
    | RateQuotas
    | Heartbeat
    | ReaderFailed
    | Shutdown
)

_BY_NAME: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}
_MESSAGES = NamedUnion(lambda: _BY_NAME, "message")


def encode(message: Message) -> list[Any]:
    """Return the message as a list that msgpack can write; `pack` makes bytes of it."""
    written: list[Any] = _MESSAGES.write(message)
    return written


def decode(data: Any) -> Message:
    """Return the inverse of `encode`.

    Raises `ProtocolError` that names an unknown type, or the invalid part of a known one.
    """
    try:
        message: Message = _MESSAGES.read(data)
    except CodecError as cause:
        raise ProtocolError(str(cause)) from cause
    return message


def pack(value: Any) -> bytes:
    """Return `value` as msgpack."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Return the value of `data`. Raises `ProtocolError` if `data` is not msgpack."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as cause:
        raise ProtocolError(f"A packet of {len(data)} bytes is not msgpack: {cause}") from cause
