"""Positions of a state's source for people, in the words of that source."""

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
    """The words of the source that the state was made with; plain JSON where it has none, or is not installed."""
    source = (read_configured(store) or {}).get("source.type")
    try:
        plugin = load_plugin(PluginGroup.SOURCES, str(source))
        text: PositionText = plugin.position_text() if plugin.positions else _as_stored
    except ConfigError:
        return _as_stored  # A state is shown wherever it was made.
    return text


def _as_stored(position: Position) -> str:
    return json.dumps(position.to_json(), ensure_ascii=False)
