"""Compiled loops that write BSON elements (bsonspec.org), column by column, into a buffer of whole documents.

Each loop writes one element for all rows. The element of row ``i`` begins at ``at[i]``, which the loop moves to the
element's end. `name` is a field's name with its NUL. If ``valid[i]`` is false, the element is a null; with `missing`,
it is left out. The caller (`documents`) first computes the sizes of all documents by the same rules, and allocates the
buffer.

The second half of the module writes values back into documents that a MongoDB source kept as BSON, or as texts of BSON
types. Such a value consists of the byte of its type and the bytes that follow the field's name. If a value is invalid,
the loop returns its row and a reason, and writes nothing.
"""

from __future__ import annotations

from typing import Any

from raycdc.core.compiled import copy, helper, inlined, load, njit

NULL = 0x0A
INT64 = 0x12
DECIMAL128 = 0x13
BINARY = 0x05
#: The subtype of bytes whose length is written twice.
OLD_BINARY = 2


@inlined
def _head(out: Any, p: int, tag: int, name: Any) -> int:
    out[p] = tag
    for j in range(len(name)):
        out[p + 1 + j] = name[j]
    return p + 1 + len(name)


@inlined
def _word(out: Any, p: int, value: int, width: int) -> int:
    for j in range(width):
        out[p + j] = (value >> (8 * j)) & 0xFF
    return p + width


@njit
def put_constant(out: Any, at: Any, text: Any) -> None:
    """Write the same bytes for every row."""
    for i in range(len(at)):
        p = at[i]
        for j in range(len(text)):
            out[p + j] = text[j]
        at[i] = p + len(text)


@njit
def put_lengths(out: Any, at: Any, lengths: Any) -> None:
    """Write an int32 for each row: the length of the document that begins here."""
    for i in range(len(at)):
        at[i] = _word(out, at[i], lengths[i], 4)


@njit
def put_words(out: Any, at: Any, name: Any, tag: int, width: int, words: Any, valid: Any, missing: bool) -> None:
    """Write values of up to eight bytes: integers, doubles by their bits, dates, booleans."""
    for i in range(len(at)):
        if valid[i]:
            at[i] = _word(out, _head(out, at[i], tag, name), words[i], width)
        elif not missing:
            at[i] = _head(out, at[i], NULL, name)


@njit
def put_decimals(out: Any, at: Any, name: Any, low: Any, high: Any, small: Any, valid: Any, missing: bool) -> None:
    """Write Decimal128 values as two words, the low word first. Where `small` is True, write only the low word, as an
    int64.
    """
    for i in range(len(at)):
        if not valid[i]:
            if not missing:
                at[i] = _head(out, at[i], NULL, name)
        elif small[i]:
            at[i] = _word(out, _head(out, at[i], INT64, name), low[i], 8)
        else:
            at[i] = _word(out, _word(out, _head(out, at[i], DECIMAL128, name), low[i], 8), high[i], 8)


@njit
def put_texts(
    out: Any, at: Any, name: Any, tag: int, subtype: int, starts: Any, data: Any, valid: Any, missing: bool
) -> None:
    """Write texts, or bytes of a subtype. `starts` are the offsets of the values, one more than there are rows."""
    for i in range(len(at)):
        if not valid[i]:
            if not missing:
                at[i] = _head(out, at[i], NULL, name)
            continue
        p = _head(out, at[i], tag, name)
        start = starts[i]
        length = starts[i + 1] - start
        if tag == BINARY:
            old = subtype == OLD_BINARY
            p = _word(out, p, length + 4 if old else length, 4)
            out[p] = subtype
            p += 1
            if old:
                p = _word(out, p, length, 4)
        else:
            p = _word(out, p, length + 1, 4)
        copy(data, start, out, p, length)
        p += length
        if tag != BINARY:
            out[p] = 0
            p += 1
        at[i] = p


#: The reasons why a value is not written.
FINE, DAMAGED, NO_TIMESTAMP, DOLLAR, TWICE = 0, 1, 2, 3, 4
_TIMESTAMP = 0x11


@inlined
def _digit(byte: int) -> int:
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    return byte - 55 if 65 <= byte <= 70 else -1


@njit
def read_hex(starts: Any, data: Any, valid: Any, dashes: bool, out: Any) -> int:
    """Read texts of hexadecimal digits, with or without the dashes of a UUID, into the rows of `out`.

    Return the first row with an invalid text, or -1.
    """
    width = out.shape[1]
    for i in range(len(valid)):
        if not valid[i]:
            continue
        p = starts[i]
        if starts[i + 1] - p != 2 * width + (4 if dashes else 0):
            return i
        for j in range(width):
            if dashes and (j == 4 or j == 6 or j == 8 or j == 10):
                if data[p] != 45:
                    return i
                p += 1
            high, low = _digit(data[p]), _digit(data[p + 1])
            if high < 0 or low < 0:
                return i
            out[i, j] = high * 16 + low
            p += 2
    return -1


@njit
def put_blobs(out: Any, at: Any, head: Any, null: Any, blobs: Any, valid: Any, missing: bool) -> None:
    """Write elements with values of a fixed width. Each consists of the bytes `head` and the value. `null` is the whole
    element for NULL.
    """
    for i in range(len(at)):
        p = at[i]
        if valid[i]:
            copy(head, 0, out, p, len(head))
            p += len(head)
            for j in range(blobs.shape[1]):
                out[p + j] = blobs[i, j]
            p += blobs.shape[1]
        elif not missing:
            copy(null, 0, out, p, len(null))
            p += len(null)
        at[i] = p


