"""Converts changelog batches to messages, column by column in Arrow's string kernels, without a Python object per row.

The same rows always give the same bytes, and the decoders can read them. If the table has a key, and a retraction
(``-U``) is followed by its replacement (``+U``) with the same key, the two rows are written as one update, with the
changed values in the format's own notation. Otherwise the retraction is written as a delete, and the replacement as an
insert.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import DataError
from raycdc.formats.api import EncodedBatch, FormatEncoder
from raycdc.formats.encoding import spelling
from raycdc.formats.json.debezium_schema import connect_schema
from raycdc.formats.options import TABLE_FIELD, FormatOptions
from raycdc.model import RowKind, TableId, TableSchema
from raycdc.model.evolution import SchemaChangeEvent, TruncateTableEvent
from raycdc.model.table import quoted

_INSERT, _UPDATE, _DELETE = 0, 1, 2

Spell = Callable[[pa.Array, Any], pa.Array]


@dataclass(frozen=True, slots=True)
class EncoderChanges:
    """The changes of a batch, one element per message: the kind of change, and the row's images as JSON objects.

    `old` has only the changed fields; it is ``{}`` unless the change is an update. `millis` is the time in
    milliseconds.
    """

    kind: npt.NDArray[np.int8]
    after: pa.Array
    before: pa.Array
    old: pa.Array
    millis: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Notation:
    """The way in which a format writes the messages of one table.

    `spell` turns a column into JSON texts, and `compose` the changes into messages. A message's key begins with
    `key_head` and ends with `key_tail`, and `key_prefix` comes before the name of each of its columns. `truncate`
    writes a truncation at a time in milliseconds; it is None if the format has no such message.
    """

    spell: Spell
    compose: Callable[[EncoderChanges], pa.Array]
    key_head: str
    key_prefix: str = ""
    key_tail: str = "}"
    truncate: Callable[[int], bytes] | None = None


class RowEncoder:
    """A `FormatEncoder` of one table's changes, in a format's `notation`."""

    def __init__(self, table: TableId, schema: TableSchema, notation: Notation, *, tombstones: bool) -> None:
        self._table = table
        self._schema = schema
        self._notation = notation
        self._tombstones = tombstones

    def encode(self, batch: pa.RecordBatch) -> EncodedBatch:
        """See `FormatEncoder.encode`."""
        rows = batch.num_rows
        own = len(self._schema.columns)
        ops = batch.column(own).to_numpy(zero_copy_only=False)
        if np.any(ops == RowKind.TRUNCATE):
            raise DataError(f"{self._table}: a truncation is a schema change, not a row; it is encoded as one")
        millis = batch.column(own + 2).fill_null(0).to_numpy(zero_copy_only=False)
        cells = [self._texts(batch.column(i), c.type) for i, c in enumerate(self._schema.columns)]
        names = [c.name for c in self._schema.columns]
        key_cells = [cells[names.index(name)] for name in self._schema.primary_key]
        paired = self._pairs(ops, key_cells)
        kind = np.where(np.isin(ops, (RowKind.INSERT, RowKind.UPDATE_AFTER)), _INSERT, _DELETE).astype(np.int8)
        kind[paired] = _UPDATE
        kept = np.ones(rows, bool)
        kept[paired - 1] = False
        at = np.flatnonzero(kept)
        images = self._objects(names, cells, rows)
        # For the second row of an update, "before" is the first row. For all other rows, "before" is the row itself.
        previous = np.where(kind[at] == _UPDATE, at - 1, at)
        after, before = images.take(pa.array(at)), images.take(pa.array(previous))
        old = self._changed(names, cells, at, previous)
        values = self._notation.compose(EncoderChanges(kind[at], after, before, old, millis[at])).cast(pa.binary())
        keys = self._keys(key_cells, rows).take(pa.array(at))
        if not self._tombstones or not self._schema.primary_key:
            return EncodedBatch(keys, values)
        # A null index yields a null value, which is the tombstone after a delete.
        deletes = kind[at] == _DELETE
        order = np.repeat(np.arange(len(at)), 1 + deletes)
        second = np.zeros(len(order), bool)
        second[1:] = order[1:] == order[:-1]
        return EncodedBatch(keys.take(pa.array(order)), values.take(pa.array(order, mask=second)))

    def encode_change(self, event: SchemaChangeEvent, *, ts_ms: int) -> bytes | None:
        """Return the message for a truncation, if the format has one; see `FormatEncoder.encode_change`."""
        if isinstance(event, TruncateTableEvent) and self._notation.truncate is not None:
            return self._notation.truncate(ts_ms)
        return None

    def _texts(self, array: pa.Array, logical: Any) -> pa.Array:
        return self._notation.spell(array, logical).fill_null("null")

    def _pairs(self, ops: npt.NDArray[np.int8], key_cells: list[pa.Array]) -> npt.NDArray[np.int64]:
        """Return the rows that are the second half of an update.

        The first half is right before them and has the same key.
        """
        if not key_cells or len(ops) < 2:
            return np.zeros(0, np.int64)
        found = (ops[1:] == RowKind.UPDATE_AFTER) & (ops[:-1] == RowKind.UPDATE_BEFORE)
        for cell in key_cells:
            found &= pc.equal(cell.slice(1), cell.slice(0, len(cell) - 1)).to_numpy(zero_copy_only=False)
        return np.flatnonzero(found) + 1

    @staticmethod
    def _objects(names: list[str], cells: list[pa.Array], rows: int) -> pa.Array:
        pieces: list[Any] = []
        for i, (name, cell) in enumerate(zip(names, cells, strict=True)):
            pieces += [("," if i else "{") + spelling.name(name), cell]
        return pc.binary_join_element_wise(*pieces, "}", "") if pieces else pa.array(["{}"] * rows)

    @staticmethod
    def _changed(
        names: list[str], cells: list[pa.Array], at: npt.NDArray[np.int64], previous: npt.NDArray[np.int64]
    ) -> pa.Array:
        """Return the changed fields, with their values before the change, as a JSON object per row."""
        pieces: list[Any] = []
        for name, cell in zip(names, cells, strict=True):
            new, old = cell.take(pa.array(at)), cell.take(pa.array(previous))
            reported = pc.binary_join_element_wise("," + spelling.name(name), old, "")
            pieces.append(pc.if_else(pc.not_equal(new, old), reported, ""))
        joined = pc.binary_join_element_wise(*pieces, "") if pieces else pa.array([""] * len(at))
        return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")

    def _keys(self, key_cells: list[pa.Array], rows: int) -> pa.Array:
        if not key_cells:
            return pa.nulls(rows, pa.binary())
        head, prefix = self._notation.key_head, self._notation.key_prefix
        pieces: list[Any] = []
        for i, (name, cell) in enumerate(zip(self._schema.primary_key, key_cells, strict=True)):
            pieces += [("," if i or head != "{" else "") + spelling.name(prefix + name), cell]
        return pc.binary_join_element_wise(head, *pieces, self._notation.key_tail, "").cast(pa.binary())


def _key_tail(table: TableId, options: FormatOptions) -> str:
    """Return the end of each key of a format whose keys name the table only if the options say so."""
    return f",{spelling.name(TABLE_FIELD)}{spelling.text(str(table))}}}" if options.table_in_key else "}"


def maxwell_encoder(table: TableId, schema: TableSchema, options: FormatOptions) -> FormatEncoder:
    """Return an encoder of messages as Maxwell's daemon writes them. Its times are in seconds."""
    where = f'"database":{spelling.text(table.db)},"table":{spelling.text(table.table)}'
    keys = f'"primary_key_columns":{json.dumps(list(schema.primary_key), ensure_ascii=False)},'

    def compose(changes: EncoderChanges) -> pa.Array:
        kinds = pa.array(["insert", "update", "delete"]).take(pa.array(changes.kind))
        seconds = pa.array(changes.millis // 1000).cast(pa.string())
        update = pa.array(changes.kind == _UPDATE)
        old = pc.if_else(update, pc.binary_join_element_wise(',"old":', changes.old, ""), "")
        head = f"{{{where},{keys if schema.primary_key else ''}" + '"type":"'
        return pc.binary_join_element_wise(head, kinds, '","ts":', seconds, ',"data":', changes.after, old, "}", "")

    notation = Notation(spelling.maxwell, compose, key_head=f"{{{where}", key_prefix="pk.")
    return RowEncoder(table, schema, notation, tombstones=options.tombstones)


def canal_encoder(table: TableId, schema: TableSchema, options: FormatOptions) -> FormatEncoder:
    """Return an encoder of Canal's flat messages, with one row each. All values are texts."""
    types = {c.name: spelling.mysql_type(c.type) for c in schema.columns}
    codes = {c.name: spelling.jdbc_type(c.type) for c in schema.columns}
    described = json.dumps(types, ensure_ascii=False, separators=(",", ":"))
    numbered = json.dumps(codes, ensure_ascii=False, separators=(",", ":"))
    key = json.dumps(list(schema.primary_key), ensure_ascii=False) if schema.primary_key else "null"

    def tail(kind: Any, millis: Any, *, sql: str = "") -> list[Any]:
        rest = f',"pkNames":{key},"sql":{spelling.text(sql)},"sqlType":{numbered},"table":{spelling.text(table.table)}'
        return [rest + ',"ts":', millis, ',"type":"', kind, '"}', ""]

    def head(millis: Any, *, ddl: str = "false") -> list[Any]:
        return [
            f',"database":{spelling.text(table.db)},"es":',
            millis,
            f',"id":0,"isDdl":{ddl},"mysqlType":{described},"old":',
        ]

    def compose(changes: EncoderChanges) -> pa.Array:
        kinds = pa.array(["INSERT", "UPDATE", "DELETE"]).take(pa.array(changes.kind))
        millis = pa.array(changes.millis).cast(pa.string())
        listed = pc.binary_join_element_wise("[", changes.old, "]", "")
        old = pc.if_else(pa.array(changes.kind == _UPDATE), listed, "null")
        return pc.binary_join_element_wise('{"data":[', changes.after, "]", *head(millis), old, *tail(kinds, millis))

    def truncate(ts_ms: int) -> bytes:
        sql = f"TRUNCATE TABLE {quoted(table.db)}.{quoted(table.table)}"
        pieces = ['{"data":null', *head(str(ts_ms), ddl="true"), "null", *tail("TRUNCATE", str(ts_ms), sql=sql)]
        return "".join(pieces).encode()

    notation = Notation(spelling.canal, compose, key_head="{", key_tail=_key_tail(table, options), truncate=truncate)
    return RowEncoder(table, schema, notation, tombstones=options.tombstones)


def debezium_encoder(table: TableId, schema: TableSchema, options: FormatOptions) -> FormatEncoder:
    """Return an encoder of Debezium's events.

    If `include_schema` is True, each event is in an envelope that describes its schema.
    """
    described = json.dumps(connect_schema(table, schema), ensure_ascii=False, separators=(",", ":"))
    start, end = (f'{{"schema":{described},"payload":', "}") if options.include_schema else ("", "")
    name, dot, rest = table.table.partition(".")
    where = f'"db":{spelling.text(table.db)},"table":{spelling.text(rest if dot else name)}'
    if dot:
        where = f'"db":{spelling.text(table.db)},"schema":{spelling.text(name)},"table":{spelling.text(rest)}'

    def source(millis: Any) -> list[Any]:
        return [',"source":{"version":"1","connector":"raycdc","name":"raycdc","ts_ms":', millis, f",{where}}}"]

    def compose(changes: EncoderChanges) -> pa.Array:
        kinds = pa.array(["c", "u", "d"]).take(pa.array(changes.kind))
        millis = pa.array(changes.millis).cast(pa.string())
        before = pc.if_else(pa.array(changes.kind == _INSERT), "null", changes.before)
        after = pc.if_else(pa.array(changes.kind == _DELETE), "null", changes.after)
        head = f'{start}{{"before":'
        tail = [',"op":"', kinds, '","ts_ms":', millis, "}" + end, ""]
        return pc.binary_join_element_wise(head, before, ',"after":', after, *source(millis), *tail)

    def truncate(ts_ms: int) -> bytes:
        pieces = [f'{start}{{"before":null,"after":null', *source(str(ts_ms)), f',"op":"t","ts_ms":{ts_ms}}}{end}']
        return "".join(pieces).encode()

    notation = Notation(spelling.debezium, compose, key_head="{", key_tail=_key_tail(table, options), truncate=truncate)
    return RowEncoder(table, schema, notation, tombstones=options.tombstones)
