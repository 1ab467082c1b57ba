"""Compiled loops that write one column of dates and times, from the log or a result set, into its buffer in the arena.

``at`` and ``first`` are as in `number_loops`. A zero, partial or impossible date (``0000-00-00``, ``2024-00-10``,
``2024-02-31``) is not in any calendar: by the column's policy it becomes null and is counted in `losses`, or the batch
is refused, or (`put_date_texts`) all values of the column are text as the server prints them.

Value formats: MySQL internals manual, "Date and Time Data Type Representation", and for result sets "Binary Protocol
Value".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import (
    COLUMN_DATE,
    COLUMN_DONE,
    COLUMN_FULL,
    FAILED_ROW,
    big_endian,
    has_room,
    little_endian,
    little_endian_signed,
    put_null,
)
from raycdc.core.compiled import helper, inlined, load
from raycdc.core.loops.calendar_loops import NO_DATE, civil_date, date_days
from raycdc.core.loops.number_loops import number_text

# The formats of a date or time in log and result sets.
FORM_DATE = 0  # row events: three bytes
FORM_DATETIME2 = 1  # five bytes and the fraction
FORM_DATETIME = 2  # before MySQL 5.6: yyyymmddhhmmss as a number
FORM_TIMESTAMP2 = 3  # seconds, most significant byte first, and the fraction
FORM_TIMESTAMP = 4  # before MySQL 5.6
FORM_SENT = 5  # result sets: parts; trailing zero parts are left out
FORM_OLD_FRACTION = 6  # MariaDB 5.3, with a fraction: one number in units of its last digit, most significant first
# MariaDB 5.3, a TIMESTAMP with a fraction: seconds, then the fraction in units of its last digit
FORM_OLD_TIMESTAMP = 7

# The policies for an invalid date.
DATES_NULL = 0
DATES_ERROR = 1

#: The microseconds per unit of a fraction of 0 to 3 bytes.
_FRACTION = np.array([0, 10000, 100, 1], dtype=np.int64)
#: The microseconds per unit of the last digit, by the number of digits.
_UNIT = np.array([1000000, 100000, 10000, 1000, 100, 10, 1], dtype=np.int64)
#: The bytes of MariaDB's older TIME and DATETIME by their digits (``Field_time_hires``, ``Field_datetime_hires``).
OLD_TIME_BYTES = (3, 4, 4, 5, 5, 5, 6)
OLD_DATETIME_BYTES = (8, 6, 6, 7, 7, 7, 8)
#: The zero point of MariaDB's older TIME: one second more than the longest time (838:59:59).
_OLD_ZERO_S = 3020400
_TEXT_MAX = 28


@inlined
def fraction(data: Any, at: Any, fsp: Any) -> Any:
    """Return the microseconds of a fraction with `fsp` digits."""
    width = (fsp + 1) >> 1
    if width == 0:
        return np.int64(0)
    return big_endian(data, at, width) * _FRACTION[width]


@inlined
def _parts(data: Any, at: Any, size: Any, form: Any, fsp: Any) -> Any:
    """Return (year, month, day, seconds of the day, microseconds) of a date, which may not exist in the calendar.

    Only for formats that are no instants.
    """
    micros = np.int64(0)
    if form == FORM_DATETIME2:
        packed = big_endian(data, at, 5) - 0x8000000000
        month = packed >> 22
        seconds = ((packed >> 12) & 31) * 3600 + ((packed >> 6) & 63) * 60 + (packed & 63)
        if fsp > 0:
            micros = fraction(data, at + 5, fsp)
        if month < 0:
            return np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        year = np.int64(np.uint64(month) // np.uint64(13))
        return year, month - 13 * year, (packed >> 17) & 31, seconds, micros
    if form == FORM_DATE:
        packed = little_endian(data, at, 3)
        return packed >> 9, (packed >> 5) & 15, packed & 31, np.int64(0), np.int64(0)
    if form == FORM_OLD_FRACTION:
        width = 6 if fsp < 3 else (7 if fsp < 6 else 8)
        packed = big_endian(data, at, width) * _UNIT[fsp]
        micros = packed % 1000000
        packed //= 1000000
        seconds = packed % 86400
        packed //= 86400
        return packed // 416, packed // 32 % 13, packed % 32, seconds, micros
    if form == FORM_DATETIME:
        packed = load(data, at, 64)
        date = packed // 1000000
        clock = packed % 1000000
        seconds = clock // 10000 * 3600 + clock // 100 % 100 * 60 + clock % 100
        return date // 10000, date // 100 % 100, date % 100, seconds, np.int64(0)
    if size < 4:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    seconds = np.int64(0)
    if size >= 7:
        seconds = np.int64(data[at + 4]) * 3600 + np.int64(data[at + 5]) * 60 + np.int64(data[at + 6])
    if size >= 11:
        micros = load(data, at + 7, 32)
    return load(data, at, 16), np.int64(data[at + 2]), np.int64(data[at + 3]), seconds, micros


@helper
def put_dates(
    data: Any, at: Any, size: Any, count: Any, form: Any, policy: Any, i32: Any, start: Any, first: Any, column: Any,
    valid: Any, has_null: Any, losses: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write DATE as days since 1970-01-01."""
    for i in range(count):
        days = np.int64(0)
        if at[i] >= 0:
            year, month, day, _, _ = _parts(data, at[i], size[i], form, 0)
            days = date_days(year, month, day)
            if days == NO_DATE:
                if policy == DATES_ERROR:
                    counters[FAILED_ROW] = i
                    return COLUMN_DATE
                days = np.int64(0)
                losses[column] += 1
                put_null(first + i, column, valid, has_null)
        i32[start + i] = np.int32(days)
    return COLUMN_DONE


