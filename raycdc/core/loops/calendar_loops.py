"""Days since 1970-01-01 in the proleptic Gregorian calendar, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.loops.compiling import inlined

#: Returned by `date_days` for a zero, partial or impossible date.
NO_DATE = -(1 << 62)

_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
#: Days before each month of a common year.
_DAYS_BEFORE = np.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334], dtype=np.int64)
#: Days from 0000-01-01 to 1970-01-01.
_EPOCH_DAYS = 719528


@inlined
def date_days(year: Any, month: Any, day: Any) -> Any:
    """Return the days of a date, or `NO_DATE`; years from 0 on."""
    if month < 1 or month > 12 or day < 1 or day > 31 or year < 0:
        return NO_DATE
    # Unsigned, because signed division by a constant takes twice the instructions.
    y = np.uint64(year)
    leap = (y & np.uint64(3)) == 0 and (y % np.uint64(100) != 0 or y % np.uint64(400) == 0)
    if day > 28 and day > _MONTH_DAYS[month] + (1 if leap and month == 2 else 0):
        return NO_DATE
    # Leap years before `year`, counting year 0 as one.
    leaps = ((y + np.uint64(3)) >> np.uint64(2)) - (y + np.uint64(99)) // np.uint64(100)
    leaps += (y + np.uint64(399)) // np.uint64(400)
    days = np.int64(y * np.uint64(365) + leaps) + _DAYS_BEFORE[month] + day - 1 - _EPOCH_DAYS
    return days + 1 if leap and month > 2 else days


@inlined
def civil_date(days: Any) -> Any:
    """Return (year, month, day) of a day on or after 1970-01-01.

    Method: H. Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
    """
    shifted = days + 719468
    era = shifted // 146097
    of_era = shifted - era * 146097
    of_400 = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * of_400 + of_400 // 4 - of_400 // 100)
    shifted_month = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return of_400 + era * 400 + (1 if month <= 2 else 0), month, day
