"""Numbers that the formats' loops and their callers share: kinds of columns, representations of values, errors."""

from __future__ import annotations

# Kinds of columns. Those from `K_TEXT` on have their values in text slots, the others in 64-bit words.
K_BOOL, K_INT, K_FLOAT32, K_FLOAT64, K_DECIMAL, K_DATE, K_MOMENT, K_BIT = range(8)
K_TEXT, K_BYTES, K_TIME, K_JSON, K_SET = range(8, 13)

#: Columns of `ArenaView.col`. `C_P1` and `C_P2` are the kind's parameters: precision and scale, bytes of an integer,
#: bits, or fractional digits.
C_KIND, C_P1, C_P2, C_WIRE, C_BASE, C_SLOT, C_HAS_NULL, C_WIDE = range(8)
#: Columns of `ArenaView.slot`.
S_BASE, S_ROOM = 0, 1

# Columns of `ArenaView.label`. For a column whose values may be ordinals, `C_P1` is the row of its header, after which
# a row follows for each label: its begin and end in `ArenaView.labels`. The header has the room that its longest value
# needs, and 1 if a label consists of digits. `C_P2` is the number of labels.
LABEL_BEGIN, LABEL_STOP = 0, 1
LABEL_ROOM, LABEL_DIGITS = 0, 1

# Representations ("wires"). A column has one that its kind supports. `WIRE_PLAIN` is the form of JSON and of MySQL's
# text.
WIRE_PLAIN = 0
WIRE_BASE64 = 1  # decimals: unscaled two's complement, most significant byte first; bits: least significant byte first
WIRE_EITHER = 2  # decimals: text or base64, refused if both are possible
WIRE_LATIN1 = 3  # bytes: one character of U+0000 to U+00FF each
WIRE_HEX = 4
WIRE_TEXT = 5  # JSON inside a string
WIRE_VARIABLE = 6  # decimals as text: {"scale": …, "value": base64}
WIRE_ORDINAL = 7  # the number of an ENUM's label, from 1 on, or the bits of a SET, or a label
WIRE_NUMBER = 8  # like WIRE_ORDINAL, and a number is never a label
WIRE_NANO_MOMENT, WIRE_NANO_TIME = 9, 11  # nanoseconds as text with nine fractional digits
WIRE_SECONDS, WIRE_MILLIS, WIRE_MICROS, WIRE_NANOS = 10, 13, 16, 19  # temporals as numbers
WIRE_DAYS = 20
WIRE_SCALED = 100  # plus n: like WIRE_BASE64, for a decimal with the scale -n

# The results of `put_cell`. `NULL_VALUE` is a value that counts as null.
OK, FULL, NULL_VALUE = 0, -1, -2
WRONG_KIND, OUT_OF_RANGE, TOO_PRECISE, NOT_A_NUMBER, NOT_A_TIME, NOT_BASE64 = 40, 41, 42, 43, 44, 45
#: A number that is not 0 would become 0.
TOO_SMALL = 39
HALF_SURROGATE, AMBIGUOUS_DECIMAL, UNAVAILABLE, NOT_LATIN1, NOT_HEX, TOO_LONG = 46, 47, 48, 49, 50, 51
#: A row lacks a field that earlier rows had.
PARTIAL = 52
#: A row lacks a value of its key; a value of the key is of a different kind than in earlier rows.
NO_KEY, KEY_TYPE = 53, 54
#: Found before the rows are decoded: the message names a different key than earlier messages, or has too many fields.
KEY_CHANGED, TOO_MANY_FIELDS = 55, 56
#: A value of an ENUM or SET column reads as two different values; it is none of the column's labels.
AMBIGUOUS_LABEL, NO_LABEL = 57, 58
#: A moment or date that is infinite, before the year 1 or after the year 9999.
NO_CALENDAR_DATE = 59

#: Indices into `ArenaView.counters`.
FULL_SLOT, FULL_NEED, ZERO_DATES, ERROR_COLUMN, ROWS = range(5)

#: Extra room for every text value: for numbers that become text, and for quotes.
TEXT_SLACK = 128
