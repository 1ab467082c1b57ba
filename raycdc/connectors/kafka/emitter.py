"""The record emitter of partitions: decoded messages into the rows of the open epoch, and the position behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from raycdc.connectors.kafka.decoding import dead_letters
from raycdc.connectors.kafka.epoch_news import EpochNews
from raycdc.connectors.kafka.events import TableEmptied
from raycdc.connectors.kafka.held import HeldBatch, ReaderSettings, ReadPartition, is_truncation
from raycdc.connectors.kafka.ordering import new_images
from raycdc.connectors.kafka.schemas import conform, emptied_row, with_hidden_defaults
from raycdc.connectors.kafka.schemas_of_reader import SchemasOfReader
from raycdc.connectors.kafka.split import DecoderState
from raycdc.connectors.kafka.statements import Emptied, refusal
from raycdc.formats.api import ChangeItem, Decoded
from raycdc.formats.options import DEAD_LETTERS
from raycdc.model import TableId, key_hashes
from raycdc.source.protocol.api import ReaderOutput


class KafkaRecordEmitter:
    """`raycdc.source.reader.records.RecordEmitter` of batches whose schemas are in force."""

    def __init__(self, settings: ReaderSettings, schemas: SchemasOfReader, *, wall_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._schemas = schemas
        self._wall_ms = wall_ms
        self._rows = 0
        #: Messages that could not be decoded.
        self.bad = 0
        self.news = EpochNews()

    def emit_record(self, batch: HeldBatch, output: ReaderOutput, state: ReadPartition) -> None:
        """Write the rows of `batch` and move the partition's position behind it."""
        decoder_state = state.state.decoder
        if batch.decoded is not None:
            self._emit_items(batch, batch.decoded, output)
            if not decoder_state or any(isinstance(item, ChangeItem) for item in batch.decoded.items):
                decoder_state = DecoderState.from_json(state.decoder.snapshot_state())
        fetched = batch.fetched
        if fetched.next_offset > state.state.offset:
            last = state.state.last if fetched.batch is None else fetched.last
            moved = state.state.moved(fetched.next_offset, decoder_state, last)
            state.state = replace(moved, dropped=batch.judged.dropped)

    def _emit_items(self, batch: HeldBatch, decoded: Decoded, output: ReaderOutput) -> None:
        split_id = batch.split.split_id
        for number, item in enumerate(decoded.items):
            if isinstance(item, ChangeItem):
                self._empty(item, batch, batch.judged.emptied[number], output)
                continue
            self._collect(output, item.table, item.batch, split_id, without=batch.judged.without[number])
        if decoded.bad and self._settings.dead_letters:
            letters = dead_letters(decoded.bad, now_ms=self._wall_ms(), hide=self._settings.hides)
            self._collect(output, DEAD_LETTERS, letters, split_id)
        self.bad += len(decoded.bad)
        if decoded.failure is not None:
            raise decoded.failure

    def _empty(self, item: ChangeItem, held: HeldBatch, events: Sequence[Emptied], output: ReaderOutput) -> None:
        """Empty the tables whose rows a DDL message removes: a row that says so, and the event for the manifest."""
        assert held.fetched.batch is not None
        offset = int(held.fetched.batch.offsets[item.message])
        times = held.fetched.batch.timestamps_ms
        for event in events:
            if self._settings.order_by:
                raise refusal(
                    self._settings.statements.shown(item),
                    f"source.order_by = {self._settings.order_by!r} says nothing about emptied tables",
                )
            split_id = held.split.split_id
            schema, _ = self._schemas[event.table]
            ts_ms = self._wall_ms() if times is None else int(times[item.message])
            row = emptied_row(schema, ts_ms=ts_ms, place=f"{split_id}:{offset}:0")
            self._collect(output, event.table, row, split_id)
            self.news.emptied(TableEmptied(event.table, split_id, offset, event))

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
        hiding = self._settings.hiding
        shown = with_hidden_defaults(
            table, hiding.without_unfit(table, conformed), schema, hiding, known=known, without=without
        )
        # Without its key, so in one hash partition: readers would cut into different numbers of them.
        output.collect(table, fingerprint=fingerprint, batch=shown, split_id=split_id)
        self.news.rows(table, split_id)
        if self.news.checks_keys and schema.primary_key and table != DEAD_LETTERS and not is_truncation(batch):
            self.news.keys(table, split_id, key_hashes(conformed, schema.primary_key))
