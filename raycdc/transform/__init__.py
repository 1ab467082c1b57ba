"""Transforms of tables: the columns of the resulting rows, and the effect of a table's schema changes on them."""

from __future__ import annotations

from raycdc.transform.resolved import (
    PlainResolver,
    ResolvedColumn,
    ResolvedTransform,
    TransformResolver,
    Uses,
    finished,
)
from raycdc.transform.tables import TransformedTables, TransformUse, layout_of

__all__ = [
    "PlainResolver",
    "ResolvedColumn",
    "ResolvedTransform",
    "TransformResolver",
    "TransformUse",
    "TransformedTables",
    "Uses",
    "finished",
    "layout_of",
]
