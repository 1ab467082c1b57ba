"""Where the stream split of a job is: with which reader, or what it waits for. Held by the enumerator.

| placement | means | then |
|---|---|---|
| `NoStream` | nobody knows yet where to begin | `Placed` at the start point |
| `Unplaced` | its position may be of another server than the one that answers now | `Placing`; `Owned` where none is |
| `Placing` | the server that answers was asked for the place | `Placed`, there |
| `Placed` | its position is good, and it waits for a reader | `Owned` |
| `Owned` | a reader has it, and may have been told where to stop | `Unplaced` when that reader is lost |
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.source.split import StreamSplit


@dataclass(frozen=True, slots=True)
class NoStream:
    """There is no stream split yet."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The split as it was sealed last, by a reader that is lost or an earlier run."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class Placing:
    """The answer tells where the split goes on."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class Placed:
    """The split may be given away as it is."""

    split: StreamSplit


@dataclass(frozen=True, slots=True)
class Owned:
    """`reader` has it since it was `split`; `told_to_stop`: the end that it knows still holds."""

    split: StreamSplit
    reader: int
    told_to_stop: bool = False


Placement = NoStream | Unplaced | Placing | Placed | Owned
