"""The interface of a format, which converts bytes of messages to changelog batches and back, a whole batch at a time.

A format comes through the entry-point group ``raycdc.formats`` (`load_format`). A format makes one decoder for each
ordered stream of messages (a topic's partition), and one encoder for each table. Each decoder and each encoder belongs
to one thread.

The contract of a decoder: items come in the order of the messages. The schema change that defines a row's columns comes
before the row. A bad message gives no row at all, and the messages before it give all of their rows. The same messages,
decoded from the same state, give the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.errors import DataError, SchemaError
from raycdc.model import TableId, TableSchema
from raycdc.model.evolution import SchemaChangeEvent

#: The version of this interface and of the decoders' state. A decoder refuses a newer state.
FORMAT_VERSION = 1


class BadMessageError(DataError):
    """A message cannot be decoded. The text names the position of the message, and quotes nothing of it."""

    cure = (
        "See the message with `raycdc inspect messages` and correct its producer. For bad messages that are already "
        "there, set `on_error` of the format to skip or dead-letter."
    )


class CorruptMessageError(BadMessageError):
    """A message does not have the form of the format at all: no JSON, no object, truncated."""

    cure = (
        "Check if the topic has messages of another format, and name that format in `source.format`. Otherwise see "
        "BadMessageError."
    )


class UnknownTypeError(BadMessageError):
    """A message is well-formed, but has an action that this version does not know."""

    cure = "Check if `source.format` names the format of the topic. Otherwise see BadMessageError."


class MissingBeforeImageError(BadMessageError):
    """An update or delete lacks the row before the change."""

    cure = (
        'Let the producer write complete rows from before a change, or set `before_image = "optional"` in the format '
        "if the target has a key."
    )


class PartialRowError(BadMessageError):
    """A row lacks a field that earlier rows of its table had.

    The message is partial: the missing value is unknown, and not NULL.
    """

    cure = (
        "Let the producer write complete rows. If the column was dropped at the source, list the remaining columns "
        "(`columns` or `tables` of the format)."
    )


class MissingKeyError(BadMessageError):
    """A row, or a tombstone, has no value in a column of its table's key.

    All rows without a key would become one row of the target.
    """

    cure = (
        "Have the producer write the key columns into every row, and objects with their names as keys of tombstones; "
        "or give another PRIMARY KEY in the columns of the format."
    )


class ChangedKeyError(BadMessageError):
    """A message names different key columns than earlier messages of its table, or a value of its key has a different
    type.

    Different rows could become one row of the target.
    """

    cure = (
        "Give the table's columns with a PRIMARY KEY in the format that holds for all messages; or read those with the "
        "new key into a new target, with another pipeline."
    )


class UnclearTombstoneError(BadMessageError):
    """A tombstone may belong to several tables."""

    cure = (
        "Produce each table into a topic of its own, named after the table; or have the producer write the delete "
        "before its tombstone. Skipping such messages keeps the deleted rows."
    )


class UnrepresentableValueError(BadMessageError):
    """A value does not fit its column's type."""

    cure = "Declare columns that are wide enough for the values (`columns` of the format), or correct the producer."


