"""Writes rows of messages into a table's columns, compiled.

`decode_rows` goes through the messages of one table in a chunk, whose tokens and envelope fields are known. It writes
one row for each insert and delete, and two rows for each update. It stops at a message for which Python must act
(`STOP_…`), and has then written nothing of this message. If columns are inferred, `observe` examines the same messages
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raycdc.core.compiled import load
from raycdc.core.loops.compiling import helper, inlined, njit
from raycdc.formats.loops.cell_loops import put_cell
from raycdc.formats.loops.code_loops import (
    C_KIND,
    ERROR_COLUMN,
    FULL,
    FULL_NEED,
    K_BYTES,
    K_TEXT,
    K_TIME,
    KEY_TYPE,
    NO_KEY,
    OK,
    PARTIAL,
    ROWS,
    UNAVAILABLE,
)
from raycdc.formats.loops.envelope_loops import (
    ACTION,
    AFTER,
    BEFORE,
    DELETE,
    INSERT,
    KEY_ONLY,
    MESSAGE_ROWS,
    NO_BEFORE,
    NO_ROWS,
    REMEMBERED_KEYS,
    TIME,
    integer_value,
)
from raycdc.formats.loops.extended_loops import (
    FORM_BINARY,
    FORM_DATE,
    FORM_DECIMAL,
    FORM_DOUBLE,
    FORM_INTEGER,
    FORM_NONE,
    extended_form,
)
from raycdc.formats.loops.tape_loops import (
    ARRAY,
    AT,
    END,
    ESCAPED,
    FALSE,
    FRACTION,
    INTEGER,
    KIND,
    NEXT,
    NULL,
    OBJECT,
    STRING,
    TRUE,
    plain_text,
    same_bytes,
)
from raycdc.formats.loops.time_loops import moment

#: The reasons for which `decode_rows` stops: all messages are done, no free row, no room for text, a bad message.
STOP_END, STOP_ROWS, STOP_TEXT, STOP_BAD = 0, 1, 2, 3
#: The reasons for which `observe` stops: all messages are done, an unknown field, a key of a different kind than in
#: earlier rows.
STOP_FIELD, STOP_KEY = 1, 2

#: Indices into `RowPlan.flags`.
(
    FLAG_PATCH,  # `before` holds the changed fields only
    FLAG_OVERLAY,  # an update's images complete each other
    FLAG_BEFORE_OPTIONAL,  # without a before-image an update is one row
    FLAG_EXTENDED,  # MongoDB's extended JSON
    FLAG_UNAVAILABLE,  # Debezium's placeholder for missing values
    FLAG_FOLD,  # names that differ in case only are the same
    FLAG_TIME,  # unit of the time field: 0 seconds, 1 milliseconds, 2 microseconds, 3 text
    FLAG_WHOLE,  # a row that lacks a field which rows before it had is refused
    FLAG_KEY,  # the table has a key, whose columns are among those of the plan
) = range(9)
FLAGS = 9


class ArenaView(NamedTuple):
    """Column buffers as compiled loops see them; see `raycdc.formats.decoding.arena`."""

    col: npt.NDArray[np.int64]
    i64: npt.NDArray[np.int64]
    valid: npt.NDArray[np.uint8]
    voff: npt.NDArray[np.int32]
    vdata: npt.NDArray[np.uint8]
    slot: npt.NDArray[np.int64]
    counters: npt.NDArray[np.int64]
    meta: npt.NDArray[np.int64]
    labels: npt.NDArray[np.uint8]
    label: npt.NDArray[np.int64]


#: Columns of `ArenaView.meta`: row kind, running number, time, number of the message, place within it.
META_OP, META_SEQ, META_MS, META_MESSAGE, META_PART = range(5)


class RowPlan(NamedTuple):
    """A description of a table's rows for the loops.

    The first ``len(name_off) - 1`` columns are those of the table, by name. The rest come from fields of the envelope
    (`slots`).

    `cells` has a row for each column: its token in the new and in the old image, 1 if it was found by its exact name,
    the union of the classes seen, 1 if a row has had it, 1 if it belongs to the table's key, the kind of the values of
    the key (`KIND_…`), and its two tokens before extended JSON was unwrapped. `keys` has the position, length and
    column of each key of the previous row. `placeholders` has the texts in which Debezium's placeholder for a missing
    value comes (`packed_placeholders`).
    """

    names: npt.NDArray[np.uint8]
    name_off: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    placeholders: npt.NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        flags: npt.NDArray[np.int64],
        slots: Sequence[int],
        placeholders: npt.NDArray[np.uint8],
    ) -> RowPlan:
        """Return a plan without the table's columns."""
        none, numbers = np.zeros(8, np.uint8), np.zeros((1, CELLS), np.int64)
        return cls(none, numbers[0, :1], np.array(slots, np.int64), flags, numbers, numbers, placeholders)

    def with_columns(
        self,
        names: npt.NDArray[np.uint8],
        name_off: npt.NDArray[np.int64],
        cells: npt.NDArray[np.int64],
        keys: npt.NDArray[np.int64],
    ) -> RowPlan:
        """Return the plan with these columns of the table."""
        return self._replace(names=names, name_off=name_off, cells=cells, keys=keys)


