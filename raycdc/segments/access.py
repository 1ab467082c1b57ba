"""Gives a process access to segments: it maps files on its own node, and requests those of other nodes from Arrow
Flight servers.

The launcher makes a `SegmentAccess` for every process that reads segments (the epoch loop, sinks and their tasks,
readers), and a `SpoolAddress` for every process that writes them.

The functions open, divide and check a segment's file on this machine.
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

#: The value of `SegmentAccess.node` for a process that may be on any machine.
ANYWHERE = "*"


class Copies(Protocol):
    """Takes a copy of each finished segment (`raycdc.segments.copies`)."""

    def put(self, path: Path) -> None:
        """Copy the file, and block until the copy is durable. Raises `SpoolError` if the file cannot be copied."""


@dataclass(frozen=True, slots=True)
class SpoolAddress:
    """The destination of new segments: a spool. `folder` is its folder on this machine, `node` is the name of its node,
    and `flight` is the node's Flight endpoint (empty: none). If `copies` is given, it gets a copy of each segment.
    """

    folder: Path
    node: str = STATE_NODE
    flight: str = ""
    copies: Copies | None = None


@dataclass(frozen=True, slots=True)
class SegmentAccess:
    """The node of a process (default: the one with the state), and the means to read segments of other nodes.

    `token` is the token that Flight servers require; `repr` does not show it. `authority` is the certificate by which
    clients verify servers on other machines (`raycdc.segments.certificates`). `flights` maps the names of the other
    nodes that are reachable now to the endpoints of their spools. Only the driver knows them and writes them into
    descriptors (`located`).

    A task that Spark runs on any machine does not know its node (`ANYWHERE`). It maps a file if one exists under the
    segment's path with the segment's exact size; because no two segments share a name, that file is the segment.
    """

    node: str = STATE_NODE
    token: str = field(default="", repr=False)
    authority: bytes = field(default=b"", repr=False)
    flights: Mapping[str, str] = field(default_factory=dict)

    def as_of(self, flights: Mapping[str, str]) -> SegmentAccess:
        """Return a copy with the endpoints `flights` of other nodes."""
        return replace(self, flights=flights)

    def is_own(self, segment: Segment) -> bool:
        """Return True if the segment is in the spool of this process's node; always False with `ANYWHERE`."""
        return segment.node == self.node

    def located(self, segments: Iterable[Segment]) -> tuple[Segment, ...]:
        """Return the segments, each with the present endpoint of its node (empty if the node is unreachable)."""
        return tuple(replace(segment, flight=self.flights.get(segment.node, "")) for segment in segments)


#: The access of a process on the node with the state that needs no other node.
HERE = SegmentAccess()


_CRC_BLOCK_BYTES = 1 << 20


def mapped_reader(path: Path, expected_bytes: int) -> Any:
    """Map a file, and return an open Arrow file reader over it.

    Raises `StateError` if it is missing, damaged, or not `expected_bytes` long.
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
    """Return the indexes of the batches in the i-th of n runs of successive batches, where `part` is (i, n). The n runs
    together contain each batch once.
    """
    index, count = part
    assert 0 <= index < count, part
    return range(batches * index // count, batches * (index + 1) // count)


def checksum_of(path: Path) -> int:
    """Return the CRC-32 of a whole file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_CRC_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc
