"""Makes one structural pass over a JSON message, compiled: validates it, and writes its values as a *tape* of tokens.

A token is a row of four numbers: its kind, its begin and end in the work buffer, and the number of the next token on
its level. The range of a string is without the quotes, that of a container with the brackets. The children of an object
or array are the tokens between it and the next token on its level. An object's children are alternately keys and
values. All later passes use only the tokens. The grammar is RFC 8259. Strings must be UTF-8 (RFC 3629), which this pass
also checks. The work buffer has three parts: the messages of a chunk; room for the plain texts of keys with escapes,
and for documents inside strings, to which tokens point; and 64 bytes of padding, which may be read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raycdc.core.compiled import load
from raycdc.core.loops.byte_loops import hex_digit
from raycdc.core.loops.compiling import helper, inlined
from raycdc.core.loops.string_loops import first_mark, marks
from raycdc.core.loops.utf8_loops import HIGH_BITS, character_size, put_character

OBJECT, ARRAY, STRING, ESCAPED, INTEGER, FRACTION, TRUE, FALSE, NULL = range(9)

#: The limit of nested containers, which bounds the stack and the cost of a hostile message.
DEPTH_MAX = 128

# The reasons why a message is not JSON; `raycdc.formats.decoding.bad_messages` has their texts.
TRUNCATED, TRAILING, EXPECTED_VALUE, EXPECTED_KEY, EXPECTED_COLON, EXPECTED_COMMA = 1, 2, 3, 4, 5, 6
BAD_NUMBER, BAD_ESCAPE, CONTROL_CHARACTER, BAD_UTF8, TOO_DEEP, TOO_MANY_TOKENS = 7, 8, 9, 10, 11, 12

#: Columns of `Tape.tok`.
KIND, AT, END, NEXT = 0, 1, 2, 3

#: Indices into `Tape.state`. From `STACK` on it is scratch space.
TOKENS, SPARE, STACK = 0, 1, 2
STATE_SIZE = STACK + DEPTH_MAX + 16


class Tape(NamedTuple):
    """The work buffer, the tokens of a chunk's messages, and the used sizes of both.

    Like all tuples of the loops, it has few arrays, because passing and unpacking an array costs compile time in every
    helper.
    """

    data: npt.NDArray[np.uint8]
    tok: npt.NDArray[np.int32]
    state: npt.NDArray[np.int64]


class Repeats(NamedTuple):
    """Texts that many messages repeat (an embedded schema, column types), recognised by comparison.

    `names` has the keys of the outermost object whose value is such a text, followed by all known texts (padded, so
    that eight bytes may be read anywhere). `name` has a row for each name: its begin and end in `names`, the number of
    the text found last, the number of the text in the present message (or `ABSENT`, or `UNKNOWN`), and the token of
    this text. `text` has a row for each known text: begin and end, and the number of its name.
    """

    names: npt.NDArray[np.uint8]
    name: npt.NDArray[np.int64]
    text: npt.NDArray[np.int64]


ABSENT, UNKNOWN = -1, -2
#: Columns of `Repeats.name` and `Repeats.text`.
BEGIN, STOP, LAST, FOUND, TOKEN = 0, 1, 2, 3, 4
OWNER = 2


@inlined
def same_bytes(a: Any, a_at: Any, b: Any, b_at: Any, length: Any) -> Any:
    """Return True if two ranges are equal; both arrays can be read eight bytes beyond their range."""
    done = 0
    while done + 8 <= length:
        if load(a, a_at + done, 64) != load(b, b_at + done, 64):
            return False
        done += 8
    rest = length - done
    if rest == 0:
        return True
    mask = (np.int64(1) << (8 * rest)) - 1
    return ((load(a, a_at + done, 64) ^ load(b, b_at + done, 64)) & mask) == 0


@helper
def hex4(data: Any, at: Any) -> Any:
    """Return four hexadecimal digits as a number, or a negative one."""
    value = np.int64(0)
    for i in range(4):
        digit = hex_digit(data[at + i])
        if digit < 0:
            return np.int64(-1)
        value = (value << 4) | digit
    return value


@helper
def _string(data: Any, at: Any, end: Any) -> Any:
    """Check the string whose first byte after the quote is `at`.

    Returns (its end, True if it has escapes, damage).
    """
    escaped = False
    while True:
        while True:
            word = load(data, at, 64)
            # Quotes, escapes, control characters, and bytes of characters beyond ASCII.
            marked = marks(word) | (word & HIGH_BITS)
            if marked != 0:
                at += first_mark(marked)
                break
            at += 8
            if at >= end:
                return end, escaped, TRUNCATED
        if at >= end:
            return end, escaped, TRUNCATED
        byte = data[at]
        if byte == 34:
            return at, escaped, 0
        if byte == 92:
            escaped = True
            if at + 1 >= end:
                return end, escaped, TRUNCATED
            letter = data[at + 1]
            if letter == 117:
                if at + 6 > end:
                    return end, escaped, TRUNCATED
                if hex4(data, at + 2) < 0:
                    return at, escaped, BAD_ESCAPE
                at += 6
            elif (
                letter == 34
                or letter == 92
                or letter == 47
                or letter == 98
                or letter == 102
                or letter == 110
                or letter == 114
                or letter == 116
            ):
                at += 2
            else:
                return at, escaped, BAD_ESCAPE
        elif byte < 32:
            return at, escaped, CONTROL_CHARACTER
        else:
            while at < end and data[at] >= 128:
                size = character_size(data, at, end)
                if size == 0:
                    return at, escaped, BAD_UTF8
                at += size


@helper
def _number(data: Any, at: Any, end: Any) -> Any:
    """Check the number at `at`. Returns (its end, kind, damage)."""
    kind = INTEGER
    if data[at] == 45:
        at += 1
    if at >= end:
        return at, kind, TRUNCATED
    if data[at] == 48:
        at += 1
    elif 49 <= data[at] <= 57:
        while at < end and 48 <= data[at] <= 57:
            at += 1
    else:
        return at, kind, BAD_NUMBER
    if at < end and data[at] == 46:
        kind = FRACTION
        at += 1
        first = at
        while at < end and 48 <= data[at] <= 57:
            at += 1
        if at == first:
            return at, kind, BAD_NUMBER
    if at < end and (data[at] | 32) == 101:
        kind = FRACTION
        at += 1
        if at < end and (data[at] == 43 or data[at] == 45):
            at += 1
        first = at
        while at < end and 48 <= data[at] <= 57:
            at += 1
        if at == first:
            return at, kind, BAD_NUMBER
    return at, kind, 0


@helper
def unescape(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write a checked string's plain text to ``out[to:]``; return its end, or -1 for half a surrogate pair.

    The plain text is never longer than the escaped one, so it fits in a range of the same size.
    """
    while at < end:
        byte = data[at]
        if byte != 92:
            out[to] = byte
            at += 1
            to += 1
            continue
        letter = data[at + 1]
        if letter != 117:
            plain: Any = letter
            if letter == 98:
                plain = np.uint8(8)
            elif letter == 102:
                plain = np.uint8(12)
            elif letter == 110:
                plain = np.uint8(10)
            elif letter == 114:
                plain = np.uint8(13)
            elif letter == 116:
                plain = np.uint8(9)
            out[to] = plain
            at += 2
            to += 1
            continue
        point = hex4(data, at + 2)
        at += 6
        if 0xD800 <= point < 0xE000:
            if point >= 0xDC00 or at + 6 > end or data[at] != 92 or data[at + 1] != 117:
                return -1
            low = hex4(data, at + 2)
            if low < 0xDC00 or low >= 0xE000:
                return -1
            point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
            at += 6
        to = put_character(point, out, to)
    return to


