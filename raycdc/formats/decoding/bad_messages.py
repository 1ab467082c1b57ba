"""The errors of messages that cannot be decoded.

Each names the position of the message and the reason, and gives advice if there is any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raycdc.errors import SchemaError
from raycdc.formats.api import (
    BadMessage,
    BadMessageError,
    ChangedKeyError,
    CorruptMessageError,
    MessageBatch,
    MissingBeforeImageError,
    MissingKeyError,
    PartialRowError,
    UnclearTombstoneError,
    UnknownTypeError,
    UnrepresentableValueError,
)
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.decoding.work import Chunk
from raycdc.formats.envelope import EnvelopeSpec
from raycdc.formats.loops import code_loops as cells
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.loops import tape_loops as tape
from raycdc.formats.loops.code_loops import NO_KEY
from raycdc.formats.options import DEAD_LETTERS, FormatOptions
from raycdc.model import TableId

_DAMAGE = {
    tape.TRUNCATED: "it ends in the middle",
    tape.TRAILING: "something follows the JSON value",
    tape.EXPECTED_VALUE: "a JSON value is expected",
    tape.EXPECTED_KEY: "a key in double quotes is expected",
    tape.EXPECTED_COLON: "a colon is expected",
    tape.EXPECTED_COMMA: "a comma or a closing bracket is expected",
    tape.BAD_NUMBER: "a malformed number",
    tape.BAD_ESCAPE: "an unknown or incomplete escape sequence",
    tape.CONTROL_CHARACTER: "a control character in a string",
    tape.BAD_UTF8: "bytes that are no UTF-8",
    tape.TOO_DEEP: f"nested deeper than {tape.DEPTH_MAX} levels",
    tape.TOO_MANY_TOKENS: "more values than its size allows",
    envelope.NOT_AN_OBJECT: "it is no JSON object",
    envelope.NO_NAME: "what should name its database, schema or table is no text",
    envelope.BAD_DOCUMENT: "the document in a string is no JSON object",
}

_VALUES = {
    cells.WRONG_KIND: "is of another kind",
    cells.OUT_OF_RANGE: "is out of range",
    cells.TOO_SMALL: "is closer to 0 than any number of the type but 0 itself",
    cells.TOO_PRECISE: "has more digits after the point than the type holds",
    cells.NOT_A_NUMBER: "is no number",
    cells.NOT_A_TIME: "is no date or time",
    cells.NOT_BASE64: "is no base64",
    cells.HALF_SURROGATE: "has half of a surrogate pair",
    cells.AMBIGUOUS_DECIMAL: 'reads as a number and as base64; set the format\'s option decimal = "text" or "base64"',
    cells.UNAVAILABLE: "was left out by the connector and is not in the image before; set the table's REPLICA IDENTITY "
    "FULL",
    cells.NOT_LATIN1: "has characters beyond U+00FF, so it is not bytes as Canal spells them",
    cells.NOT_HEX: "is no hexadecimal text",
    cells.AMBIGUOUS_LABEL: "is the number of one label, and another label itself; set the format's option "
    'labels = "number" or "label"',
    cells.NO_CALENDAR_DATE: "is infinite, before the year 1 or after the year 9999",
    cells.NO_LABEL: "is neither the number of a label nor a label",
}


def is_damage(error: int) -> bool:
    """Return True if the message is not JSON in the shape of the format at all."""
    return error in _DAMAGE


def damage(error: int, at: int) -> str:
    """Return why a message is not JSON, and at which byte."""
    where = f" at byte {at}" if error < envelope.NOT_AN_OBJECT else ""
    return f"{_DAMAGE[error]}{where}"


def value_problem(error: int) -> str:
    """Return why a value does not fit its column."""
    return _VALUES[error]


#: The errors that a dialect raises for JSON that does not have its format's structure.
MALFORMED = (SchemaError, TypeError, KeyError, ValueError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True)
class MessageAt:
    """A message, by its number in a chunk of a batch."""

    batch: MessageBatch
    chunk: Chunk
    number: int

    @property
    def raw(self) -> bytes:
        return self.chunk.message(self.number)

    @property
    def is_tombstone(self) -> bool:
        """Return True if the message has a key alone."""
        return bool(self.chunk.messages.info[self.number, envelope.KEY_ONLY])

    @property
    def in_batch(self) -> int:
        """Return the number of the message in its batch."""
        return self.chunk.first + self.number

    @property
    def key(self) -> bytes | None:
        """Return the message's key, if it has one."""
        if self.batch.keys is None:
            return None
        key: bytes | None = self.batch.keys[self.in_batch].as_py()
        return key

    @property
    def location(self) -> str:
        """Return the position of the message: topic, partition and offset."""
        return self.batch.origin.location(int(self.batch.offsets[self.in_batch]))

    def text(self, slot: int) -> str:
        """Return the text of an envelope field; empty if the message has none."""
        return self.chunk.text(self.number, slot).decode("utf-8", "replace")

    def does(self, action: int) -> bool:
        """Return True if the scan found this action in the message."""
        return bool(self.chunk.messages.info[self.number, envelope.ACTION] == action)

    def fails_by(self, code: int) -> bool:
        """Return True if the scan found the message bad for the reason `code`."""
        return bool(self.chunk.messages.info[self.number, envelope.ERROR] == code)

    def left_out(self, error: BadMessageError) -> BadMessage:
        """Return the message in the form for the dead-letter sink."""
        return BadMessage(self.batch.origin, int(self.batch.offsets[self.in_batch]), self.key, self.raw or None, error)


