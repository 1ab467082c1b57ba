"""The bridge: changelog rows from readers to sink tasks as Arrow IPC segments, mapped on the same node or by Flight.

Readers import `SegmentWriter` from here: nothing in this package imports Ray or Spark.
"""

from __future__ import annotations

from raycdc.bridge.access import ANYWHERE, HERE, SegmentAccess, SpoolAddress
from raycdc.bridge.partitions import partitions_for, split_by_key
from raycdc.bridge.reading import delete_there, read_segment, segment_schema, verify_segments
from raycdc.bridge.segment import SegmentContents, SegmentWriter
from raycdc.bridge.tasks import StageTask, TaskRunner, ThreadTaskRunner, run_in_process

__all__ = [
    "ANYWHERE",
    "HERE",
    "SegmentAccess",
    "SegmentContents",
    "SegmentWriter",
    "SpoolAddress",
    "StageTask",
    "TaskRunner",
    "ThreadTaskRunner",
    "delete_there",
    "partitions_for",
    "read_segment",
    "run_in_process",
    "segment_schema",
    "split_by_key",
    "verify_segments",
]
