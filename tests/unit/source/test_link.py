"""A link delivers each message once and in order, whatever the network does, and refuses replaced peers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.errors import FencedError, ProtocolError
from raycdc.source.protocol import link as link_module
from raycdc.source.protocol.link import Link, SenderIdentity, read_packet
from raycdc.source.protocol.source_event import Message, NoMoreSplits, RequestSplit, SealEpoch, pack

ME = SenderIdentity(3, 7)


def exchange(sender: Link, receiver: Link) -> list[Message]:
    return receiver.receive(read_packet(sender.packet()))


@given(st.randoms(use_true_random=False), st.integers(1, 20))
def test_messages_arrive_once_and_in_order_over_a_network_that_loses_repeats_and_reorders(
    chance: random.Random, count: int
) -> None:
    left, right = Link(ME), Link(ME)
    ways: list[tuple[Link, bytes]] = []
    got: list[Message] = []
    sent = 0
    while left.has_unacknowledged or sent < count:
        if sent < count and chance.random() < 0.5:
            sent += 1
            left.send(SealEpoch(sent))
        for sender, receiver in ((left, right), (right, left)):
            if chance.random() < 0.7:
                ways.extend([(receiver, sender.packet())] * chance.choice([1, 1, 2]))
        while ways and chance.random() < 0.6:
            receiver, data = ways.pop(chance.randrange(len(ways)))
            messages = receiver.receive(read_packet(data))
            assert receiver is right or not messages
            got.extend(messages)
    assert got == [SealEpoch(n) for n in range(1, count + 1)]


def test_a_message_is_sent_again_until_it_is_acknowledged() -> None:
    left, right = Link(ME), Link(ME)
    left.send(RequestSplit())
    left.packet()
    assert exchange(left, right) == [RequestSplit()]
    assert exchange(left, right) == []
    assert left.has_unacknowledged
    assert exchange(right, left) == []
    assert not left.has_unacknowledged


@pytest.mark.parametrize(
    "other", [SenderIdentity(3, 6), SenderIdentity(2, 9), SenderIdentity(3, 8), SenderIdentity(4, 1)]
)
def test_a_packet_of_another_incarnation_or_generation_is_refused_and_changes_nothing(other: SenderIdentity) -> None:
    stale, current = Link(other), Link(ME)
    stale.send(NoMoreSplits())
    with pytest.raises(FencedError, match="was replaced"):
        exchange(stale, current)
    peer = Link(ME)
    peer.send(RequestSplit())
    assert exchange(peer, current) == [RequestSplit()]


def test_another_protocol_version_is_named() -> None:
    with pytest.raises(ProtocolError, match="protocol version 99"):
        read_packet(pack([99, 1, 1, 0, []]))


@pytest.mark.parametrize("data", [b"\xc1", pack([1, 2]), pack("hello")])
def test_a_malformed_packet_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_packet(data)


def test_a_peer_that_never_acknowledges_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "UNACKNOWLEDGED_MAX", 2)
    link = Link(ME)
    link.send(RequestSplit())
    link.send(RequestSplit())
    with pytest.raises(ProtocolError, match="2 messages wait"):
        link.send(RequestSplit())
