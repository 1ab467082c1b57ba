"""Updates applied to a table's metadata, by pyiceberg's own rules for each, but without its copy of everything.

pyiceberg's `update_table_metadata` ends with a deep copy of the metadata, at every look of a transaction and once more
in the catalog: with 2,000 snapshots that is half of what a commit costs. Parts of metadata are frozen, and each update
makes new lists, so nobody needs it. Called by `table` and `catalog`; the private names are of the pinned version.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)


def updated(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> TableMetadata:
    """The metadata of a transaction with these updates so far."""
    context = _TableMetadataUpdateContext()
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    return metadata


def next_version(current: TableMetadata, updates: Iterable[TableUpdate], *, location: str) -> TableMetadata:
    """The metadata that follow `current`, which are at `location`. Raises `ValueError` where they would not fit."""
    following = _update_table_metadata_log(updated(current, updates), location, current.last_updated_ms)
    following.spec().check_compatible(following.schema())
    following.sort_order().check_compatible(following.schema())
    if following.last_updated_ms != current.last_updated_ms:
        return following
    return following.model_copy(update={"last_updated_ms": time.time_ns() // 1_000_000})
