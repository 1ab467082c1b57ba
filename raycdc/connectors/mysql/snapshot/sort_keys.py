"""Compares chunk keys outside the server, exactly like the server's ``WHERE key >= …``.

The log reader must find the chunk of each changed row by its key, in the same order as the chunk's SELECT. Otherwise
rows are lost at the boundaries of chunks. Numbers, temporals and binary keys are ordered by their values. Text is
ordered by its collation, which only the server knows: its ``WEIGHT_STRING`` is queried for the bounds once, and for
changed keys in batches of hundreds per statement. In PAD SPACE collations, ``'a'`` equals ``'a '``, and is greater than
``'a'`` followed by a tab. The shorter key is therefore padded with the weight of a space.

Collations with several levels of weights (other than MySQL's ``0900`` ones) cannot be compared this way;
`can_be_ordered` finds them with a query, and their tables are read as one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from raycdc.clients.mysql import query_one
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot import sort_key_loops as loops
from raycdc.connectors.mysql.snapshot.keys import KeyKind, KeyValue
from raycdc.connectors.mysql.snapshot.resultset import query_cells
from raycdc.connectors.mysql.values.types import MySqlColumn

#: The limits of one statement for weights: their number (a select list may have 4096) and about this many bytes (half
#: the smallest common ``max_allowed_packet``; a single key may be longer).
WEIGHTS_PER_STATEMENT = 1000
STATEMENT_BYTES = 512 << 10

#: Collations whose WEIGHT_STRING has another order than their comparisons (found by trying every collation of MySQL 8.0
#: and MariaDB 10.11 with the law in the tests).
_WEIGHTS_OUT_OF_ORDER = ("big5_chinese_", "gb18030_chinese_ci")

#: The result of `classify` for a NULL key.
NULL_INTERVAL = -1


@dataclass(frozen=True, slots=True, eq=False)
class SortKeys:
    """Keys in a form that compares without the server: either `numbers`, or bytes (`offsets`, `data`).

    `valid` is False for NULL. `pad` continues the shorter of two byte keys (empty: shorter is less).
    """

    valid: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.int64] | None = None
    offsets: npt.NDArray[np.int64] | None = None
    data: npt.NDArray[np.uint8] | None = None
    pad: bytes = b""

    def __len__(self) -> int:
        return len(self.valid)


def sort_keys(connection: Connection[Any] | None, column: MySqlColumn, array: pa.Array) -> SortKeys:
    """Return sort keys of an array of `column`'s Arrow type.

    Text keys need `connection` (and block on it), others do not.
    """
    match keys.key_kind(column):
        case KeyKind.TEXT:
            assert connection is not None, "text keys are ordered by the server"
            return _weights(connection, column, array)
        case KeyKind.BYTES:
            offsets, data = _bytes_of(array)
            return SortKeys(_valid(array), offsets=offsets, data=data)
        case KeyKind.EXACT if array.type.precision > 18:
            return _wide_decimals(array)
        case KeyKind.LABEL:
            return SortKeys(_valid(array), numbers=_label_numbers(column, array))
        case KeyKind.TIME:
            offsets, data = _bytes_of(array)
            numbers = np.zeros(len(array), np.int64)
            loops.time_micros(data, offsets, numbers)
            return SortKeys(_valid(array), numbers=numbers)
        case None:
            raise ValueError(f"{column.name} ({column.column_type}) is no chunk key")
        case _:
            return SortKeys(_valid(array), numbers=_numbers(array))


def bound_keys(connection: Connection[Any] | None, column: MySqlColumn, bounds: list[KeyValue]) -> SortKeys:
    """Return sort keys of chunk bounds. `bounds` must be in the server's order, as planning returns them."""
    if keys.key_kind(column) is KeyKind.LABEL:
        return SortKeys(np.ones(len(bounds), np.bool_), numbers=np.array(bounds, np.int64))
    return sort_keys(connection, column, keys.to_arrow(column, bounds))


