"""Every message between coordinator and readers, as one sealed union on one page.

| message | direction | answered by |
|---|---|---|
| `ReaderRegistration` | reader → coordinator | `Registered` |
| `Registered` | coordinator → reader | – |
| `RequestSplit` | reader → coordinator | `AddSplits` or `NoMoreSplits`, when there is one |
| `AddSplits` | coordinator → reader | `SplitsAdded` |
| `SplitsAdded` | reader → coordinator | – |
| `RemoveSplits` | coordinator → reader | `SplitsRemoved` with the positions reached |
| `SplitsRemoved` | reader → coordinator | `AddSplits` to the new owner |
| `NoMoreSplits` | coordinator → reader | – |
| `SourceEventWrapper` | both | as the connector's events say (`raycdc.source.hand_off`) |
| `SealEpoch` | coordinator → reader | `EpochSealed` |
| `EpochSealed` | reader → coordinator | `CheckpointComplete`, once the sink holds the epoch |
| `CheckpointComplete` | coordinator → reader | – |
| `Heartbeat` | reader → coordinator | – |
| `ReaderFailed` | reader → coordinator | `Shutdown` |
| `Shutdown` | coordinator → reader | – |

On the wire a message is ``[type name, fields…]`` in msgpack, inside a packet of `raycdc.source.link`, which numbers,
acknowledges, repeats and fences. A type this page does not list is a `ProtocolError` that names it.
Split states, positions and connector events travel as msgpack-able values (dict, list, str, int, bytes, None).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args

import msgpack

from raycdc.errors import ProtocolError

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReaderRegistration:
    """A new incarnation of a reader is alive on `node`; `flight` is its node's Arrow Flight endpoint or empty."""

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
    """Read these splits, each ``{"id", "kind", …}`` as `raycdc.source.split` encodes it."""

    splits: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class SplitsAdded:
    """The reader has taken these splits over."""

    split_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveSplits:
    """Stop reading these splits and say how far they got; unknown ones are answered as if just removed.

    A chunk ends at once; a partition at the reader's next cut, which seals what was read of it.
    """

    split_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitsRemoved:
    """The splits stopped; `states` are their states at the reader's last seal, since which nothing was read of them."""

    states: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """No further bounded split will come: a reader without splits is finished."""


@dataclass(frozen=True, slots=True)
class SourceEventWrapper:
    """A connector's own event, ``{"type": …}``."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SealEpoch:
    """Cut at the next transaction boundary, write out what `epoch` holds, report, and go on with ``epoch + 1``."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochSealed:
    """The reader's part of `epoch`: state of each unbounded split after it, and its segments (JSON, durable on disk).

    `tables` maps table name → ``{"schema", "snapshot", "changes"}`` as `checkpoint.manifest.TableEpoch`; `schemas`
    maps fingerprint → schema for versions not reported before by this incarnation. `finished` are bounded splits
    whose rows this epoch publishes. `end_of_input` says that an unbounded split reached its end. `boundary` is True
    when the cut begins a schema change, so that the next epoch starts with it.
    """

    epoch: int
    splits: dict[str, Any]
    segments: tuple[dict[str, Any], ...]
    tables: dict[str, Any]
    schemas: dict[str, Any]
    finished: tuple[str, ...]
    watermark_ms: int | None
    end_of_input: bool


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    """The sink holds `epoch`; `release` are segment files on the reader's node that nobody needs any more.

    `elsewhere` are such segments (JSON) on nodes that have no reader any more: one reader is told of them.
    """

    epoch: int
    release: tuple[str, ...]
    elsewhere: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Alive, with figures: open-epoch bytes, whether the open epoch must end early, and metrics per split."""

    open_bytes: int
    wants_seal: bool
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReaderFailed:
    """The reader met an error it must not retry; `error` is a class name of `raycdc.errors`, `text` its message."""

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
    | Heartbeat
    | ReaderFailed
    | Shutdown
)

_BY_NAME: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}


def encode(message: Message) -> list[Any]:
    """The message as a msgpack-able list; `pack` makes bytes of it."""
    return [type(message).__name__, *(getattr(message, f.name) for f in dataclasses.fields(message))]


def decode(data: Any) -> Message:
    """Inverse of `encode`. Raises `ProtocolError` naming an unknown type or a wrong number of fields."""
    if not isinstance(data, list | tuple) or not data or not isinstance(data[0], str):
        raise ProtocolError(f"A message must be [type, fields...], got {data!r:.200}")
    cls = _BY_NAME.get(data[0])
    if cls is None:
        raise ProtocolError(f"Unknown message {data[0]!r}; this side speaks protocol version {PROTOCOL_VERSION}")
    fields = dataclasses.fields(cls)
    if len(fields) != len(data) - 1:
        raise ProtocolError(f"{data[0]} has {len(data) - 1} fields instead of {len(fields)}")
    values = [tuple(v) if isinstance(v, list) else v for v in data[1:]]
    message: Message = cls(*values)
    return message


def pack(value: Any) -> bytes:
    """`value` as msgpack."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Raises `ProtocolError` when `data` is not msgpack."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as cause:
        raise ProtocolError(f"A packet of {len(data)} bytes is not msgpack: {cause}") from cause
