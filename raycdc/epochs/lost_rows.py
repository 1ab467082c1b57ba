"""Rows of an epoch that are lost before they were written: their source tables begin again with new snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raycdc.checkpoint.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.source.table_requests import ask_for_lost_rows


def begin_again(
    store: CheckpointStore, warn: Callable[[str], None], manifest: Manifest, tables: Sequence[TableId], text: str
) -> None:
    """Ask, durably, that the source side which starts next reads `tables` anew, from the epoch of `manifest` on.

    `StateError` with `text` for a source of which nothing like a snapshot can be taken.
    """
    if STREAM_SPLIT_ID not in manifest.to_splits:
        raise StateError(text)
    names = [str(table) for table in tables]
    ask_for_lost_rows(store, manifest, names)
    warn(f"Rows of an epoch are lost before they were written: {', '.join(names)} will be read again.")
