"""Computes the CRC-32 of binlog events, compiled: eight bytes at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import helper, load


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
