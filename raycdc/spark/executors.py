"""Executors of Spark on other machines: their settings for raycdc's tasks, and a test that they can read rows.

An executor finds raycdc in an archive that Spark unpacks next to it (`raycdc.spark.executor_files`), and rows at the
Arrow Flight servers of the nodes that have them. One task tests both before any data of the source is read.
"""

from __future__ import annotations

import pickle
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from raycdc.errors import ConfigError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.segments import SegmentContents, SegmentWriter, SpoolAddress, read_segment
from raycdc.segments.access import ANYWHERE, SegmentAccess
from raycdc.segments.tasks import StageTask
from raycdc.spark import executor_files
from raycdc.spark.addresses import own_address
from raycdc.spark.stage import error_summary, run_pickled
from raycdc.state.manifests.manifest import STATE_NODE, Segment

#: The setting with which a user says that executors have raycdc already.
_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_PATH = "spark.executorEnv.PYTHONPATH"
_HOST = "spark.driver.host"
_PROBED = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))
_ROWS = 3


def executors_python(conf: Mapping[str, str]) -> str:
    """Return the Python that runs tasks on other machines: of the same minor version, because functions are pickled."""
    return conf.get(_PYTHON) or f"python{sys.version_info.major}.{sys.version_info.minor}"


def executor_settings(master: str, conf: Mapping[str, str], sink: str) -> dict[str, str]:
    """Return Spark's settings for tasks of `sink` if `master` is on other machines.

    They include values of `conf` for the same settings.
    """
    settings = {}
    if host := own_address(master, conf):
        settings[_HOST] = host
    if not conf.get(_PYTHON):
        sent = f"{executor_files.archive(sink)}#{executor_files.NAME}"
        settings[_ARCHIVES] = ",".join(filter(None, [conf.get(_ARCHIVES), sent]))
        settings[_PATH] = ":".join(filter(None, [executor_files.NAME, conf.get(_PATH)]))
    return settings


@dataclass(frozen=True, slots=True)
class ReadProbe(StageTask[int]):
    """A task that reads a segment and returns the number of its rows."""

    segment: Segment
    access: SegmentAccess

    def run(self) -> int:
        return sum(batch.num_rows for batch in read_segment(self.segment, access=self.access))


def probe(spark: Any, spool: Path, access: SegmentAccess) -> None:
    """Let one executor read a segment, which is written to `spool`, the state's. `access` is the driver's.

    Blocks until an executor exists. Raises `ConfigError` with the reason if it cannot read the segment.
    """
    from py4j.protocol import Py4JError

    context = spark.sparkContext
    segment = _written(spool)
    try:
        (located,) = access.located([segment])
        # The task gets only the name, so that it cannot use a file with the same path on its own machine.
        task = ReadProbe(replace(located, path=segment.name), replace(access, node=ANYWHERE, flights={}))
        answers = context.parallelize([[pickle.dumps(task)]], 1).flatMap(run_pickled).collect()
    except Py4JError as cause:
        raise ConfigError(
            f"spark.master: no executor of {context.master} can run raycdc's tasks: {error_summary(str(cause))}. They "
            f"need {executors_python({})} on their path, or raycdc in the Python that spark.conf names as "
            "spark.pyspark.python."
        ) from cause
    finally:
        Path(segment.path).unlink(missing_ok=True)
    if answers[0].error:
        raise ConfigError(
            f"spark.master: an executor of {context.master} cannot read rows from this machine: {answers[0].message} "
            "Executors must reach the address and the ports of this machine: spark.driver.host in spark.conf says by "
            "which address."
        )
    assert answers[0].result == _ROWS, answers


def _written(spool: Path) -> Segment:
    contents = SegmentContents(TableId("raycdc", "probe"), _PROBED.fingerprint(), "log", "log")
    writer = SegmentWriter(SpoolAddress(spool, STATE_NODE), contents, name=f"probe-{uuid.uuid4().hex}.arrow")
    rows = [{"id": number, "_op": 0, "_seq": number, "_ts_ms": 0, "_pos": ""} for number in range(_ROWS)]
    writer.append(pa.RecordBatch.from_pylist(rows, schema=changelog_schema(_PROBED)))
    return writer.finish()
