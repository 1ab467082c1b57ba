"""Transforms of tables: the columns that expressions give, and the effect of a table's schema changes on the result."""

from __future__ import annotations

from raycdc.transform.columns import ResolvedColumn
from raycdc.transform.plain import PlainResolver
from raycdc.transform.resolved import ResolvedTransform, Resolver, Uses, finished
from raycdc.transform.tables import TransformedTables, TransformUse, layout_of

__all__ = [
    "PlainResolver",
    "ResolvedColumn",
    "ResolvedTransform",
    "Resolver",
    "TransformUse",
    "TransformedTables",
    "Uses",
    "finished",
    "layout_of",
]
