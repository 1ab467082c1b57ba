"""One end of the connection between the coordinator and one reader incarnation. It numbers and acknowledges messages,
and fences replaced processes.

Theory of operation. The transport may lose, repeat and reorder packets. Either end may be a process that was replaced
while it was suspended. Every packet carries the sender's (generation of the pipeline, reader incarnation), the highest
message number received so far, and all messages not yet acknowledged, numbered from 1. A receiver takes each message
once and in order, and drops repeated ones; so *delivery is at least once, handling exactly once per incarnation*. A
packet of an older generation or incarnation is refused with `FencedError`, so messages of a replaced process are never
handled.

| packet's (generation, incarnation) | coordinator | reader |
|---|---|---|
| equal to ours | take | take |
| older | refuse: sender is fenced | refuse: a late answer |
| newer | refuse: a bug unless registering (the coordinator opens a new link) | we are fenced |

Pure: no clock, no thread. The shell decides when to send `packet()` again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raycdc.errors import FencedError, ProtocolError
from raycdc.source.protocol.source_event import PROTOCOL_VERSION, Message, decode, encode, pack, unpack

#: If more messages than this are unacknowledged, the other end was lost or the sender has a bug.
UNACKNOWLEDGED_MAX = 100_000


@dataclass(frozen=True, slots=True, order=True)
class SenderIdentity:
    """The sender: generation of the pipeline (raised at every recovery) and incarnation of the reader."""

    generation: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet whose envelope is decoded; its messages are not decoded yet."""

    identity: SenderIdentity
    acknowledged: int
    messages: tuple[tuple[int, Any], ...]


def read_packet(data: bytes) -> Packet:
    """Decode and return a packet's envelope.

    Raises `ProtocolError` for another protocol version or a malformed envelope.
    """
    value = unpack(data)
    if not isinstance(value, list) or len(value) != 5:
        raise ProtocolError(f"A packet must have five parts, and is a {type(value).__name__}")
    version, generation, incarnation, acknowledged, messages = value
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"The peer speaks protocol version {version}, this side {PROTOCOL_VERSION}")
    return Packet(SenderIdentity(generation, incarnation), acknowledged, tuple(map(tuple, messages)))


class Link:
    """The state of one end of a link. Not thread-safe: one owner. `on_send` is called for each message to send."""

    def __init__(self, identity: SenderIdentity, *, on_send: Callable[[], None] = lambda: None) -> None:
        self.identity = identity
        self._on_send = on_send
        self._next = 1
        self._received = 0
        self._unacknowledged: deque[tuple[int, list[Any]]] = deque()

    def __repr__(self) -> str:
        return (
            f"Link({self.identity}, sent={self._next - 1}, received={self._received}, open={len(self._unacknowledged)})"
        )

    @property
    def has_unacknowledged(self) -> bool:
        return bool(self._unacknowledged)

    def send(self, message: Message) -> None:
        """Queue `message`. It is part of the next `packet()` and of every later one until it is acknowledged."""
        if len(self._unacknowledged) >= UNACKNOWLEDGED_MAX:
            raise ProtocolError(f"{len(self._unacknowledged)} messages wait for an acknowledgement on {self!r}")
        self._unacknowledged.append((self._next, encode(message)))
        self._next += 1
        self._on_send()

    def packet(self) -> bytes:
        """Return the bytes to send now: our acknowledgement and all unacknowledged messages, if any."""
        return pack(
            [
                PROTOCOL_VERSION,
                self.identity.generation,
                self.identity.incarnation,
                self._received,
                [[n, m] for n, m in self._unacknowledged],
            ]
        )

    def receive(self, packet: Packet) -> list[Message]:
        """Return the packet's messages that were not received before, in order.

        Raises `FencedError` if identities differ.
        """
        if packet.identity != self.identity:
            raise FencedError(
                f"A packet of {packet.identity} reached {self.identity}: one of the two was replaced. "
                "Nothing of the older one is accepted."
            )
        while self._unacknowledged and self._unacknowledged[0][0] <= packet.acknowledged:
            self._unacknowledged.popleft()
        fresh: list[Message] = []
        for number, message in packet.messages:
            if number == self._received + 1:
                fresh.append(decode(message))
                self._received = number
        return fresh