def classify(row_keys: SortKeys, bounds: SortKeys) -> npt.NDArray[np.int32]:
    """Return for each key the number of sorted `bounds` that are not above it, so interval i is [bound i-1, bound i).

    NULL keys get `NULL_INTERVAL`. Compiled; releases the GIL.
    """
    if row_keys.numbers is not None:
        assert bounds.numbers is not None, "keys and bounds are of different columns"
        out = np.searchsorted(bounds.numbers, row_keys.numbers, side="right").astype(np.int32)
    else:
        out = _counted(row_keys, bounds, equal=True)
    out[~row_keys.valid] = NULL_INTERVAL
    return out


def ranks(row_keys: SortKeys, values: SortKeys) -> npt.NDArray[np.int64]:
    """Return ``2 i + 1`` for each key that equals number i of the sorted, distinct `values`, and ``2 i`` for a key
    before it.

    NULL keys get `NULL_INTERVAL`.
    """
    if row_keys.numbers is not None:
        assert values.numbers is not None, "keys and bounds are of different columns"
        below = np.searchsorted(values.numbers, row_keys.numbers, side="left")
        upto = np.searchsorted(values.numbers, row_keys.numbers, side="right")
    else:
        below = _counted(row_keys, values, equal=False).astype(np.int64)
        upto = _counted(row_keys, values, equal=True).astype(np.int64)
    out: npt.NDArray[np.int64] = (below + upto).astype(np.int64)
    out[~row_keys.valid] = NULL_INTERVAL
    return out


def _counted(row_keys: SortKeys, bounds: SortKeys, *, equal: bool) -> npt.NDArray[np.int32]:
    """Return the number of bounds below each key, or also equal to it if `equal` is set."""
    out = np.empty(len(row_keys), np.int32)
    pad = np.frombuffer(row_keys.pad, np.uint8)
    loops.classify_bytes(row_keys.data, row_keys.offsets, bounds.data, bounds.offsets, pad, equal, out)
    return out


def warm_up() -> None:
    """Compile every loop of this module, or load it from the cache."""
    column = MySqlColumn("k", "varchar(1)", "utf8mb4", "utf8mb4_bin")
    offsets, data = _bytes_of(pa.array([":"]))
    before, after = _item_parts(column)
    loops.write_items(before, after, data, offsets, 0, 1, np.empty(4096, np.uint8), 4096, np.zeros(2, np.int64))
    loops.time_micros(data, offsets, np.zeros(1, np.int64))
    one = np.ones(1, np.bool_)
    _counted(SortKeys(one, offsets=offsets, data=data), SortKeys(one, offsets=offsets, data=data), equal=True)


def can_be_ordered(connection: Connection[Any], column: MySqlColumn) -> bool:
    """Return True if `column` alone can be a chunk key, ordered by `sort_keys` like the server.

    Queries the server about a text key's collation. An ENUM is only used together with other columns, because it has
    few values.
    """
    match keys.key_kind(column):
        case None | KeyKind.LABEL:
            return False
        case KeyKind.TEXT:
            if column.collation.startswith(_WEIGHTS_OUT_OF_ORDER):
                return False
            # MySQL's 0900 collations join their levels so that the joined weights compare as the server does.
            return "_0900_" in column.collation or _has_one_level(connection, column)
        case _:
            return True


def _weights(connection: Connection[Any], column: MySqlColumn, array: pa.Array) -> SortKeys:
    """Ask the server for the weights, a thousand keys per statement."""
    text_offsets, text = _bytes_of(array)
    pad = b""
    if _is_padded(connection, column):
        row = query_one(connection, f"SELECT WEIGHT_STRING({_text_literal(column, ' ')})")
        pad = bytes(row[0]) if row else b""
    before, after = _item_parts(column)
    all_offsets: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
    pieces: list[npt.NDArray[np.uint8]] = []
    position = np.zeros(2, np.int64)
    done = total = 0
    lengths = np.diff(text_offsets)
    longest = int(lengths.max()) if len(lengths) else 0
    statement = np.empty(STATEMENT_BYTES + 2 * longest + 256, np.uint8)
    statement[:7] = np.frombuffer(b"SELECT ", np.uint8)
    while done < len(array):
        position[0] = 7
        stop = min(len(array), done + WEIGHTS_PER_STATEMENT)
        loops.write_items(before, after, text, text_offsets, done, stop, statement, STATEMENT_BYTES, position)
        # The comma after the last item is left out.
        sql = statement[: int(position[0]) - 1].tobytes()
        count = int(position[1]) - done
        offsets, data = query_cells(connection, sql, count)
        all_offsets.append(offsets[1:] + total)
        pieces.append(np.frombuffer(data, np.uint8))
        total += int(offsets[-1])
        done += count
    data = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    return SortKeys(_valid(array), offsets=np.concatenate(all_offsets), data=_frozen(data), pad=pad)


