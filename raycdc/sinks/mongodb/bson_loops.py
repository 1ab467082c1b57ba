"""BSON elements (bsonspec.org) written column by column into a buffer of whole documents.

Each loop writes one element for all rows. The element of row ``i`` begins at ``at[i]``, which the loop moves to the
element's end. `name` is a field's name with its NUL. If ``valid[i]`` is false, the element is a null; with `missing`,
it is left out. The caller allocates the buffer by sizes that it computed with the same rules (`documents`).
"""

from __future__ import annotations

from typing import Any

from raycdc.core.compiled import copy, inlined, njit

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
    """Write Decimal128 values in two words, the low one first. If `small`, write only the low word, as an int64."""
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
    """Write texts, or bytes of a subtype. `starts` has one entry more than there are rows."""
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