@helper
def plain_text(tape: Any, token: Any) -> Any:
    """Turn the token of a string with escapes into one of its plain text, which is written to the spare room.

    Returns False for half a surrogate pair.
    """
    if tape.tok[token, KIND] != ESCAPED:
        return True
    start = tape.state[SPARE]
    stop = unescape(tape.data, np.int64(tape.tok[token, AT]), np.int64(tape.tok[token, END]), tape.data, start)
    if stop < 0:
        return False
    tape.state[SPARE] = stop
    tape.tok[token, KIND] = STRING
    tape.tok[token, AT] = start
    tape.tok[token, END] = stop
    return True


@inlined
def _repeat_name(tape: Any, repeats: Any, at: Any, length: Any) -> Any:
    for name in range(len(repeats.name)):
        first = repeats.name[name, BEGIN]
        if repeats.name[name, STOP] - first == length and same_bytes(tape.data, at, repeats.names, first, length):
            return name
    return -1


@helper
def _known_text(tape: Any, repeats: Any, name: Any, at: Any, end: Any) -> Any:
    """Return the number of the known text at `at`, or `UNKNOWN`.

    A known text is a complete object or array. If the input begins with it, the text is therefore the complete value.
    """
    guess = repeats.name[name, LAST]
    for text in range(-1, len(repeats.text)):
        # The text that was found last is compared first.
        candidate = guess if text < 0 else text
        if candidate >= 0 and repeats.text[candidate, OWNER] == name:
            first = repeats.text[candidate, BEGIN]
            length = repeats.text[candidate, STOP] - first
            if at + length <= end and same_bytes(tape.data, at, repeats.names, first, length):
                repeats.name[name, LAST] = candidate
                return candidate
    return UNKNOWN


