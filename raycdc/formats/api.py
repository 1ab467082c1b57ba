"""The interface of a format: bytes of messages to changelog batches and back, a whole batch at a time.

A format comes through the entry-point group ``raycdc.formats`` (`load_format`) and is asked for one decoder per stream
of messages whose order counts (a topic's partition) and one encoder per table. Both belong to one thread.

The decoder's contract: items come in the order of the messages; a table's rows are preceded by the schema change that
explains their columns; a bad message gives no row at all, the messages before it give all of theirs. Decoding the same
messages from the same state gives the same rows.
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

#: The version of the interface below and of the decoders' state; a decoder refuses a newer state.
FORMAT_VERSION = 1


class BadMessageError(DataError):
    """A message cannot be decoded; the text says where it is, and quotes nothing of it."""

    cure = (
        "See the message with `raycdc inspect messages`, mend its producer, and let `on_error` of the format decide "
        "about those that are there: skip or dead-letter."
    )


class CorruptMessageError(BadMessageError):
    """A message does not have the format at all: no JSON, no object, truncated."""

    cure = (
        "See whether the topic has messages of another format, and name the right one in `source.format`; else as "
        "for BadMessageError."
    )


class UnknownTypeError(BadMessageError):
    """A message is well-formed, but what happened is spelled in a way this version does not know."""

    cure = "See whether `source.format` names the format of the topic; else as for BadMessageError."


class MissingBeforeImageError(BadMessageError):
    """An update or delete lacks the row before the change."""

    cure = (
        'Have the producer write whole rows before a change, or set `before_image = "optional"` in the format, '
        "where the target has a key."
    )


class PartialRowError(BadMessageError):
    """A row lacks a field that earlier rows of its table had.

    The message is partial, and the missing value is not NULL.
    """

    cure = (
        "Have the producer write whole rows; or, where the column is gone at the source, give the columns that are "
        "left (`columns` or `tables` of the format)."
    )


class UnrepresentableValueError(BadMessageError):
    """A value does not fit its column's type."""

    cure = "Declare the columns as wide as the values are (`columns` of the format), or mend the producer."


class FormatStateError(SchemaError):
    """The state of a decoder cannot be read."""

    cure = "Go on with the version of raycdc that wrote the state, or with a newer one."


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a batch of messages comes from: a topic's partition, or a file (partition -1; offsets are lines)."""

    topic: str
    partition: int = -1

    def location(self, offset: int) -> str:
        """``orders/0@4512`` or ``changes.jsonl:17`` for errors."""
        return f"{self.topic}:{offset}" if self.partition < 0 else f"{self.topic}/{self.partition}@{offset}"


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages in order: `values` binary (null or empty: a tombstone), `offsets` one each.

    `keys` are the messages' keys where there are any; `timestamps_ms` the broker's times, for messages that carry none.
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
    """Rows of one table: its columns, those asked for from the envelope, then `raycdc.model.META_FIELDS`.

    `schema` describes all but the last of these. `messages` holds the number of each row's message in the batch.
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
    """A schema change before the rows that follow. `statement` is the source's own text, if any."""

    table: TableId
    events: tuple[SchemaChangeEvent, ...]
    message: int
    statement: str = ""


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that was left out, for the dead-letter sink: raw, with the reason; `value` is None if it is hidden."""

    origin: Origin
    offset: int
    key: bytes | None
    value: bytes | None
    error: BadMessageError


@dataclass(frozen=True, slots=True)
class Decoded:
    """The changes of a batch of messages. `failure` is the first bad message's error where bad ones are not tolerated:
    everything before it is in `items`, nothing after it. `message_rows` counts the rows of each message.
    """

    items: tuple[RowsItem | ChangeItem, ...]
    bad: tuple[BadMessage, ...] = ()
    failure: BadMessageError | None = None
    tombstones: int = 0
    ignored: int = 0

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items if isinstance(item, RowsItem))


class FormatDecoder(Protocol):
    """Turns batches of messages into changes; holds the schemas of the tables it met."""

    def decode(self, batch: MessageBatch) -> Decoded:
        """The changes of `batch`. Raises nothing for bad messages (see `Decoded.failure`)."""
        ...

    def snapshot_state(self) -> dict[str, Any]:
        """JSON-able: the tables' schemas, to continue from after a restart."""
        ...

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `snapshot_state`'s value. Raises `FormatStateError` for a newer one."""
        ...


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Messages for a topic: `values` (null: a tombstone) and `keys` binary, one each."""

    keys: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.values)


class FormatEncoder(Protocol):
    """Turns changelog batches of one table into messages; the same rows always give the same bytes."""

    def encode(self, batch: pa.RecordBatch) -> EncodedBatch:
        """Messages for the rows of `batch` (the table's columns and `raycdc.model.META_FIELDS`), in order."""
        ...

    def encode_change(self, event: SchemaChangeEvent, *, ts_ms: int) -> bytes | None:
        """Return the message for a schema change; None if the format has none."""
        ...


class Format(Protocol):
    """One format with its options."""

    identifier: ClassVar[str]
    version: ClassVar[int]

    def decoder(self, *, keep_null_columns: bool = False, positions: bool = False) -> FormatDecoder:
        """A decoder for one ordered stream.

        `keep_null_columns`: a field that has only been null is a column, too. `positions`: fill ``_pos``.
        """
        ...

    def encoder(self, table: TableId, schema: TableSchema) -> FormatEncoder:
        """An encoder for one table. Raises `ConfigError` where the format cannot be written."""
        ...


@dataclass(slots=True)
class FormatStatistics:
    """Counters of a decoder since it was made."""

    messages: int = 0
    rows: int = 0
    tombstones: int = 0
    ignored: int = 0
    filtered: int = 0
    bad: int = 0
    zero_dates: int = 0
    by_table: dict[TableId, int] = field(default_factory=dict)
