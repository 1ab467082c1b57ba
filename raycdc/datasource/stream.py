"""``spark.readStream.format("raycdc")``: a table's changelog under Spark's own checkpointing, replayable.

Spark keeps one process for the reader of a query, on the driver; the source side runs in threads of this process and
seals epochs into the stream's own state folder. An *offset* is the number of a sealed epoch, so that a batch is the
rows of the epochs in (start, end]. Their segments are kept until Spark reports that the batch is committed, so a batch
that runs again after a crash has exactly the same rows. Spark calls `commit` only while it makes the next batch.
Therefore more epochs may be sealed than one batch takes; otherwise there would be no next batch.

*What if the process dies here?* Spark's checkpoint records the next batch, and the state has the epochs that Spark has
not committed. Rows read after the last manifest are read again. If the checkpoint or the state was restored from an
older copy, so that they do not fit each other, the query is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from raycdc.core.typed_codec import JsonObject
from raycdc.datasource.options import ReadOptions
from raycdc.datasource.rows import (
    ADDED,
    ExpectedColumns,
    changelog_batches,
    column_types,
    known_schema,
    remember_schema,
    seen_as,
    widened,
)
from raycdc.driver.consumer import Ledger
from raycdc.errors import SchemaError, StateError
from raycdc.model import TableSchema
from raycdc.sinks.task_inputs import Input, task_inputs
from raycdc.state.location import state_of
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore

#: The maximum number of epochs in one batch, and of sealed epochs that are not committed. The latter is at least twice
#: as large, for the reason in the module's docstring.
BATCH_EPOCHS_MAX = 4
IN_FLIGHT_MAX = 3 * BATCH_EPOCHS_MAX
#: With the option ``until``, Spark requests the last offset only once, so all epochs wait in the spool.
UNBOUNDED = 1 << 30

#: Seconds that `latestOffset` waits for a new epoch; otherwise Spark would call it a hundred times a second.
CHANGES_S = 0.2

#: Seconds for which the state may still be in use by the process of the previous query, which is about to end.
LEASE_TIMEOUT_S = 30.0
_LEASE_POLL_S = 0.1


#: An offset as Spark keeps it in its checkpoint.
OffsetJson = dict[str, int | str | None]


@dataclass(frozen=True, slots=True)
class StreamOffset(JsonObject):
    """A sealed epoch of the state `state`; the watermark is for people."""

    epoch: int
    state: str
    watermark_ms: int | None


class SegmentsPartition(InputPartition):
    """The inputs of one task, each with its epoch's watermark."""

    def __init__(self, inputs: list[tuple[Input, int | None]]) -> None:
        super().__init__(len(inputs))
        self.inputs = inputs