@inlined
def _literal(data: Any, at: Any, end: Any) -> Any:
    """Return (bytes, kind) of true, false or null at `at`; 0 bytes if it is none of them."""
    word = load(data, at, 32)
    if word == 0x65757274 and at + 4 <= end:
        return 4, TRUE
    if word == 0x6C6C756E and at + 4 <= end:
        return 4, NULL
    if word == 0x736C6166 and at + 5 <= end and data[at + 4] == 101:
        return 5, FALSE
    return 0, NULL


@inlined
def _blank(byte: Any) -> Any:
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


# long: it is one state machine, and a helper would pass its whole state back and forth
@helper
def tokenize(tape: Any, repeats: Any, at: Any, end: Any, outer: Any) -> Any:
    """Append the tokens of the one JSON value in ``data[at:end]``.

    Returns (damage or 0, position of the damage).

    If `outer` is True, the value is a message, in which repeated texts are searched; otherwise it is a document inside
    a message.
    """
    data = tape.data
    tok = tape.tok
    stack = tape.state
    token = stack[TOKENS]
    limit = len(tok) - 2
    depth = 0
    mode = 0  # The state: 0 if a value is expected, 1 if a key, 2 if a comma or the end after a value.
    name: Any = -1
    while True:
        while at < end and _blank(data[at]):
            at += 1
        if at >= end:
            if mode == 2 and depth == 0:
                stack[TOKENS] = token
                return 0, at
            return TRUNCATED, end
        if token >= limit:
            return TOO_MANY_TOKENS, at
        byte = data[at]
        if mode == 2:
            if depth == 0:
                return TRAILING, at
            top = stack[STACK + depth - 1]
            if byte == 44:
                mode = 1 if tok[top, KIND] == OBJECT else 0
                at += 1
            elif byte == (125 if tok[top, KIND] == OBJECT else 93):
                at += 1
                tok[top, END] = at
                tok[top, NEXT] = token
                depth -= 1
            else:
                return EXPECTED_COMMA, at
        elif mode == 1:
            if byte != 34:
                return EXPECTED_KEY, at
            stop, escaped, damage = _string(data, at + 1, end)
            if damage != 0:
                return damage, stop
            tok[token, KIND] = ESCAPED if escaped else STRING
            tok[token, AT] = at + 1
            tok[token, END] = stop
            tok[token, NEXT] = token + 1
            if escaped and not plain_text(tape, token):
                return BAD_ESCAPE, at
            if depth == 1 and outer and len(repeats.name) > 0:
                name = _repeat_name(tape, repeats, np.int64(tok[token, AT]), np.int64(tok[token, END] - tok[token, AT]))
            token += 1
            at = stop + 1
            while at < end and _blank(data[at]):
                at += 1
            if at >= end:
                return TRUNCATED, end
            if data[at] != 58:
                return EXPECTED_COLON, at
            at += 1
            mode = 0
        else:
            tok[token, AT] = at
            tok[token, NEXT] = token + 1
            mode = 2
            if byte == 34:
                stop, escaped, damage = _string(data, at + 1, end)
                if damage != 0:
                    return damage, stop
                tok[token, KIND] = ESCAPED if escaped else STRING
                tok[token, AT] = at + 1
                tok[token, END] = stop
                at = stop + 1
            elif byte == 45 or 48 <= byte <= 57:
                at, kind, damage = _number(data, at, end)
                if damage != 0:
                    return damage, at
                tok[token, KIND] = kind
                tok[token, END] = at
            elif byte == 123 or byte == 91:
                tok[token, KIND] = OBJECT if byte == 123 else ARRAY
                if depth == 1 and name >= 0:
                    text = _known_text(tape, repeats, name, at, end)
                    repeats.name[name, FOUND] = text
                    repeats.name[name, TOKEN] = token
                    if text >= 0:
                        at += repeats.text[text, STOP] - repeats.text[text, BEGIN]
                        tok[token, END] = at
                        token += 1
                        name = -1
                        continue
                    name = -1
                if depth == DEPTH_MAX:
                    return TOO_DEEP, at
                stack[STACK + depth] = token
                depth += 1
                at += 1
                while at < end and _blank(data[at]):
                    at += 1
                if at < end and data[at] == (125 if byte == 123 else 93):
                    at += 1
                    depth -= 1
                    tok[token, END] = at
                else:
                    mode = 1 if byte == 123 else 0
            else:
                size, kind = _literal(data, at, end)
                if size == 0:
                    return EXPECTED_VALUE, at
                tok[token, KIND] = kind
                at += size
                tok[token, END] = at
            name = -1
            token += 1
