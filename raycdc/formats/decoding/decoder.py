"""Decodes batches of JSON messages of any format that an `EnvelopeSpec` describes.

A batch is cut into chunks of about `CHUNK_BYTES`, so that the tokens stay in the processor's cache. For each chunk the
compiled scan finds envelopes and tables (`named_tables`); then the messages between two DDL messages are decoded table
by table into that table's arena (`pieces`). Cases that the loops cannot decide (a new table, a new field, a schema
text, a bad message) are decided in Python, once per table, field, text or message. No Python object exists per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raycdc.formats.api import (
    FORMAT_VERSION,
    BadMessage,
    BadMessageError,
    ChangeItem,
    Decoded,
    FormatStateError,
    FormatStatistics,
    MessageBatch,
    RowsItem,
)
from raycdc.formats.decoding.bad_messages import (
    MALFORMED,
    MessageAt,
    malformed_schema,
    no_before_image,
    no_row,
    partial_row,
    scan_error,
    table_of_ours,
    too_many_fields,
    unfit_value,
    unreadable_schema,
)
from raycdc.formats.decoding.named_tables import EnvelopeDialect, NamedTables, Shape
from raycdc.formats.decoding.pieces import TableDecoder
from raycdc.formats.decoding.work import Chunk, Workspace, cut
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.loops.code_loops import PARTIAL
from raycdc.formats.options import FormatOptions
from raycdc.model.evolution import SchemaChangeEvent

#: The bytes of messages that are tokenized before their rows are decoded: few enough for the tokens to stay in a cache,
#: and enough for the Python work per chunk not to matter.
CHUNK_BYTES = 1 << 20


class EnvelopeDecoder:
    """A `FormatDecoder` for one ordered stream of messages."""

    def __init__(
        self, dialect: EnvelopeDialect, options: FormatOptions, *, keep_null_columns: bool, positions: bool
    ) -> None:
        self.statistics = FormatStatistics()
        self._dialect = dialect
        self._options = options
        self._tables = NamedTables(dialect, options, keep_null_columns=keep_null_columns, positions=positions)
        self._workspace = Workspace()
        self._seq = 0
        self._items: list[RowsItem | ChangeItem] = []
        self._bad: list[BadMessage] = []

    def decode(self, batch: MessageBatch) -> Decoded:
        """See `FormatDecoder.decode`."""
        self._items, self._bad = [], []
        tombstones, ignored = self.statistics.tombstones, self.statistics.ignored
        failure: BadMessageError | None = None
        failed_at = len(batch)
        for table in self._tables:
            table.begin(batch)
        for chunk in cut(batch, self._workspace, CHUNK_BYTES, self._tables.layout.slot_count):
            failure, failed_at = self._chunk(batch, chunk)
            if failure is not None:
                break
        for table in self._tables:
            table.flush(self._items)
        if failure is not None:
            self._items = _before(self._items, failed_at)
        self.statistics.messages += min(failed_at, len(batch))
        done = Decoded(
            tuple(self._items),
            tuple(self._bad),
            failure,
            self.statistics.tombstones - tombstones,
            self.statistics.ignored - ignored,
        )
        self.statistics.rows += done.rows
        return done

    def snapshot_state(self) -> dict[str, Any]:
        """See `FormatDecoder.snapshot_state`."""
        return {"version": FORMAT_VERSION, "tables": [table.sealed() for table in self._tables]}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See `FormatDecoder.restore_state`."""
        if state.get("version", 0) > FORMAT_VERSION:
            raise FormatStateError(
                f"The format's state has version {state['version']}, this raycdc knows {FORMAT_VERSION}. "
                "Run the version that wrote it, or a newer one."
            )
        self._tables.restore(state.get("tables", ()))

    def _chunk(self, batch: MessageBatch, chunk: Chunk) -> tuple[BadMessageError | None, int]:
        """Decode a chunk.

        Returns the first failure, if any, and the number in the batch of the message at which decoding stopped.
        """
        self._tables.scan(batch, chunk)
        self._seq = chunk.number(self._seq)
        actions = chunk.column(envelope.ACTION)
        stop = chunk.count
        failure: BadMessageError | None = None
        # A DDL statement is not rejected, because it may change more tables than the one that its message names.
        ours = np.isin(chunk.column(envelope.TABLE_NUMBER), self._tables.of_ours()) & (actions != envelope.DDL)
        for at in np.flatnonzero((actions == envelope.BAD) | ours).tolist():
            message = MessageAt(batch, chunk, at)
            if ours[at]:
                actions[at] = envelope.BAD
                failure = self._bad_message(message, table_of_ours(message))
            elif self._tables.takes_none_of(message):
                actions[at] = envelope.FILTERED
                continue
            elif message.fails_by(envelope.BAD_SCHEMA):
                error = unreadable_schema(message, self._tables.why_unreadable(message))
                failure = self._bad_message(message, error)
            else:
                failure = self._bad_message(message, scan_error(message, self._dialect.spec))
            if failure is not None:
                stop = at
                break
        counts = np.bincount(actions[:stop], minlength=envelope.BAD + 1)
        self.statistics.tombstones += int(counts[envelope.TOMBSTONE])
        self.statistics.ignored += int(counts[envelope.IGNORE])
        self.statistics.filtered += int(counts[envelope.FILTERED])
        first = 0
        cuts = np.flatnonzero((actions[:stop] == envelope.DDL) | (actions[:stop] == envelope.TRUNCATE)).tolist()
        for at in [*cuts, stop]:
            bad, bad_at = self._rows(batch, chunk, first, at)
            if bad is not None:
                return bad, chunk.first + bad_at
            if at < stop and (refused := self._ddl(MessageAt(batch, chunk, at))) is not None:
                return refused, chunk.first + at
            first = at + 1
        return failure, chunk.first + stop

    def _rows(self, batch: MessageBatch, chunk: Chunk, first: int, stop: int) -> tuple[BadMessageError | None, int]:
        """Decode the messages from `first` up to `stop`, table by table.

        Returns the first failure, and where decoding stopped.
        """
        tables = chunk.column(envelope.TABLE_NUMBER)[first:stop]
        wanted = np.flatnonzero((chunk.column(envelope.ACTION)[first:stop] <= envelope.DELETE) & (tables >= 0)) + first
        failure: BadMessageError | None = None
        for piece, shape in _runs(wanted, chunk.column(envelope.TABLE_NUMBER), self._tables.shapes):
            run = piece[piece < stop]
            if not len(run):
                continue
            decoder = shape.decoder
            decoder.follow(shape.columns, self._items, chunk.first + int(run[0]))
            if not decoder.state.fixed and shape.columns is None:
                beyond = decoder.observe(chunk, run, self._items)
                run = run[~np.isin(run, beyond)]
                for number in beyond.tolist():
                    message = MessageAt(batch, chunk, number)
                    error = self._bad_message(message, too_many_fields(message, decoder.state.id, self._options))
                    if error is not None:
                        failure, stop = error, number
                        run = run[run < stop]
                        break
                if not len(run):
                    continue
            done = 0
            while True:
                done, code = decoder.decode(chunk, run, done, self._items)
                if code == 0:
                    break
                message = MessageAt(batch, chunk, int(run[done]))
                error = self._bad_message(message, self._row_error(message, decoder, code))
                if error is not None:
                    failure, stop = error, message.number
                    break
                done += 1
        return failure, stop

    def _row_error(self, message: MessageAt, decoder: TableDecoder, code: int) -> BadMessageError:
        if code == envelope.NO_BEFORE:
            return no_before_image(message, self._dialect.before_fix(message.raw))
        if code == envelope.NO_ROWS:
            return no_row(message)
        if code == PARTIAL:
            return partial_row(message, decoder.state.id, decoder.unfit(), self._dialect.spec.whole_images)
        return unfit_value(message, decoder.state.id, decoder.unfit(), code)

    def _ddl(self, message: MessageAt) -> BadMessageError | None:
        """Pass a DDL statement on. Returns an error if it cannot be read and bad messages are not tolerated."""
        index = int(message.chunk.messages.info[message.number, envelope.TABLE_NUMBER])
        if index < 0:
            return None
        table = self._tables.shapes[index].decoder
        events: list[SchemaChangeEvent] = []
        try:
            defined = self._dialect.defined(message.raw) if not table.state.fixed else None
            more, statement = self._dialect.changes(message.raw, table.state.id)
        except MALFORMED as cause:
            return self._bad_message(message, unreadable_schema(message, malformed_schema(cause)))
        # All tables are flushed, because the statement may change others than the named one.
        for named in self._tables:
            named.flush(self._items)
        if defined is not None:
            was_announced = table.state.announced
            events += table.state.define(*defined, had=True)
            if not was_announced:
                events += table.announce()
            table.rebuild()
        elif message.does(envelope.DDL):
            table.changed()
        self._items.append(ChangeItem(table.state.id, (*events, *more), message.in_batch, statement))
        return None

    def _bad_message(self, message: MessageAt, error: BadMessageError) -> BadMessageError | None:
        """Leave the message out, or return its error if bad messages are not tolerated."""
        self.statistics.bad += 1
        if self._options.on_error == "fail":
            return error
        if self._options.on_error == "dead-letter":
            self._bad.append(message.left_out(error))
        return None


