"""Compiled removal of the MySQL packet headers from a replication stream, so that events lie one after the other.

A packet is length(3) sequence(1) payload; the first payload byte of an event is a status: 0 an event follows, 0xFF an
error, 0xFE the end. A payload of 0xFFFFFF bytes is continued in the next packet, which has no status byte (MySQL
manual, "Protocol Basics", "Sending More Than 16Mb").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import copy, njit

# Indices into the state vector.
P_LEFT = 0  # bytes of the current packet's payload not seen yet
P_MORE = 1  # 1: the current packet is continued by the next one
P_OUT = 2  # bytes written to `out`
P_COMPLETE = 3  # of those, bytes of complete events
P_STATUS = 4  # status byte of the packet that stopped the loop
P_SIZE = 8

PACKETS_ALL = 0  # all input is consumed, except a header that is not complete
PACKETS_ROOM = 1  # `out` is full
PACKETS_STATUS = 2  # a packet that is no event begins at the returned offset

_PACKET_MAX = 0xFFFFFF


@njit
def strip_packets(raw: Any, at: Any, end: Any, out: Any, state: Any) -> Any:
    """Copy event bytes from ``raw[at:end]`` to `out`; returns (PACKETS_…, offset of the first byte not consumed)."""
    left = state[P_LEFT]
    to = state[P_OUT]
    while True:
        if left > 0:
            count = min(left, end - at)
            count = min(count, len(out) - to)
            copy(raw, at, out, to, count)
            at += count
            to += count
            left -= count
            if left > 0:
                state[P_LEFT] = left
                state[P_OUT] = to
                return (PACKETS_ALL if at == end else PACKETS_ROOM), at
            if state[P_MORE] == 0:
                state[P_COMPLETE] = to
        head = 4 if state[P_MORE] == 1 else 5
        if at + head > end:
            state[P_LEFT] = 0
            state[P_OUT] = to
            # An empty continuation packet has a header of four bytes only, which the test above covers.
            return PACKETS_ALL, at
        length = np.int64(raw[at]) | (np.int64(raw[at + 1]) << 8) | (np.int64(raw[at + 2]) << 16)
        if head == 5:
            if raw[at + 4] != 0 or length == 0:
                state[P_STATUS] = raw[at + 4]
                state[P_LEFT] = 0
                state[P_OUT] = to
                return PACKETS_STATUS, at
            left = length - 1
        else:
            left = length
        state[P_MORE] = 1 if length == _PACKET_MAX else 0
        at += head
        if left == 0 and state[P_MORE] == 0:
            state[P_COMPLETE] = to
