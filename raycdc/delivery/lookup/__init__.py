"""Lookup joins: rows of a stream with documents of a dimension, as these are when the rows are processed.

The driver joins segment by segment, before any sink: distinct keys are asked for in batches, a bounded number of
requests at once, and found documents are joined in Arrow. A segment that was joined is kept until its epoch is
committed, so what was found for its rows is settled once, whatever dies.
"""

from __future__ import annotations

from raycdc.delivery.lookup.api import KEY, Dimension, canonical
from raycdc.delivery.lookup.asking import Cache, LookupQuery
from raycdc.delivery.lookup.joiner import Joiner
from raycdc.delivery.lookup.lookups import Lookups, open_joiner

__all__ = ["KEY", "Cache", "Dimension", "Joiner", "LookupQuery", "Lookups", "canonical", "open_joiner"]
