"""Conformance suites for authors of plug-ins, which raycdc's own sources and sinks pass, too.

The tests of a sink inherit `SinkConformance`, and the tests of a source `SourceConformance`. No other package of raycdc
imports this one.
"""

from raycdc.testing.sink_conformance import SinkConformance
from raycdc.testing.source_conformance import SourceConformance

__all__ = ["SinkConformance", "SourceConformance"]