class RaycdcStreamReader(DataSourceStreamReader):
    """The reader of a stream; see the module's docstring. Pickled into tasks for `read` before anything is open."""

    def __init__(self, options: ReadOptions, types: dict[str, str], expected: TableSchema | None) -> None:
        """Create the reader.

        `types` are the columns that Spark expects, in order, with their types in Spark SQL. The table's columns have
        the types of `expected`, or those that the user chose.
        """
        self._options = options
        self._types = types
        self._stack: ExitStack | None = None
        self._ledger: Ledger | None = None
        self._target = expected
        #: A query that names its columns gets only these. A query of all columns must not lose a column silently.
        self._takes_all = expected is not None
        self._latest = 0

    def initialOffset(self) -> OffsetJson:  # noqa: N802 - Spark's name
        """Return the offset before all epochs, for a query without a checkpoint.

        Raises `StateError` if earlier rows are not available any more.
        """
        ledger = self._open()
        if ledger.acknowledged:
            raise StateError(
                f"The state {ledger.store.location} of the stream of {self._options.table} is at epoch "
                f"{ledger.acknowledged}, and Spark has no checkpoint that knows: rows before it will not come again. "
                "Give the query its checkpointLocation back, or name another state with the option state, to begin "
                "with a new snapshot: what Spark had before cannot be known."
            )
        return self._offset(ledger.store, 0).to_json()

    def latestOffset(self) -> OffsetJson:  # noqa: N802 - Spark's name
        """Return the newest sealed epoch that the next batch may take. Waits a moment for one."""
        ledger = self._open()
        if not self._latest:
            # The epoch that Spark knew before a restart is one of the sealed epochs. An offset must not be smaller than
            # it.
            self._latest = max((ledger.acknowledged, *ledger.store.sealed_epochs()))
        if self._options.until:
            while not ledger.is_end(self._latest):
                manifest = ledger.next_after(self._latest)
                self._latest = self._latest if manifest is None else manifest.epoch
        elif ledger.next_after(self._latest, wait_s=CHANGES_S) is not None:
            self._latest = ledger.store.sealed_epochs(self._latest)[:BATCH_EPOCHS_MAX][-1]
        return self._offset(ledger.store, self._latest).to_json()

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """Return the tasks for the rows of the epochs in (start, end]."""
        ledger = self._open()
        first, last = self._epoch_of(ledger.store, start), self._epoch_of(ledger.store, end)
        if first == last:
            return []
        sealed = {manifest.epoch: manifest for manifest in ledger.store.manifests(first) if manifest.epoch <= last}
        if last not in sealed or first < ledger.acknowledged:
            raise StateError(
                f"Spark asks for the epochs after {first} up to {last} of {self._options.table}, and the state "
                f"{ledger.store.location} has them no more (it is at {ledger.acknowledged}): Spark's checkpoint or the "
                "state was restored from a copy. Restore both from one moment, or begin with new ones."
            )
        self._latest = max(self._latest, last)
        return self._shared(ledger.store, list(sealed.values()))

    def commit(self, end: OffsetJson) -> None:
        """Release the rows up to `end`, which Spark will not request again."""
        ledger = self._open()
        epoch = self._epoch_of(ledger.store, end)
        if epoch > ledger.acknowledged:
            if self._target is not None:
                remember_schema(ledger.store, self._options.table, self._target)
            ledger.acknowledge(epoch)

    def stop(self) -> None:
        """End the source side; sealed epochs remain for the next query."""
        if self._stack is not None:
            self._stack.close()
            self._stack = self._ledger = None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the partition's rows as Arrow batches."""
        assert isinstance(partition, SegmentsPartition)
        return self._batches(partition)

    def _batches(self, partition: SegmentsPartition) -> Iterator[pa.RecordBatch]:
        for entry, watermark_ms in partition.inputs:
            yield from changelog_batches(
                entry, list(self._types), watermark_ms=watermark_ms, truncate=self._options.truncate
            )

    def _open(self) -> Ledger:
        if self._ledger is None:
            pipeline = self._options.pipeline()
            store = CheckpointStore(state_of(pipeline.config), pipeline=pipeline.config.pipeline.name)
            await_lease(store)
            known = known_schema(store, self._options.table)
            if known is not None:
                self._target = widened(self._options.table, self._target, known)
            # The next batch may take all epochs that are sealed now.
            waiting = len(store.sealed_epochs(record.epoch if (record := store.last_commit()) else -1))
            in_flight = UNBOUNDED if self._options.until else waiting + IN_FLIGHT_MAX
            self._stack = ExitStack()
            self._ledger = self._stack.enter_context(
                pipeline.ledger(until=self._options.until, in_flight_max=in_flight)
            )
        return self._ledger

    def _offset(self, store: CheckpointStore, epoch: int) -> StreamOffset:
        """Return the offset of an epoch.

        The text of an offset identifies it, so the same epoch always has the same text.
        """
        sealed = epoch in store.sealed_epochs(epoch - 1)
        watermark_ms = store.manifest(epoch).watermark_ms if sealed else None
        return StreamOffset(epoch, store.checkpoint, watermark_ms)

    def _epoch_of(self, store: CheckpointStore, offset: OffsetJson) -> int:
        if offset["state"] != store.checkpoint:
            raise StateError(
                f"Spark's checkpoint belongs to another state than {store.location} (of the stream of "
                f"{self._options.table}): one of them was deleted or replaced. Begin with a new checkpointLocation and "
                "another option state."
            )
        epoch = offset["epoch"]
        assert isinstance(epoch, int)
        return epoch

    def _shared(self, store: CheckpointStore, manifests: Sequence[Manifest]) -> list[InputPartition]:
        table = self._options.table
        schemas = {m.epoch: store.schema(m.tables[table].schema) for m in manifests if table in m.tables}
        target = self._target
        for schema in schemas.values():
            target = widened(table, target, schema)
        if target is None:
            return []
        self._check_columns(target)
        columns = ExpectedColumns(table, self._types, given=not self._takes_all)
        for manifest in manifests if columns.given else ():
            if table in manifest.tables:
                columns.require_not_renamed(manifest.tables[table].changes)
        self._target = target
        watermarks = {s.path: m.watermark_ms for m in manifests for s in m.segments}
        segments = [
            seen_as(segment, store.schema(segment.schema), target)
            for manifest in manifests
            for segment in manifest.segments
            if segment.table == table
        ]
        tasks = task_inputs(segments, parallelism=os.cpu_count() or 1)
        return [SegmentsPartition([(entry, watermarks[entry.segment.path]) for entry in task]) for task in tasks]

    def _check_columns(self, target: TableSchema) -> None:
        """Raise `SchemaError` if rows lack columns that Spark expects, or have columns that it does not expect."""
        if not self._takes_all:
            ExpectedColumns(self._options.table, self._types, given=True).require_types(target)
            return
        have = column_types(target)
        wanted = {name: kind for name, kind in self._types.items() if name not in ADDED}
        other = [name for name, kind in wanted.items() if have.get(name) != kind]
        other += [name for name in have if name not in wanted]
        if other:
            raise SchemaError(
                f"{self._options.table} has other columns than the query: {', '.join(sorted(other))}. Load the "
                "DataFrame again and start the query with the same checkpointLocation: no row was lost."
            )


def await_lease(store: CheckpointStore) -> None:
    """Wait until no other process has the state. Raises `StateError` if one keeps it."""
    deadline_s = time.monotonic() + LEASE_TIMEOUT_S
    while True:
        try:
            store.lease().release()
            return
        except StateError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_LEASE_POLL_S)
