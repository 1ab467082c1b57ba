"""The effect of masks on a table's columns and schema changes; readers mask the rows.

Manifests and schema documents have the source's columns with their types, but without the defaults that a mask hides.
Sources pass their schemas and changes through `redacted_schema` and `redacted_changes` for that. `masked_schema` and
`masked_changes` return the columns and changes of segments, whose rows are masked. `masked` masks the columns of a
batch; readers call it before a row leaves their memory.

`Masking` protects rows and keys in the state: it masks columns, and encrypts values that are needed later, such as
bounds of chunks. Sources get it in their context (`raycdc.source.connector.SourceContext`). Everything here is pure and
picklable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import ConfigError, DataError, SchemaError
from raycdc.model import META_COLUMNS, Column, LogicalType, TableId, TableSchema
from raycdc.model.batch import is_masked, with_masked
from raycdc.model.evolution.events import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.model.json_text import decimal_text
from raycdc.model.rules.mask import Mask, Masks
from raycdc.model.schema import constant
from raycdc.model.state_key import StateKey, is_sealed, no_key

#: The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
_PRIMES = [n for n in range(2, 312) if all(n % d for d in range(2, n))]


def masked(batch: pa.RecordBatch, table: TableId, masks: Masks) -> pa.RecordBatch:
    """Return `batch` without dropped columns, and with the other masked columns masked.

    The metadata of the schema is kept. If the metadata says that the batch is masked already, only that mark is
    removed.
    """
    if is_masked(batch):
        return with_masked(batch, masked=False)
    found = {name: mask for name in batch.schema.names if name not in META_COLUMNS and (mask := masks.of(table, name))}
    if not found:
        return batch
    arrays, fields = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        mask = found.get(name)
        if mask is not None and mask.method == "drop":
            continue
        array = column if mask is None else masked_values(column, mask, f"{table}.{name}")
        arrays.append(array)
        fields.append(pa.field(name, array.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=batch.schema.metadata))


def masked_values(array: pa.Array, mask: Mask, where: str) -> pa.Array:
    """Return the values masked by `mask`.

    Raises a `DataError` that names `where` if the mask does not apply to their type.
    """
    match mask.method:
        case "mask":
            return pc.if_else(array.is_valid(), pa.scalar("*" * mask.length), pa.scalar(None, pa.string()))
        case "truncate" if pa.types.is_string(array.type):
            return pc.utf8_slice_codeunits(array, 0, mask.length)
        case "truncate" if pa.types.is_binary(array.type):
            return pc.binary_slice(array, 0, mask.length)
        case "hash":
            return _hashed(array, mask.key)
        case method:
            raise DataError(f"mask: {where} cannot be masked by {method}: it is {array.type}.")


def _hashed(array: pa.Array, key: bytes) -> pa.Array:
    from raycdc.transform import hmac_loops as loops

    array = _canonical(array)
    binary = array.cast(pa.large_binary() if pa.types.is_binary(array.type) else pa.large_string())
    binary = binary.cast(pa.large_binary()).fill_null(b"")
    _, ends, data = binary.buffers()
    offsets = np.frombuffer(ends, np.int64, count=len(binary) + 1, offset=8 * binary.offset)
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    digits = np.empty(loops.DIGITS * len(binary), np.uint8)
    inner, outer, constants = _prepared(key)
    room = (np.empty(8, np.int64), np.empty(loops.BLOCK, np.uint8), np.empty(64, np.int64))
    loops.hex_digests(values, offsets, inner, outer, constants, *room, digits)
    indexes = np.arange(0, len(digits) + 1, loops.DIGITS, dtype=np.int32)
    text = pa.StringArray.from_buffers(len(binary), pa.py_buffer(indexes), pa.py_buffer(digits))
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


def _canonical(array: pa.Array) -> pa.Array:
    """Return the values in a form in which equal values have equal texts, even if their columns differ in width or
    scale. A decimal loses zeros at its end. A float gets the digits of the double with its value. Zero gets no sign.
    """
    if pa.types.is_decimal(array.type):
        text = decimal_text(array, array.type.scale)
        if array.type.scale > 0:
            text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
        return pc.if_else(pc.equal(text, "-0"), "0", text)
    return pc.add(array.cast(pa.float64()), 0.0) if pa.types.is_floating(array.type) else array


@cache
def _prepared(key: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return SHA-256's states after the key's inner and outer padding block, and SHA-256's constants."""
    from raycdc.transform import hmac_loops as loops

    constants = np.array([_fraction(prime, 3) for prime in _PRIMES[:64]], np.int64)
    initial = np.array([_fraction(prime, 2) for prime in _PRIMES[:8]], np.int64)
    padded = (hashlib.sha256(key).digest() if len(key) > loops.BLOCK else key).ljust(loops.BLOCK, b"\0")
    states = []
    for pad in (0x36, 0x5C):
        state = initial.copy()
        loops.key_state(state, np.frombuffer(padded, np.uint8) ^ np.uint8(pad), np.empty(64, np.int64), constants)
        states.append(state)
    return states[0], states[1], constants


