"""How a process reaches segments: mapped from disk on the node that has them, through Arrow Flight from elsewhere.

One value travels from the launcher to whoever reads segments: the epoch loop, sinks and their tasks, readers. Another
one says to those who write them where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from raycdc.checkpoint.manifest import STATE_NODE, Segment

#: As `SegmentAccess.node`: the process may be on any machine.
ANYWHERE = "*"


class Copies(Protocol):
    """Takes a copy of each finished segment (`raycdc.bridge.copies`)."""

    def put(self, path: Path) -> None:
        """Blocks until the copy of the file is safe. `SpoolError` where it cannot be."""


@dataclass(frozen=True, slots=True)
class SpoolAddress:
    """Where segments are written: folder, the name of the spool's node and its Flight endpoint (or empty), and who
    takes copies of them.
    """

    folder: Path
    node: str = STATE_NODE
    flight: str = ""
    copies: Copies | None = None


@dataclass(frozen=True, slots=True)
class SegmentAccess:
    """The node that a process is on (default: the one with the state), and how it reaches the segments of others.

    `token` is the one that Flight servers ask for; `repr` does not show it. `authority` is the certificate by which
    servers on other machines are known (`raycdc.bridge.certificates`). `flights` are the endpoints of the spools
    of other nodes, by their names, as of now; only the driver knows them and writes them into descriptors (`placed`).
    A task that Spark put on a machine of its own choice does not know its node (`ANYWHERE`): it maps a file that is
    there under its path with its exact size, which only the segment itself can be, as no two share a name.
    """

    node: str = STATE_NODE
    token: str = field(default="", repr=False)
    authority: bytes = field(default=b"", repr=False)
    flights: Mapping[str, str] = field(default_factory=dict)

    def as_of(self, flights: Mapping[str, str]) -> SegmentAccess:
        """The same, where the endpoints of other nodes are `flights`."""
        return replace(self, flights=flights)

    def is_own(self, segment: Segment) -> bool:
        """Whether the segment is in the spool of this process's node; never known `ANYWHERE`."""
        return segment.node == self.node

    def placed(self, segments: Iterable[Segment]) -> tuple[Segment, ...]:
        """Each segment with the endpoint of its node as of now (none: the node is away)."""
        return tuple(replace(segment, flight=self.flights.get(segment.node, "")) for segment in segments)


#: Of a process on the node with the state that needs no other node.
HERE = SegmentAccess()
