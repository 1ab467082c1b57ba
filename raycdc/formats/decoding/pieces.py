"""The decoder of one table: its columns, its arena, and the resulting batches."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.core.typed_codec import Json
from raycdc.errors import DataError
from raycdc.formats.api import ChangeItem, MessageBatch, RowsItem
from raycdc.formats.decoding.arena import ROWS_MAX, Arena, WireColumn
from raycdc.formats.decoding.tables import TableState
from raycdc.formats.decoding.work import Chunk
from raycdc.formats.envelope import EnvelopeLayout, packed
from raycdc.formats.loops import row_loops as loops
from raycdc.formats.loops.code_loops import KEY_TYPE, TOO_MANY_FIELDS
from raycdc.formats.loops.envelope_loops import KEY_ONLY, REMEMBERED_KEYS
from raycdc.formats.options import FormatOptions
from raycdc.model.batch import BATCH_BYTES_MAX, META_FIELDS
from raycdc.model.evolution import AlterPrimaryKeyEvent, SchemaChangeEvent


@dataclass(frozen=True, slots=True)
class _Followed:
    """The description of the present messages; None if they have none.

    `repeats` is True if it is an older description in messages that are repeated, and `lacking` are the table's columns
    that it lacks then.
    """

    columns: list[WireColumn] | None = None
    lacking: frozenset[str] = frozenset()
    repeats: bool = False


class TableDecoder:
    """The decoder of one table in a stream.

    `begin` sets the batch to which the following rows belong; `flush` emits the rows.
    """

    def __init__(self, state: TableState, layout: EnvelopeLayout, options: FormatOptions, *, positions: bool) -> None:
        self.state = state
        self._with_positions = positions
        spec = layout.spec
        self._extra = [WireColumn(column, spec.metadata[name].type) for name, column in options.metadata.items()]
        slots = [layout.slots[spec.metadata[name].path] for name in options.metadata]
        self._columns_max = options.columns_max
        self._flags = np.zeros(loops.FLAGS, np.int64)
        self._flags[loops.FLAG_PATCH] = spec.patch
        self._flags[loops.FLAG_OVERLAY] = spec.overlay
        self._flags[loops.FLAG_BEFORE_OPTIONAL] = options.before_image == "optional"
        self._flags[loops.FLAG_EXTENDED] = state.extended
        self._flags[loops.FLAG_UNAVAILABLE] = spec.unavailable
        placeholders = loops.packed_placeholders(placeholder_texts(options.unavailable_placeholder))
        self._template = loops.RowPlan.of(self._flags, slots, placeholders)
        # Names of JSON are exact. Only columns that the user gives may be spelled otherwise than the fields.
        self._flags[loops.FLAG_FOLD] = state.fixed and not options.case_sensitive
        self._flags[loops.FLAG_TIME] = int(spec.time_unit)
        self._flags[loops.FLAG_WHOLE] = bool(spec.whole_images)
        self._followed = _Followed()
        self._batch: MessageBatch | None = None
        self._names: list[str] = []
        self._plan = self._make_plan(self._names)
        self.rebuild()

    def begin(self, batch: MessageBatch) -> None:
        """Note that the following messages belong to `batch`."""
        assert self._arena.rows == 0
        self._batch = batch

    def facts(self) -> bytes:
        """Return what rows have shown of the table, and what its state holds without an event that tells of it."""
        seen = self._plan.cells[:, [loops.HAD, loops.KEY_KIND]].tobytes()
        told = [column.mask for column in self.state.columns], self.state.described_since, hash(self.state.described)
        return seen + np.array([*told[0], *told[1:]], np.int64).tobytes()

    def sealed(self) -> Mapping[str, Json]:
        """Return the state of the table for a checkpoint."""
        self._note_had()
        return self.state.to_json()

    def changed(self) -> None:
        """See `TableState.changed`."""
        self.state.changed()
        self._plan.cells[:, loops.HAD] = 0

    def rebuild(self) -> None:
        """Make a new arena and a new `RowPlan` for the columns of the state. The present arena must be empty."""
        self._note_had()
        columns = [WireColumn(c.name, c.type, c.wire, c.labels) for c in self.state.visible()]
        self._schema = self.state.schema(self._extra)
        self._arena = Arena([*columns, *self._extra])
        self._names = [c.name for c in columns]
        self._plan = self._make_plan(self._names)

    def announce(self) -> list[SchemaChangeEvent]:
        """Return the event that creates the table, if it was not emitted yet."""
        return self.state.create(self._extra)

    def follow(
        self, columns: list[WireColumn] | None, chunk: Chunk, number: int, items: list[RowsItem | ChangeItem]
    ) -> None:
        """Take over the embedded schema of the message `number` of the chunk and of the messages after it."""
        if columns is self._followed.columns and not self._followed.repeats:
            return
        at = chunk.time(number)
        repeats = columns is not None and self.state.repeats(at)
        lacking = frozenset(self._names) - {c.name for c in columns} if columns and repeats else frozenset()
        if lacking != self._followed.lacking:
            self.flush(items)
        self._followed = _Followed(columns, lacking, repeats)
        if columns is None:
            return
        before = self._schema
        self._note_had()
        wires, had = [(c.wire, c.labels) for c in self.state.columns], self.state.had
        described: list[SchemaChangeEvent] = []
        unclear: list[WireColumn] = []
        if not repeats:
            described, unclear = self.state.describe(columns, at=at, whole=bool(self._flags[loops.FLAG_WHOLE]))
        events = self.state.embed(columns, only_wires=self.state.fixed)
        if wires != [(c.wire, c.labels) for c in self.state.columns] or self.state.schema(self._extra) != before:
            self.flush(items)
            self.rebuild()
        elif had != self.state.had:
            self._plan = self._make_plan(self._names)
        if events or described:
            self.flush(items)
            why = "; ".join(f"existing rows have an unknown value in {c.name!r}, because {c.unclear}" for c in unclear)
            told = tuple(described)
            items.append(ChangeItem(self.state.id, tuple(events), chunk.first + number, described=told, unclear=why))

    def follow_key(self, key: tuple[str, ...] | None, items: list[RowsItem | ChangeItem], message: int) -> bool:
        """Take over the key columns that the next messages name. Return False if the table has a different key.

        A configured key is kept. The order of key columns does not matter.
        """
        known = self.state.primary_key
        if key is None or self.state.fixed or set(key) == set(known):
            return True
        if known:
            return False
        before = self._schema
        self.state.primary_key = key
        if self.state.schema(self._extra) != before:
            announced = self.state.announced
            self._change([AlterPrimaryKeyEvent(self.state.id, key)] if announced else [], items, message)
        return True

    def observe(
        self, chunk: Chunk, wanted: npt.NDArray[np.int64], items: list[RowsItem | ChangeItem]
    ) -> dict[int, int]:
        """Examine all values before they are decoded: new fields become columns, and narrow types become wider.

        Returns the messages that were not examined, each with its reason. `TOO_MANY_FIELDS`: its new fields would give
        the table more than ``columns_max`` columns. `KEY_TYPE`: a value of its key is of a different kind than in
        earlier rows.
        """
        at = 0
        wanted = wanted[chunk.column(KEY_ONLY)[wanted] == 0]
        if not len(wanted):
            return {}
        refused: dict[int, int] = {}
        before = [(c.name, c.type) for c in self.state.visible()]
        plan = self._make_plan([c.name for c in self.state.columns])
        while True:
            why, at, token = loops.observe(chunk.tape, plan, chunk.messages, wanted, at)
            if why == loops.STOP_END:
                break
            if why == loops.STOP_KEY:
                refused[int(wanted[at])] = KEY_TYPE
                at += 1
                continue
            # All new fields of the row are added together, because a new plan for each field would take quadratic time.
            names = self._new_fields(chunk.keys_from(int(wanted[at]), int(token)))
            if len(self.state.columns) + len(names) > self._columns_max:
                refused[int(wanted[at])] = TOO_MANY_FIELDS
                at += 1
                continue
            for name in names:
                self.state.field_appeared(name)
            seen = plan.cells[:, [loops.MASK, loops.KEY_KIND]]
            plan = self._make_plan([c.name for c in self.state.columns])
            plan.cells[: len(seen), [loops.MASK, loops.KEY_KIND]] = seen
        for column, kind in zip(self.state.columns, plan.cells[:, loops.KEY_KIND].tolist(), strict=False):
            column.key_kind = kind
        self._plan.cells[: len(self._names), loops.KEY_KIND] = _key_kinds(self.state, self._names)
        events = self.state.observed(plan.cells[: len(self.state.columns), loops.MASK])
        if before != [(c.name, c.type) for c in self.state.visible()]:
            self._change(events, items, chunk.first + int(wanted[0]))
        return refused

    def decode(
        self, chunk: Chunk, wanted: npt.NDArray[np.int64], first: int, items: list[RowsItem | ChangeItem]
    ) -> tuple[int, int]:
        """Decode the rows of ``wanted[first:]``.

        Returns the index at which decoding stopped, and the error of the message at this index, or 0.
        """
        arena, plan = self._arena, self._plan
        plan.keys[:, loops.KEY_LENGTH] = -1
        held = arena.rows
        if not self.state.announced:
            events = self.announce()
            items.append(ChangeItem(self.state.id, tuple(events), chunk.first + int(wanted[first])))
        while True:
            why, first, error = loops.decode_rows(
                chunk.tape, plan, arena.view, chunk.messages, chunk.seqs, wanted, first
            )
            if why == loops.STOP_TEXT:
                try:
                    arena.grow_text()
                except ValueError as cause:
                    raise DataError(f"{self.state.id}: {cause}") from cause
                continue
            if why == loops.STOP_ROWS:
                need = arena.rows + arena.rows_wanted
                if need <= ROWS_MAX or arena.rows == 0:
                    arena.grow_rows(need)
                    continue
            arena.view.meta[held : arena.rows, loops.META_MESSAGE] += chunk.first
            if why == loops.STOP_ROWS or arena.text_bytes > BATCH_BYTES_MAX:
                self.flush(items)
                held = 0
                if why == loops.STOP_ROWS:
                    continue
            return first, error

    def unfit(self) -> WireColumn:
        """Return the column of the last error."""
        return self._arena.unfit()

    def flush(self, items: list[RowsItem | ChangeItem]) -> None:
        """Emit the rows in the arena as an item."""
        rows = self._arena.rows
        if not rows:
            return
        ops, seqs, millis, messages, parts = self._arena.view.meta[:rows].T.copy()
        meta = [
            pa.array(ops.astype(np.int8)),
            pa.array(seqs),
            self._times(millis, messages),
            self._positions(messages, parts),
        ]
        fields = [*self._schema.arrow(), *META_FIELDS]
        batch = pa.RecordBatch.from_arrays([*self._arena.take(), *meta], schema=pa.schema(fields))
        schema = self._schema
        if lacking := self._followed.lacking:
            # The reader gives the rows the default of a column that was added after them, as the source did.
            own = [column for column in schema.columns if column.name not in lacking]
            schema = replace(schema, columns=tuple(own))
            batch = batch.drop_columns(sorted(lacking))
        items.append(RowsItem(self.state.id, schema, batch, messages))

    def _change(self, events: list[SchemaChangeEvent], items: list[RowsItem | ChangeItem], message: int) -> None:
        self.flush(items)
        self.rebuild()
        if events:
            items.append(ChangeItem(self.state.id, tuple(events), message))

    def _note_had(self) -> None:
        """Record in the state which columns a row has had, and of which kind the values of the key are."""
        by_name = {column.name: column for column in self.state.columns}
        seen = self._plan.cells[:, [loops.HAD, loops.KEY_KIND]].tolist()
        for name, (had, kind) in zip(self._names, seen, strict=False):
            if name in by_name:
                by_name[name].had = by_name[name].had or bool(had)
                by_name[name].key_kind = kind or by_name[name].key_kind

    def _times(self, millis: npt.NDArray[np.int64], messages: npt.NDArray[np.int64]) -> pa.Array:
        """Return the times of the envelope. Rows without one get the broker's time."""
        assert self._batch is not None
        if self._batch.timestamps_ms is not None:
            millis = np.where(millis == 0, self._batch.timestamps_ms[messages], millis)
        return pa.array(millis, pa.int64())

    def _positions(self, messages: npt.NDArray[np.int64], parts: npt.NDArray[np.int64]) -> pa.Array:
        """Return ``topic:partition:offset:row`` for each row. Both rows of an update have the same text."""
        assert self._batch is not None
        if not self._with_positions:
            return pa.nulls(len(messages), pa.string())
        origin = self._batch.origin
        offsets = pa.array(self._batch.offsets[messages]).cast(pa.string())
        prefix = f"{origin.topic}:{origin.partition}" if origin.partition >= 0 else origin.topic
        return pc.binary_join_element_wise(prefix, offsets, pa.array(parts).cast(pa.string()), ":")

    def _new_fields(self, keys: list[bytes]) -> list[str]:
        """Return the field names that have no column yet, each once.

        Names that differ only in case are treated as in the loops.
        """
        fold = bool(self._flags[loops.FLAG_FOLD])
        columns = [column.name.encode() for column in self.state.columns]
        exact, folded = set(columns), Counter(name.lower() for name in columns)
        names: list[str] = []
        for key in keys:
            if key in exact or (fold and folded[key.lower()] == 1):
                continue
            exact.add(key)
            folded[key.lower()] += 1
            names.append(key.decode())
        return names

    def _make_plan(self, names: list[str]) -> loops.RowPlan:
        data, off = packed([name.encode() for name in names])
        cells = np.zeros((max(len(names), 1), loops.CELLS), np.int64)
        had = self.state.had
        cells[: len(names), loops.HAD] = [name in had for name in names]
        if set(self.state.primary_key) <= set(names):
            cells[: len(names), loops.KEY] = [name in self.state.primary_key for name in names]
        cells[: len(names), loops.KEY_KIND] = _key_kinds(self.state, names)
        self._flags[loops.FLAG_KEY] = bool(cells[:, loops.KEY].any())
        keys = np.zeros((REMEMBERED_KEYS, 3), np.int64)
        keys[:, loops.KEY_LENGTH] = -1
        return self._template.with_columns(data, off, cells, keys)


def _key_kinds(state: TableState, names: list[str]) -> list[int]:
    kinds = {column.name: column.key_kind for column in state.columns}
    return [kinds.get(name, 0) for name in names]


def placeholder_texts(placeholder: str) -> list[bytes]:
    """Return the texts in which Debezium's placeholder for values that it does not have comes.

    The texts are: itself, as base64 and as hexadecimal digits (`binary.handling.mode`), as the JSON of a map (hstore),
    and as a UUID, which stands in arrays of UUIDs. The first text is the placeholder itself. ``hex:`` before it means
    that its bytes are given as hexadecimal digits.
    """
    raw = bytes.fromhex(placeholder[4:]) if placeholder.startswith("hex:") else placeholder.encode()
    quoted = json.dumps(raw.decode("utf-8", "replace"), ensure_ascii=False).encode()
    texts = [raw, base64.b64encode(raw), base64.urlsafe_b64encode(raw), raw.hex().encode()]
    texts += [b"{" + quoted + between + quoted + b"}" for between in (b":", b": ")]
    digest = hashlib.md5(raw, usedforsecurity=False).digest()
    return [*texts, str(uuid.UUID(bytes=digest, version=3)).encode()]
