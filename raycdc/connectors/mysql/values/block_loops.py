"""Compiled loops that write a block of rows into Arrow column buffers (the arena), one column after the other.

A caller first walks over the block's bytes and notes where each value begins and how long it is. The loops here then
write the values. The log (`binlog.row_loops`) and result sets (`snapshot.resultset_loops`) share these loops, so that
equal values give equal bytes. Each loop handles one column of one type, so it does not test the type of each value. The
*plan* is an array with one line per column of the table, which says how to write the column.
"""

from __future__ import annotations

from typing import Any

from raycdc.connectors.mysql.values.arena_loops import COLUMN_DONE, FAILED_COLUMN, FAILED_ROW
from raycdc.connectors.mysql.values.charset_loops import put_converted
from raycdc.connectors.mysql.values.number_loops import (
    put_bits,
    put_booleans,
    put_halves,
    put_packed_decimals,
    put_printed_decimals,
    put_small,
    put_wide_bits,
    put_wide_unsigned,
    put_words,
    put_years,
)
from raycdc.connectors.mysql.values.text_loops import (
    put_addresses,
    put_decimal_texts,
    put_enums,
    put_json,
    put_sets,
    put_texts,
)
from raycdc.connectors.mysql.values.time_loops import put_date_texts, put_dates, put_instants, put_moments, put_times
from raycdc.core.compiled import helper

# The ways to write a column. A line of the plan is (source, wire, a, b, c): the column of the table map, one of these
# constants, and its parameters.
WIRE_SMALL = 0  # a: bytes; b: 1 signed; c: bytes of the Arrow integer
WIRE_HALF = 1  # four bytes, unchanged
WIRE_WORD = 2  # eight bytes, unchanged
WIRE_UINT64 = 3
WIRE_DECIMAL = 4  # a: precision; b: scale
WIRE_DECIMAL_TEXT = 5
WIRE_TEXT = 6  # a: pad with zero bytes to this length
WIRE_CONVERTED = 7  # a: family; b: table in `points`; c: 1 for a key
WIRE_DATE = 8  # b: policy
WIRE_MOMENT = 9  # a: form; b: policy; c: fractional digits
WIRE_INSTANT = 10  # as WIRE_MOMENT
WIRE_TIME = 11  # a: form; c: fractional digits
WIRE_YEAR = 12  # a: 1 for two-digit years
WIRE_BIT = 13  # a: bytes
WIRE_BIT64 = 14
WIRE_ENUM = 15  # a: bytes; b: first label; c: labels
WIRE_SET = 16  # as WIRE_ENUM
WIRE_JSON = 17  # a: 1 if doubles without a fraction end in .0
WIRE_DATE_TEXT = 18  # a: form; b: 1 with a time of day; c: fractional digits
WIRE_BOOLEAN = 19
WIRE_ADDRESS = 20  # a: form
WIRE_GEOJSON = 22
WIRE_PRINTED = 21  # a: precision; a decimal of a result set

P_SOURCE = 0
P_WIRE = 1
P_A = 2
P_B = 3
P_C = 4
P_SIZE = 5


@helper
def _numbers(
    data: Any, at: Any, size: Any, count: Any, wire: Any, a: Any, b: Any, c: Any, base: Any, first: Any, arena: Any
) -> Any:
    """Write columns of fixed width without a calendar."""
    code = COLUMN_DONE
    start = base + first
    if wire == WIRE_SMALL:
        put_small(data, at, count, a, b, c, arena, start)
    elif wire == WIRE_HALF:
        put_halves(data, at, count, arena.i32, start)
    elif wire == WIRE_WORD:
        put_words(data, at, count, arena.i64, start)
    elif wire == WIRE_UINT64:
        put_wide_unsigned(data, at, count, arena.i64, base, first)
    elif wire == WIRE_DECIMAL:
        put_packed_decimals(data, at, count, a, b, arena.i64, base, first)
    elif wire == WIRE_PRINTED:
        put_printed_decimals(data, at, size, count, a, arena.i64, base, first)
    elif wire == WIRE_YEAR:
        put_years(data, at, count, a, arena.i16, start)
    elif wire == WIRE_BIT:
        code = put_bits(data, at, size, count, a, arena.i64, base, first)
    elif wire == WIRE_BIT64:
        code = put_wide_bits(data, at, size, count, a, arena.i64, base, first)
    else:
        code = put_booleans(data, at, count, arena.i8, start, arena.counters)
    return code