def _fraction(prime: int, root: int) -> int:
    """Return the first 32 bits of the fractional part of the `root`-th root of `prime`, computed with integers."""
    scaled = prime << (32 * root)
    guess: int = round(float(prime) ** (1 / root) * 2**32)
    while guess**root > scaled:
        guess -= 1
    while (guess + 1) ** root <= scaled:
        guess += 1
    return guess & 0xFFFFFFFF


#: A default that is no value of any type except text. Defaults of text columns can always be masked.
_REFUSED = "?"


def masked_schema(table: TableId, schema: TableSchema, masks: Masks) -> TableSchema:
    """Return the columns that rows of `table` have in segments.

    Raises `ConfigError` for masks that do not apply to them.
    """
    masks.check_key(table, schema.primary_key)
    kept = [masked for column in schema.columns if (masked := _masked(table, column, masks)) is not None]
    if not kept:
        raise ConfigError(f"mask: all columns of {table} are dropped, so that there is nothing to write.")
    return TableSchema(tuple(kept), schema.primary_key)


def redacted_schema(table: TableId, schema: TableSchema, masks: Masks) -> TableSchema:
    """Return the schema as the state stores it, without defaults of masked columns."""
    return replace(schema, columns=tuple(_without_default(table, column, masks) for column in schema.columns))


def redacted_changes(
    table: TableId, changes: Sequence[SchemaChangeEvent], masks: Masks
) -> tuple[SchemaChangeEvent, ...]:
    """Return the changes as the state stores them.

    A default that its column's mask cannot hide is replaced, so that `masked_changes` raises an error without its text.
    """
    return tuple(_redacted_or_refused(table, change, masks) for change in changes)


def masked_changes(table: TableId, changes: Sequence[SchemaChangeEvent], masks: Masks) -> list[SchemaChangeEvent]:
    """Return the changes as they apply to segments. Raises `SchemaError` if a renamed column would get a different
    mask.
    """
    made: list[SchemaChangeEvent] = []
    for change in changes:
        match change:
            case CreateTableEvent(_, schema):
                made.append(replace(change, schema=masked_schema(table, schema, masks)))
            case AddColumnEvent(_, column) if masks.of(table, column.name) is not None:
                made += _added(table, change, masks)
            case RenameColumnEvent(_, name, new_name):
                if masks.of(table, name) != masks.of(table, new_name):
                    raise SchemaError(
                        f"{table}: column {name!r} was renamed to {new_name!r}, and mask has different entries for the "
                        f"two "
                        "names, so hidden values would be shown. Rename it back, or name both in mask and take a new "
                        "snapshot of the table."
                    )
                made.append(change)
            case DropColumnEvent(_, name) if (mask := masks.of(table, name)) is not None and mask.method == "drop":
                continue
            case AlterColumnTypeEvent(_, name, new_type) if (mask := masks.of(table, name)) is not None:
                masked = _type(table, Column(name, new_type), masks)
                # A mask whose result is text gives the same type before and after the change.
                made += [] if masked is None or masked.arrow() != new_type.arrow() else [change]
            case _:
                made.append(change)
    return made


def _added(table: TableId, change: AddColumnEvent, masks: Masks) -> list[SchemaChangeEvent]:
    column = _masked(table, change.column, masks)
    if column is None:
        return []
    masked = _redacted(table, change, masks)
    assert isinstance(masked, AddColumnEvent)
    return [replace(masked, column=replace(column, default=masked.column.default), masked=False)]


def _redacted_or_refused(table: TableId, change: SchemaChangeEvent, masks: Masks) -> SchemaChangeEvent:
    try:
        return _redacted(table, change, masks)
    except SchemaError:
        assert isinstance(change, AddColumnEvent)
        return replace(change, column=replace(change.column, default=_REFUSED))


