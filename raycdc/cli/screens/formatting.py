"""Formats numbers and positions for people, and defines the order and colours of phases, for all screens."""

from __future__ import annotations

import json
from collections.abc import Callable

from raycdc.errors import ConfigError
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.state.configured import read_configured
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore

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


PositionText = Callable[[Position], str]


def position_text_of(store: CheckpointStore) -> PositionText:
    """Return a function that formats positions of the state's source.

    If the source has no notation or is not installed, the function returns plain JSON.
    """
    source = (read_configured(store) or {}).get("source.type")
    try:
        plugin = load_plugin(PluginGroup.SOURCES, str(source))
        text: PositionText = plugin.position_text() if plugin.positions else _as_stored
    except ConfigError:
        return _as_stored  # A state can be shown on a machine that lacks the plug-in of its source.
    return text


def _as_stored(position: Position) -> str:
    return json.dumps(position.to_json(), ensure_ascii=False)