class FormatStateError(SchemaError):
    """The state of a decoder cannot be read."""

    cure = "Use the version of raycdc that wrote the state, or a newer one."


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a batch of messages: a topic's partition, or a file (partition -1; offsets are lines)."""

    topic: str
    partition: int = -1

    def location(self, offset: int) -> str:
        """Return ``orders/0@4512`` or ``changes.jsonl:17`` for errors."""
        return f"{self.topic}:{offset}" if self.partition < 0 else f"{self.topic}/{self.partition}@{offset}"


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages in order, with one offset each. `values` are binary (null or empty: a tombstone).

    `keys` are the messages' keys, null for a message without one; None if they are not known, as in a file of messages.
    `timestamps_ms` are the broker's times, which are used for messages without a time.
    """

    origin: Origin
    values: pa.Array
    offsets: npt.NDArray[np.int64]
    keys: pa.Array | None = None
    timestamps_ms: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class RowsItem:
    """Rows of one table: its columns, the requested fields of the envelope, then `raycdc.model.META_FIELDS`.

    `schema` describes all columns except `META_FIELDS`. `messages` has, for each row, the number of its message in the
    batch.
    """

    table: TableId
    schema: TableSchema
    batch: pa.RecordBatch
    messages: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)


@dataclass(frozen=True, slots=True)
class ChangeItem:
    """A schema change before the rows that follow. `statement` is the source's own SQL text, if there is one.

    `events` lead from the schema of the rows before to the schema of the rows after this item. `described` are the
    changes of the source's table that two descriptions of its columns show, such as Debezium's embedded schemas or the
    declared columns of two starts: these include dropped columns, which the rows' schema may keep. `unclear` says why a
    value that existing rows got by these changes is unknown; it is empty if all values are known.
    """

    table: TableId
    events: tuple[SchemaChangeEvent, ...]
    message: int
    statement: str = ""
    described: tuple[SchemaChangeEvent, ...] = ()
    unclear: str = ""


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that was left out, for the dead-letter sink: its bytes and the reason.

    `value` is None if it must not be shown.
    """

    origin: Origin
    offset: int
    key: bytes | None
    value: bytes | None
    error: BadMessageError


@dataclass(frozen=True, slots=True)
class Decoded:
    """The changes of a batch of messages.

    `failure` is the error of the first bad message, if bad messages are not tolerated; `items` then has the changes of
    all messages before that one, and of none after it. `tombstones` is the number of tombstones that delete no row.
    `state_changed` is True if the decoder's state changed, even if no item shows the change. `key_only` has the tables
    with a delete that has only the key of the row.
    """

    items: tuple[RowsItem | ChangeItem, ...]
    bad: tuple[BadMessage, ...] = ()
    failure: BadMessageError | None = None
    tombstones: int = 0
    ignored: int = 0
    state_changed: bool = False
    key_only: frozenset[TableId] = frozenset()

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items if isinstance(item, RowsItem))


class FormatDecoder(Protocol):
    """A decoder of batches of messages. It has the schemas of the tables that it has seen."""

    def decode(self, batch: MessageBatch) -> Decoded:
        """Return the changes of `batch`. Raises nothing for bad messages (see `Decoded.failure`)."""
        ...

    def snapshot_state(self) -> dict[str, Any]:
        """Return JSON-able data from which a decoder continues after a restart: the tables' schemas."""
        ...

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `snapshot_state`. Raises `FormatStateError` if it is of a newer version."""
        ...


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Messages for a topic: binary `values` (null: a tombstone) and `keys`, one of each per message."""

    keys: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.values)


class FormatEncoder(Protocol):
    """An encoder of one table's changelog batches. The same rows always give the same bytes."""

    def encode(self, batch: pa.RecordBatch) -> EncodedBatch:
        """Return messages for the rows of `batch` (the table's columns and `raycdc.model.META_FIELDS`), in order."""
        ...

    def encode_change(self, event: SchemaChangeEvent, *, ts_ms: int) -> bytes | None:
        """Return the message for a schema change; None if the format has none."""
        ...


class Format(Protocol):
    """A format with its options."""

    identifier: ClassVar[str]
    version: ClassVar[int]

    def decoder(self, *, keep_null_columns: bool = False, positions: bool = False) -> FormatDecoder:
        """Return a decoder for one ordered stream.

        If `keep_null_columns` is True, a field that was null in every message becomes a column, too. If `positions` is
        True, ``_pos`` is filled.
        """
        ...

    def encoder(self, table: TableId, schema: TableSchema) -> FormatEncoder:
        """Return an encoder for one table. Raises `ConfigError` if the format cannot be written."""
        ...


@dataclass(slots=True)
class FormatStatistics:
    """Counters of a decoder since its creation."""

    messages: int = 0
    rows: int = 0
    tombstones: int = 0
    ignored: int = 0
    filtered: int = 0
    bad: int = 0
    zero_dates: int = 0
    by_table: dict[TableId, int] = field(default_factory=dict)