def _runs(
    wanted: npt.NDArray[np.int64], shape_of: npt.NDArray[np.int64], shapes: Sequence[Shape]
) -> list[tuple[npt.NDArray[np.int64], Shape]]:
    """Return the messages grouped by table, and split where the embedded schema changes.

    Within a table they stay in order.
    """
    if not len(wanted):
        return []
    numbers = shape_of[wanted]
    present = np.unique(numbers)
    if len(present) == 1:
        return [(wanted, shapes[int(present[0])])]
    tables: dict[int, list[int]] = {}
    for number in present.tolist():
        tables.setdefault(id(shapes[number].decoder), []).append(number)
    runs: list[tuple[npt.NDArray[np.int64], Shape]] = []
    for members in tables.values():
        mine = wanted[np.isin(numbers, members)] if len(members) > 1 else wanted[numbers == members[0]]
        kinds = shape_of[mine]
        cuts = np.flatnonzero(np.diff(kinds)) + 1
        runs.extend((piece, shapes[int(shape_of[piece[0]])]) for piece in np.split(mine, cuts))
    return runs


def _before(items: Sequence[RowsItem | ChangeItem], message: int) -> list[RowsItem | ChangeItem]:
    """Return the items before the message with the number `message`.

    An item with later rows is cut, as its rows are in the order of their messages.
    """
    kept: list[RowsItem | ChangeItem] = []
    for item in items:
        if isinstance(item, ChangeItem):
            if item.message < message:
                kept.append(item)
            continue
        rows = int(np.searchsorted(item.messages, message))
        if rows == item.rows:
            kept.append(item)
        elif rows:
            kept.append(RowsItem(item.table, item.schema, item.batch.slice(0, rows), item.messages[:rows]))
    return kept