@helper
def put_moments(
    data: Any, at: Any, size: Any, count: Any, form: Any, fsp: Any, policy: Any, i64: Any, start: Any, first: Any,
    column: Any, valid: Any, has_null: Any, losses: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write DATETIME, and TIMESTAMP of a result set (whose session is in UTC), as microseconds since 1970."""
    for i in range(count):
        value = np.int64(0)
        if at[i] >= 0:
            year, month, day, seconds, micros = _parts(data, at[i], size[i], form, fsp)
            days = date_days(year, month, day)
            if days == NO_DATE:
                if policy == DATES_ERROR:
                    counters[FAILED_ROW] = i
                    return COLUMN_DATE
                losses[column] += 1
                put_null(first + i, column, valid, has_null)
            else:
                value = (days * 86400 + seconds) * 1000000 + micros
        i64[start + i] = value
    return COLUMN_DONE


@inlined
def _instant(data: Any, at: Any, form: Any, fsp: Any) -> Any:
    """Return (seconds since 1970, microseconds) of a TIMESTAMP in a row event."""
    if form == FORM_TIMESTAMP:
        return load(data, at, 32), np.int64(0)
    if form == FORM_OLD_TIMESTAMP:
        micros = big_endian(data, at + 4, (fsp + 1) >> 1) * _UNIT[fsp] % 1000000
        return big_endian(data, at, 4), micros
    return big_endian(data, at, 4), fraction(data, at + 4, fsp)


@helper
def put_instants(
    data: Any, at: Any, count: Any, form: Any, fsp: Any, policy: Any, i64: Any, start: Any, first: Any, column: Any,
    valid: Any, has_null: Any, losses: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write TIMESTAMP of a row event as microseconds since 1970. The number 0 is the zero date."""
    for i in range(count):
        value = np.int64(0)
        if at[i] >= 0:
            seconds, micros = _instant(data, at[i], form, fsp)
            value = seconds * 1000000 + micros
            if value == 0:
                if policy == DATES_ERROR:
                    counters[FAILED_ROW] = i
                    return COLUMN_DATE
                losses[column] += 1
                put_null(first + i, column, valid, has_null)
        i64[start + i] = value
    return COLUMN_DONE


@inlined
def _put_clock(vdata: Any, out: Any, hours: Any, seconds: Any, micros: Any, fsp: Any) -> Any:
    """Write ``hh:mm:ss`` and `fsp` digits of the fraction. `seconds` are those since the start of the hour."""
    out = number_text(hours, 2, vdata, out)
    vdata[out] = 58
    out = number_text(seconds // 60, 2, vdata, out + 1)
    vdata[out] = 58
    out = number_text(seconds % 60, 2, vdata, out + 1)
    if fsp > 0:
        vdata[out] = 46
        for _ in range(6 - fsp):
            micros //= 10
        out = number_text(micros, fsp, vdata, out + 1)
    return out


@helper
def put_date_texts(
    data: Any, at: Any, size: Any, count: Any, form: Any, fsp: Any, with_clock: Any, slot: Any, first: Any, voff: Any,
    vdata: Any, vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write DATE, DATETIME and TIMESTAMP (in UTC) as the server prints them, zero and partial dates included."""
    start = np.int64(voff[slot, first])
    if not has_room(start, count * _TEXT_MAX, slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    for i in range(count):
        if at[i] >= 0:
            if form == FORM_TIMESTAMP or form == FORM_TIMESTAMP2 or form == FORM_OLD_TIMESTAMP:
                instant, micros = _instant(data, at[i], form, fsp)
                seconds = instant % 86400
                year, month, day = np.int64(0), np.int64(0), np.int64(0)
                if instant != 0 or micros != 0:
                    year, month, day = civil_date(instant // 86400)
            else:
                year, month, day, seconds, micros = _parts(data, at[i], size[i], form, fsp)
            out = number_text(year % 10000, 4, vdata, out)
            vdata[out] = 45
            out = number_text(month % 100, 2, vdata, out + 1)
            vdata[out] = 45
            out = number_text(day % 100, 2, vdata, out + 1)
            if with_clock:
                vdata[out] = 32
                out = _put_clock(vdata, out + 1, seconds // 3600 % 100, seconds % 3600, micros % 1000000, fsp)
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE


@helper
def put_times(
    data: Any, at: Any, size: Any, count: Any, form: Any, fsp: Any, slot: Any, first: Any, voff: Any, vdata: Any,
    vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write TIME as the server prints it: sign, at least two digits of hours, `fsp` digits of the fraction.

    `form` is FORM_DATETIME2 for the format with a fraction, FORM_DATETIME for the format before MySQL 5.6,
    FORM_OLD_FRACTION for the format of MariaDB 5.3, or FORM_SENT for result sets.
    """
    start = np.int64(voff[slot, first])
    if not has_room(start, count * _TEXT_MAX, slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    for i in range(count):
        a = at[i]
        if a >= 0:
            negative = False
            hours, minutes, seconds, micros = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            if form == FORM_SENT:
                if size[i] >= 8:
                    negative = data[a] != 0
                    hours = load(data, a + 1, 32) * 24 + np.int64(data[a + 5])
                    minutes = np.int64(data[a + 6])
                    seconds = np.int64(data[a + 7])
                if size[i] >= 12:
                    micros = load(data, a + 8, 32)
            elif form == FORM_OLD_FRACTION:
                width = 4 if fsp < 3 else (5 if fsp < 6 else 6)
                micros = big_endian(data, a, width) * _UNIT[fsp] - _OLD_ZERO_S * 1000000
                negative = micros < 0
                micros = abs(micros)
                seconds = micros // 1000000
                micros %= 1000000
                hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
            elif form == FORM_DATETIME:
                clock = little_endian_signed(data, a, 3)
                negative = clock < 0
                clock = abs(clock)
                hours, minutes, seconds = clock // 10000, clock // 100 % 100, clock % 100
            else:
                # The whole seconds and the fraction are one two's complement number, shifted to be unsigned.
                width = (fsp + 1) >> 1
                bits = big_endian(data, a, 3 + width) - (np.int64(0x800000) << (8 * width))
                negative = bits < 0
                magnitude = -bits if negative else bits
                micros = (magnitude & ((np.int64(1) << (8 * width)) - 1)) * _FRACTION[width]
                whole = magnitude >> (8 * width)
                hours, minutes, seconds = (whole >> 12) & 1023, (whole >> 6) & 63, whole & 63
            if negative:
                vdata[out] = 45
                out += 1
            # The limits are for damaged values, because the text must fit _TEXT_MAX.
            seconds += minutes * 60
            out = _put_clock(vdata, out, hours % 100000000, seconds % 6000, micros % 1000000, fsp)
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE
