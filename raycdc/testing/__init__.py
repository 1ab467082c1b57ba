"""Conformance suites for authors of plug-ins: the same ones that raycdc's own sources and sinks pass.

The tests of a sink inherit `SinkConformance`, those of a source `SourceConformance`. The product imports nothing of
this package.
"""

from raycdc.testing.sink_conformance import SinkConformance
from raycdc.testing.source_conformance import SourceConformance

__all__ = ["SinkConformance", "SourceConformance"]
