"""Records how changes are made a full changelog (``source.changelog``).

A pipeline keeps its first setting forever.
"""

from __future__ import annotations

from enum import StrEnum

from raycdc.errors import ConfigError
from raycdc.state.store import CheckpointStore

_NAME = "changelog.json"


class FullBy(StrEnum):
    """The origin of the row before a change: none (or none is needed), the source, or the state's row store."""

    NOTHING = ""
    SOURCE = "images"
    ROW_STORE = "known rows"


def keep_changelog(store: CheckpointStore, full_by: FullBy) -> None:
    """Record the origin. Before the first sealed epoch, each start records it again."""
    if full_by is not begun_with(store, full=bool(full_by)):
        store.documents.write(_NAME, {"by": str(full_by)})


def begun_with(store: CheckpointStore, *, full: bool) -> FullBy:
    """Return the origin that the pipeline began with. Raises `ConfigError` if rows were written with another `full`."""
    document = store.documents.read(_NAME)
    begun = FullBy(document["by"]) if document is not None else FullBy.NOTHING
    if store.last_manifest() is not None and bool(begun) is not full:
        was, now = ("full", "upsert") if begun else ("upsert", "full")
        raise ConfigError(
            f'source.changelog: the pipeline was begun with "{was}", but this says "{now}". It cannot be changed for '
            "an existing state, because nobody knows which rows its target has. Put it back, or begin with another "
            "pipeline.state and a new snapshot."
        )
    return begun
