"""Finds values that a database can never hold, by the server's rules, without asking the server. Pure.

Only values that every server of a kind refuses are found here. If a refusal depends on the server (a key that is too
long for its index, a constraint, a range that is wider in newer versions), the table is parked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import Column
from raycdc.sinks.jdbc.mysql_text import literal_sizes
from raycdc.sinks.jdbc.types import mysql_type
from raycdc.sinks.unrepresentable_rows import reasons

#: The first timestamp and date of PostgreSQL, in 4713 BC, and the range of MySQL's DATETIME.
_POSTGRES_FIRST_S = -210_866_803_200
_MYSQL_FIRST_S, _MYSQL_LAST_S = -62_167_219_200, 253_402_300_799
#: The first time of a type, if it differs from the default.
_FIRST_S = {"timestamp(6)": 1}


def postgres_unrepresentable(rows: pa.RecordBatch, columns: Sequence[Column], encoding: str) -> pa.Array:
    """Return for each of `rows` the reason why a PostgreSQL database in this `encoding` can never hold it, or null."""
    foreign = _foreign_characters(encoding)

    def bad() -> Iterator[tuple[pa.Array, str]]:
        for column in columns:
            values = rows.column(column.name)
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                yield pc.match_substring(values, "\0"), f"column {column.name} has a NUL, and no text of PostgreSQL has"
                if foreign:
                    text = f"column {column.name} has a character that the encoding {encoding} of the database lacks"
                    yield pc.match_substring_regex(values, foreign), text
            elif pa.types.is_temporal(values.type):
                early = _outside(values, _POSTGRES_FIRST_S)
                yield early, f"column {column.name} is before the first day of PostgreSQL"

    return reasons(rows.num_rows, bad())


def mysql_unrepresentable(
    rows: pa.RecordBatch, columns: Sequence[Column], key: Sequence[str], *, bytes_max: int
) -> pa.Array:
    """Return for each of `rows` the reason why a MySQL or MariaDB server can never hold it, or null.

    The server accepts statements with values of up to `bytes_max`.
    """

    def bad() -> Iterator[tuple[pa.Array, str]]:
        plain = {}
        for column in columns:
            values = plain[column.name] = rows.column(column.name)
            if pa.types.is_floating(values.type):
                invalid = pc.fill_null(pc.invert(pc.is_finite(values)), fill_value=False)
                yield invalid, f"column {column.name} is NaN or infinite, which no number of MySQL is"
                plain[column.name] = pc.if_else(invalid, None, values)
            elif pa.types.is_temporal(values.type):
                kind = mysql_type(column.type, key=column.name in key)
                outside = _outside(values, _FIRST_S.get(kind, _MYSQL_FIRST_S), _MYSQL_LAST_S)
                yield outside, f"column {column.name} is outside the years that {kind} has"
        sizes = literal_sizes(pa.RecordBatch.from_pydict(plain))
        large = sizes.sum(axis=0) + len(sizes) + 1 > bytes_max
        for number, column in enumerate(columns):
            widest = large & (sizes.argmax(axis=0) == number)
            if np.any(widest):
                text = f"column {column.name} makes the row larger than the server's max_allowed_packet ({bytes_max})"
                yield pa.array(widest), text

    return reasons(rows.num_rows, bad())


def _outside(values: pa.Array, first_s: int, last_s: int | None = None) -> pa.Array:
    """Return which timestamps or dates are before `first_s` or after `last_s`, in seconds since 1970."""
    if pa.types.is_date(values.type):
        counted, first, last = values.cast(pa.int32()), first_s // 86_400, (last_s or 0) // 86_400
    else:
        counted, first, last = values.cast(pa.int64()), first_s * 1_000_000, (last_s or 0) * 1_000_000 + 999_999
    early = pc.less(counted, first)
    return early if last_s is None else pc.or_(early, pc.greater(counted, last))


def _foreign_characters(encoding: str) -> str:
    """Return a pattern of the characters that a one-byte encoding lacks; empty if it has all, or is unknown here."""
    name = encoding.upper()
    if match := re.fullmatch(r"LATIN(\d+)", name):
        codec = f"iso8859-{_LATIN.get(int(match[1]), 0)}"
    elif match := re.fullmatch(r"(ISO_8859_|WIN|KOI8)(\w+)", name):
        codec = {"ISO_8859_": "iso8859-", "WIN": "cp", "KOI8": "koi8-"}[match[1]] + match[2]
    else:
        return ""
    try:
        known = sorted(set(bytes(range(1, 256)).decode(codec, "ignore")))
    except LookupError:
        return ""
    return "[^" + "".join(rf"\x{{{ord(character):x}}}" for character in known) + "]"


#: The parts of ISO 8859, by the numbers in PostgreSQL's names of encodings (LATIN5 is part 9).
_LATIN = {1: 1, 2: 2, 3: 3, 4: 4, 5: 9, 6: 10, 7: 13, 8: 14, 9: 15, 10: 16}