def _redacted(table: TableId, change: SchemaChangeEvent, masks: Masks) -> SchemaChangeEvent:
    match change:
        case CreateTableEvent(_, schema):
            return replace(change, schema=redacted_schema(table, schema, masks))
        case AddColumnEvent(_, column, _, masked) if not masked and (mask := masks.of(table, column.name)) is not None:
            if column.default is None:
                return change
            return replace(change, column=replace(column, default=masked_default(table, column, mask)), masked=True)
        case _:
            return change


def masked_default(table: TableId, column: Column, mask: Mask) -> str | None:
    """Return the default that existing rows get in an added column, masked like other rows; None if the column is
    dropped.

    Raises `SchemaError`, without the default's text, if the mask cannot hide it.
    """
    if mask.method == "drop" or column.default is None:
        return None
    try:
        value = constant(column.default, column.type.arrow())
        shown = masked_values(pa.array([value]), mask, f"{table}.{column.name}")[0].as_py()
    except (pa.ArrowException, ConfigError, DataError) as cause:
        raise SchemaError(
            f"{table}: column {column.name!r} was added with a default that cannot be masked, so the value of existing "
            "rows in it is not known. Take a new snapshot of the table, which masks them."
        ) from cause
    # Constants of binary columns are written in this form.
    return shown.decode("utf-8", "surrogateescape") if isinstance(shown, bytes) else shown


def _without_default(table: TableId, column: Column, masks: Masks) -> Column:
    return column if masks.of(table, column.name) is None else replace(column, default=None, masked=False)


def _masked(table: TableId, column: Column, masks: Masks) -> Column | None:
    if masks.of(table, column.name) is None:
        return column
    kind = _type(table, column, masks)
    return None if kind is None else replace(column, type=kind, default=None, masked=False)


def _type(table: TableId, column: Column, masks: Masks) -> LogicalType | None:
    mask = masks.of(table, column.name)
    assert mask is not None
    try:
        return mask.type(column.type)
    except ValueError as cause:
        raise ConfigError(f"mask: {table}.{column.name}: {cause}") from cause


@dataclass(frozen=True, slots=True)
class Masking:
    """The pipeline's masks, and the key that encrypts values in the state that are needed unmasked.

    ``repr`` shows neither the key of the masks nor the key of the state.
    """

    masks: Masks = field(default_factory=Masks)
    state_key: StateKey | None = None

    def masks_any(self, table: TableId, columns: Collection[str]) -> bool:
        """Return True if a mask applies to one of these columns."""
        return any(self.masks.of(table, column) is not None for column in columns)

    def concerns(self, table: TableId) -> bool:
        """Return True if a mask may apply to a column of `table`."""
        return any(mask.plain is None or mask.plain[0] == table for mask in self.masks.all)

    def batch(self, table: TableId, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of `table` as segments have them, marked as masked."""
        return with_masked(masked(batch, table, self.masks), masked=True) if self.masks else batch

    def without_unfit(self, table: TableId, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return `batch` with NULL in columns that their masks cannot hide.

        Readers that cannot park a table call this. The driver, which knows the targets, parks the table because
        `masked_schema` raises an error for such a column, so these rows reach no target.
        """
        for index, field_ in enumerate(batch.schema):
            mask = None if field_.name in META_COLUMNS else self.masks.of(table, field_.name)
            if mask is not None and not mask.takes(field_.type):
                nothing = pa.nulls(batch.num_rows, pa.string())
                batch = batch.set_column(index, pa.field(field_.name, pa.string()), nothing)
        return batch

    def seal(self, table: TableId, data: bytes) -> str:
        """Return `data`, which contains values that a mask of `table` hides, as an encrypted text.

        Raises `ConfigError` if there is no key.
        """
        if self.state_key is None:
            raise ConfigError(
                f"pipeline.state_key is not set, and {table} is cut into chunks by a column that a mask hides: the "
                "state would have its values in the clear. Set pipeline.state_key, for instance to "
                '"${env:STATE_KEY}", or name another column in source.snapshot.key.'
            )
        return self.state_key.seal(data)

    def open(self, text: str) -> bytes:
        """Return the inverse of `seal`. Raises `StateError` if there is no key, or if `seal` used a different key."""
        if self.state_key is None:
            raise no_key()
        return self.state_key.open(text)

    def seal_json(self, table: TableId, columns: Collection[str], value: Any) -> Any:
        """Return a JSON value of `columns` in the form that the state may store: encrypted, if a mask applies to one of
        them.
        """
        return self.seal(table, json.dumps(value).encode()) if self.masks_any(table, columns) else value

    def open_json(self, value: Any) -> Any:
        """Return the inverse of `seal_json`. A value that was not encrypted is returned unchanged."""
        return json.loads(self.open(value)) if is_sealed(value) else value
