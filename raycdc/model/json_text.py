"""Values of Arrow columns as JSON text, column by column in compiled string kernels.

Called by the JSON Lines and console sinks, by inspection commands and by the formats' encoders. Values read as ``raycdc
inspect binlog`` prints them: integers and doubles as JSON numbers, decimals and temporals as text exactly as MySQL
prints them (TIMESTAMP in UTC), bytes as ``{"$binary": base64}``, JSON columns as JSON, null as null. A NULL in a JSON
column therefore has the same text as JSON's null (`raycdc docs targets`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model.types import LogicalType, TypeKind

#: The number of decimal digits of a second in an Arrow timestamp's text.
_FRACTION_DIGITS = 6

_TEXT = frozenset({TypeKind.STRING, TypeKind.TIME, TypeKind.ENUM, TypeKind.SET})
_NUMBER = frozenset({TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64, TypeKind.YEAR})

# The short escapes of JSON. All other control characters are written as \u00XX.
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_NEEDS_ESCAPE = '[\\x00-\\x1f"\\\\]'

_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def json_values(array: pa.Array, logical: LogicalType) -> pa.Array:
    """Return each value of `array` as JSON text; null stays null."""
    match logical.kind:
        case kind if kind in _TEXT:
            return quoted(array)
        case TypeKind.BINARY:
            return _binary(array)
        case TypeKind.JSON:
            # Between the tokens of a document, a line break can be replaced by a blank.
            return pc.replace_substring_regex(array, "[\\r\\n]", " ")
        case TypeKind.BOOLEAN:
            return pc.if_else(array, "true", "false")
        case TypeKind.DATETIME | TypeKind.TIMESTAMP:
            return between_quotes(timestamp_text(array, logical.fsp))
        case TypeKind.DATE:
            return between_quotes(array.cast(pa.string()))
        case TypeKind.DECIMAL:
            return between_quotes(decimal_text(array, logical.scale))
        case TypeKind.FLOAT32 | TypeKind.FLOAT64:
            finite = pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type))
            return finite.cast(pa.string())
        case TypeKind.BIT | TypeKind.UINT64:
            return decimal_text(array, 0) if pa.types.is_decimal(array.type) else array.cast(pa.string())
        case kind:
            assert kind in _NUMBER, kind
            return array.cast(pa.string())


def between_quotes(text: pa.Array) -> pa.Array:
    """Return texts that need no escapes as JSON strings."""
    return pc.binary_join_element_wise('"', text, '"', "")


def quoted(array: pa.Array) -> pa.Array:
    """Return texts as JSON strings."""
    if pc.any(pc.match_substring_regex(array, _NEEDS_ESCAPE)).as_py():
        array = pc.replace_substring(array, "\\", "\\\\")
        for code in range(0x20):
            character = chr(code)
            # Most texts contain none of these characters, and searching costs less than replacing.
            if pc.any(pc.match_substring(array, character)).as_py():
                array = pc.replace_substring(array, character, _SHORT_ESCAPES.get(character, f"\\u{code:04x}"))
        array = pc.replace_substring(array, '"', '\\"')
    return between_quotes(array)


def timestamp_text(array: pa.Array, fsp: int) -> pa.Array:
    """Return ``YYYY-MM-DD hh:mm:ss`` with `fsp` digits after the point. For 0 there is no point."""
    text = array.cast(pa.timestamp("us")).cast(pa.string())
    assert 0 <= fsp <= _FRACTION_DIGITS
    # Sliced from the end, because years beyond 9999 and before 0 have more characters.
    beyond = _FRACTION_DIGITS - fsp if fsp else _FRACTION_DIGITS + 1
    return pc.utf8_slice_codeunits(text, 0, -beyond) if beyond else text


def decimal_text(array: pa.Array, scale: int) -> pa.Array:
    """Return all digits with exactly `scale` after the point. Arrow's own text has exponents for small numbers."""
    offset = array.offset
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(array), array.buffers(), array.null_count, offset)
    if not scale:
        return unscaled.cast(pa.string())
    digits = pc.replace_substring(pc.cast(unscaled, pa.string()), "-", "", max_replacements=1)
    digits = pc.utf8_lpad(digits, scale + 1, "0")
    whole = pc.utf8_slice_codeunits(digits, 0, -scale)
    fraction = pc.utf8_slice_codeunits(digits, -scale)
    sign = pc.if_else(pc.less(unscaled, pa.scalar(0, pa.decimal128(38, 0))), "-", "")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, whole, ""), fraction, ".")


def _binary(array: pa.Array) -> pa.Array:
    """Return ``{"$binary":"…"}`` with the base64 of each value."""
    wrapped = pc.binary_join_element_wise('{"$binary":"', base64_text(array), '"}', "")
    return pc.if_else(array.is_valid(), wrapped, pa.scalar(None, pa.string()))


def base64_text(array: pa.Array) -> pa.Array:
    """Return the base64 of each value, encoded in one pass over all bytes of the column; an empty text for null."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    # Every value is moved to a multiple of three bytes, so that no group of three spans two values.
    groups = -(-lengths // 3)
    starts = np.concatenate(([0], np.cumsum(groups)))
    padded = np.zeros(int(starts[-1]) * 3, np.uint8)
    padded[np.arange(len(data)) + np.repeat(starts[:-1] * 3 - (offsets[:-1] - offsets[0]), lengths)] = data
    a, b, c = (padded[i::3].astype(np.uint32) for i in range(3))
    bits = (a << 16) | (b << 8) | c
    text = np.stack([_BASE64[(bits >> shift) & 63] for shift in (18, 12, 6, 0)], axis=1).reshape(-1)
    ends = starts[1:] * 4
    text[ends[(lengths % 3 > 0)] - 1] = ord("=")
    text[ends[(lengths % 3 == 1)] - 2] = ord("=")
    return pa.StringArray.from_buffers(len(array), pa.py_buffer((starts * 4).astype(np.int32)), pa.py_buffer(text))
