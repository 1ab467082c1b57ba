"""A segment's file on this machine: mapped, counted off in batches, and checked."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from raycdc.errors import StateError

_CRC_BLOCK_BYTES = 1 << 20


def mapped_reader(path: Path, expected_bytes: int) -> Any:
    """An open Arrow file reader over a mapped file. `StateError` when it is missing or not `expected_bytes` long."""
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
