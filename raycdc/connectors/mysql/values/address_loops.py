"""Writes MariaDB's UUID, INET4 and INET6 as the server prints them, compiled.

The log holds their bytes in the order of the text, without trailing zero bytes (MariaDB, sql/sql_type_fixedbin.h).
INET6 is as the server prints it: the first longest run of zero groups becomes ``::``, even of one (RFC 5952 asks for
two), and an address that embeds an IPv4 address shows it with dots (sql/sql_type_inet.cc, ``Inet6::to_string``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import write_number
from raycdc.core.compiled import helper, inlined

ADDRESS_UUID = 0
ADDRESS_INET4 = 1
ADDRESS_INET6 = 2

ADDRESS_TEXT_MAX = 48

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()


@inlined
def _byte(data: Any, at: Any, size: Any, index: Any) -> Any:
    return np.int64(data[at + index]) if index < size else np.int64(0)


@helper
def _dotted(data: Any, at: Any, size: Any, index: Any, out: Any, to: Any) -> Any:
    for i in range(4):
        if i > 0:
            out[to] = 46
            to += 1
        to = write_number(out, to, _byte(data, at, size, index + i), 1)
    return to


@inlined
def _group(data: Any, at: Any, size: Any, group: Any) -> Any:
    return (_byte(data, at, size, 2 * group) << 8) | _byte(data, at, size, 2 * group + 1)


@helper
def _inet6(data: Any, at: Any, size: Any, out: Any, to: Any) -> Any:
    best, best_length = np.int64(-1), np.int64(0)
    run = np.int64(0)
    for index in range(8):
        run = run + 1 if _group(data, at, size, index) == 0 else np.int64(0)
        if run > best_length:
            best, best_length = index - run + 1, run
    group: Any = np.int64(0)
    while group < 8:
        if group == best:
            out[to] = 58
            out[to + 1] = 58
            to += 2
            group += best_length
            continue
        # ::1.2.3.4 and ::ffff:1.2.3.4 have an IPv4 part, unless the address is too small for one.
        embeds = (group == 6 and best_length == 6) or (
            group == 6 and best_length == 5 and _group(data, at, size, 5) == 0xFFFF
        )
        if embeds and best == 0:
            return _dotted(data, at, size, 12, out, to)
        value = _group(data, at, size, group)
        shift = 12
        while shift > 0 and (value >> shift) == 0:
            shift -= 4
        while shift >= 0:
            out[to] = _HEX[(value >> shift) & 15]
            to += 1
            shift -= 4
        group += 1
        if group < 8 and group != best:
            out[to] = 58
            to += 1
    return to


@helper
def address_text(data: Any, at: Any, size: Any, form: Any, out: Any, to: Any) -> Any:
    """Write the address of `size` bytes at `at` into ``out[to:]`` (room for ADDRESS_TEXT_MAX); returns the end."""
    if form == ADDRESS_INET4:
        return _dotted(data, at, size, 0, out, to)
    if form == ADDRESS_INET6:
        return _inet6(data, at, size, out, to)
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[to] = 45
            to += 1
        byte = _byte(data, at, size, i)
        out[to] = _HEX[byte >> 4]
        out[to + 1] = _HEX[byte & 15]
        to += 2
    return to
