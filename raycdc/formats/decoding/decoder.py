"""Decodes batches of JSON messages of any format that an `EnvelopeSpec` describes.

A batch is cut into chunks of about `CHUNK_BYTES`, so that the tokens stay in the processor's cache. For each chunk the
compiled scan finds envelopes and tables; then the messages between two DDL messages are decoded table by table into
that table's arena. Cases that the loops cannot decide (a new table, a new field, a schema text, a bad message) come
here, once per table, field, text or message. No Python object exists per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from raycdc.formats.api import (
    FORMAT_VERSION,
    BadMessage,
    BadMessageError,
    ChangeItem,
    CorruptMessageError,
    Decoded,
    FormatStateError,
    FormatStatistics,
    MessageBatch,
    MissingBeforeImageError,
    RowsItem,
    UnfitValueError,
    UnknownTypeError,
)
from raycdc.formats.decoding import describe
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.decoding.pieces import TableDecoder
from raycdc.formats.decoding.tables import TableState
from raycdc.formats.decoding.work import Chunk, Workspace, cut
from raycdc.formats.envelope import EnvelopeSpec, KnownTables, Layout, RepeatedTexts
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.loops.tape_loops import ABSENT
from raycdc.formats.options import FormatOptions
from raycdc.model import LogicalType, TableId
from raycdc.schema import SchemaChangeEvent

#: Bytes of messages that are tokenized before their rows are decoded: few enough for the tokens to stay in a cache,
#: enough for what Python does per chunk not to count.
CHUNK_BYTES = 1 << 20


#: The fields that name a message's table.
_NAMES = (envelope.DATABASE, envelope.SCHEMA, envelope.TABLE)


class Dialect(Protocol):
    """The knowledge of a format beyond its envelope; each question is asked once per table, schema
    text or DDL message.
    """

    spec: EnvelopeSpec

    def table_id(self, database: str, schema: str, table: str, topic: str) -> TableId:
        """The table's name in raycdc."""
        ...

    def described(self, version: bytes) -> list[WireColumn] | None:
        """The columns that an embedded schema text describes."""
        ...

    def has_documents(self, message: bytes) -> bool:
        """Whether a table's first message holds MongoDB's documents."""
        ...

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """The key columns that a table's first message names, if any."""
        ...

    def wire(self, logical: LogicalType) -> int:
        """How values of a type are spelled where no schema is embedded."""
        ...

    def defined(self, message: bytes) -> tuple[list[WireColumn], tuple[str, ...]] | None:
        """The columns and key that a DDL message defines; None where it defines none."""
        ...

    def changes(self, message: bytes, table: TableId) -> tuple[list[SchemaChangeEvent], str]:
        """Other schema changes of a DDL or truncate message, and its statement."""
        ...

    def before_fix(self, message: bytes) -> str:
        """The advice about an update or delete without its before-image."""
        ...


class _Shape:
    """A table together with the schema text its messages carry (`version` -1: none)."""

    def __init__(self, decoder: TableDecoder, columns: list[WireColumn] | None) -> None:
        self.decoder = decoder
        self.columns = columns


