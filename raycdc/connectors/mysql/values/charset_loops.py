"""Compiled loops that convert a column of text from any of the server's character sets to UTF-8.

`family` is the way in which bytes form characters. `table` is the index in `points` at which the set's code points
begin (`charsets.code_points`); entries below 0 are no characters. A code that has the form of a character, but is none,
becomes one U+FFFD, as the server makes one question mark of it. The second byte of such a code never counts as a
separate character. Any other byte that is no character becomes U+FFFD by itself.

Forms of the sets: MySQL manual, "Supported Character Sets and Collations".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import (
    COLUMN_DONE,
    COLUMN_FULL,
    COLUMN_KEY,
    FAILED_ROW,
    big_endian,
    has_room,
)
from raycdc.core.compiled import copy, helper, inlined, load
from raycdc.core.loops.utf8_loops import HIGH_BITS, put_character

FAMILY_UTF8 = 0  # the bytes are UTF-8 already (checked per batch)
FAMILY_SINGLE = 1  # 256 code points
FAMILY_DOUBLE = 2  # 256 code points, LEAD for lead bytes, then 65536 for both bytes
FAMILY_EUC3 = 3  # as DOUBLE, and 65536 for the two bytes after 0x8F
FAMILY_GB18030 = 4  # as DOUBLE, and a row of code points for four bytes
FAMILY_UTF16 = 5  # most significant byte first, with surrogates (also ucs2)
FAMILY_UTF16LE = 6
FAMILY_UTF32 = 7

#: The entry of a byte that begins a character of several bytes.
LEAD = -2
NO_CHARACTER = -1
#: The entry of a code of several bytes that has the form of a character, so that the server stores it, but is none.
UNASSIGNED = -3
#: The entry of a code whose character also has another code (`charsets.distinct_points`).
SECOND_CODE = -4

#: The limits of four-byte codes of gb18030: codes below the first are in the table, and codes from the second on are
#: U+10000 and up.
GB18030_TABLE = 39420
GB18030_PLANES = 189000

_REPLACEMENT = 0xFFFD


@inlined
def _two_bytes(data: Any, a: Any, points: Any, table: Any) -> Any:
    return np.int64(points[table + 256 + (np.int64(data[a]) << 8) + np.int64(data[a + 1])])


@inlined
def _unit(data: Any, a: Any, family: Any) -> Any:
    if family == FAMILY_UTF16LE:
        return load(data, a, 16)
    return (np.int64(data[a]) << 8) | np.int64(data[a + 1])


@inlined
def _unicode_point(data: Any, a: Any, end: Any, family: Any) -> Any:
    """Return (code point or NO_CHARACTER, its bytes) in UTF-16 or UTF-32."""
    if family == FAMILY_UTF32:
        if a + 4 > end:
            return np.int64(NO_CHARACTER), end - a
        point = big_endian(data, a, 4)
        if point > 0x10FFFF or 0xD800 <= point < 0xE000:
            point = np.int64(NO_CHARACTER)
        return point, np.int64(4)
    if a + 2 > end:
        return np.int64(NO_CHARACTER), end - a
    unit = _unit(data, a, family)
    if unit < 0xD800 or unit >= 0xE000:
        return unit, np.int64(2)
    if unit < 0xDC00 and a + 4 <= end:
        low = _unit(data, a + 2, family)
        if 0xDC00 <= low < 0xE000:
            return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), np.int64(4)
    return np.int64(NO_CHARACTER), np.int64(2)


@inlined
def _point(data: Any, a: Any, end: Any, family: Any, points: Any, table: Any) -> Any:
    """Return (code point or NO_CHARACTER, its bytes) in a set with code tables."""
    first = np.int64(points[table + np.int64(data[a])])
    if first != LEAD:
        return first, np.int64(1)
    byte = np.int64(data[a])
    if family == FAMILY_EUC3 and byte == 0x8F:
        if a + 3 > end:
            return np.int64(NO_CHARACTER), np.int64(1)
        point = np.int64(points[table + 65792 + (np.int64(data[a + 1]) << 8) + np.int64(data[a + 2])])
        return point, np.int64(1 if point == NO_CHARACTER else 3)
    if a + 2 > end:
        return np.int64(NO_CHARACTER), np.int64(1)
    second = np.int64(data[a + 1])
    if family == FAMILY_GB18030 and 0x30 <= second <= 0x39:
        if a + 4 > end:
            return np.int64(NO_CHARACTER), np.int64(1)
        third, fourth = np.int64(data[a + 2]), np.int64(data[a + 3])
        if not (0x81 <= third <= 0xFE and 0x30 <= fourth <= 0x39):
            return np.int64(NO_CHARACTER), np.int64(1)
        number = (((byte - 0x81) * 10 + second - 0x30) * 126 + third - 0x81) * 10 + fourth - 0x30
        point = np.int64(UNASSIGNED)
        if number < GB18030_TABLE:
            point = np.int64(points[table + 65792 + number])
        elif GB18030_PLANES <= number < GB18030_PLANES + 0x100000:
            point = number - GB18030_PLANES + 0x10000
        return point, np.int64(4)
    point = _two_bytes(data, a, points, table)
    return point, np.int64(1 if point == NO_CHARACTER else 2)


@inlined
def converted(data: Any, a: Any, end: Any, family: Any, points: Any, table: Any, vdata: Any, out: Any) -> Any:
    """Write the characters of ``data[a:end]``. Returns (end of the text, number of bytes that were no characters)."""
    lost = np.int64(0)
    # Only the table of swe7 has a different lower half, in which these two codes are letters.
    ascii_half = family <= FAMILY_GB18030 and points[table + 92] == 92 and points[table + 126] == 126
    while a < end:
        if ascii_half and a + 8 <= end:
            word = load(data, a, 64)
            if word & HIGH_BITS == 0:
                copy(data, a, vdata, out, 8)
                a += 8
                out += 8
                continue
        if family >= FAMILY_UTF16:
            point, taken = _unicode_point(data, a, end, family)
        else:
            point, taken = _point(data, a, end, family, points, table)
        if point < 0:
            lost += 1
            point = np.int64(_REPLACEMENT)
        out = put_character(point, vdata, out)
        a += taken
    return out, lost


@helper
def put_converted(
    data: Any, at: Any, size: Any, count: Any, family: Any, points: Any, table: Any, exact: Any, slot: Any, first: Any,
    column: Any, losses: Any, voff: Any, vdata: Any, vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write text of another character set; a value with invalid bytes counts once in `losses`.

    If `exact` is set, invalid bytes are an error, because the column is in a key.
    """
    total = np.int64(0)
    for i in range(count):
        if at[i] >= 0:
            total += np.int64(size[i])
    start = np.int64(voff[slot, first])
    # A byte becomes at most three, and so do two bytes of UTF-16. A replacement character takes three.
    if not has_room(start, 3 * total, slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    for i in range(count):
        a = at[i]
        if a >= 0:
            out, lost = converted(data, a, a + np.int64(size[i]), family, points, table, vdata, out)
            if lost > 0 and exact == 1:
                counters[FAILED_ROW] = i
                return COLUMN_KEY
            if lost > 0:
                losses[column] += 1
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE
