"""Formats the positions in a state for people, in the notation of its source."""

from __future__ import annotations

import json
from collections.abc import Callable

from raycdc.errors import ConfigError
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.state.configured import read_configured
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore

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
