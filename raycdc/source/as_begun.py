"""Checks that tables are captured in the same way as at their snapshot, because a target must not mix two ways."""

from __future__ import annotations

from collections.abc import Callable

from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import StreamSplit


def require_as_begun(
    split: StreamSplit,
    *,
    begun: Callable[[SchemaDocument], object],
    now: Callable[[TableId], object],
    options: str,
) -> None:
    """Raise `ConfigError` if a followed table is now captured in another way than when it was first read.

    `begun` returns how a table was captured, according to its schema document; `now` returns how the configuration
    captures it. `options` are the keys that decide it.
    """
    for table, state in split.state.followed.items():
        before, after = begun(split.schemas[state.schema]), now(table)
        if before != after:
            raise ConfigError(
                f"{options}: {table} was begun with {before} and now has {after}, so its target would mix both. Put "
                "the old value back, or begin with a new pipeline.state and an empty target, or pipeline.on_existing."
            )
