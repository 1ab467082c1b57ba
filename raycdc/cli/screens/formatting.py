"""Formats numbers for people, and defines the order and colours of phases, for all screens."""

from __future__ import annotations

#: Phases that need attention come first.
PHASE_ORDER = {"parked": 0, "snapshot": 1, "pending": 2, "new": 3, "stream": 4}
PHASE_STYLES = {"snapshot": "cyan", "stream": "green", "parked": "red"}


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration_text(ms: float) -> str:
    """Return a duration as exactly as is useful: ``340 ms``, ``2.1 s``, ``4 min``, ``3 h``, ``5 days``."""
    if ms < 1000:
        return f"{max(ms, 0):.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.0f} min"
    return f"{ms / 3_600_000:.0f} h" if ms < 172_800_000 else f"{ms / 86_400_000:.0f} days"


def size_text(size: int) -> str:
    """Return a size: ``12 bytes``, ``3.4 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
