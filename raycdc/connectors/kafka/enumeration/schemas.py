"""Schemas of tables whose messages lie in many partitions: the enumerator decides one version for each epoch.

Each partition's decoder finds a table's columns by itself, in its own order. Its result is *conformed* to the schema in
force: missing columns are null, narrower types are widened. If a batch does not fit the schema in force, the batch
waits, and its reader requests a wider schema. The enumerator merges all requests, and tells all readers from which
epoch on the merged schema is in force. The batch is emitted in that epoch. Within an epoch, a table therefore has the
same schema in all readers. Schemas only grow: a field that disappears stays a column. Pure.

`SchemasOfReader` has the schemas with which one reader may write rows, and its open requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.connectors.kafka.events import SchemaChangeRequest, SchemasInForce
from raycdc.errors import SchemaError
from raycdc.model import META_FIELDS, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.batch import reserved_column
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    CreateTableEvent,
    SchemaChangeEvent,
)
from raycdc.model.schema import constant
from raycdc.model.types import DECIMAL_PRECISION_MAX
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.transform.masks import Masking

_INTEGERS = (TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64)
_DIGITS = {TypeKind.INT8: 3, TypeKind.INT16: 5, TypeKind.INT32: 10, TypeKind.INT64: 19, TypeKind.UINT64: 20}
_FLOATS = (TypeKind.FLOAT32, TypeKind.FLOAT64)
_STRING = LogicalType(TypeKind.STRING)


def wider(known: LogicalType, other: LogicalType) -> LogicalType:
    """Return the narrowest type that holds the values of both; `known` itself if it does."""
    if known.arrow() == other.arrow():
        return known if known.fsp >= other.fsp else replace(known, fsp=other.fsp)
    kinds = (known.kind, other.kind)
    if all(kind in _INTEGERS for kind in kinds):
        return max(known, other, key=lambda t: _INTEGERS.index(t.kind))
    if any(kind in _FLOATS for kind in kinds) and all(kind in (*_FLOATS, *_INTEGERS) for kind in kinds):
        return LogicalType(TypeKind.FLOAT64)
    sizes = [_decimal_size(t) for t in (known, other)]
    if all(size is not None for size in sizes):
        whole, scale = (max(size[i] for size in sizes if size is not None) for i in (0, 1))
        if whole + scale <= DECIMAL_PRECISION_MAX:
            return LogicalType(TypeKind.DECIMAL, precision=whole + scale, scale=scale)
    return _STRING


def _decimal_size(logical: LogicalType) -> tuple[int, int] | None:
    """Return the number of digits before and after the decimal point; None if the type is no number of fixed digits."""
    if logical.kind is TypeKind.DECIMAL:
        return logical.precision - logical.scale, logical.scale
    digits = _DIGITS.get(logical.kind)
    return None if digits is None else (digits, 0)


def merge(
    table: TableId, known: TableSchema | None, other: TableSchema
) -> tuple[TableSchema, tuple[SchemaChangeEvent, ...]]:
    """Return the schema that fits batches of both schemas, and the events that lead from `known` to it.

    Without events, `known` fits batches of `other` already.

    Raises `SchemaError` if the two have different keys, or a column has a reserved name.
    """
    if reserved := reserved_column(column.name for column in other.columns):
        raise SchemaError(f"{table}: {reserved} with source.format.exclude.")
    if known is None:
        return other, (CreateTableEvent(table, other),)
    events: list[SchemaChangeEvent] = []
    columns = list(known.columns)
    indexes = {column.name: index for index, column in enumerate(columns)}
    for column in other.columns:
        at = indexes.get(column.name)
        if at is None:
            added = replace(column, nullable=True)
            columns.append(added)
            events.append(AddColumnEvent(table, added, masked=added.masked))
            continue
        merged = wider(columns[at].type, column.type)
        if merged.arrow() != columns[at].type.arrow():
            events.append(AlterColumnTypeEvent(table, column.name, merged, was=columns[at].type))
            columns[at] = replace(columns[at], type=merged)
    key = known.primary_key
    if other.primary_key and other.primary_key != key:
        if key:
            raise SchemaError(
                f"Messages of {table} name two primary keys: ({', '.join(key)}) and ({', '.join(other.primary_key)}). "
                "Give the table's columns with its PRIMARY KEY in source.format."
            )
        key = other.primary_key
        events.append(AlterPrimaryKeyEvent(table, key))
    return TableSchema(tuple(columns), key), tuple(events)


def fits(known: TableSchema | None, other: TableSchema) -> bool:
    """Return True if a batch of schema `other` can be conformed to `known`."""
    if known is None or (other.primary_key and other.primary_key != known.primary_key):
        return False
    types = {column.name: column.type for column in known.columns}
    return all(
        column.name in types and wider(types[column.name], column.type).arrow() == types[column.name].arrow()
        for column in other.columns
    )


def conform(
    table: TableId, batch: pa.RecordBatch, schema: TableSchema, *, without: Collection[str] = ()
) -> pa.RecordBatch:
    """Return `batch` with exactly the columns of `schema` and the metadata columns, not copied if it has them already.

    A column that the batch lacks gets its default, because the source gave existing rows this value when the column was
    added. The column is null if its name, in lower case, is in `without`, the columns that were dropped at the source.
    It is also null if a mask hides its default (`with_redacted_defaults`).
    """
    wanted = pa.schema([*schema.arrow(), *META_FIELDS])
    if batch.schema.equals(wanted):
        return batch
    present = {name: index for index, name in enumerate(batch.schema.names)}
    if keyless := [name for name in schema.primary_key if name not in present]:
        raise SchemaError(
            f"{table}: rows lack column {keyless[0]!r} of the key ({', '.join(schema.primary_key)}), so that all of "
            "them would be one row of the target. Have the producer write it, or give the table's columns with another "
            "PRIMARY KEY in source.format."
        )
    arrays = []
    given = [column for column in schema.columns if mysql_fold(column.name) not in without and not column.masked]
    defaults = {column.name: column.default for column in given if column.default is not None}
    for column in wanted:
        index = present.get(column.name)
        if index is None and column.name not in defaults:
            arrays.append(pa.nulls(batch.num_rows, column.type))
            continue
        try:
            if index is None:
                arrays.append(pa.repeat(constant(defaults[column.name], column.type), batch.num_rows))
            else:
                arrays.append(_cast(batch.column(index), column.type))
        except pa.ArrowInvalid:
            # The exception's text contains the value.
            raise SchemaError(
                f"{table}: a value of column {column.name!r} does not fit {column.type}. "
                "Give the table's columns in source.format."
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def with_redacted_defaults(
    table: TableId,
    conformed: pa.RecordBatch,
    schema: TableSchema,
    masking: Masking,
    *,
    known: Collection[str],
    without: Collection[str],
) -> pa.RecordBatch:
    """Fill masked columns of `conformed` with their hidden defaults if the messages lack the column.

    `conformed` is a batch that was masked before. `known` are the columns that its messages have; `without` are columns
    that were dropped. The batch is returned unchanged if no default is missing.
    """
    missing = {
        column.name: column.default
        for column in schema.columns
        if column.masked and column.name not in known and mysql_fold(column.name) not in without
    }
    if not missing:
        return conformed
    masked = masking.batch(table, conformed)
    for name, default in missing.items():
        index = masked.schema.get_field_index(name)
        assert default is not None
        assert index >= 0, "a column that a mask drops has no default"
        column = masked.schema.field(index)
        masked = masked.set_column(index, column, pa.repeat(constant(default, column.type), masked.num_rows))
    return masked


def emptied_row(schema: TableSchema, *, ts_ms: int, at: str) -> pa.RecordBatch:
    """Return the row that means that all rows of a table were deleted: null except in the metadata columns."""
    meta = {"_op": int(RowKind.TRUNCATE), "_seq": 0, "_ts_ms": ts_ms, "_pos": at}
    wanted = pa.schema([*schema.arrow(), *META_FIELDS])
    arrays = [pa.array([meta.get(field.name)], field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted):
        return array
    if pa.types.is_binary(array.type) and pa.types.is_string(wanted):
        return pc.binary_join_element_wise("", pc.cast(array, pa.string()), "")
    return pc.cast(array, wanted)


@dataclass(frozen=True, slots=True)
class Update:
    """Schemas that hold from an epoch on, with the schema changes that lead to them."""

    from_epoch: int
    schemas: dict[TableId, TableSchema]
    changes: dict[TableId, tuple[SchemaChangeEvent, ...]] = field(default_factory=dict)

    def to_event(self) -> SchemasInForce:
        """Return the event for the readers."""
        return SchemasInForce(self.from_epoch, dict(self.schemas))


class SchemaRegistry:
    """The schemas of all tables, in the enumerator.

    `open_epoch` returns the first epoch that a message sent now can still affect.
    """

    def __init__(self, schemas: dict[TableId, TableSchema], *, open_epoch: Callable[[], int]) -> None:
        self._schemas = schemas
        self._open_epoch = open_epoch
        self._pending: list[Update] = []
        #: Every schema that was ever in force, with its fingerprint. The caller checks if the schema is still in force.
        self._fingerprints: dict[TableId, tuple[TableSchema, str]] = {}

    def request(self, table: TableId, schema: TableSchema) -> Update | None:
        """Merge the schema of a reader's batch into the table's.

        Returns the update to send to all readers; None if the table's latest schema, which they have or will get, fits
        the batch.
        """
        merged, changes = merge(table, self._latest(table), schema)
        if not changes:
            return None
        epoch = self._open_epoch() + 1
        update = Update(epoch, {table: merged}, {table: changes})
        self._pending.append(update)
        return update

    def updates(self) -> Sequence[Update]:
        """Return all updates that a new reader needs, in order."""
        return [Update(0, dict(self._schemas)), *self._pending]

    def sealed(self, epoch: int) -> Update:
        """Put the updates in force that begin with `epoch`, and return them as one."""
        due = [update for update in self._pending if update.from_epoch <= epoch]
        self._pending = [update for update in self._pending if update.from_epoch > epoch]
        together = Update(epoch, {})
        for update in due:
            together.schemas.update(update.schemas)
            for table, changes in update.changes.items():
                together.changes[table] = (*together.changes.get(table, ()), *changes)
        self._schemas.update(together.schemas)
        return together

    @property
    def tables(self) -> dict[TableId, TableSchema]:
        """Return the schemas in force after the last sealed epoch."""
        return self._schemas

    def fingerprints(self) -> dict[TableId, str]:
        """Return the fingerprint of each schema in force.

        Every seal needs all of them, so unchanged ones are not hashed again.
        """
        for table, schema in self._schemas.items():
            known = self._fingerprints.get(table)
            if known is None or known[0] is not schema:
                self._fingerprints[table] = (schema, schema.fingerprint())
        return {table: fingerprint for table, (_, fingerprint) in self._fingerprints.items()}

    def _latest(self, table: TableId) -> TableSchema | None:
        for update in reversed(self._pending):
            if table in update.schemas:
                return update.schemas[table]
        return self._schemas.get(table)


class SchemasOfReader:
    """The schemas in force for one reader, and its open requests.

    A schema is in force from the epoch that its update names. Owned by the reader's thread.
    """

    def __init__(self, send_event: Callable[[SourceEvent], None]) -> None:
        self._send_event = send_event
        self._in_force: dict[TableId, tuple[TableSchema, str]] = {}
        self._updates: list[SchemasInForce] = []
        self._asked: set[tuple[TableId, str]] = set()

    def hear(self, update: SchemasInForce, *, epoch: int) -> None:
        """Add an update that came while `epoch` is open."""
        self._updates.append(update)
        self.apply(epoch)

    def apply(self, epoch: int) -> None:
        """Put the updates in force that begin with `epoch` or earlier."""
        due = [update for update in self._updates if update.from_epoch <= epoch]
        self._updates = [update for update in self._updates if update.from_epoch > epoch]
        for update in due:
            self._in_force.update({table: (s, s.fingerprint()) for table, s in update.schemas.items()})
        if due:
            self._asked.clear()

    def all_in_force(self) -> dict[TableId, TableSchema]:
        return {table: schema for table, (schema, _) in self._in_force.items()}

    def get(self, table: TableId) -> TableSchema | None:
        """Return the table's schema in force, if there is one."""
        known = self._in_force.get(table)
        return known[0] if known else None

    def __getitem__(self, table: TableId) -> tuple[TableSchema, str]:
        """Return the schema in force and its fingerprint. The table must have one."""
        return self._in_force[table]

    def lacking(self, needed: Iterable[tuple[TableId, TableSchema]]) -> list[tuple[TableId, TableSchema]]:
        """Return the schemas in `needed` that do not fit the schemas in force, so that their rows cannot be written
        yet.
        """
        return [(table, schema) for table, schema in needed if not fits(self.get(table), schema)]

    def ask_for(self, lacking: Sequence[tuple[TableId, TableSchema]]) -> None:
        """Request each of these schemas from the enumerator, once until an update comes."""
        for table, schema in lacking:
            question = (table, schema.fingerprint())
            if question not in self._asked:
                self._asked.add(question)
                self._send_event(SchemaChangeRequest(table, schema))
