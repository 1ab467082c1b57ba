"""Converts values of a source and of a target to one form per logical type, and hashes rows of them. Pure.

| kinds | form | equal values |
|---|---|---|
| BOOLEAN, INT8 … INT64, YEAR, BIT(1 … 63) | a word, signed | numbers of all widths |
| UINT64, BIT(64), DECIMAL(p, s) | two words, at scale s | decimals with and without zeros at the end |
| a STRING of a wider decimal | four words | the same digits as text and as a number |
| FLOAT32, FLOAT64 | the word of a double | all NaN; 0.0 and -0.0, if the target stores only one zero |
| DATE | a word: days | a day and its midnight |
| DATETIME, TIMESTAMP | a word: microseconds | moments of all units, with and without a zone's name |
| STRING, ENUM, SET, TIME, JSON, BINARY | the bytes | |

A value may not fit the form of its column, such as a text in place of a number, or a fraction that is too long. It is
then compared by its text, in a form that no fitting value has, and so differs from every value on the other side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model.arrays import failing
from raycdc.model.types import LogicalType, TypeKind, wide_decimal
from raycdc.verify import hash_loops as loops

_NO_NULLS = np.zeros(0, np.uint8)
#: The number of decimal digits that four words hold.
_WIDE_DIGITS = 76


class Family(Enum):
    """The forms in the module's table."""

    WHOLE = auto()
    DECIMAL = auto()
    WIDE = auto()
    FLOAT = auto()
    DAY = auto()
    MOMENT = auto()
    DURATION = auto()
    TEXT = auto()
    BYTES = auto()


@dataclass(frozen=True, slots=True)
class CanonicalForm:
    """The form in which values of a column are compared.

    `scale` is for decimals. If `one_zero` is True, -0.0 equals 0.0.
    """

    family: Family
    scale: int = 0
    one_zero: bool = False

    @classmethod
    def of(cls, logical: LogicalType, *, one_zero: bool = False) -> CanonicalForm:
        """Return the form of a column of this type."""
        match logical.kind:
            case TypeKind.DECIMAL:
                return cls(Family.DECIMAL, logical.scale)
            case TypeKind.UINT64:
                return cls(Family.DECIMAL)
            case TypeKind.BIT if logical.length > 63:
                return cls(Family.DECIMAL)
            case TypeKind.FLOAT32 | TypeKind.FLOAT64:
                return cls(Family.FLOAT, one_zero=one_zero)
            case TypeKind.DATE:
                return cls(Family.DAY)
            case TypeKind.DATETIME | TypeKind.TIMESTAMP:
                return cls(Family.MOMENT)
            case TypeKind.TIME:
                return cls(Family.DURATION)
            case TypeKind.BINARY:
                return cls(Family.BYTES)
            case TypeKind.STRING if (wide := wide_decimal(logical)) is not None and wide[0] <= _WIDE_DIGITS:
                return cls(Family.WIDE, wide[1])
            case TypeKind.STRING | TypeKind.ENUM | TypeKind.SET | TypeKind.JSON:
                return cls(Family.TEXT)
            case _:
                return cls(Family.WHOLE)

    def arrow(self, have: pa.DataType) -> pa.DataType:
        """Return the Arrow type to which values of type `have` are cast."""
        match self.family:
            case Family.WHOLE:
                return pa.int64()
            case Family.DECIMAL:
                return pa.decimal128(38, self.scale)
            case Family.WIDE:
                return pa.decimal256(_WIDE_DIGITS, self.scale)
            case Family.FLOAT:
                return pa.float64()
            case Family.DAY:
                return pa.date32()
            case Family.MOMENT:
                return pa.timestamp("us", have.tz) if pa.types.is_timestamp(have) else pa.timestamp("us")
            case Family.DURATION | Family.TEXT:
                return pa.large_string()
            case Family.BYTES:
                return pa.large_binary()


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column of the target, with its name in the target and the form of its values."""

    name: str
    form: CanonicalForm

    @property
    def salt(self) -> int:
        """Return a number that depends only on the name, so that both sides have the same."""
        return int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=7).digest(), "big")


@dataclass(frozen=True, slots=True)
class Compared:
    """The columns by which rows are compared; those of the `key` are among the `columns`."""

    columns: tuple[ComparedColumn, ...]
    key: tuple[ComparedColumn, ...]

    def key_hashes(self, columns: Mapping[str, pa.Array], rows: int) -> np.ndarray:
        """Return the hash of each row's key (uint64).

        `columns` are arrays of `rows` values by the names of the key.
        """
        return self._mixed(np.zeros(rows, np.uint64), self.key, columns, as_key=True)

    def row_hashes(self, columns: Mapping[str, pa.Array], rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the hash of each row's key, and of each whole row including the key (uint64)."""
        keys = self.key_hashes(columns, rows)
        return keys, self._mixed(keys.copy(), self.columns, columns, as_key=False)

    @staticmethod
    def _mixed(
        hashes: np.ndarray, columns: Sequence[ComparedColumn], arrays: Mapping[str, pa.Array], *, as_key: bool
    ) -> np.ndarray:
        for column in columns:
            # Every server and engine takes -0.0 and 0.0 as the same key.
            _mix(hashes, arrays[column.name], column, one_zero=as_key or column.form.one_zero)
        loops.finish(hashes)
        return hashes


