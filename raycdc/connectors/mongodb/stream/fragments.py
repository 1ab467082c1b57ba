"""Events that came in parts, as ``$changeStreamSplitLargeEvent`` makes them of those too large for one answer."""

from __future__ import annotations

from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.stream.events import joined
from raycdc.errors import DataError


class Fragments:
    """Parts of an event whose rest is to come. One thread."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def forget(self) -> None:
        """They come again."""
        self._parts = []

    def whole(self, data: bytes) -> bytes:
        """`data` with events that came in parts put together; parts whose rest is to come wait."""
        if not self._parts and b"splitEvent\0" not in data:
            return data
        whole: list[bytes] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            number, of = _number(data[at : at + size])
            if of == 0:
                whole.append(data[at : at + size])
            else:
                if number != len(self._parts) + 1:
                    raise DataError(f"Part {number} of {of} of an event follows part {len(self._parts)}.")
                self._parts.append(data[at : at + size])
                if number == of:
                    whole.append(joined(self._parts))
                    self._parts = []
            at += max(size, 5)
        return b"".join(whole)


def _number(event: bytes) -> tuple[int, int]:
    """Which part of how many an event is; (0, 0) for a whole one."""
    split = RawBSONDocument(event).get("splitEvent")
    return (0, 0) if split is None else (int(split["fragment"]), int(split["of"]))
