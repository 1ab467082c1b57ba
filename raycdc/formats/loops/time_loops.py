"""Converts texts and numbers of dates and times to microseconds and days, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.loops.calendar_loops import NO_DATE, date_days
from raycdc.core.loops.compiling import helper
from raycdc.formats.loops.code_loops import (
    NO_CALENDAR_DATE,
    NOT_A_TIME,
    NULL_VALUE,
    OK,
    OUT_OF_RANGE,
    TOO_PRECISE,
    WIRE_DAYS,
    WIRE_MICROS,
    WIRE_MILLIS,
    WIRE_NANOS,
    WIRE_PLAIN,
    WIRE_SECONDS,
    WRONG_KIND,
)
from raycdc.formats.loops.number_loops import to_integer
from raycdc.formats.loops.tape_loops import INTEGER, STRING

#: 0001-01-01 and 10000-01-01 in days since 1970. Outside, no target has dates.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_897
_MINUTE_US = 60_000_000
_DAY_US = 86_400_000_000


@helper
def _digits(data: Any, at: Any, end: Any, count: Any) -> Any:
    """Return `count` digits as a number, or -1."""
    if at + count > end:
        return np.int64(-1)
    value = np.int64(0)
    for i in range(count):
        digit = np.int64(data[at + i]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@helper
def _zone(data: Any, at: Any, end: Any) -> Any:
    """Return microseconds east of UTC of ``Z``, ``+hh``, ``+hhmm`` or ``+hh:mm``: (value, True if it is a zone)."""
    if at + 1 == end and (data[at] | 32) == 122:
        return np.int64(0), True
    if data[at] != 43 and data[at] != 45:
        return np.int64(0), False
    hours = _digits(data, at + 1, end, 2)
    minutes = np.int64(0)
    rest = at + 3
    if rest < end:
        if data[rest] == 58:
            rest += 1
        minutes = _digits(data, rest, end, 2)
        rest += 2
    if hours < 0 or hours > 18 or minutes < 0 or minutes > 59 or rest != end:
        return np.int64(0), False
    micros = (hours * 60 + minutes) * _MINUTE_US
    return (-micros if data[at] == 45 else micros), True


@helper
def moment(data: Any, at: Any, end: Any) -> Any:
    """Return (error, microseconds since 1970) of ``YYYY-MM-DD`` with or without a time of day and a zone.

    A zero, partial or impossible date gives `NO_DATE`, as it does for MySQL's own values.
    """
    year = _digits(data, at, end, 4)
    month = _digits(data, at + 5, end, 2)
    day = _digits(data, at + 8, end, 2)
    if year < 0 or month < 0 or day < 0 or data[at + 4] != 45 or data[at + 7] != 45:
        return NOT_A_TIME, np.int64(0)
    days = date_days(year, month, day)
    at += 10
    micros = np.int64(0)
    if at < end:
        if data[at] != 32 and data[at] != 84 and data[at] != 116:
            return NOT_A_TIME, np.int64(0)
        hours = _digits(data, at + 1, end, 2)
        minutes = _digits(data, at + 4, end, 2)
        if hours < 0 or hours > 23 or minutes < 0 or minutes > 59 or data[at + 3] != 58:
            return NOT_A_TIME, np.int64(0)
        micros = (hours * 60 + minutes) * _MINUTE_US
        at += 6
        if at < end and data[at] == 58:
            seconds = _digits(data, at + 1, end, 2)
            if seconds < 0 or seconds > 59:
                return NOT_A_TIME, np.int64(0)
            micros += seconds * 1_000_000
            at += 3
            if at < end and data[at] == 46:
                at += 1
                unit = np.int64(100_000)
                first = at
                while at < end and 48 <= data[at] <= 57:
                    digit = np.int64(data[at]) - 48
                    if unit == 0 and digit != 0:
                        return TOO_PRECISE, np.int64(0)
                    micros += digit * unit
                    unit //= 10
                    at += 1
                if at == first:
                    return NOT_A_TIME, np.int64(0)
        if at < end and data[at] == 32:
            at += 1
        if at < end:
            offset, ok = _zone(data, at, end)
            if not ok:
                return NOT_A_TIME, np.int64(0)
            micros -= offset
    if days == NO_DATE:
        return OK, np.int64(NO_DATE)
    return OK, days * _DAY_US + micros


@helper
def _outside(data: Any, at: Any, end: Any) -> Any:
    """Return True for ``infinity``, ``-infinity``, and dates with a sign or with ``BC``."""
    length = end - at
    if length < 8:
        return False
    if data[at] == 43 or data[at] == 45 or (data[end - 2] == 66 and data[end - 1] == 67):
        return True
    return length == 8 and data[at] == 105 and data[at + 7] == 121


@helper
def to_micros(value: Any, wire: Any) -> Any:
    """Return (error, microseconds) of a number in the wire's unit."""
    if wire == WIRE_MICROS:
        return OK, value
    if wire == WIRE_NANOS:
        return (TOO_PRECISE if value % 1000 != 0 else OK), value // 1000
    factor = np.int64(1000)
    if wire == WIRE_SECONDS:
        factor = np.int64(1_000_000)
    elif wire == WIRE_DAYS:
        factor = np.int64(_DAY_US)
    elif wire != WIRE_MILLIS:
        return WRONG_KIND, np.int64(0)
    most = 9_000_000_000_000_000_000 // factor
    # The least number of 64 bits is its own absolute value.
    if value > most or value < -most:
        return OUT_OF_RANGE, np.int64(0)
    return OK, value * factor


@helper
def _within_years(error: Any, micros: Any) -> Any:
    """Return `NO_CALENDAR_DATE` if the moment is outside the years of targets; else `error`."""
    days = micros // _DAY_US
    outside = error == OUT_OF_RANGE or (error == OK and (days < _FIRST_DAY or days >= _LAST_DAY))
    return NO_CALENDAR_DATE if outside else error


@helper
def to_moment(data: Any, kind: Any, at: Any, end: Any, wire: Any, is_date: Any) -> Any:
    """Return the error, and the moment in microseconds, or a date in days."""
    if kind == STRING and _outside(data, at, end):
        return NO_CALENDAR_DATE, np.int64(0)
    if kind == STRING:
        error, micros = moment(data, at, end)
        if error == OK and micros == NO_DATE:
            return NULL_VALUE, np.int64(0)
        error = _within_years(error, micros)
    elif kind == INTEGER:
        error, value = to_integer(data, kind, at, end)
        if error != OK:
            return error, value
        error, micros = to_micros(value, WIRE_DAYS if is_date and wire == WIRE_PLAIN else wire)
        error = _within_years(error, micros)
    else:
        return WRONG_KIND, np.int64(0)
    if error != OK or not is_date:
        return error, micros
    return (OK if micros % _DAY_US == 0 else TOO_PRECISE), micros // _DAY_US