def scan_error(message: MessageAt, spec: EnvelopeSpec) -> BadMessageError:
    """Return the error for a message in which the scan found no envelope."""
    code, at = message.chunk.messages.info[message.number, [envelope.ERROR, envelope.ERROR_AT]].tolist()
    if code == envelope.UNKNOWN_TYPE:
        return _error(UnknownTypeError, message, f"unknown {spec.type}; known are {', '.join(spec.actions)}")
    if code == envelope.NO_TYPE:
        return _error(UnknownTypeError, message, f"the field {spec.type!r} that says what happened is missing")
    if code == envelope.TOMBSTONE_KEY:
        why = "a tombstone whose key is no JSON object with the names of the key columns, so that it deletes no row"
        return _error(MissingKeyError, message, why)
    if code == envelope.TOMBSTONE_TABLE:
        why = (
            "a tombstone whose table cannot be told: several tables can be meant, and the message before it is not the "
            "delete that it belongs to"
        )
        return _error(UnclearTombstoneError, message, why)
    if code == envelope.NO_ROWS:
        return _error(CorruptMessageError, message, "what should hold the row is neither an object nor an array")
    return _error(CorruptMessageError, message, f"corrupt message: {damage(code, at)}")


def malformed_schema(cause: Exception) -> str:
    """Return what is wrong with a schema or a statement that a dialect could not read (`MALFORMED`)."""
    return str(cause) if isinstance(cause, SchemaError) else "it has another structure than the format's"


def unreadable_schema(message: MessageAt, why: str) -> BadMessageError:
    """Return the error for a message whose schema, or whose description of a schema change, cannot be read."""
    return _error(CorruptMessageError, message, f"its schema cannot be read: {why}")


def no_before_image(message: MessageAt, advice: str) -> BadMessageError:
    """Return the error for an update or delete that lacks the row before the change."""
    change = "an update" if message.does(envelope.UPDATE) else "a delete"
    return _error(MissingBeforeImageError, message, f"{change} without the row as it was before. {advice}")


def no_row(message: MessageAt) -> BadMessageError:
    """Return the error for a message without a row."""
    return _error(CorruptMessageError, message, "corrupt message: it holds no row")


def no_document(message: MessageAt) -> BadMessageError:
    """Return the error for an update of a document without the document after it."""
    why = (
        "an update without the document after it. If the connector looks documents up (capture.mode = "
        "change_streams_update_full or change_streams_update_full_with_pre_image), this one was deleted before, and "
        'its delete follows: set the format\'s option missing_after = "skip". Otherwise set that capture.mode'
    )
    return _error(PartialRowError, message, why)


def partial_row(message: MessageAt, table: TableId, column: WireColumn, advice: str) -> BadMessageError:
    """Return the error for a message with a partial row."""
    why = (
        f"table {table}: the row lacks the field {column.name!r}, which rows before it had. The message tells a part "
        f"of the row, and the rest must not become NULL. {advice} Where the column is gone at the source, give those "
        "that are left: columns or tables in source.format."
    )
    return _error(PartialRowError, message, why)


def unfit_value(message: MessageAt, table: TableId, column: WireColumn, code: int) -> BadMessageError:
    """Return the error for a value that does not fit its column, for the reason `code`."""
    why = f"{value_problem(code)} (expected {column.type.native or column.type.kind.value})"
    return _error(UnrepresentableValueError, message, f"table {table}, column {column.name!r}: a value {why}")


def changed_key(message: MessageAt, table: TableId, known: Sequence[str], told: Sequence[str]) -> BadMessageError:
    """Return the error for a message that names another key than those before it."""
    now = f"the key ({', '.join(told)})" if told else "no key"
    why = f"table {table}: it names {now}, the messages before it named ({', '.join(known)})"
    return _error(ChangedKeyError, message, f"{why}. Rows that differ could become one")


def unfit_key(message: MessageAt, table: TableId, key: Sequence[str], column: str, code: int) -> BadMessageError:
    """Return the error for a row whose key cannot be used, for the reason `code`."""
    if code == NO_KEY:
        what = "the key of a tombstone" if message.is_tombstone else "the row"
        named = f"{column!r} of" if column in key else f"({', '.join(key)}),"
        why = f"table {table}: {what} has no value in {named} the table's key"
        return _error(MissingKeyError, message, why)
    why = (
        f"table {table}, column {column!r}: the value is of another type than those before it, and the column "
        "belongs to the table's key. Two values of different types may have the same text"
    )
    return _error(ChangedKeyError, message, why)


def table_of_ours(message: MessageAt) -> BadMessageError:
    """Return the error for a message that names the table of dead letters as its own."""
    why = f"it names {DEAD_LETTERS}, where raycdc keeps messages that cannot be decoded, as its table"
    return _error(CorruptMessageError, message, why)


def too_many_fields(message: MessageAt, table: TableId, options: FormatOptions) -> BadMessageError:
    """Return the error for a message whose fields would make more columns than a table may have."""
    why = (
        f"table {table}: with its fields the table would have more than {options.columns_max} columns. Give the "
        "table's columns in source.format, or raise source.format.columns_max"
    )
    return _error(CorruptMessageError, message, why)


def _error(kind: type[BadMessageError], message: MessageAt, why: str) -> BadMessageError:
    return kind(f"{message.location}: {why}")