@helper
def _texts(
    data: Any, at: Any, size: Any, count: Any, wire: Any, a: Any, b: Any, c: Any, slot: Any, first: Any, column: Any,
    arena: Any,
) -> Any:  # fmt: skip
    """Write columns with text of any kind."""
    voff, vdata, vbase, vcap, counters = arena.voff, arena.vdata, arena.vbase, arena.vcap, arena.counters
    if wire == WIRE_TEXT:
        return put_texts(data, at, size, count, a, slot, first, voff, vdata, vbase, vcap, counters)
    if wire == WIRE_CONVERTED:
        return put_converted(
            data, at, size, count, a, arena.points, b, c, slot, first, column, arena.losses[0], voff, vdata, vbase,
            vcap, counters,
        )  # fmt: skip
    if wire == WIRE_ENUM:
        return put_enums(
            data, at, count, a, b, c, arena.loff, arena.ldata, slot, first, voff, vdata, vbase, vcap, counters
        )
    if wire == WIRE_SET:
        return put_sets(
            data, at, count, a, b, c, arena.loff, arena.ldata, slot, first, voff, vdata, vbase, vcap, counters
        )
    if wire == WIRE_JSON or wire == WIRE_GEOJSON:
        return put_json(
            data, at, size, count, wire == WIRE_GEOJSON, a == 1, arena.stack, slot, first, voff, vdata, vbase, vcap,
            counters,
        )  # fmt: skip
    if wire == WIRE_DECIMAL_TEXT:
        return put_decimal_texts(data, at, count, a, b, slot, first, voff, vdata, vbase, vcap, counters)
    if wire == WIRE_TIME:
        return put_times(data, at, size, count, a, c, slot, first, voff, vdata, vbase, vcap, counters)
    if wire == WIRE_DATE_TEXT:
        return put_date_texts(data, at, size, count, a, c, b, slot, first, voff, vdata, vbase, vcap, counters)
    return put_addresses(data, at, size, count, a, slot, first, voff, vdata, vbase, vcap, counters)


@helper
def write_block(data: Any, at: Any, size: Any, count: Any, first: Any, plan: Any, arena: Any) -> Any:
    """Write `count` rows column by column from row `first` on.

    Returns COLUMN_…, with the failing column in `counters`.
    """
    losses = arena.losses[0]
    valid, has_null, counters = arena.valid, arena.has_null, arena.counters
    # A column may fail without naming its row. The row number must be valid in that case, too.
    counters[FAILED_ROW] = 0
    for column in range(len(plan)):
        source, wire = plan[column, P_SOURCE], plan[column, P_WIRE]
        a, b, c = plan[column, P_A], plan[column, P_B], plan[column, P_C]
        base, slot = arena.base[column], arena.slot[column]
        where, length = at[source], size[source]
        if wire == WIRE_DATE:
            code = put_dates(
                data, where, length, count, a, b, arena.i32, base + first, first, column, valid, has_null, losses,
                counters,
            )  # fmt: skip
        elif wire == WIRE_MOMENT:
            code = put_moments(
                data, where, length, count, a, c, b, arena.i64, base + first, first, column, valid, has_null, losses,
                counters,
            )  # fmt: skip
        elif wire == WIRE_INSTANT:
            code = put_instants(
                data, where, count, a, c, b, arena.i64, base + first, first, column, valid, has_null, losses, counters
            )
        elif slot >= 0:
            code = _texts(data, where, length, count, wire, a, b, c, slot, first, column, arena)
        else:
            code = _numbers(data, where, length, count, wire, a, b, c, base, first, arena)
        if code != COLUMN_DONE:
            counters[FAILED_COLUMN] = column
            return code
    return COLUMN_DONE
