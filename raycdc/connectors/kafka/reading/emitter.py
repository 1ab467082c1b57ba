"""The record emitter of partitions: writes decoded messages into the open epoch, and moves the position after them.

`EpochReports` collects reports for the enumerator during the open epoch. A reader sends them just before it reports its
seal.

`new_images` implements ``source.order_by``: it orders changes of one key in several partitions by a column. Pure. Of
all rows of a key, an upsert target then holds the row with the greatest value of that column, in whatever order the
partitions are read. A sink that `keeps_greatest` takes this row from each epoch, and keeps the target's row if its
value is greater. Only new images are passed on. A before-image has no meaning here, because it may be older than the
target's row. Rows with equal values keep the order in which they were read, which is arbitrary between partitions.

A change without a new image has no value to compare: a deletion, a change of the key, a truncation. Such a change is
refused. An older change from another partition would bring the row back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.connectors.kafka.decoding import dead_letters
from raycdc.connectors.kafka.enumeration.keys import NewKeys
from raycdc.connectors.kafka.enumeration.schemas import SchemasOfReader, conform, emptied_row, with_redacted_defaults
from raycdc.connectors.kafka.events import TableEmptied, TablePartition
from raycdc.connectors.kafka.reading.held_partitions import (
    ActivePartition,
    BufferedBatch,
    KafkaReaderSettings,
    is_truncation,
)
from raycdc.connectors.kafka.reading.statements import Emptied, refusal
from raycdc.connectors.kafka.split import DecoderState
from raycdc.errors import DataError
from raycdc.formats.api import ChangeItem, Decoded
from raycdc.formats.options import DEAD_LETTERS
from raycdc.model import RowKind, TableId, TableSchema, TypeKind, key_hashes
from raycdc.source.protocol.api import ReaderOutput
from raycdc.source.protocol.source_event import SourceEvent


class EpochReports:
    """The reports of an epoch: tables with rows and their partitions, truncations, and new keys.

    Owned by the reader's thread.
    """

    def __init__(self) -> None:
        self._affected: set[TableId] = set()
        #: The pairs of a table and a partition with rows of it. The value is True if the enumerator knows the pair.
        self._homes: dict[tuple[TableId, str], bool] = {}
        self._emptied: list[TableEmptied] = []
        #: None unless partitions may share keys. The enumerator then compares the keys of partitions.
        self._keys: NewKeys | None = None

    @property
    def checks_keys(self) -> bool:
        return self._keys is not None

    def check_keys(self) -> None:
        """Report the keys of each partition, too, from now on."""
        self._keys = self._keys or NewKeys()

    def rows(self, table: TableId, split_id: str) -> None:
        """Note that the open epoch has rows of `table` from this partition."""
        self._homes.setdefault((table, split_id), False)
        self._affected.add(table)

    def keys(self, table: TableId, split_id: str, hashes: npt.NDArray[np.uint64]) -> None:
        assert self._keys is not None, "keys were not requested"
        self._keys.read(table, split_id, hashes)

    def emptied(self, event: TableEmptied) -> None:
        self._emptied.append(event)

    def take(self) -> tuple[list[SourceEvent], list[TableId]]:
        """Return the events and tables of the epoch that is being cut, and begin an empty epoch."""
        homes = [home for home, reported in self._homes.items() if not reported]
        self._homes.update(dict.fromkeys(homes, True))
        keys = self._keys.take() if self._keys is not None else []
        events: list[SourceEvent] = [
            *(TablePartition(table, split_id) for table, split_id in homes),
            *self._emptied,
            *keys,
        ]
        tables = sorted(self._affected)
        self._emptied.clear()
        self._affected.clear()
        return events, tables


#: Types whose order is the same everywhere, also after a widening.
_ORDERED = frozenset(
    {
        *(TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64, TypeKind.UINT64, TypeKind.DECIMAL),
        *(TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP),
    }
)


def new_images(
    table: TableId, batch: pa.RecordBatch, schema: TableSchema, *, order_by: str, split_id: str
) -> pa.RecordBatch:
    """Return the new images in `batch` (of `schema`). Raises `DataError` if they have no order."""
    _check_column(table, schema, order_by)
    ops = batch.column("_op").to_numpy()
    before = np.flatnonzero(ops == RowKind.UPDATE_BEFORE)
    if np.isin(ops, (RowKind.DELETE, RowKind.TRUNCATE)).any() or not _keep_their_key(batch, schema, ops, before):
        raise DataError(
            f"{table}: partition {split_id} deletes a row or changes its key, which source.order_by = {order_by!r} "
            "cannot put in order: nothing is left to compare an older change from another partition with. Produce the "
            "changes by the table's key, one partition for each key, and leave source.order_by out."
        )
    rows = batch.filter(pa.array(ops != RowKind.UPDATE_BEFORE)) if len(before) else batch
    if rows.column(order_by).null_count:
        raise DataError(
            f"{table}: a row in partition {split_id} has no value in {order_by!r}, which source.order_by needs of all."
        )
    return rows


def _check_column(table: TableId, schema: TableSchema, order_by: str) -> None:
    column = next((column for column in schema.columns if column.name == order_by), None)
    if column is None:
        raise DataError(
            f"{table} has no column {order_by!r}, which source.order_by names. Name one that all tables have; a field "
            "beside the row becomes a column with source.format.metadata."
        )
    if column.type.kind not in _ORDERED:
        raise DataError(
            f"{table}: column {order_by!r} is {column.type.kind.value}, which source.order_by cannot go by. It takes "
            "integers, decimals, dates and moments; give the column's type in source.format."
        )


def _keep_their_key(batch: pa.RecordBatch, schema: TableSchema, ops: np.ndarray, before: np.ndarray) -> bool:
    """Return True if each before-image is followed by the new image of the same key."""
    if not len(before):
        return True
    after = before + 1
    if after[-1] >= len(ops) or not np.all(ops[after] == RowKind.UPDATE_AFTER):
        return False
    pairs = (batch.take(pa.array(before)), batch.take(pa.array(after)))
    same = (pc.equal(*(rows.column(name) for rows in pairs)) for name in schema.primary_key)
    # NULL is no key.
    return all(pc.all(equal, skip_nulls=False).as_py() for equal in same)


class KafkaRecordEmitter:
    """The emitter of batches whose schemas are in force, a `raycdc.source.reader.split_reader.RecordEmitter`."""

    def __init__(self, settings: KafkaReaderSettings, schemas: SchemasOfReader, *, wall_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._schemas = schemas
        self._wall_ms = wall_ms
        self._rows = 0
        #: The number of messages that could not be decoded.
        self.bad = 0
        self.reports = EpochReports()

    def emit_record(self, batch: BufferedBatch, output: ReaderOutput, state: ActivePartition) -> None:
        """Write the rows of `batch` and move the partition's position after it."""
        decoder_state = state.state.decoder
        if batch.decoded is not None:
            self._emit_items(batch, batch.decoded, output)
            changed = batch.decoded.state_changed or any(isinstance(item, ChangeItem) for item in batch.decoded.items)
            if changed or not decoder_state:
                decoder_state = DecoderState.from_json(state.decoder.snapshot_state())
        fetched = batch.fetched
        if fetched.next_offset > state.state.offset:
            last = state.state.last if fetched.batch is None else fetched.last
            moved = state.state.moved(fetched.next_offset, decoder_state, last)
            state.state = replace(moved, dropped=batch.judged.dropped)

    def _emit_items(self, batch: BufferedBatch, decoded: Decoded, output: ReaderOutput) -> None:
        split_id = batch.split.split_id
        for number, item in enumerate(decoded.items):
            if isinstance(item, ChangeItem):
                self._empty(item, batch, batch.judged.emptied[number], output)
                continue
            if item.table in decoded.key_only:
                self._require_key_enough(item.table, item.schema, split_id)
            self._collect(output, item.table, item.batch, split_id, without=batch.judged.without[number])
        if decoded.bad and self._settings.dead_letters:
            rejected = dead_letters(decoded.bad, now_ms=self._wall_ms(), hide=self._settings.masks_values)
            self._collect(output, DEAD_LETTERS, rejected, split_id)
        self.bad += len(decoded.bad)
        if decoded.failure is not None:
            raise decoded.failure

    def _require_key_enough(self, table: TableId, schema: TableSchema, split_id: str) -> None:
        """Raise `DataError` if a target needs more of a deleted row than the key that a tombstone has."""
        if why := self._settings.rules.needs_row_before(table, schema.primary_key):
            raise DataError(f"{table}: partition {split_id} has a tombstone without the delete before it. {why}")

    def _empty(self, item: ChangeItem, held: BufferedBatch, events: Sequence[Emptied], output: ReaderOutput) -> None:
        """Emit the truncation of each table that a DDL message empties: a ``T`` row, and the event for the manifest."""
        assert held.fetched.batch is not None
        offset = int(held.fetched.batch.offsets[item.message])
        times = held.fetched.batch.timestamps_ms
        for event in events:
            if self._settings.order_by:
                raise refusal(
                    self._settings.statements.shown(item),
                    f"source.order_by = {self._settings.order_by!r} gives emptied tables no order",
                )
            split_id = held.split.split_id
            schema, _ = self._schemas[event.table]
            ts_ms = self._wall_ms() if times is None else int(times[item.message])
            row = emptied_row(schema, ts_ms=ts_ms, at=f"{split_id}:{offset}:0")
            self._collect(output, event.table, row, split_id)
            self.reports.emptied(TableEmptied(event.table, split_id, offset, event))

    def _collect(
        self,
        output: ReaderOutput,
        table: TableId,
        batch: pa.RecordBatch,
        split_id: str,
        *,
        without: Collection[str] = (),
    ) -> None:
        if batch.num_rows == 0:
            return
        schema, fingerprint = self._schemas[table]
        conformed = conform(table, batch, schema, without=without)
        if self._settings.order_by and table != DEAD_LETTERS:
            order_by = self._settings.order_by
            conformed = new_images(table, conformed, schema, order_by=order_by, split_id=split_id)
        numbers = pa.array(np.arange(self._rows, self._rows + conformed.num_rows, dtype=np.int64))
        self._rows += conformed.num_rows
        index = conformed.schema.get_field_index("_seq")
        conformed = conformed.set_column(index, conformed.schema.field(index), numbers)
        known = batch.schema.names
        masking = self._settings.masking
        shown = with_redacted_defaults(
            table, masking.without_unfit(table, conformed), schema, masking, known=known, without=without
        )
        # No key is passed, so that all rows are in one hash partition. Different readers would divide rows by key
        # differently.
        output.collect(table, fingerprint=fingerprint, batch=shown, split_id=split_id)
        self.reports.rows(table, split_id)
        if self.reports.checks_keys and schema.primary_key and table != DEAD_LETTERS and not is_truncation(batch):
            self.reports.keys(table, split_id, key_hashes(conformed, schema.primary_key))
