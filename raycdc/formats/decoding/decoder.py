"""Decodes batches of JSON messages of any format that an `EnvelopeSpec` describes.

A batch is cut into chunks of about `CHUNK_BYTES`, whose tokens fit in the processor's cache. In each chunk, the
compiled scan finds envelopes and tables (`named_tables`). Then the messages between two DDL messages are decoded, table
by table, into the buffers of the table (`pieces`, `arena`). Python decides the cases that the loops cannot: a new
table, a new field, a schema text, a bad message. It does so once per table, field, text or message; no Python object
exists per row.
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
    changed_key,
    malformed_schema,
    no_before_image,
    no_document,
    no_row,
    partial_row,
    scan_error,
    table_of_ours,
    too_many_fields,
    unfit_key,
    unfit_value,
    unreadable_schema,
)
from raycdc.formats.decoding.message_keys import key_digest, message_keys
from raycdc.formats.decoding.named_tables import EnvelopeDialect, NamedTables, Shape
from raycdc.formats.decoding.work import Chunk, Workspace, cut
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.loops.code_loops import KEY_CHANGED, KEY_TYPE, NO_KEY, PARTIAL, TOO_MANY_FIELDS
from raycdc.formats.options import FormatOptions
from raycdc.model import TableId
from raycdc.model.evolution import SchemaChangeEvent

#: The number of bytes of messages that are tokenized before their rows are decoded. It is small enough for the tokens
#: to stay in a cache, and large enough for the Python work per chunk not to matter.
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
        #: The digest of the last message's key if that message was a delete, whose tombstone follows.
        self._deleted: str | None = None
        #: The changes of declared columns since the last start, until they are emitted before the first message.
        self._declared: list[ChangeItem] = []
        self._items: list[RowsItem | ChangeItem] = []
        self._bad: list[BadMessage] = []
        self._key_only: set[TableId] = set()

    def decode(self, batch: MessageBatch) -> Decoded:
        """See `FormatDecoder.decode`."""
        self._items, self._bad, self._key_only = [], [], set()
        tombstones, ignored = self.statistics.tombstones, self.statistics.ignored
        failure: BadMessageError | None = None
        failed_at = len(batch)
        for table in self._tables:
            table.begin(batch)
        if len(batch):
            self._items += self._declared
            self._declared = []
        sealed = self._deleted
        facts = [table.facts() for table in self._tables]
        flags = self._tables.layout.names.flags
        flags[envelope.FLAG_DELETED] = sealed is not None
        keys = message_keys(batch, every=self._dialect.spec.keyed, last=sealed)
        for chunk in cut(batch, self._workspace, CHUNK_BYTES, self._tables.layout.slot_count, keys):
            failure, failed_at = self._chunk(batch, chunk)
            if failure is not None:
                break
        for table in self._tables:
            table.flush(self._items)
        if failure is not None:
            self._items = _before(self._items, failed_at)
        if len(batch):
            last = None if batch.keys is None else batch.keys[len(batch) - 1].as_py()
            self._deleted = key_digest(last) if flags[envelope.FLAG_DELETED] == 1 else None
        self.statistics.messages += min(failed_at, len(batch))
        done = Decoded(
            tuple(self._items),
            tuple(self._bad),
            failure,
            self.statistics.tombstones - tombstones,
            self.statistics.ignored - ignored,
            state_changed=self._deleted != sealed or facts != [table.facts() for table in self._tables],
            key_only=frozenset(self._key_only),
        )
        self.statistics.rows += done.rows
        return done

    def snapshot_state(self) -> dict[str, Any]:
        """See `FormatDecoder.snapshot_state`."""
        deleted = {"deleted": self._deleted} if self._deleted is not None else {}
        return {"version": FORMAT_VERSION, "tables": [table.sealed() for table in self._tables], **deleted}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See `FormatDecoder.restore_state`."""
        if state.get("version", 0) > FORMAT_VERSION:
            raise FormatStateError(
                f"The format's state has version {state['version']}, this raycdc knows {FORMAT_VERSION}. "
                "Run the version that wrote it, or a newer one."
            )
        self._declared = self._tables.restore(state.get("tables", ()))
        self._deleted = state.get("deleted")

    def _chunk(self, batch: MessageBatch, chunk: Chunk) -> tuple[BadMessageError | None, int]:
        """Decode a chunk.

        Returns the first failure, if any, and the message at which decoding stopped, as its number in the batch.
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

        Returns the first failure, if any, and the number of the message at which decoding stopped.
        """
        tables = chunk.column(envelope.TABLE_NUMBER)[first:stop]
        wanted = np.flatnonzero((chunk.column(envelope.ACTION)[first:stop] <= envelope.DELETE) & (tables >= 0)) + first
        failure: BadMessageError | None = None
        for piece, shape in _runs(wanted, chunk, self._tables.shapes):
            run = piece[piece < stop]
            if not len(run):
                continue
            decoder = shape.decoder
            refused: dict[int, int] = {}
            if not decoder.follow_key(shape.key, self._items, chunk.first + int(run[0])):
                refused = dict.fromkeys(run[chunk.column(envelope.KEY_ONLY)[run] == 0].tolist(), KEY_CHANGED)
            else:
                decoder.follow(shape.columns, chunk, int(run[0]), self._items)
                if not decoder.state.fixed and shape.columns is None:
                    refused = decoder.observe(chunk, run, self._items)
            for number, code in refused.items():
                message = MessageAt(batch, chunk, number)
                error = self._bad_message(message, self._row_error(message, shape, code))
                if error is not None:
                    failure, stop = error, number
                    break
            run = run[(run < stop) & ~np.isin(run, list(refused))]
            if not len(run):
                continue
            if chunk.column(envelope.KEY_ONLY)[run].any():
                self._key_only.add(decoder.state.id)
            done = 0
            while True:
                done, code = decoder.decode(chunk, run, done, self._items)
                if code == 0:
                    break
                message = MessageAt(batch, chunk, int(run[done]))
                error = self._bad_message(message, self._row_error(message, shape, code))
                if error is not None:
                    failure, stop = error, message.number
                    break
                done += 1
        return failure, stop

    def _row_error(self, message: MessageAt, shape: Shape, code: int) -> BadMessageError:
        decoder = shape.decoder
        if code == TOO_MANY_FIELDS:
            return too_many_fields(message, decoder.state.id, self._options)
        if code == KEY_CHANGED:
            return changed_key(message, decoder.state.id, decoder.state.primary_key, shape.key or ())
        if code in (NO_KEY, KEY_TYPE):
            key = decoder.state.primary_key
            column = decoder.unfit().name if code == NO_KEY else key[0]
            return unfit_key(message, decoder.state.id, key, column, code)
        if code == envelope.NO_BEFORE:
            return no_before_image(message, self._dialect.before_fix(message.raw))
        if code == envelope.NO_ROWS:
            return no_document(message) if decoder.state.extended and message.does(envelope.UPDATE) else no_row(message)
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
    wanted: npt.NDArray[np.int64], chunk: Chunk, shapes: Sequence[Shape]
) -> list[tuple[npt.NDArray[np.int64], Shape]]:
    """Return runs of messages: those of one table, split where the shape (`named_tables.Shape`) changes.

    The messages of a table stay in order. A tombstone has no shape, so it is in the run of the message before it.
    """
    if not len(wanted):
        return []
    shape_of, key_only = chunk.column(envelope.TABLE_NUMBER), chunk.column(envelope.KEY_ONLY)
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
        if key_only[mine].any():
            told = np.where(key_only[mine] == 0, np.arange(len(mine)), 0)
            kinds = kinds[np.maximum.accumulate(told)]
        cuts = np.flatnonzero(np.diff(kinds)) + 1
        runs.extend(
            (piece, shapes[int(kinds[at])]) for at, piece in zip([0, *cuts.tolist()], np.split(mine, cuts), strict=True)
        )
    return runs


def _before(items: Sequence[RowsItem | ChangeItem], message: int) -> list[RowsItem | ChangeItem]:
    """Return the items before the message with the number `message`.

    An item that also has later rows is cut, which is possible because its rows are in the order of their messages.
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