def _item_parts(column: MySqlColumn) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the SQL before and after the hexadecimal digits of a key in the select list."""
    before, mark, after = keys.literal(column, "?").partition("3f")
    assert mark
    return (
        np.frombuffer(f"WEIGHT_STRING({before}".encode(), np.uint8),
        np.frombuffer(f"{after}),".encode(), np.uint8),
    )


def _text_literal(column: MySqlColumn, text: str) -> str:
    return keys.literal(column, text)


def _is_padded(connection: Connection[Any], column: MySqlColumn) -> bool:
    row = query_one(connection, f"SELECT {_text_literal(column, 'a')} = {_text_literal(column, 'a ')}")
    return bool(row and row[0])


def _has_one_level(connection: Connection[Any], column: MySqlColumn) -> bool:
    """Return True if the weights of a text are those of its characters, concatenated."""
    whole, first, second = (_text_literal(column, text) for text in ("aB", "a", "B"))
    row = query_one(
        connection,
        f"SELECT WEIGHT_STRING({whole}) = CONCAT(WEIGHT_STRING({first}), WEIGHT_STRING({second}))",
    )
    return bool(row and row[0])


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the offsets (one more than values) and bytes of a string or binary array. A slice's offset is applied."""
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), _frozen(np.zeros(1, np.uint8))
    offsets = np.frombuffer(offset_buffer, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if data_buffer is None or data_buffer.size == 0:
        return offsets, _frozen(np.zeros(1, np.uint8))
    return offsets, _frozen(np.frombuffer(data_buffer, np.uint8))


def _frozen(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return a read-only array: otherwise each loop would be compiled twice."""
    data = data.view()
    data.flags.writeable = False
    return data


def _words(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the (low, high) words of a decimal128 array."""
    buffer = array.buffers()[1]
    words = np.frombuffer(buffer, np.uint64, count=2 * (array.offset + len(array)))
    return words.reshape(-1, 2)[array.offset :]


def _numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return an int64 per value, in the order of the values; NULLs are 0."""
    type_ = array.type
    if pa.types.is_decimal(type_):
        low = _words(array)[:, 0]
        if type_.precision == 20 and type_.scale == 0:
            # Unsigned 64-bit numbers of BIGINT UNSIGNED and BIT(64) are moved into the signed range.
            low = low ^ np.uint64(1 << 63)
        return np.where(_valid(array), low.view(np.int64), 0)
    if pa.types.is_floating(type_):
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        # -0.0 equals 0.0. IEEE doubles are ordered like sign-magnitude integers.
        bits = (values + 0.0).view(np.int64)
        ordered: npt.NDArray[np.int64] = bits ^ ((bits >> 63) & np.int64((1 << 63) - 1))
        return ordered
    if pa.types.is_date(type_):
        array = array.cast(pa.int32())
    numbers: npt.NDArray[np.int64] = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _label_numbers(column: MySqlColumn, array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the numbers of labels. An invalid value, which reads as the empty text, has the number 0."""
    labels = pa.array(["", *column.shape.labels], pa.string())
    numbered = pc.index_in(array, value_set=labels)
    assert numbered.null_count == array.null_count, f"{column.name} holds a label that it does not have"
    numbers: npt.NDArray[np.int64] = numbered.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def _wide_decimals(array: pa.Array) -> SortKeys:
    """Return 16 bytes per value, most significant first, with the sign bit inverted."""
    words = _words(array)
    out = np.empty((len(array), 2), np.uint64)
    out[:, 0] = (words[:, 1] ^ np.uint64(1 << 63)).byteswap()
    out[:, 1] = words[:, 0].byteswap()
    offsets = np.arange(len(array) + 1, dtype=np.int64) * 16
    return SortKeys(_valid(array), offsets=offsets, data=_frozen(out.view(np.uint8).reshape(-1)))
