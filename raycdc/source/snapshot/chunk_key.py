"""Chunk keys: the columns that a table is cut into chunks by."""

from __future__ import annotations

from typing import Any

#: A column, or several, compared one after the other.
ChunkKey = str | tuple[str, ...]


def key_names(key: ChunkKey | None) -> tuple[str, ...]:
    """The columns of a chunk key; none for a table that is a single chunk."""
    return () if key is None else (key,) if isinstance(key, str) else tuple(key)


def key_from_json(data: Any) -> ChunkKey | None:
    """A chunk key as state and messages hold it."""
    return data if data is None or isinstance(data, str) else tuple(data)
