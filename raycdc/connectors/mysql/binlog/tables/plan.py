"""Plans how the columns of a table map are written into a table's arena, and checks that the two match.

Called by `decoder` once per distinct table map. `wire_plan` refuses, with both shapes in the message, a map that
does not fit the table's schema: types, lengths, signs and names are compared as far as the log has them.

A map may have columns that the table does not have:

* MySQL includes the hidden columns of functional indexes, after the columns that existed when the index was created,
  and leaves them out of the rows. They are recognised by their names, which the log has only with full metadata.
  Without names, columns at the map's end are taken for hidden columns. This is safe, because the loop refuses an event
  whose rows have such a column.
* MariaDB adds a hash at the map's end for each unique key that it cannot index directly (over TEXT or BLOB, USING HASH,
  or too long), and the rows have its eight bytes. Without names, at most as many such columns are accepted as the table
  has unique keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.tables import table_map as maps
from raycdc.connectors.mysql.binlog.tables.table_map import MapColumn, TableMap, type_text
from raycdc.connectors.mysql.values import block_loops as loops
from raycdc.connectors.mysql.values import time_loops as times
from raycdc.connectors.mysql.values.charset_loops import FAMILY_UTF8
from raycdc.connectors.mysql.values.charsets import bytes_per_character
from raycdc.connectors.mysql.values.layouts import ArenaColumnKind, ColumnLayout, layout_of
from raycdc.connectors.mysql.values.number_loops import DIGIT_BYTES
from raycdc.connectors.mysql.values.text_loops import ADDRESS_INET4, ADDRESS_INET6, ADDRESS_UUID
from raycdc.connectors.mysql.values.types import CHARACTER_TYPES, GEOMETRIES, MySqlColumn, MySqlTable, is_short_year
from raycdc.errors import SchemaError

#: The number of values whose offsets are noted together (`Scratch`): 16 bytes each, so that they stay in the cache.
_CELLS = 4096


class WirePlan(NamedTuple):
    """The arrays of the loops: per column of the map (`steps`, `json`, `optional`, `targets`) and of the table
    (`plan`).

    A step is the number of bytes of a value; if negative, it is the number of bytes of the length before the value.
    `targets` has the table's column, or -1.
    """

    steps: npt.NDArray[np.int64]
    json: npt.NDArray[np.int64]
    optional: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    plan: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory for the offsets of a block's values, shared by all tables with this many columns in their map."""

    present: npt.NDArray[np.int64]
    at: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    @classmethod
    def of(cls, columns: int) -> Scratch:
        # Each column has an odd number of cache lines, so that the same row of all columns lies in different sets of
        # the cache.
        rows = max(_CELLS // max(columns, 1) // 16 * 16, 0) + 8
        at, size = (np.zeros((max(columns, 1), rows), np.int64) for _ in range(2))
        return cls(np.zeros((2, columns + 1), np.int64), at, size)


_BEYOND_BMP = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
_BEYOND = re.compile("[\U00010000-\U0010ffff]")
#: The names that MySQL gives to the hidden columns of functional indexes: a hash in older versions, now
#: ``!hidden!INDEX!0!0``.
_SERVER_COLUMN = re.compile(r"[0-9a-f]{32}|!hidden!.*", re.DOTALL)
#: The name that MariaDB gives to the hash of a unique key.
_HASHED = re.compile(r"DB_ROW_HASH_[0-9]+")
_HASH_BYTES = 8

_Planned = tuple[int, int, int, int, int]
"""(step, wire, a, b, c)"""


def wire_plan(table_map: TableMap, table: MySqlTable, log: LogKind) -> WirePlan:
    """Return the layout of each column in the row events of `table_map`.

    Raises `SchemaError` if the schemas do not match.
    """
    logged, known = table_map.columns, table.columns
    indexes = _column_indexes(logged, table, log)
    if indexes is None:
        raise mismatch(table_map, table, f"{len(logged)} columns instead of {len(known)}")
    layout = layout_of(table)
    # Columns that only the log has: MariaDB's hashes, and columns that MySQL leaves out of the rows.
    steps = [_HASH_BYTES if log.mariadb else 0] * len(logged)
    optional = [int(not log.mariadb)] * len(logged)
    targets, rows = [-1] * len(logged), []
    for index, (at, column) in enumerate(zip(indexes, known, strict=True)):
        seen = logged[at]
        if seen.name and not column.name.startswith("@") and seen.name.lower() != column.name.lower():
            raise mismatch(table_map, table, f"column {index + 1} is called {seen.name!r} there")
        if seen.type in (maps.BLOB_COMPRESSED, maps.VARCHAR_COMPRESSED):
            raise SchemaError(
                f"Column {column.name!r} of table {table.id} is stored COMPRESSED, which the log keeps compressed. "
                f"ALTER it without COMPRESSED, or leave the table out with source.exclude."
            )
        planned = _planned(seen, column, layout.columns[index], layout.points_of(index), log)
        if planned is None:
            raise mismatch(table_map, table, f"column {column.name!r} is {type_text(seen)} there")
        step, wire, a, b, c = planned
        steps[at], optional[at], targets[at] = step, 0, index
        rows.append((at, wire, int(log.json_point_zero) if wire == loops.WIRE_JSON else a, b, c))
    return WirePlan(
        steps=np.array(steps, np.int64),
        json=np.array([int(column.type == maps.JSON) for column in logged], np.int64),
        optional=np.array(optional, np.int64),
        targets=np.array(targets, np.int64),
        plan=np.array(rows, np.int64).reshape(-1, loops.P_SIZE),
    )


def _column_indexes(logged: Sequence[MapColumn], table: MySqlTable, log: LogKind) -> Sequence[int] | None:
    """Return the index in the map of each column of the table; None if the remaining columns are not server-made."""
    count = len(table.columns)
    if log.mariadb or len(logged) <= count or not all(column.name for column in logged):
        fits = len(logged) >= count and _are_server_columns(logged[count:], table, log)
        return range(count) if fits else None
    names = {column.name.lower() for column in table.columns}
    indexes = [
        at
        for at, column in enumerate(logged)
        if column.name.lower() in names or not _SERVER_COLUMN.fullmatch(column.name)
    ]
    return indexes if len(indexes) == count else None


def _are_server_columns(extra: Sequence[MapColumn], table: MySqlTable, log: LogKind) -> bool:
    """Return True if the columns that only the log has were made by the server."""
    if not log.mariadb:
        return all(not column.name for column in extra)
    if not all(column.type == maps.LONGLONG for column in extra):
        return False
    if all(column.name for column in extra):
        return all(_HASHED.fullmatch(column.name) for column in extra)
    return len(extra) <= table.unique_keys


def shown_part(table_map: TableMap, table: MySqlTable, log: LogKind) -> TableMap:
    """Return the map without server-made columns. It is returned unchanged if the origin of a column is unknown."""
    indexes = _column_indexes(table_map.columns, table, log)
    if indexes is None or len(indexes) == len(table_map.columns):
        return table_map
    columns = tuple(table_map.columns[at] for at in indexes)
    return replace(
        table_map, columns=columns, primary_key=tuple(indexes.index(k) for k in table_map.primary_key if k in indexes)
    )


def with_logged_labels(table_map: TableMap, table: MySqlTable) -> MySqlTable:
    """Return `table` with the labels of the log if ``information_schema`` cannot print them.

    It prints a ``?`` for each character beyond U+FFFF, so a printed label with a ``?`` may be a different label. Raises
    `SchemaError` if the log has no labels either.
    """
    columns = list(table.columns)
    for index, (logged, known) in enumerate(zip(table_map.columns, table.columns, strict=False)):
        shape = known.shape
        doubtful = known.charset in _BEYOND_BMP and any("?" in label for label in shape.labels)
        if not doubtful or logged.type not in (maps.ENUM, maps.SET):
            continue
        if tuple(_BEYOND.sub("?", label) for label in logged.labels) != shape.labels:
            raise SchemaError(
                f"Column {known.name!r} of table {table.id} has a label with a ?, which also stands for any character "
                "beyond U+FFFF in the server's catalogue, and the log has no labels. Set binlog_row_metadata = FULL on "
                "the source, or leave the table out with source.exclude."
            )
        columns[index] = replace(known, column_type=type_text(logged))
    return table if tuple(columns) == table.columns else replace(table, columns=tuple(columns))


def mismatch(table_map: TableMap, table: MySqlTable, what: str) -> SchemaError:
    """Return the error of a map that contradicts our schema in `what`."""
    known = ", ".join(f"{c.name} {c.column_type}" for c in table.columns)
    logged = ", ".join(c.describe() for c in table_map.columns)
    return SchemaError(
        f"Table {table.id} in the log does not fit its known schema: {what}. Known: ({known}). In the log: ({logged}). "
        "A schema change was probably not seen; take a new snapshot of the table."
    )


def _planned(logged: MapColumn, known: MySqlColumn, layout: ColumnLayout, points: int, log: LogKind) -> _Planned | None:
    """Return the step and the plan line of a column; None if the log's type is not the known one."""
    if logged.type in maps.INTEGERS:
        return _integer(logged, known, layout)
    if logged.type in maps.TEMPORALS:
        return _temporal(logged, known, layout, log)
    shape = known.shape
    match logged.type:
        case 246:  # NEWDECIMAL
            return _decimal(logged, known)
        case 4:  # FLOAT
            return (4, loops.WIRE_HALF, 0, 0, 0) if shape.base == "float" else None
        case 5:  # DOUBLE
            return (8, loops.WIRE_WORD, 0, 0, 0) if shape.base == "double" else None
        case 13:  # YEAR
            return (1, loops.WIRE_YEAR, int(is_short_year(shape)), 0, 0) if shape.base == "year" else None
        case 16:  # BIT
            size = (logged.meta + 7) // 8
            wire = loops.WIRE_BIT if logged.meta < 64 else loops.WIRE_BIT64
            return (size, wire, size, 0, 0) if shape.base == "bit" and shape.length == logged.meta else None
        case 247 | 248:  # ENUM, SET
            return _labelled(logged, known, layout)
        case 245:  # JSON
            return (-logged.meta, loops.WIRE_JSON, 0, 0, 0) if shape.base == "json" and 1 <= logged.meta <= 4 else None
        case _:
            return _text(logged, known, layout, points)


def _integer(logged: MapColumn, known: MySqlColumn, layout: ColumnLayout) -> _Planned | None:
    size, base = maps.INTEGERS[logged.type]
    unsigned = known.shape.unsigned
    if known.shape.base != base or logged.unsigned not in (None, unsigned):
        return None
    if layout.form is ArenaColumnKind.BOOLEAN:
        return size, loops.WIRE_BOOLEAN, 0, 0, 0
    if size == 8:
        return size, (loops.WIRE_UINT64 if unsigned else loops.WIRE_WORD), 0, 0, 0
    if size == 4 and not unsigned:
        return size, loops.WIRE_HALF, 0, 0, 0
    return size, loops.WIRE_SMALL, size, int(not unsigned), layout.width


def _temporal(logged: MapColumn, known: MySqlColumn, layout: ColumnLayout, log: LogKind) -> _Planned | None:
    base, has_fsp = maps.TEMPORALS[logged.type]
    fsp = logged.meta if has_fsp else 0
    # MariaDB's old form with a fraction (5.3) has no number of digits in the log.
    is_old = log.mariadb and logged.type in (maps.TIME, maps.DATETIME, maps.TIMESTAMP)
    if known.shape.base == base and is_old and known.shape.fsp:
        return _old_fraction(base, known.shape.fsp, layout)
    if known.shape.base != base or known.shape.fsp != fsp or fsp > 6:
        return None
    fraction = (fsp + 1) // 2
    match logged.type:
        case 10 | 14:  # DATE, NEWDATE
            size, form, wire = 3, times.FORM_DATE, loops.WIRE_DATE
        case 18:  # DATETIME2
            size, form, wire = 5 + fraction, times.FORM_DATETIME2, loops.WIRE_MOMENT
        case 12:  # DATETIME
            size, form, wire = 8, times.FORM_DATETIME, loops.WIRE_MOMENT
        case 17:  # TIMESTAMP2
            size, form, wire = 4 + fraction, times.FORM_TIMESTAMP2, loops.WIRE_INSTANT
        case 7:  # TIMESTAMP
            size, form, wire = 4, times.FORM_TIMESTAMP, loops.WIRE_INSTANT
        case 19:  # TIME2
            return 3 + fraction, loops.WIRE_TIME, times.FORM_DATETIME2, 0, fsp
        case _:  # TIME
            return 3, loops.WIRE_TIME, times.FORM_DATETIME, 0, 0
    if layout.as_text:
        return size, loops.WIRE_DATE_TEXT, form, int(form != times.FORM_DATE), fsp
    return size, wire, form, layout.dates, fsp


def _old_fraction(base: str, fsp: int, layout: ColumnLayout) -> _Planned:
    """Return the plan of a TIME, DATETIME or TIMESTAMP with a fraction in the format of MariaDB 5.3.

    Tables that were made then still have it.
    """
    match base:
        case "time":
            return times.OLD_TIME_BYTES[fsp], loops.WIRE_TIME, times.FORM_OLD_FRACTION, 0, fsp
        case "datetime":
            size, form, wire = times.OLD_DATETIME_BYTES[fsp], times.FORM_OLD_FRACTION, loops.WIRE_MOMENT
        case _:
            size, form, wire = 4 + (fsp + 1) // 2, times.FORM_OLD_TIMESTAMP, loops.WIRE_INSTANT
    if layout.as_text:
        return size, loops.WIRE_DATE_TEXT, form, 1, fsp
    return size, wire, form, layout.dates, fsp


def _decimal(logged: MapColumn, known: MySqlColumn) -> _Planned | None:
    precision, scale = logged.meta >> 8, logged.meta & 0xFF
    shape = known.shape
    if shape.base != "decimal" or (shape.precision, shape.scale) != (precision, scale):
        return None
    whole = precision - scale
    size = whole // 9 * 4 + int(DIGIT_BYTES[whole % 9]) + scale // 9 * 4 + int(DIGIT_BYTES[scale % 9])
    return size, (loops.WIRE_DECIMAL if precision <= 38 else loops.WIRE_DECIMAL_TEXT), precision, scale, 0


def _labelled(logged: MapColumn, known: MySqlColumn, layout: ColumnLayout) -> _Planned | None:
    base, wire = ("enum", loops.WIRE_ENUM) if logged.type == maps.ENUM else ("set", loops.WIRE_SET)
    if logged.meta not in range(1, 9):
        return None
    if known.shape.base == base:
        return logged.meta, wire, logged.meta, layout.first_label, layout.labels
    if known.shape.base != "bigint" or layout.form is not ArenaColumnKind.INTEGER:
        return None
    # Without labels, the value is read as a number (`infer_table`).
    if logged.meta == 8:
        return 8, loops.WIRE_WORD, 0, 0, 0
    return logged.meta, loops.WIRE_SMALL, logged.meta, 0, 8


def _text(logged: MapColumn, known: MySqlColumn, layout: ColumnLayout, points: int) -> _Planned | None:
    shape = known.shape
    if layout.form is ArenaColumnKind.ADDRESS:
        form = {"uuid": ADDRESS_UUID, "inet4": ADDRESS_INET4}.get(shape.base, ADDRESS_INET6)
        fits = logged.type == maps.STRING and logged.meta == (4 if form == ADDRESS_INET4 else 16)
        return (-1, loops.WIRE_ADDRESS, form, 0, 0) if fits else None
    is_text = shape.base in CHARACTER_TYPES and known.charset != "binary"
    wire, a, b, c = loops.WIRE_TEXT, layout.pad, 0, 0
    if is_text and layout.family != FAMILY_UTF8:
        wire, a, b, c = loops.WIRE_CONVERTED, layout.family, points, int(layout.exact)
    if layout.form is ArenaColumnKind.GEOJSON:
        wire = loops.WIRE_GEOJSON
    match logged.type:
        case 15 | 253 | 254:  # VARCHAR, VAR_STRING, STRING
            bases = ("varchar", "varbinary", "vector") if logged.type != maps.STRING else ("char", "binary")
            # The log has a vector's bytes, and MariaDB prints the number of its 32-bit floats.
            width = 4 if shape.base == "vector" else bytes_per_character(known.charset) if is_text else 1
            if shape.base not in bases or (width and shape.length != logged.meta // width):
                return None
            return -1 if logged.meta < 256 else -2, wire, a, b, c
        case 249 | 250 | 251 | 252:  # blobs and texts
            return (-logged.meta, wire, a, b, c) if shape.base in maps.BLOBS.get(logged.meta, ()) else None
        case 255 | 242:  # GEOMETRY, VECTOR
            fits = shape.base in GEOMETRIES or shape.base == "vector"
            return (-logged.meta, wire, a, b, 0) if fits and 1 <= logged.meta <= 4 else None
        case _:
            return None
