"""``spark.read.format("raycdc")``: the present rows of a table, exactly as of one position of the source's log.

Planning runs the source to its present end into a separate state folder, as a pipeline would: chunks in parallel, and
the log after them. Tasks then read the segments. The result is the rows of chunks whose keys have no later change in
the log, and the last row of each key that has one. Spark plans once for a DataFrame or a view, at its first use, so
later uses have the same rows. The folder is kept until the Spark process that planned the read has ended, because tasks
may run again. The next read removes folders of ended processes, and so does the process that called `register` when it
ends.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from raycdc.core.typed_codec import JsonObject
from raycdc.datasource.options import ReadOptions
from raycdc.datasource.rows import ExpectedColumns, as_rows, changelog_batches, seen_as, stored_names, widened
from raycdc.errors import DataError, SourceError
from raycdc.model import RowKind, TableSchema
from raycdc.model.keys import without
from raycdc.segments import ANYWHERE, SegmentAccess, read_segment
from raycdc.sinks.rows import alive, last_per_key
from raycdc.sinks.task_inputs import Input, by_partition, task_inputs
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore

#: The maximum number of waiting epochs. It is unlimited, because all epochs wait until the end of the read.
UNBOUNDED = 1 << 30

_PREFIX = "raycdc-read-"
_OWNER = "owner.json"


class TableReadPartition(InputPartition):
    """The input of one task: a ``changelog``, the ``rows`` of chunks without the keys of `log`, or the ``last`` rows of
    keys.

    A changelog has a watermark for each input; the other two kinds have one for all inputs. `key` are the columns of
    the table's primary key.
    """

    def __init__(
        self,
        what: str,
        inputs: list[Input],
        watermarks: list[int | None],
        log: Sequence[Input] = (),
        *,
        key: Sequence[str] = (),
    ) -> None:
        super().__init__(what)
        self.inputs = inputs
        self.watermarks = watermarks
        self.log = list(log)
        self.key = list(key)


class RaycdcReader(DataSourceReader):
    """The reader of a bounded read; see the module's docstring. Pickled into tasks for `read`."""

    def __init__(self, options: ReadOptions, types: dict[str, str], expected: TableSchema | None) -> None:
        """Create the reader with the same arguments as a `RaycdcStreamReader`."""
        self._options = options
        self._types = types
        self._expected = expected

    def partitions(self) -> Sequence[InputPartition]:
        """Read the source to its end; return the tasks that read the resulting rows."""
        folder = new_folder()
        store, manifests = self._captured(folder)
        table = self._options.table
        schema = self._expected
        columns = ExpectedColumns(table, self._types, given=schema is None)
        parts = [manifest.tables[table] for manifest in manifests if table in manifest.tables]
        for part in parts:
            schema = widened(table, schema, store.schema(part.schema))
        if schema is None or not parts:
            raise SourceError(f"The source of {self._options.config} has no table {table}.")
        columns.require_types(schema)
        columns.require_kept(store.schema(parts[-1].schema), [change for part in parts for change in part.changes])
        found = [
            (seen_as(segment, store.schema(segment.schema), schema), manifest.watermark_ms)
            for manifest in manifests
            for segment in manifest.segments
            if segment.table == table
        ]
        threads = os.cpu_count() or 1
        if self._options.changelog:
            watermarks = {segment.path: watermark for segment, watermark in found}
            tasks = task_inputs([segment for segment, _ in found], parallelism=threads)
            return [TableReadPartition("changelog", task, [watermarks[e.segment.path] for e in task]) for task in tasks]
        if not schema.primary_key:
            raise DataError(
                f"{table} has no primary key, so its present rows cannot be determined: read its changelog."
            )
        chunks = [segment for segment, _ in found if segment.kind == "snapshot"]
        log = [segment for segment, _ in found if segment.kind != "snapshot"]
        inputs = [Input(segment) for segment in log]
        now = [manifests[-1].watermark_ms]
        key = schema.primary_key
        rows = [
            TableReadPartition("rows", task, now, inputs, key=key) for task in task_inputs(chunks, parallelism=threads)
        ]
        return [*rows, *(TableReadPartition("last", task, now, key=key) for task in by_partition(log))]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the partition's rows as Arrow batches; nothing if there is no partition."""
        assert partition is None or isinstance(partition, TableReadPartition)
        return self._batches(partition) if partition is not None else iter(())

    def _batches(self, partition: TableReadPartition) -> Iterator[pa.RecordBatch]:
        names = list(self._types)
        match partition.value:
            case "changelog":
                for entry, watermark_ms in zip(partition.inputs, partition.watermarks, strict=True):
                    yield from changelog_batches(
                        entry, names, watermark_ms=watermark_ms, truncate=self._options.truncate
                    )
            case "rows":
                for batch in self._untouched(partition, stored_names(names)):
                    yield as_rows(batch, names, watermark_ms=partition.watermarks[0])
            case _:
                for batch in self._last(partition, stored_names(names)):
                    yield as_rows(batch, names, watermark_ms=partition.watermarks[0])

    def _untouched(self, partition: TableReadPartition, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of chunks whose keys are not in the log. For all other keys, the log has a newer row."""
        key = partition.key
        inputs = [self._checked(batch).select(key) for batch in _read(partition.log, [*key, "_op"])]
        keys = pa.Table.from_batches(inputs) if inputs else None
        for batch in _read(partition.inputs, list(dict.fromkeys([*names, *key]))):
            if keys is None:
                yield batch
            else:
                yield batch.filter(pa.array(without(pa.Table.from_batches([batch]), keys)))

    def _last(self, partition: TableReadPartition, names: list[str]) -> list[pa.RecordBatch]:
        """Return the last row of each key that still exists."""
        key = partition.key
        columns = list(dict.fromkeys([*names, *key, "_op", "_seq"]))
        rows = pa.Table.from_batches([self._checked(batch) for batch in _read(partition.inputs, columns)])
        batches: list[pa.RecordBatch] = alive(last_per_key(rows, key, columns).rows).to_batches()
        return batches

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if RowKind.TRUNCATE in batch.column("_op").to_numpy():
            raise DataError(
                f"{self._options.table} was emptied, or began again, while it was read. Run the query again."
            )
        return batch

    def _captured(self, folder: Path) -> tuple[CheckpointStore, list[Manifest]]:
        manifests: list[Manifest] = []
        with self._options.pipeline(folder / "state").ledger(until="caught-up", in_flight_max=UNBOUNDED) as ledger:
            while not (manifests and manifests[-1].final):
                found = ledger.next_after(manifests[-1].epoch if manifests else 0)
                manifests += [found] if found is not None else []
            return ledger.store, manifests


@dataclass(frozen=True, slots=True)
class Owner(JsonObject):
    """The Spark process that owns a folder. Its start time distinguishes it from later processes with the same id."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Owner:
        return cls(pid, _started(pid))

    @property
    def has_ended(self) -> bool:
        return _started(self.pid) != self.started


def new_folder() -> Path:
    """Return a new folder for one read, owned by the Spark process that plans.

    Folders of ended processes are removed first.
    """
    for path in _folders():
        owner = _owner_of(path)
        if owner is not None and owner.has_ended:
            shutil.rmtree(path, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (folder / _OWNER).write_text(json.dumps(Owner.of(_planner()).to_json()))
    return folder


def remove_folders_of(pid: int) -> None:
    """Remove the folders of the Spark process `pid`, when no task will read them any more."""
    for path in _folders():
        owner = _owner_of(path)
        if owner is not None and owner.pid == pid:
            shutil.rmtree(path, ignore_errors=True)


def _folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))


def _owner_of(folder: Path) -> Owner | None:
    try:
        return Owner(**json.loads((folder / _OWNER).read_text()))
    except (OSError, ValueError):
        return None  # The folder belongs to another user, or is just being created.


def _planner() -> int:
    """Return the id of the nearest ancestor process that is not Python: that of Spark."""
    pid = os.getpid()
    while pid > 1:
        fields = _stat(pid)
        if fields is None or not fields[0].startswith("python"):
            return pid
        pid = int(fields[2])
    return os.getppid()


def _started(pid: int) -> str:
    """Return when the process began, in the kernel's format; empty if it has ended."""
    fields = _stat(pid)
    return "" if fields is None else fields[20]


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the name on: name, state, parent and so on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return [name, *rest.split()]


def _read(inputs: Sequence[Input], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for entry in inputs:
        yield from read_segment(entry.segment, columns, access=SegmentAccess(ANYWHERE), part=entry.part)
