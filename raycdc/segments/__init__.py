"""Segments: Arrow IPC files with changelog rows that readers write and sink tasks read, from disk or through Flight.

Readers import `SegmentWriter` from here: nothing in this package imports Ray or Spark.
"""

from __future__ import annotations

from raycdc.segments.access import ANYWHERE, HERE, SegmentAccess, SpoolAddress
from raycdc.segments.reading import delete_there, read_segment, segment_schema, verify_segments
from raycdc.segments.tasks import StageTask, TaskLog, TaskRunner, ThreadTaskRunner, run_in_process
from raycdc.segments.writing import SegmentContents, SegmentWriter, partitions_for, split_by_key

__all__ = [
    "ANYWHERE",
    "HERE",
    "SegmentAccess",
    "SegmentContents",
    "SegmentWriter",
    "SpoolAddress",
    "StageTask",
    "TaskLog",
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