class EnvelopeDecoder:
    """A `FormatDecoder` for one ordered stream of messages."""

    def __init__(self, dialect: Dialect, options: FormatOptions, *, keep_null_columns: bool, positions: bool) -> None:
        self._dialect = dialect
        self._options = options
        self._keep_nulls = keep_null_columns
        self._positions = positions
        self._selector = options.selector()
        self._layout = Layout(dialect.spec)
        self._repeats = RepeatedTexts(dialect.spec.repeats)
        self._known = KnownTables()
        self._tables: dict[TableId, TableDecoder] = {}
        self._shapes: list[_Shape] = []
        self._workspace = Workspace()
        self._seq = 0
        self.statistics = FormatStatistics()
        self._items: list[RowsItem | ChangeItem] = []
        self._bad: list[BadMessage] = []

    # -- the interface

    def decode(self, batch: MessageBatch) -> Decoded:
        """See `FormatDecoder.decode`."""
        self._items, self._bad = [], []
        tombstones, ignored = self.statistics.tombstones, self.statistics.ignored
        failure: BadMessageError | None = None
        failed_at = len(batch)
        for table in self._tables.values():
            table.begin(batch)
        for chunk in cut(batch, self._workspace, CHUNK_BYTES, self._layout.slot_count):
            failure, failed_at = self._chunk(batch, chunk)
            if failure is not None:
                break
        for table in self._tables.values():
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
        return {"version": FORMAT_VERSION, "tables": [t.state.to_json() for t in self._tables.values()]}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See `FormatDecoder.restore_state`."""
        if state.get("version", 0) > FORMAT_VERSION:
            raise FormatStateError(
                f"The format's state has version {state['version']}, this raycdc knows {FORMAT_VERSION}. "
                "Run the version that wrote it, or a newer one."
            )
        for data in state.get("tables", ()):
            table = TableState.from_json(data, keep_nulls=self._keep_nulls)
            self._tables[table.id] = self._table_decoder(table)

    # -- one chunk

    def _chunk(self, batch: MessageBatch, chunk: Chunk) -> tuple[BadMessageError | None, int]:
        """Decode a chunk; the first failure and the number of its message in the batch."""
        self._scan(batch, chunk)
        actions = chunk.column(envelope.ACTION)
        stop = chunk.count
        failure: BadMessageError | None = None
        for at in np.flatnonzero(actions == envelope.BAD).tolist():
            if self._leaves_out(batch, chunk, at):
                actions[at] = envelope.FILTERED
                continue
            failure = self._bad_message(batch, chunk, at, self._scan_error(batch, chunk, at))
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
            if at < stop:
                self._ddl(batch, chunk, at)
            first = at + 1
        return failure, chunk.first + stop

    def _scan(self, batch: MessageBatch, chunk: Chunk) -> None:
        first = 0
        while True:
            why, first = envelope.scan(
                chunk.tape, self._repeats.view, self._layout.names, self._known.view, chunk.messages, first
            )
            if why == envelope.STOP_END:
                break
            if why == envelope.STOP_TEXT:
                self._new_texts(chunk)
            else:
                self._new_table(batch, chunk, first)
        self._seq = chunk.number(self._seq)

    def _new_texts(self, chunk: Chunk) -> None:
        unknown = [(name, chunk.token(token)) for name, token in self._repeats.unknown()]
        if self._repeats.is_full:
            # Tables are known together with the number of their text; both start over.
            self._repeats.clear()
            self._known.clear()
        for name, text in unknown:
            self._repeats.add(name, text)

    def _new_table(self, batch: MessageBatch, chunk: Chunk, message: int) -> None:
        names = tuple(chunk.text(message, slot) for slot in _NAMES)
        table_id = self._table_id(batch, chunk, message)
        name = self._layout.names.flags[envelope.FLAG_VERSION_NAME]
        version = self._repeats.found(int(name)) if name >= 0 else ABSENT
        index = -1
        # A statement about a whole database names no table, and whoever selects some of its tables must hear of it.
        whole = not names[2] and chunk.messages.info[message, envelope.ACTION] == envelope.DDL
        if self._selector is None or whole or self._selector.matches(table_id):
            columns = self._dialect.described(self._repeats.text(version)) if version >= 0 else None
            table = self._tables.get(table_id)
            if table is None:
                table = self._first_table(batch, chunk, message, table_id)
            index = len(self._shapes)
            self._shapes.append(_Shape(table, columns))
        self._known.add((names[0], names[1], names[2]), version, index)

    def _table_id(self, batch: MessageBatch, chunk: Chunk, message: int) -> TableId:
        database, schema, table = (chunk.text(message, slot).decode("utf-8", "replace") for slot in _NAMES)
        return self._dialect.table_id(database, schema, table, batch.origin.topic)

    def _first_table(self, batch: MessageBatch, chunk: Chunk, message: int, table_id: TableId) -> TableDecoder:
        given = self._options.schema_of(str(table_id))
        state = TableState(table_id, keep_nulls=self._keep_nulls)
        if given is not None:
            columns = [WireColumn(c.name, c.type, self._dialect.wire(c.type)) for c in given.columns]
            state.define(columns, given.primary_key)
            state.fixed = True
        elif chunk.messages.info[message, envelope.ACTION] != envelope.DDL:
            key = batch.keys[chunk.first + message].as_py() if batch.keys is not None else None
            state.primary_key = self._dialect.primary_key(chunk.message(message), key)
        state.extended = self._dialect.spec.extended and self._dialect.has_documents(chunk.message(message))
        table = self._tables[table_id] = self._table_decoder(state)
        table.begin(batch)
        return table

    def _table_decoder(self, state: TableState) -> TableDecoder:
        return TableDecoder(state, self._layout, self._options, positions=self._positions)

    # -- rows

    def _rows(self, batch: MessageBatch, chunk: Chunk, first: int, stop: int) -> tuple[BadMessageError | None, int]:
        """Decode the messages from `first` up to `stop`, a table at a time."""
        tables = chunk.column(envelope.TABLE_NUMBER)[first:stop]
        wanted = np.flatnonzero((chunk.column(envelope.ACTION)[first:stop] <= envelope.DELETE) & (tables >= 0)) + first
        failure: BadMessageError | None = None
        for piece, shape in _runs(wanted, chunk.column(envelope.TABLE_NUMBER), self._shapes):
            run = piece[piece < stop]
            if not len(run):
                continue
            decoder = shape.decoder
            decoder.follow(shape.columns, self._items, chunk.first + int(run[0]))
            if not decoder.state.fixed and shape.columns is None:
                decoder.observe(chunk, run, self._items)
            done = 0
            while True:
                done, error = decoder.decode(chunk, run, done, self._items)
                if error == 0:
                    break
                at = int(run[done])
                found = self._bad_message(batch, chunk, at, self._row_error(batch, chunk, at, decoder, error))
                if found is not None:
                    failure, stop = found, at
                    break
                done += 1
        return failure, stop

    def _ddl(self, batch: MessageBatch, chunk: Chunk, message: int) -> None:
        index = int(chunk.messages.info[message, envelope.TABLE_NUMBER])
        if index < 0:
            return
        table = self._shapes[index].decoder
        raw = chunk.message(message)
        events: list[SchemaChangeEvent] = []
        defined = self._dialect.defined(raw) if not table.state.fixed else None
        # All of them: the statement may name other tables, too.
        for known in self._tables.values():
            known.flush(self._items)
        if defined is not None:
            was_announced = table.state.announced
            events += table.state.define(*defined)
            if not was_announced:
                events += table.announce()
            table.rebuild()
        more, statement = self._dialect.changes(raw, table.state.id)
        self._items.append(ChangeItem(table.state.id, (*events, *more), chunk.first + message, statement))

    # -- bad messages

    def _bad_message(
        self, batch: MessageBatch, chunk: Chunk, message: int, error: BadMessageError
    ) -> BadMessageError | None:
        """Leave the message out, or return its error where it must not be."""
        self.statistics.bad += 1
        if self._options.on_error == "fail":
            return error
        number = chunk.first + message
        if self._options.on_error == "dead-letter":
            key = batch.keys[number].as_py() if batch.keys is not None else None
            self._bad.append(BadMessage(batch.origin, int(batch.offsets[number]), key, chunk.message(message), error))
        return None

    def _leaves_out(self, batch: MessageBatch, chunk: Chunk, message: int) -> bool:
        """Whether a bad message names a table that is not taken. One that is no JSON at all names none."""
        if self._selector is None or not chunk.text(message, envelope.TABLE):
            return False
        return not self._selector.matches(self._table_id(batch, chunk, message))

    def _scan_error(self, batch: MessageBatch, chunk: Chunk, message: int) -> BadMessageError:
        code, at = chunk.messages.info[message, [envelope.ERROR, envelope.ERROR_AT]].tolist()
        kind: type[BadMessageError] = CorruptMessageError
        told = ""
        if code == envelope.UNKNOWN_TYPE:
            kind, told = UnknownTypeError, f"unknown {self._dialect.spec.type}"
            spelled = chunk.text(message, envelope.TYPE).decode("utf-8", "replace")
            what = f"unknown {self._dialect.spec.type} {spelled!r}; known are {', '.join(self._dialect.spec.actions)}"
        elif code == envelope.NO_TYPE:
            kind = UnknownTypeError
            what = f"the field {self._dialect.spec.type!r} that says what happened is missing"
        elif code == envelope.NO_ROWS:
            what = "what should hold the row is neither an object nor an array"
        else:
            what = f"corrupt message: {describe.damage(code, at)}"
        return self._error(kind, batch, chunk, message, what=what, told=told)

    def _row_error(
        self, batch: MessageBatch, chunk: Chunk, message: int, decoder: TableDecoder, code: int
    ) -> BadMessageError:
        raw = chunk.message(message)
        if code == envelope.NO_BEFORE:
            what = "an update" if chunk.messages.info[message, envelope.ACTION] == envelope.UPDATE else "a delete"
            text = f"{what} without the row as it was before. {self._dialect.before_fix(raw)}"
            return self._error(MissingBeforeImageError, batch, chunk, message, what=text)
        if code == envelope.NO_ROWS:
            return self._error(CorruptMessageError, batch, chunk, message, what="corrupt message: it holds no row")
        column, value = decoder.unfit(chunk)
        where, shown = f"table {decoder.state.id}, column {column.name!r}", describe.quoted(value)[:200]
        why = f"{describe.value_problem(code)} (expected {column.type.native or column.type.kind.value})"
        what, told = f"{where}: {shown} {why}", f"{where}: a value {why}"
        return self._error(UnfitValueError, batch, chunk, message, what=what, told=told)

    @staticmethod
    def _error(
        kind: type[BadMessageError], batch: MessageBatch, chunk: Chunk, message: int, *, what: str, told: str = ""
    ) -> BadMessageError:
        """`told` is `what` without anything of the message, where that has something."""
        place = batch.origin.place(int(batch.offsets[chunk.first + message]))
        return kind(f"{place}: {what}: {describe.quoted(chunk.message(message))}", told=f"{place}: {told or what}")


def _runs(
    wanted: npt.NDArray[np.int64], shape_of: npt.NDArray[np.int64], shapes: Sequence[_Shape]
) -> list[tuple[npt.NDArray[np.int64], _Shape]]:
    """Messages by table, and within a table cut where the embedded schema changes; message order is kept within."""
    if not len(wanted):
        return []
    numbers = shape_of[wanted]
    present = np.unique(numbers)
    if len(present) == 1:
        return [(wanted, shapes[int(present[0])])]
    tables: dict[int, list[int]] = {}
    for number in present.tolist():
        tables.setdefault(id(shapes[number].decoder), []).append(number)
    runs: list[tuple[npt.NDArray[np.int64], _Shape]] = []
    for members in tables.values():
        mine = wanted[np.isin(numbers, members)] if len(members) > 1 else wanted[numbers == members[0]]
        kinds = shape_of[mine]
        cuts = np.flatnonzero(np.diff(kinds)) + 1
        runs.extend((piece, shapes[int(shape_of[piece[0]])]) for piece in np.split(mine, cuts))
    return runs


def _before(items: Sequence[RowsItem | ChangeItem], message: int) -> list[RowsItem | ChangeItem]:
    """The items and messages before number `message`. Rows of an item are in the order of their messages."""
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