#: Columns of `RowPlan.cells` and of `RowPlan.keys`.
NEW, OLD, EXACT, MASK, HAD, KEY, KEY_KIND, RAW_NEW, RAW_OLD = range(9)
CELLS = 9
KEY_AT, KEY_LENGTH, KEY_COLUMN = range(3)
#: The bytes at the begin of `RowPlan.placeholders` that say which lengths its texts have.
PLACEHOLDER_LENGTHS = 256


def packed_placeholders(texts: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """Return `RowPlan.placeholders`: one array, because each array makes every call of the loops slower.

    The byte at `n` is 1 if a text of `n` bytes is among `texts`; the last of the `PLACEHOLDER_LENGTHS` bytes stands for
    all greater lengths. The texts follow, each after its length in two bytes; zeros are after the last one.
    """
    lengths = np.zeros(PLACEHOLDER_LENGTHS, np.uint8)
    lengths[[min(len(text), PLACEHOLDER_LENGTHS - 1) for text in texts]] = 1
    rest = b"".join(len(text).to_bytes(2, "little") + text for text in texts)
    return np.concatenate([lengths, np.frombuffer(rest + bytes(8), np.uint8)])


@helper
def _lower(byte: Any) -> Any:
    return byte | 32 if 65 <= byte <= 90 else byte


@helper
def _column(tape: Any, plan: Any, at: Any, length: Any) -> Any:
    """Return the column with that name, and True if the name is exactly equal; -1 if there is none.

    A column whose name differs only in case is returned if it is the only one.
    """
    columns = len(plan.name_off) - 1
    for column in range(columns):
        first = plan.name_off[column]
        if plan.name_off[column + 1] - first == length and same_bytes(tape.data, at, plan.names, first, length):
            return column, True
    found = -1
    if plan.flags[FLAG_FOLD] == 1:
        for column in range(columns):
            first = plan.name_off[column]
            if plan.name_off[column + 1] - first != length:
                continue
            same = True
            for i in range(length):
                if _lower(tape.data[at + i]) != _lower(plan.names[first + i]):
                    same = False
                    break
            if same:
                if found >= 0:
                    return -1, False
                found = column
    return found, False


@inlined
def _find_column(tape: Any, plan: Any, key: Any, position: Any) -> Any:
    """Return the result of `_column` for a key token, as column * 2 + exactness, or -1.

    The result is remembered for the next row.
    """
    at = np.int64(tape.tok[key, AT])
    length = np.int64(tape.tok[key, END]) - at
    known = position < REMEMBERED_KEYS
    if known and plan.keys[position, KEY_LENGTH] == length:
        if same_bytes(tape.data, at, tape.data, plan.keys[position, KEY_AT], length):
            return plan.keys[position, KEY_COLUMN]
    column, exact = _column(tape, plan, at, length)
    code = np.int64(-1) if column < 0 else np.int64(2 * column + (1 if exact else 0))
    if known:
        plan.keys[position, KEY_AT] = at
        plan.keys[position, KEY_LENGTH] = length
        plan.keys[position, KEY_COLUMN] = code
    return code


@inlined
def _gather(tape: Any, plan: Any, row: Any, image: Any) -> None:
    """Find the token of each column in the object `row`; -1 if the object lacks the column.

    Of equal names, the last one counts.
    """
    columns = len(plan.name_off) - 1
    for column in range(columns):
        plan.cells[column, image] = -1
        plan.cells[column, RAW_NEW + image] = -1
        plan.cells[column, EXACT] = 0
    if row < 0:
        return
    key = row + 1
    last = np.int64(tape.tok[row, NEXT])
    position = 0
    mongo = plan.flags[FLAG_EXTENDED] == 1
    while key < last:
        value = key + 1
        code = _find_column(tape, plan, key, position)
        if code >= 0:
            column = code >> 1
            if code & 1:
                plan.cells[column, EXACT] = 1
            if (code & 1) == 1 or plan.cells[column, EXACT] == 0:
                plan.cells[column, RAW_NEW + image] = value
                if mongo:
                    _, value = extended_form(tape, value)
                plan.cells[column, image] = value
        key = np.int64(tape.tok[key + 1, NEXT])
        position += 1


@inlined
def _time_ms(tape: Any, token: Any, unit: Any) -> Any:
    """Return the envelope's time in milliseconds; 0 if it has none."""
    if token < 0:
        return np.int64(0)
    if unit == 3:
        if not plain_text(tape, token) or tape.tok[token, KIND] != STRING:
            return np.int64(0)
        end = np.int64(tape.tok[token, END])
        at = np.int64(tape.tok[token, AT])
        # Oracle's times may have nanoseconds; only milliseconds are kept.
        if end - at > 23 and tape.data[at + 19] == 46:
            end = at + 23
        error, micros = moment(tape.data, at, end)
        return micros // 1000 if error == OK else np.int64(0)
    value, known = integer_value(tape, token)
    if not known:
        return np.int64(0)
    if unit == 0:
        return value * 1000
    return value if unit == 1 else value // 1000


# Row kinds, as in `raycdc.model.RowKind`.
_PLUS_I, _MINUS_U, _PLUS_U, _MINUS_D = 0, 1, 2, 3


@inlined
def _images(tape: Any, plan: Any, action: Any, after: Any, before: Any) -> Any:
    """Collect the images of one change: return (error, first row kind, last row kind)."""
    patch = plan.flags[FLAG_PATCH] == 1
    if before >= 0 and plan.flags[FLAG_OVERLAY] == 1 and np.int64(tape.tok[before, NEXT]) == before + 1:
        # An object without a field is no row, so the message of this delete or update lacks the row before the change.
        before = np.int64(-1)
    if action == DELETE and patch:
        before = after
        if before < 0:
            return NO_ROWS, 0, 0
    if action == DELETE:
        if before < 0:
            return NO_BEFORE, 0, 0
        after = np.int64(-1)
    elif after < 0:
        return NO_ROWS, 0, 0
    elif action == INSERT:
        before = np.int64(-1)
    elif before < 0 and plan.flags[FLAG_BEFORE_OPTIONAL] == 0:
        return NO_BEFORE, 0, 0
    _gather(tape, plan, after, NEW)
    _gather(tape, plan, before, OLD)
    if action == INSERT:
        return OK, _PLUS_I, _PLUS_I
    if action == DELETE:
        return OK, _MINUS_D, _MINUS_D
    return OK, (_PLUS_U if before < 0 else _MINUS_U), _PLUS_U


@helper
def _placeholder_text(tape: Any, plan: Any, token: Any) -> Any:
    """Return True if a text, or the name of a field, is Debezium's placeholder for a missing value."""
    # The JSON of a map has escaped quotes.
    if tape.tok[token, KIND] == ESCAPED and not plain_text(tape, token):
        return False
    if tape.tok[token, KIND] != STRING:
        return False
    at = np.int64(tape.tok[token, AT])
    length = np.int64(tape.tok[token, END]) - at
    text = np.int64(PLACEHOLDER_LENGTHS)
    while True:
        size = load(plan.placeholders, text, 16)
        if size == 0:
            return False
        if size == length and same_bytes(tape.data, at, plan.placeholders, text + 2, length):
            return True
        text += 2 + size


@helper
def _placeholder_numbers(tape: Any, plan: Any, token: Any) -> Any:
    """Return True if an array of numbers has the bytes of the placeholder, as Debezium writes it in such arrays."""
    number = token + 1
    last = np.int64(tape.tok[token, NEXT])
    length = load(plan.placeholders, np.int64(PLACEHOLDER_LENGTHS), 16)
    if last - number != length:
        return False
    for i in range(length):
        kind = tape.tok[number + i, KIND]
        if kind != INTEGER and kind != FRACTION:
            return False
        at = np.int64(tape.tok[number + i, AT])
        value = np.int64(0)
        while at < tape.tok[number + i, END] and 48 <= tape.data[at] <= 57 and value < 1000:
            value = value * 10 + np.int64(tape.data[at]) - 48
            at += 1
        if value != np.int64(plan.placeholders[PLACEHOLDER_LENGTHS + 2 + i]):
            return False
    return True


@helper
def _is_placeholder(tape: Any, plan: Any, token: Any) -> Any:
    """Return True if a value is Debezium's placeholder for a large value that it did not get (PostgreSQL's TOAST).

    It is a text, an array of one such text, an array of the numbers of its bytes, or a map with it as name and value.
    """
    kind = tape.tok[token, KIND]
    if kind == STRING or kind == ESCAPED:
        return _placeholder_text(tape, plan, token)
    last = np.int64(tape.tok[token, NEXT])
    if kind == ARRAY:
        return (
            _placeholder_text(tape, plan, token + 1) if last == token + 2 else _placeholder_numbers(tape, plan, token)
        )
    if kind == OBJECT and last == token + 3:
        return _placeholder_text(tape, plan, token + 1) and _placeholder_text(tape, plan, token + 2)
    return False


@inlined
def is_unavailable(tape: Any, plan: Any, token: Any) -> Any:
    """Return True if a value is Debezium's placeholder, in any of its forms.

    Values whose kind or length is that of no form, which are nearly all, cost no call.
    """
    kind = tape.tok[token, KIND]
    if kind == STRING:
        length = tape.tok[token, END] - tape.tok[token, AT]
        if plan.placeholders[min(length, PLACEHOLDER_LENGTHS - 1)] == 0:
            return False
    elif kind != ESCAPED and kind != ARRAY and kind != OBJECT:
        return False
    return _is_placeholder(tape, plan, token)


@inlined
def _cell(tape: Any, plan: Any, column: Any, op: Any, key_only: Any) -> Any:
    """Return (error, token) of a table's column in the image of a row of kind `op`."""
    old = op == _MINUS_U or op == _MINUS_D
    token = plan.cells[column, OLD if old else NEW]
    other = plan.cells[column, NEW if old else OLD]
    if token < 0:
        # A field that a patch does not mention is unchanged.
        if (op == _MINUS_U and plan.flags[FLAG_PATCH] == 1) or (
            plan.flags[FLAG_OVERLAY] == 1 and (op == _MINUS_U or op == _PLUS_U)
        ):
            token = other
    if token >= 0 and plan.flags[FLAG_UNAVAILABLE] == 1 and is_unavailable(tape, plan, token):
        # An update may leave out a field that it did not change. Only the image before the change can then have the
        # value.
        if op != _PLUS_U or other < 0 or is_unavailable(tape, plan, other):
            return UNAVAILABLE, token
        token = other
    if plan.flags[FLAG_WHOLE] == 1:
        if token >= 0:
            plan.cells[column, HAD] = 1
        elif (
            plan.cells[column, HAD] == 1 and key_only == 0 and (op != _MINUS_D or plan.flags[FLAG_BEFORE_OPTIONAL] == 0)
        ):
            return PARTIAL, token
    return OK, token


@helper
def _key_kind(tape: Any, token: Any, mongo: Any) -> Any:
    """Return the kind of a value of the key.

    Values of different kinds are different keys, even if their texts are equal.
    """
    form = FORM_NONE
    if mongo:
        form, _ = extended_form(tape, token)
    if form == FORM_INTEGER or form == FORM_DOUBLE or form == FORM_DECIMAL:
        return KIND_NUMBER
    if form != FORM_NONE and form != FORM_DATE and form != FORM_BINARY:
        return KIND_FORMS + form
    seen = _class(tape, token, mongo)
    if seen & _SEEN_NUMBERS:
        return KIND_NUMBER
    if seen & SEEN_TEXT:
        return KIND_TEXT
    if seen & SEEN_BOOL:
        return KIND_BOOL
    if seen & SEEN_NESTED:
        return KIND_NESTED
    if seen & SEEN_DATE:
        return KIND_DATE
    return KIND_BYTES if seen & SEEN_BYTES else 0


@helper
def _as_text(tape: Any, token: Any, raw: Any, kind: Any) -> Any:
    """Return the token whose text is stored in a text column, for a value of extended JSON that was unwrapped to
    `token`.

    Moments and bytes keep their extended form, because their bare digits or letters would not show their type.
    """
    if kind == K_BYTES or kind == K_TIME or raw < 0 or tape.tok[raw, KIND] != OBJECT:
        return token
    form, _ = extended_form(tape, raw)
    return np.int64(raw) if form == FORM_DATE or form == FORM_BINARY else token


@inlined
def _raw(plan: Any, column: Any, op: Any) -> Any:
    """Return the token of a column's value before extended JSON was unwrapped."""
    return plan.cells[column, RAW_OLD if op == _MINUS_U or op == _MINUS_D else RAW_NEW]


@inlined
def _check_key(tape: Any, plan: Any, token: Any, column: Any, op: Any, valid: Any) -> Any:
    """Check the value of a key column that was written: `NO_KEY` without a value, `KEY_TYPE` for another kind."""
    if valid == 0:
        return NO_KEY
    mongo = plan.flags[FLAG_EXTENDED] == 1
    if mongo:
        token = _raw(plan, column, op)
    kind = _key_kind(tape, token, mongo)
    if plan.cells[column, KEY_KIND] == 0:
        plan.cells[column, KEY_KIND] = kind
    return OK if plan.cells[column, KEY_KIND] == kind else KEY_TYPE


@inlined
def _change(tape: Any, plan: Any, a: Any, messages: Any, message: Any, after: Any, before: Any, part: Any) -> Any:
    """Write the rows of one change. Returns 0, `FULL`, or an error."""
    key_only = messages.info[message, KEY_ONLY]
    if key_only == 1 and plan.flags[FLAG_KEY] == 0:
        return NO_KEY
    status, op, last = _images(tape, plan, messages.info[message, ACTION], after, before)
    if status != OK:
        return status
    columns = len(plan.name_off) - 1
    mongo = plan.flags[FLAG_EXTENDED] == 1
    while op <= last:
        row = a.counters[ROWS]
        for column in range(columns + len(plan.slots)):
            if column < columns:
                status, token = _cell(tape, plan, column, op, key_only)
            else:
                token = np.int64(messages.found[message, plan.slots[column - columns]])
            if mongo and column < columns and token >= 0 and a.col[column, C_KIND] >= K_TEXT:
                token = _as_text(tape, token, _raw(plan, column, op), a.col[column, C_KIND])
            if status == OK:
                status = put_cell(tape, token, a, column, row)
                if status == OK and column < columns and plan.cells[column, KEY] == 1:
                    status = _check_key(tape, plan, token, column, op, a.valid[column, row])
            if status != OK:
                a.counters[ERROR_COLUMN] = column
                return status
        a.meta[row, META_OP] = op
        a.meta[row, META_MESSAGE] = message
        a.meta[row, META_PART] = part
        a.counters[ROWS] = row + 1
        op += 1
    return OK


@njit
def decode_rows(tape: Any, plan: Any, a: Any, messages: Any, seqs: Any, wanted: Any, first: Any) -> Any:
    """Write the rows of the messages ``wanted[first:]``. Returns (the reason of the stop, the message, the error).

    Rows of message ``m`` are numbered from ``seqs[m]`` on. After `STOP_ROWS`, ``counters[FULL_NEED]`` is the number of
    needed rows. After `STOP_TEXT`, the counters have the text column and the room that it needs.
    """
    rows_max = len(a.meta)
    for i in range(first, len(wanted)):
        message = wanted[i]
        held = a.counters[ROWS]
        if held + messages.info[message, MESSAGE_ROWS] > rows_max:
            a.counters[FULL_NEED] = messages.info[message, MESSAGE_ROWS]
            return STOP_ROWS, i, 0
        after = np.int64(messages.found[message, AFTER])
        before = np.int64(messages.found[message, BEFORE])
        many = after >= 0 and tape.tok[after, KIND] == ARRAY
        stop = np.int64(tape.tok[after, NEXT]) if many else after + 1
        old_stop = np.int64(-1)
        if many:
            after += 1
            if before >= 0 and tape.tok[before, KIND] == ARRAY:
                old_stop = np.int64(tape.tok[before, NEXT])
                before += 1
        status = OK
        part = np.int64(0)
        while after < stop and status == OK:
            image = before
            if many and (before >= old_stop or tape.tok[before, KIND] != OBJECT):
                image = np.int64(-1)
            if (after >= 0 and tape.tok[after, KIND] != OBJECT) or (image >= 0 and tape.tok[image, KIND] != OBJECT):
                status = NO_ROWS
            else:
                status = _change(tape, plan, a, messages, message, after, image, part)
            part += 1
            if not many:
                break
            after = np.int64(tape.tok[after, NEXT])
            if before < old_stop:
                before = np.int64(tape.tok[before, NEXT])
        if status != OK:
            for column in range(a.valid.shape[0]):
                for row in range(held, min(a.counters[ROWS] + 1, rows_max)):
                    a.valid[column, row] = 1
            a.counters[ROWS] = held
            return (STOP_TEXT, i, 0) if status == FULL else (STOP_BAD, i, status)
        millis = _time_ms(tape, np.int64(messages.found[message, TIME]), plan.flags[FLAG_TIME])
        for row in range(held, a.counters[ROWS]):
            a.meta[row, META_MS] = millis
            a.meta[row, META_SEQ] = seqs[message] + row - held
    return STOP_END, len(wanted), 0


# Classes of values, for inference; a column's mask is the union of the observed classes.
SEEN_NULL, SEEN_BOOL, SEEN_SMALL, SEEN_INT64, SEEN_BIG, SEEN_DOUBLE = 1, 2, 4, 8, 16, 32
SEEN_EXACT, SEEN_TEXT, SEEN_NESTED, SEEN_DATE, SEEN_BYTES = 64, 128, 256, 512, 1024
_SEEN_NUMBERS = SEEN_SMALL | SEEN_INT64 | SEEN_BIG | SEEN_DOUBLE | SEEN_EXACT

#: Kinds of values of a key. From `KIND_FORMS` on, they are the types of extended JSON that are stored as texts, such as
#: object ids.
KIND_NUMBER, KIND_TEXT, KIND_BOOL, KIND_NESTED, KIND_DATE, KIND_BYTES = range(1, 7)
KIND_FORMS = 16


@helper
def _small_exponent(data: Any, at: Any, end: Any) -> Any:
    """Return True if a number of at most 15 digits with this exponent is certainly a double, neither 0 nor infinite."""
    exponent = np.int64(0)
    for i in range(at, end):
        if 48 <= data[i] <= 57 and exponent < 1000:
            exponent = exponent * 10 + np.int64(data[i]) - 48
    return exponent <= 290


@helper
def _class(tape: Any, token: Any, mongo: Any) -> Any:
    kind = tape.tok[token, KIND]
    at = np.int64(tape.tok[token, AT])
    end = np.int64(tape.tok[token, END])
    if mongo:
        form, token = extended_form(tape, token)
        if form == FORM_DATE:
            return SEEN_DATE
        if form == FORM_BINARY:
            return SEEN_BYTES
        if form == FORM_INTEGER:
            return SEEN_INT64
        if form == FORM_DOUBLE:
            return SEEN_DOUBLE
        if form != FORM_NONE:
            return SEEN_TEXT
    if kind == NULL:
        return SEEN_NULL
    if kind == TRUE or kind == FALSE:
        return SEEN_BOOL
    if kind == STRING or kind == ESCAPED:
        return SEEN_TEXT
    if kind == OBJECT or kind == ARRAY:
        return SEEN_NESTED
    digits = 0
    whole = np.int64(0)
    for i in range(at, end):
        byte = tape.data[i]
        if 48 <= byte <= 57:
            if digits > 0 or byte != 48:
                digits += 1
                if digits <= 18:
                    whole = whole * 10 + np.int64(byte) - 48
        elif byte == 101 or byte == 69:
            if not _small_exponent(tape.data, i + 1, end):
                return SEEN_EXACT
            break
    if kind == INTEGER:
        if digits <= 15:
            return SEEN_SMALL
        # 19 digits may exceed 2**63, unless the first digit is below 9.
        first = tape.data[at] if tape.data[at] != 45 else tape.data[at + 1]
        if digits <= 18 or (digits == 19 and first < 57):
            return SEEN_INT64
        return SEEN_BIG if digits <= 38 else SEEN_EXACT
    return SEEN_DOUBLE if digits <= 15 else SEEN_EXACT


@helper
def _keeps_kind(tape: Any, plan: Any, row: Any) -> Any:
    """Return False if a value of the row's key is of another kind than those of the rows before it."""
    key = row + 1
    last = np.int64(tape.tok[row, NEXT])
    position = 0
    mongo = plan.flags[FLAG_EXTENDED] == 1
    while key < last:
        value = key + 1
        code = _find_column(tape, plan, key, position)
        if code >= 0 and plan.cells[code >> 1, KEY] == 1:
            kind = _key_kind(tape, value, mongo)
            if plan.cells[code >> 1, KEY_KIND] == 0:
                plan.cells[code >> 1, KEY_KIND] = kind
            if kind != 0 and plan.cells[code >> 1, KEY_KIND] != kind:
                return False
        key = np.int64(tape.tok[value, NEXT])
        position += 1
    return True


@helper
def _observe_row(tape: Any, plan: Any, row: Any) -> Any:
    """Record the class of each field of the object. Returns the key of a field without a column, or -1."""
    key = row + 1
    last = np.int64(tape.tok[row, NEXT])
    position = 0
    mongo = plan.flags[FLAG_EXTENDED] == 1
    while key < last:
        value = key + 1
        code = _find_column(tape, plan, key, position)
        if code < 0:
            return key
        plan.cells[code >> 1, MASK] |= _class(tape, value, mongo)
        key = np.int64(tape.tok[value, NEXT])
        position += 1
    return np.int64(-1)


@njit
def observe(tape: Any, plan: Any, messages: Any, wanted: Any, first: Any) -> Any:
    """Record the classes of all values of the messages ``wanted[first:]``.

    Returns (the reason of the stop, the message, the key token).
    """
    for i in range(first, len(wanted)):
        for slot in range(AFTER, BEFORE + 1):
            token = np.int64(messages.found[wanted[i], slot])
            if token < 0:
                continue
            row = token
            last = np.int64(tape.tok[token, NEXT])
            if tape.tok[token, KIND] == ARRAY:
                row = token + 1
            while row < last:
                if tape.tok[row, KIND] == OBJECT:
                    if plan.flags[FLAG_KEY] == 1 and not _keeps_kind(tape, plan, row):
                        return STOP_KEY, i, np.int64(-1)
                    key = _observe_row(tape, plan, row)
                    if key >= 0:
                        return STOP_FIELD, i, key
                row = np.int64(tape.tok[row, NEXT])
    return STOP_END, len(wanted), np.int64(-1)
