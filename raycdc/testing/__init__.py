"""The kit raycdc is tested with, shipped so that plug-ins are tested the same way.

Private database servers, a seeded shop workload, and the comparison of a source with what a sink holds. Nothing in the
product imports this package, except ``raycdc demo``. A sink of your own inherits `SinkConformance` in its tests, a
source `SourceConformance`.
"""

from raycdc.testing.sink_conformance import SinkConformance
from raycdc.testing.source_conformance import SourceConformance

__all__ = ["SinkConformance", "SourceConformance"]
