"""Lookup joins: rows of a stream are joined with the documents that a dimension has when the rows are joined.

The driver joins segment by segment, before any sink: it queries distinct keys in batches, with a bounded number of
requests at a time, and joins the documents in Arrow. A joined segment is kept until its epoch is committed, so each row
is joined only once, even after a crash.
"""

from __future__ import annotations

from raycdc.delivery.lookup.joiner import Joiner
from raycdc.delivery.lookup.lookups import Lookups, open_joiner
from raycdc.delivery.lookup.queries import KEY, Cache, Dimension, LookupQuery, canonical

__all__ = ["KEY", "Cache", "Dimension", "Joiner", "LookupQuery", "Lookups", "canonical", "open_joiner"]
