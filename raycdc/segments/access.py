"""How a process reaches segments: mapped from disk on the node that has them, through Arrow Flight from elsewhere.

One value travels from the launcher to whoever reads segments: the epoch loop, sinks and their tasks, readers. Another
one says to those who write them where.

A segment's file on this machine: mapped, counted off in batches, and checked.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import ipc

from raycdc.errors import StateError
from raycdc.state.manifests.manifest import STATE_NODE, Segment

#: As `SegmentAccess.node`: the process may be on any machine.
ANYWHERE = "*"


class Copies(Protocol):
    """Takes a copy of each finished segment (`raycdc.segments.copies`)."""

    def put(self, path: Path) -> None:
        """Blocks until the copy of the file is safe. Raises `SpoolError` if it cannot be."""


@dataclass(frozen=True, slots=True)
class SpoolAddress:
    """The destination of new segments.

    Folder, the name of the spool's node, its Flight endpoint (or empty), and their copies.
    """

    folder: Path
    node: str = STATE_NODE
    flight: str = ""
    copies: Copies | None = None


@dataclass(frozen=True, slots=True)
class SegmentAccess:
    """The node that a process is on (default: the one with the state), and how it reaches the segments of others.

    `token` is the one that Flight servers ask for; `repr` does not show it. `authority` is the certificate by which
    servers on other machines are known (`raycdc.segments.certificates`). `flights` are the endpoints of the spools
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
        """Return True if the segment is in the spool of this process's node; always False with `ANYWHERE`."""
        return segment.node == self.node

    def located(self, segments: Iterable[Segment]) -> tuple[Segment, ...]:
        """Each segment with the endpoint of its node as of now (none: the node is away)."""
        return tuple(replace(segment, flight=self.flights.get(segment.node, "")) for segment in segments)


#: Of a process on the node with the state that needs no other node.
HERE = SegmentAccess()


_CRC_BLOCK_BYTES = 1 << 20


def mapped_reader(path: Path, expected_bytes: int) -> Any:
    """An open Arrow file reader over a mapped file.

    Raises `StateError` if it is missing or not `expected_bytes` long.
    """
    try:
        source = pa.memory_map(str(path), "r")
    except OSError as cause:
        raise StateError(f"Segment {path} cannot be read: {cause}. Its epoch has to be read again.") from cause
    if source.size() != expected_bytes:
        raise StateError(f"Segment {path} has {source.size()} bytes instead of {expected_bytes}; it is damaged.")
    try:
        return ipc.open_file(source)
    except pa.ArrowInvalid as cause:
        raise StateError(f"Segment {path} is damaged: {cause}.") from cause


def batch_range(batches: int, part: tuple[int, int]) -> range:
    """The batches of run `i` of `n`; the runs of all `i` cover each batch once."""
    index, count = part
    assert 0 <= index < count, part
    return range(batches * index // count, batches * (index + 1) // count)


def checksum_of(path: Path) -> int:
    """CRC-32 of a whole file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_CRC_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc
