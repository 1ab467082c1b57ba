"""Compiled loops over the bytes of a replication stream: removal of packet headers, and checksums of events.

`strip_packets` removes the headers, so that events lie one after the other. A packet is length(3) sequence(1) payload;
the first payload byte of an event is a status: 0 an event follows, 0xFF an error, 0xFE the end. A payload of 0xFFFFFF
bytes is continued in the next packet, which has no status byte (MySQL manual, "Protocol Basics", "Sending More Than
16Mb").

`crc32` computes the CRC-32 of binlog events, eight bytes at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import copy, helper, load, njit


def crc_tables() -> Any:
    """Return the tables of CRC-32 (IEEE 802.3) for eight bytes at a time (Intel, "slicing-by-8")."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0xEDB88320 if value & 1 else value >> 1
        tables[0, byte] = value
    for byte in range(256):
        for k in range(1, 8):
            before = int(tables[k - 1, byte])
            tables[k, byte] = (before >> 8) ^ int(tables[0, before & 0xFF])
    return tables


_CRC = crc_tables()


@helper
def crc32(data: Any, at: Any, end: Any) -> Any:
    """Return the CRC-32 of ``data[at:end]``, equal to zlib's."""
    value = np.uint32(0xFFFFFFFF)
    while at + 8 <= end:
        word = load(data, at, 64)
        low = np.uint32(word) ^ value
        high = np.uint32(word >> 32)
        value = (
            _CRC[7, low & np.uint32(0xFF)]
            ^ _CRC[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _CRC[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _CRC[4, low >> np.uint32(24)]
            ^ _CRC[3, high & np.uint32(0xFF)]
            ^ _CRC[2, (high >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _CRC[1, (high >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _CRC[0, high >> np.uint32(24)]
        )
        at += 8
    while at < end:
        value = (value >> np.uint32(8)) ^ _CRC[0, (value ^ data[at]) & np.uint32(0xFF)]
        at += 1
    return value ^ np.uint32(0xFFFFFFFF)


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