@njit
def check_values(starts: Any, data: Any, valid: Any) -> tuple[int, int]:
    """Return the first row whose value a server would not keep unchanged, and the reason; or -1."""
    for i in range(len(valid)):
        if not valid[i]:
            continue
        if starts[i + 1] == starts[i]:
            return i, DAMAGED
        if data[starts[i]] == _TIMESTAMP and _is_no_time(data, starts[i] + 1):
            return i, NO_TIMESTAMP
    return -1, FINE


@njit
def put_values(out: Any, at: Any, name: Any, starts: Any, data: Any, valid: Any, missing: bool) -> None:
    """Write values of any type, which `check_values` has checked."""
    for i in range(len(at)):
        if not valid[i] and missing:
            continue
        p = at[i]
        out[p] = data[starts[i]] if valid[i] else NULL
        copy(name, 0, out, p + 1, len(name))
        p += 1 + len(name)
        if valid[i]:
            length = starts[i + 1] - starts[i] - 1
            copy(data, starts[i] + 1, out, p, length)
            p += length
        at[i] = p


@inlined
def _is_no_time(data: Any, at: int) -> bool:
    """Return True for a timestamp that servers replace by their own time."""
    for j in range(8):
        if data[at + j] != 0:
            return False
    return True


@inlined
def _int32(data: Any, at: int) -> Any:
    return (load(data, at, 32) << 32) >> 32


@helper
def _text_end(data: Any, at: int, end: int) -> int:
    while at < end and data[at] != 0:
        at += 1
    return at + 1 if at < end else -1


@helper
def _value_end(data: Any, tag: int, at: int, end: int) -> Any:
    """Return the end of the value at `at`; -1 for an invalid one."""
    if tag == 0x01 or tag == 0x09 or tag == 0x11 or tag == 0x12:
        return at + 8
    if tag == 0x10:
        return at + 4
    if tag == 0x08:
        return at + 1
    if tag == 0x06 or tag == NULL or tag == 0x7F or tag == 0xFF:
        return at
    if tag == 0x07:
        return at + 12
    if tag == 0x13:
        return at + 16
    if tag == 0x0B:
        at = _text_end(data, at, end)
        return at if at < 0 else _text_end(data, at, end)
    if end - at < 4:
        return -1
    length = _int32(data, at)
    if length < 0 or length > end - at:
        return -1
    if tag == 0x03 or tag == 0x04 or tag == 0x0F:
        return at + length
    if tag == 0x02 or tag == 0x0D or tag == 0x0E:
        return at + 4 + length
    if tag == 0x05:
        return at + 5 + length
    return at + 16 + length if tag == 0x0C else -1


@helper
def _is_id(data: Any, at: int, stop: int) -> bool:
    return stop - at == 4 and data[at] == 95 and data[at + 1] == 105 and data[at + 2] == 100


@helper
def _named(data: Any, at: int, stop: int, names: Any, spans: Any) -> int:
    """Return the index of a field's name in `names`, or -1."""
    for c in range(len(spans)):
        first = spans[c, 0]
        if spans[c, 1] != stop - at or data[at] != names[first]:
            continue
        same = True
        for j in range(stop - at):
            if data[at + j] != names[first + j]:
                same = False
                break
        if same:
            return c
    return -1


@njit
def check_fields(
    starts: Any, data: Any, valid: Any, names: Any, spans: Any, there: Any, left: Any, left_spans: Any, sizes: Any
) -> tuple[int, int]:
    """Write to `sizes` the number of bytes of each document's fields, without ``_id`` and without the fields in `left`.

    Return the first row that cannot be written and the reason, or -1. `names` with `spans` are the names of columns
    (each with its NUL); `there` says which rows have them.
    """
    for i in range(len(valid)):
        sizes[i] = 0
        if not valid[i]:
            continue
        at = starts[i] + 4
        last = starts[i + 1] - 1
        if last < at or _int32(data, at - 4) != last + 1 - starts[i] or data[last] != 0:
            return i, DAMAGED
        while at < last:
            name = at + 1
            stop = _text_end(data, name, last)
            over = -1 if stop < 0 else _value_end(data, data[at], stop, last)
            if over < 0 or over > last:
                return i, DAMAGED
            if data[name] == 36:
                return i, DOLLAR
            if not _is_id(data, name, stop) and _named(data, name, stop, left, left_spans) < 0:
                if data[at] == _TIMESTAMP and _is_no_time(data, stop):
                    return i, NO_TIMESTAMP
                column = _named(data, name, stop, names, spans)
                if column >= 0 and there[column, i]:
                    return i, TWICE
                sizes[i] += over - at
            at = over
    return -1, FINE


@njit
def put_fields(out: Any, at: Any, starts: Any, data: Any, valid: Any, left: Any, left_spans: Any) -> None:
    """Write the fields of documents, which `check_fields` has checked, without ``_id`` and without the fields in
    `left`.
    """
    for i in range(len(at)):
        if not valid[i]:
            continue
        p = at[i]
        index = starts[i] + 4
        last = starts[i + 1] - 1
        while index < last:
            stop = _text_end(data, index + 1, last)
            over = _value_end(data, data[index], stop, last)
            if not _is_id(data, index + 1, stop) and _named(data, index + 1, stop, left, left_spans) < 0:
                copy(data, index, out, p, over - index)
                p += over - index
            index = over
        at[i] = p