def _mix(hashes: np.ndarray, array: pa.Array, column: ComparedColumn, *, one_zero: bool) -> None:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    form = column.form
    cast, invalid = _cast(array, form)
    valid = _NO_NULLS if not cast.null_count else np.asarray(cast.is_valid().cast(pa.uint8()))
    if form.family in (Family.TEXT, Family.BYTES, Family.DURATION):
        _mix_bytes(hashes, cast, valid, column.salt)
    else:
        words, width = _words(cast, form, one_zero=one_zero)
        loops.mix_words(hashes, words, width, valid, column.salt)
    if invalid is not None:
        # An invalid value is a NULL in the column, and in addition hashed as text.
        texts = array.filter(pa.array(invalid)).cast(pa.large_string(), safe=False)
        part = hashes[invalid]
        _mix_bytes(part, texts.cast(pa.large_binary()), _NO_NULLS, ~column.salt & 0xFFFFFFFFFFFFFF)
        hashes[invalid] = part


def _mix_bytes(hashes: np.ndarray, array: pa.Array, valid: np.ndarray, salt: int) -> None:
    binary = array.cast(pa.large_binary())
    _, ends, data = binary.buffers()
    offsets = np.frombuffer(ends, np.int64, count=len(binary) + 1, offset=8 * binary.offset)
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    loops.mix_bytes(hashes, values, offsets, valid, salt)


def _cast(array: pa.Array, form: CanonicalForm) -> tuple[pa.Array, np.ndarray | None]:
    """Return the values in the form's Arrow type, NULL for impossible ones, and which these are."""
    wanted = form.arrow(array.type)
    try:
        return _turned(array, form, wanted), None
    except pa.ArrowException:
        invalid = failing(array, lambda part: _turned(part, form, wanted))
        kept = pc.if_else(pa.array(invalid), pa.scalar(None, array.type), array)
        return _turned(kept, form, wanted), invalid


def _turned(array: pa.Array, form: CanonicalForm, wanted: pa.DataType) -> pa.Array:
    have = array.type
    match form.family:
        case Family.WHOLE if pa.types.is_boolean(have):
            return array.cast(pa.int8()).cast(wanted)
        case Family.DECIMAL | Family.WIDE if pa.types.is_integer(have):
            return array.cast(pa.decimal128(20, 0)).cast(wanted)
        case Family.DAY if pa.types.is_timestamp(have):
            return array.cast(pa.timestamp("us", have.tz)).cast(pa.date32())
        case Family.DURATION:
            return _short_duration(array.cast(wanted))
        case _:
            return array.cast(wanted)


def _short_duration(array: pa.Array) -> pa.Array:
    """Return durations without zeros at the end of the fraction, because some targets always write six digits."""
    shorter = pc.replace_substring_regex(array, r"(\.[0-9]*?)0+$", r"\1")
    return pc.replace_substring_regex(shorter, r"\.$", "")


def _words(array: pa.Array, form: CanonicalForm, *, one_zero: bool) -> tuple[np.ndarray, int]:
    match form.family:
        case Family.DECIMAL | Family.WIDE:
            width = array.type.byte_width // 8
            data = array.buffers()[1]
            count = (len(array) + array.offset) * width
            words = np.frombuffer(data, np.uint64, count=count) if data is not None else np.zeros(count, np.uint64)
            return words[array.offset * width :], width
        case Family.FLOAT:
            numbers = array.fill_null(0.0).to_numpy(zero_copy_only=False).copy()
            numbers[np.isnan(numbers)] = np.nan
            if one_zero:
                numbers += 0.0
            return numbers.view(np.uint64), 1
        case Family.DAY:
            days = array.cast(pa.int32()).cast(pa.int64())
            return _whole(days), 1
        case Family.MOMENT:
            return _whole(array.cast(pa.int64())), 1
        case _:
            return _whole(array), 1


def _whole(array: pa.Array) -> np.ndarray:
    filled = array.fill_null(0).to_numpy(zero_copy_only=False)
    whole: np.ndarray = np.ascontiguousarray(filled, np.int64).view(np.uint64)
    return whole
