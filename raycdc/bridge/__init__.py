"""The bridge: changelog rows from readers to sink tasks as Arrow IPC segments, mapped on the same node or by Flight.

Readers import `SegmentWriter` from here: nothing in this package imports Ray or Spark.
"""

from __future__ import annotations

from raycdc.bridge.reading import read_segment, segment_schema, verify_segments
from raycdc.bridge.segment import SegmentWriter, local_node
from raycdc.bridge.tasks import StageTask, TaskRunner, ThreadTaskRunner, run_in_process

__all__ = [
    "SegmentWriter",
    "StageTask",
    "TaskRunner",
    "ThreadTaskRunner",
    "local_node",
    "read_segment",
    "run_in_process",
    "segment_schema",
    "verify_segments",
]
