"""Bytes of a replication stream in, complete events out: the memory between the socket and the decoder.

The socket receives into `free`; `received` strips the packets' headers (`packet_loops`), so that events lie one after
the other; `take` hands out those that are complete. One thread.
"""

from __future__ import annotations

import numpy as np

from raycdc.connectors.mysql.binlog import packet_loops as packets
from raycdc.errors import CorruptLogError

#: Bytes asked of the socket at a time: a system call per megabyte is nothing, and the buffer stays in the cache.
_RECEIVE_BYTES = 1 << 20
#: No event is larger: a server's ``max_allowed_packet`` is 1 GiB at most.
EVENT_BYTES_MAX = 1 << 30


class EventBuffer:
    """See the module's docstring. It grows to the largest event, and keeps its size."""

    def __init__(self) -> None:
        self._raw = np.empty(_RECEIVE_BYTES, np.uint8)
        self._raw_used = 0
        self._out = np.empty(2 * _RECEIVE_BYTES, np.uint8)
        self._state = np.zeros(packets.P_SIZE, np.int64)
        self._given = 0

    @property
    def free(self) -> memoryview:
        """The memory that the socket receives into."""
        return self._raw.data[self._raw_used :]

    @property
    def complete(self) -> int:
        """Bytes of complete events."""
        return int(self._state[packets.P_COMPLETE])

    def take(self) -> memoryview:
        """The complete events; valid until `drop_taken`."""
        self._given = self.complete
        return self._out.data[: self._given]

    def drop_taken(self) -> None:
        """Move the incomplete event to the front; its beginning is all that is left of the last `take`."""
        state = self._state
        if self._given:
            rest = int(state[packets.P_OUT]) - self._given
            self._out[:rest] = self._out[self._given : self._given + rest]
            state[packets.P_OUT] = rest
            state[packets.P_COMPLETE] = 0
            self._given = 0

    def received(self, count: int) -> bytes | None:
        """`count` bytes came into `free`. Returns the packet by which the server ends the stream, once it is whole."""
        self._raw_used += count
        at, last = 0, None
        while True:
            code, at = packets.strip_packets(self._raw, at, self._raw_used, self._out, self._state)
            if code != packets.PACKETS_ROOM:
                break
            if len(self._out) > EVENT_BYTES_MAX:
                raise CorruptLogError(f"an event of the log is larger than {EVENT_BYTES_MAX} bytes")
            self._out = np.concatenate([self._out, np.empty_like(self._out)])
        if code == packets.PACKETS_STATUS:
            packet = self._raw[at : self._raw_used].tobytes()
            if len(packet) >= 4 + int.from_bytes(packet[:3], "little"):
                last = packet
        rest = self._raw_used - at
        self._raw[:rest] = self._raw[at : self._raw_used].copy()
        self._raw_used = rest
        return last
