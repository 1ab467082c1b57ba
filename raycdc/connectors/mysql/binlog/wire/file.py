"""Reads binlog files on disk: maps them into memory, and cuts them into pieces of complete events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.events import FormatDescription, parse_format_description
from raycdc.connectors.mysql.binlog.index_loops import FORMAT_DESCRIPTION, HEADER_BYTES, complete_events
from raycdc.errors import ConfigError, CorruptLogError

MAGIC = b"\xfebin"
#: The bytes of a piece, which is decoded at once. A larger event is a separate piece.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BinlogFile:
    """A binlog file. `data` is a read-only map of it; events begin at byte 4."""

    name: str
    data: npt.NDArray[np.uint8]
    format: FormatDescription

    @classmethod
    def open(cls, path: Path) -> BinlogFile:
        """Map the file and read its format. Raises `ConfigError` (no such file) and `CorruptLogError`."""
        try:
            size = path.stat().st_size
            data = np.asarray(np.memmap(path, np.uint8, mode="r")) if size else np.zeros(0, np.uint8)
        except OSError as cause:
            raise ConfigError(f"{path} cannot be read: {cause.strerror}") from cause
        if data[:4].tobytes() != MAGIC:
            raise CorruptLogError(f"{path.name}:0: this is not a binlog file, or it is encrypted")
        head = data[4 : 4 + HEADER_BYTES].tobytes()
        length = int.from_bytes(head[9:13], "little")
        if len(head) < HEADER_BYTES or head[4] != FORMAT_DESCRIPTION or length > 4096 or 4 + length > len(data):
            raise CorruptLogError(f"{path.name}:4: the FORMAT_DESCRIPTION event is missing or damaged")
        try:
            found = parse_format_description(data[4 : 4 + length].tobytes())
        except CorruptLogError as cause:
            raise CorruptLogError(f"{path.name}:4: {cause}") from cause
        return cls(path.name, data, found)

    @property
    def is_mariadb(self) -> bool:
        """Return True if MariaDB wrote the file."""
        return "MariaDB" in self.format.server_version

    @property
    def json_point_zero(self) -> bool:
        """Return `LogKind.json_point_zero` of the server that wrote the file."""
        return not self.format.server_version.startswith("5.")

    def pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield complete events, several megabytes at a time.

        Raises `CorruptLogError` at the end if the file ends in an event.
        """
        at, size = 4, len(self.data)
        while at < size:
            end = min(at + PIECE_BYTES, size)
            stop, length = complete_events(self.data, at, end)
            if stop == at and length > 0 and at + length <= size:
                stop = at + length
            if stop == at:
                what = "the file ends inside an event" if length >= 0 else "an event's length is impossible"
                raise CorruptLogError(f"{self.name}:{at}: {what}")
            yield self.data[at:stop]
            at = stop
