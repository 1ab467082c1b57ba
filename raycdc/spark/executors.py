"""Executors of Spark on other machines: the files and settings they need for raycdc's tasks, and a test that they
can read rows.

Spark unpacks an archive next to each executor. The archive contains raycdc and the packages that tasks of the sink
import, as they are installed on this machine. It never contains Ray or Spark, and numba only for Iceberg and MongoDB.
It is made once per version of these packages, in the user's cache. Executors need the same minor version of Python, the
same operating system and the same type of processor as this machine. If raycdc is installed there already,
``spark.pyspark.python`` names its Python, and nothing is sent.

Executors find rows at the Arrow Flight servers of the nodes that have them. One task tests the archive and this access
before any data of the source is read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import socket
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pyarrow as pa

from raycdc.core.trusted_files import is_own, make_own_folder, user_cache
from raycdc.errors import ConfigError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.segments import SegmentContents, SegmentWriter, SpoolAddress, read_segment
from raycdc.segments.access import ANYWHERE, SegmentAccess
from raycdc.segments.tasks import StageTask
from raycdc.spark.stage import error_summary, run_pickled
from raycdc.state.manifests.manifest import STATE_NODE, Segment

#: The name of the unpacked folder next to an executor, which is on the path of its Python.
ARCHIVE_NAME = "raycdc_tasks"
#: The packages, by their names on PyPI, that every task needs. pandas is for users' functions.
_ALWAYS = (
    "annotated-types",
    "msgpack",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pydantic-core",
    "python-dateutil",
    "pytz",
    "six",
    "typing-extensions",
    "typing-inspection",
    "tzdata",
)
#: The packages for loops that are compiled on the executor (`raycdc.core.compiled`): keys of Iceberg, documents of
#: MongoDB.
_COMPILED = ("llvmlite", "numba")
#: The further packages that tasks of one sink need.
_OF_SINKS = {
    "delta": ("obstore",),
    "iceberg": ("obstore", *_COMPILED),
    "jsonl": ("obstore",),
    "parquet": ("obstore",),
    "jdbc": ("adbc-driver-manager", "adbc-driver-postgresql", "importlib-resources", "pymysql"),
    "kafka": ("confluent-kafka",),
    "mongodb": ("cffi", "cryptography", "dnspython", "pymongo", "pymongoarrow", *_COMPILED),
}
#: An archive that no run has used for this long is deleted when another one is made.
_UNUSED_S = 90 * 86_400
#: Parts of paths of files that neither tasks nor users' functions need.
_LEFT_OUT = (
    "/tests/", "/include/", "/__pycache__/", "/numpy/_core/_simd.", "/raycdc/testing/", "/raycdc/cli/",
    "/raycdc/connectors/mysql/", "/raycdc/connectors/kafka/",
    "/raycdc/bench/runs/", "/raycdc/bench/splits/", "/raycdc/verify/", "/raycdc/sandbox/", "/numpy/f2py/",
)  # fmt: skip
#: The libraries that pyarrow ships under three names; programs load the middle one.
_TWICE = re.compile(r"/pyarrow/libarrow_python\w*\.(so|dylib)(\.\d+\.\d+\.\d+)?$")
_SUFFIXES_LEFT_OUT = (".pyc", ".pyx", ".pxd", ".pxi", ".h", ".hpp", ".cc", ".c", ".lib", ".a")
_PACKAGE = Path(__file__).resolve().parents[1]
_STANDALONE = re.compile(r"spark://\[?([^,\]]+?)\]?:(\d+)")
#: The setting with which a user says that executors have raycdc already.
_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_PATH = "spark.executorEnv.PYTHONPATH"
_HOST = "spark.driver.host"
_PROBED = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))
_ROWS = 3


def executor_archive(sink: str) -> Path:
    """Return the archive for tasks of `sink` (the sink's type). If it does not exist, it is made first, which takes
    some seconds.

    Raises `ConfigError` if it cannot be written.
    """
    files = archive_contents(sink)
    digest = hashlib.sha256()
    for name, path in files:
        status = path.stat()
        # Installed packages are identified by the times of their files. raycdc itself is identified by the content of
        # its files, because it may be a working copy whose version does not change.
        own = path.is_relative_to(_PACKAGE)
        known = hashlib.sha256(path.read_bytes()).hexdigest() if own else f"{status.st_size} {status.st_mtime_ns}"
        digest.update(f"{name}\0{known}\n".encode())
    folder = user_cache()
    made = folder / f"{ARCHIVE_NAME}-{sys.version_info.major}.{sys.version_info.minor}-{digest.hexdigest()[:16]}.tar.gz"
    if is_own(made):
        os.utime(made)
    else:
        try:
            _make(made, files)
        except OSError as cause:
            raise ConfigError(
                f"The files that Spark's executors need cannot be written to {folder}: {cause.strerror}. Set "
                "XDG_CACHE_HOME to a folder with room, or install raycdc where the executors run, and name "
                "that Python in spark.conf as spark.pyspark.python."
            ) from cause
    return made


def archive_contents(sink: str) -> list[tuple[str, Path]]:
    """Return the names in the archive for tasks of `sink`, and the files of this machine that it gets under these
    names.
    """
    return sorted({**dict(_packages([*_ALWAYS, *_OF_SINKS.get(sink, ())])), **dict(_own())}.items())


def _make(made: Path, files: Sequence[tuple[str, Path]]) -> None:
    make_own_folder(made.parent)
    descriptor, name = tempfile.mkstemp(prefix=f"{ARCHIVE_NAME}-", dir=made.parent)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as packed,
        ):
            for inside, path in files:
                packed.add(path, inside, recursive=False)
        Path(name).rename(made)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    for older in made.parent.glob(f"{ARCHIVE_NAME}-*.tar.gz"):
        # Younger archives may still be in use, because Spark reads the archive whenever an executor starts.
        if older.stat().st_mtime < time.time() - _UNUSED_S:
            older.unlink(missing_ok=True)


def _packages(names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the names in the archive, and the files, of those packages that are installed here."""
    for name in names:
        try:
            installed = distribution(name).files or ()
        except PackageNotFoundError:
            continue
        for file in installed:
            inside = file.as_posix()
            if ".." in file.parts or not _wanted(f"/{inside}"):
                continue
            path = Path(str(file.locate()))
            if path.is_file():
                yield inside, path


def _own() -> Iterator[tuple[str, Path]]:
    for path in _PACKAGE.rglob("*"):
        inside = f"{_PACKAGE.name}/{path.relative_to(_PACKAGE).as_posix()}"
        if path.is_file() and path.suffix in (".py", ".toml", ".lock", ".json") and _wanted(f"/{inside}"):
            yield inside, path


def _wanted(inside: str) -> bool:
    left_out = any(part in inside for part in _LEFT_OUT) or inside.endswith(_SUFFIXES_LEFT_OUT)
    return not left_out and not _TWICE.search(inside)


def own_address(master: str, conf: Mapping[str, str]) -> str:
    """Return ``spark.driver.host`` if it is set, otherwise the address of the interface towards a standalone master.

    Empty if neither is known.
    """
    if given := conf.get("spark.driver.host", ""):
        return given
    found = _STANDALONE.match(master)
    if found is None:
        return ""
    try:
        family, kind, _, _, location = socket.getaddrinfo(found[1], int(found[2]), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Connecting a UDP socket sends nothing, but makes the system choose the interface.
            probe.connect(location)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def executors_python(conf: Mapping[str, str]) -> str:
    """Return the Python that runs tasks on other machines: of the same minor version, because functions are pickled."""
    return conf.get(_PYTHON) or f"python{sys.version_info.major}.{sys.version_info.minor}"


def executor_settings(master: str, conf: Mapping[str, str], sink: str) -> dict[str, str]:
    """Return Spark's settings for tasks of `sink` if `master` is on other machines.

    If `conf` already has values for these settings, the result includes them.
    """
    settings = {}
    if host := own_address(master, conf):
        settings[_HOST] = host
    if not conf.get(_PYTHON):
        sent = f"{executor_archive(sink)}#{ARCHIVE_NAME}"
        settings[_ARCHIVES] = ",".join(filter(None, [conf.get(_ARCHIVES), sent]))
        settings[_PATH] = ":".join(filter(None, [ARCHIVE_NAME, conf.get(_PATH)]))
    return settings


@dataclass(frozen=True, slots=True)
class ReadProbe(StageTask[int]):
    """A task that reads a segment and returns the number of its rows."""

    segment: Segment
    access: SegmentAccess

    def run(self) -> int:
        return sum(batch.num_rows for batch in read_segment(self.segment, access=self.access))


def probe(spark: Any, spool: Path, access: SegmentAccess) -> None:
    """Let one executor read a test segment, which this function writes to `spool`, the spool of the state's node.
    `access` is the access of the driver.

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
