"""Texts about problems of messages. Each says what happened and, if possible, what to do."""

from __future__ import annotations

from raycdc.formats.loops import code_loops as cells
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.loops import tape_loops as tape

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
