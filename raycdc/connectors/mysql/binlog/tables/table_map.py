"""Parses TABLE_MAP events: the columns of row events, as far as the log describes them.

`parse_table_map` is called once for each distinct table map; `plan` then compares the map with the known table.
`infer_table` makes a table from the map's own metadata for commands without a schema (`inspect binlog`).

Layout: MySQL source, ``Table_map_log_event`` in libs/mysql/binlog/event/rows_event.h; the optional metadata
(``binlog_row_metadata``) is a list of (type, length, value) after the null bitmap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.index_loops import HEADER_BYTES, TABLE_MAP
from raycdc.connectors.mysql.values.charsets import bytes_per_character, charset_of_collation, codec_of
from raycdc.connectors.mysql.values.types import GEOMETRY_KINDS, TEXT_OR_BYTES, MySqlColumn, MySqlTable, TypeOptions
from raycdc.errors import CorruptLogError
from raycdc.model import TableId

TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 6, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 11, 12, 13, 14, 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB = (
    242,
    245,
    246,
    247,
    248,
    249,
    250,
    251,
    252,
)
VAR_STRING, STRING, GEOMETRY = 253, 254, 255

#: The types with a bit in the signedness list. MariaDB and newer versions of MySQL count YEAR too.
_NUMERIC = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, FLOAT, DOUBLE, NEWDECIMAL})
_NUMERIC_MARIADB = _NUMERIC | {YEAR}
_CHARACTER = frozenset({VARCHAR, VAR_STRING, STRING, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB})
#: The types with an entry in the list of character sets: all types with a character set, in MariaDB
#: (``is_character_field`` of sql/log_event_server.cc). MySQL's vectors have one, its geometries have none.
_WITH_CHARSET = _CHARACTER | {VECTOR}
_WITH_CHARSET_MARIADB = _CHARACTER | {GEOMETRY, BLOB_COMPRESSED, VARCHAR_COMPRESSED}

#: The bytes and the base type, by binlog type.
INTEGERS: dict[int, tuple[int, str]] = {
    TINY: (1, "tinyint"),
    SHORT: (2, "smallint"),
    INT24: (3, "mediumint"),
    LONG: (4, "int"),
    LONGLONG: (8, "bigint"),
}
#: The base type, and a flag if the metadata holds the fractional digits, by binlog type.
TEMPORALS: dict[int, tuple[str, bool]] = {
    DATE: ("date", False),
    NEWDATE: ("date", False),
    DATETIME: ("datetime", False),
    DATETIME2: ("datetime", True),
    TIMESTAMP: ("timestamp", False),
    TIMESTAMP2: ("timestamp", True),
    TIME: ("time", False),
    TIME2: ("time", True),
}
BLOBS = {
    1: ("tinytext", "tinyblob"),
    2: ("text", "blob"),
    3: ("mediumtext", "mediumblob"),
    4: ("longtext", "longblob"),
}

#: The most digits after the decimal point: 38 in MariaDB, 30 in MySQL.
_SCALE_MAX = 38


@dataclass(frozen=True, slots=True)
class MapColumn:
    """A column of a table map. The fields `name` to `labels`, and `geometry`, are set only if the server logs metadata.

    `meta` depends on `type`: length in bytes (varchar, string), bytes of the length (blob, json), precision and scale
    as ``precision << 8 | scale``, bits, fractional digits, or bytes of an enum's or set's number.
    """

    type: int
    meta: int
    name: str = ""
    unsigned: bool | None = None
    charset: str = ""
    labels: tuple[str, ...] = ()
    nullable: bool | None = None
    geometry: str = ""

    def describe(self) -> str:
        """Return the column as a column type for error messages, as exactly as the map describes it."""
        return f"{self.name} {type_text(self)}".strip()


@dataclass(frozen=True, slots=True)
class TableMap:
    """One TABLE_MAP event; `primary_key` holds column numbers if the metadata has them."""

    table: TableId
    columns: tuple[MapColumn, ...]
    primary_key: tuple[int, ...] = ()


@dataclass(slots=True)
class _Reader:
    """Bounded reads from a table map's bytes."""

    data: bytes
    at: int = 0
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.end = len(self.data)

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > self.end:
            raise CorruptLogError("a TABLE_MAP event ends in the middle of a value")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def packed(self) -> int:
        """Read a length-encoded integer."""
        first = self.take(1)[0]
        if first < 251:
            return first
        return int.from_bytes(self.take({252: 2, 253: 3, 254: 8}.get(first, 0)), "little")

    def text(self) -> str:
        return self.take(self.packed()).decode("utf-8", "replace")

    @property
    def more(self) -> bool:
        return self.at < self.end


def parse_table_map(content: bytes, *, mariadb: bool) -> TableMap:
    """Parse a TABLE_MAP's body after table id and flags. Raises `CorruptLogError` when it is damaged."""
    reader = _Reader(content)
    table = _name(reader)
    count = reader.packed()
    types = reader.take(count)
    metadata = _Reader(reader.take(reader.packed()))
    columns = [_column(type_, metadata) for type_ in types]
    nulls = int.from_bytes(reader.take((count + 7) // 8), "little")
    columns = [replace(column, nullable=bool(nulls >> index & 1)) for index, column in enumerate(columns)]
    optional: dict[int, bytes] = {}
    while reader.more:
        kind = reader.take(1)[0]
        optional[kind] = reader.take(reader.packed())
    return _with_metadata(TableMap(table, tuple(columns)), optional, mariadb=mariadb)


def tables_of(events: npt.NDArray[np.uint8]) -> list[TableId]:
    """Return the tables with table maps among complete events of a log. Compressed transactions are ignored."""
    tables: dict[TableId, None] = {}
    at = 0
    while at < len(events):
        length = int.from_bytes(events[at + 9 : at + 13].tobytes(), "little")
        if events[at + 4] == TABLE_MAP:
            tables[table_named(events[at + HEADER_BYTES + 8 : at + length].tobytes())] = None
        at += length
    return list(tables)


def table_named(content: bytes) -> TableId:
    """Return the table of a TABLE_MAP's body after table id and flags. Raises `CorruptLogError` if it is damaged."""
    return _name(_Reader(content))


def _name(reader: _Reader) -> TableId:
    db = reader.take(reader.take(1)[0]).decode("utf-8", "replace")
    reader.take(1)
    table = reader.take(reader.take(1)[0]).decode("utf-8", "replace")
    reader.take(1)
    return TableId(db, table)


def require_possible(table_map: TableMap) -> None:
    """Raise `CorruptLogError` if a column has metadata that no server writes, because sizes would be computed from it.

    Call it for tables whose rows are decoded only: other tables may use features of newer servers.
    """
    if not all(_possible(column) for column in table_map.columns):
        raise CorruptLogError(f"a TABLE_MAP event of {table_map.table} describes a column that cannot exist")


def _column(type_: int, metadata: _Reader) -> MapColumn:
    match type_:
        case 15 | 141:  # VARCHAR, VARCHAR_COMPRESSED
            return MapColumn(type_, int.from_bytes(metadata.take(2), "little"))
        case 246:  # NEWDECIMAL: precision, scale
            return MapColumn(type_, int.from_bytes(metadata.take(2), "big"))
        case 16:  # BIT: bits beyond whole bytes, whole bytes
            bits, whole = metadata.take(2)
            return MapColumn(type_, whole * 8 + bits)
        # STRING, and ENUM or SET in its place; a long length has its upper bits in the type
        case 254 | 253 | 247 | 248:
            first, second = metadata.take(2)
            if first & 0x30 != 0x30:
                return MapColumn(first | 0x30, second | (((first & 0x30) ^ 0x30) << 4))
            return MapColumn(first, second)
        case 4 | 5 | 17 | 18 | 19 | 140 | 242 | 245 | 249 | 250 | 251 | 252 | 255:
            return MapColumn(type_, metadata.take(1)[0])
        case _:
            return MapColumn(type_, 0)


def _possible(column: MapColumn) -> bool:
    match column.type:
        case 246:  # NEWDECIMAL
            precision, scale = column.meta >> 8, column.meta & 0xFF
            return 1 <= precision <= 65 and scale <= min(precision, _SCALE_MAX)
        case 17 | 18 | 19:  # TIMESTAMP2, DATETIME2, TIME2
            return column.meta <= 6
        case 16:  # BIT
            return 1 <= column.meta <= 64
        case 247 | 248:  # ENUM, SET
            return 1 <= column.meta <= 8
        case 245 | 249 | 250 | 251 | 252 | 255 | 242:  # the size of the length field
            return 1 <= column.meta <= 4
        case _:
            return True


def _with_metadata(table_map: TableMap, optional: dict[int, bytes], *, mariadb: bool) -> TableMap:
    """Return the map with the optional metadata: signedness, names, character sets, labels, primary key."""
    columns = table_map.columns
    unsigned = _unsigned(columns, optional.get(1), mariadb=mariadb)
    names = list(_texts(optional[4])) if 4 in optional else []
    counted = _WITH_CHARSET_MARIADB if mariadb else _WITH_CHARSET
    charsets = _charsets([i for i, c in enumerate(columns) if c.type in counted], optional.get(2), optional.get(3))
    labelled = [i for i, c in enumerate(columns) if c.type in (ENUM, SET)]
    charsets |= _charsets(labelled, optional.get(10), optional.get(11))
    labels: dict[int, tuple[str, ...]] = {}
    for kind, type_ in ((5, SET), (6, ENUM)):
        if kind in optional:
            for index, found in zip(
                (i for i in labelled if columns[i].type == type_), _label_lists(optional[kind]), strict=False
            ):
                # Labels use the character set of their column.
                codec = codec_of(charsets.get(index, ""))
                labels[index] = tuple(label.decode(codec, "replace") for label in found)
    key: tuple[int, ...] = ()
    if 8 in optional:
        key = tuple(_numbers(optional[8]))
    elif 9 in optional:
        key = tuple(list(_numbers(optional[9]))[::2])
    named = len(names) == len(columns)
    geometries = dict(
        zip((i for i, c in enumerate(columns) if c.type == GEOMETRY), _numbers(optional.get(7, b"")), strict=False)
    )
    merged = tuple(
        replace(
            c,
            name=names[i] if named else "",
            unsigned=unsigned.get(i),
            charset=charsets.get(i, ""),
            labels=labels.get(i, ()),
            geometry=_geometry_kind(geometries.get(i)),
        )
        for i, c in enumerate(columns)
    )
    return TableMap(table_map.table, merged, tuple(k for k in key if k < len(columns)))


def _geometry_kind(number: int | None) -> str:
    return GEOMETRY_KINDS[number] if number is not None and number < len(GEOMETRY_KINDS) else ""


def _unsigned(columns: tuple[MapColumn, ...], signs: bytes | None, *, mariadb: bool) -> dict[int, bool]:
    """Return signedness by column, if it is certain: newer versions of MySQL count YEAR, which is unsigned."""
    if signs is None:
        return {}
    readings: list[dict[int, bool]] = []
    for counted in (_NUMERIC_MARIADB,) if mariadb else (_NUMERIC, _NUMERIC_MARIADB):
        numeric = [i for i, c in enumerate(columns) if c.type in counted]
        bits = [bool(signs[i // 8] >> (7 - i % 8) & 1) for i in range(len(signs) * 8)]
        reading = dict(zip(numeric, bits, strict=False))
        years = all(reading[i] for i in reading if columns[i].type == YEAR)
        if len(bits) >= len(numeric) and (mariadb or (years and not any(bits[len(numeric) :]))):
            readings.append(reading)
    if not readings:
        return {}
    return {i: sign for i, sign in readings[0].items() if all(other.get(i) == sign for other in readings)}


def _numbers(data: bytes) -> Iterator[int]:
    reader = _Reader(data)
    while reader.more:
        yield reader.packed()


def _texts(data: bytes) -> Iterator[str]:
    reader = _Reader(data)
    while reader.more:
        yield reader.text()


def _label_lists(data: bytes) -> Iterator[tuple[bytes, ...]]:
    reader = _Reader(data)
    while reader.more:
        yield tuple(reader.take(reader.packed()) for _ in range(reader.packed()))


def _charsets(columns: list[int], default: bytes | None, each: bytes | None) -> dict[int, str]:
    """Return the character set of each column.

    The log has a default collation with exceptions, or one collation per column.
    """
    if each is not None:
        return {c: charset_of_collation(n) for c, n in zip(columns, _numbers(each), strict=False)}
    if default is None:
        return {}
    numbers = list(_numbers(default))
    if not numbers:
        raise CorruptLogError("a TABLE_MAP event's default collation is missing")
    charsets = {c: charset_of_collation(numbers[0]) for c in columns}
    for index, collation in zip(numbers[1::2], numbers[2::2], strict=False):
        if index < len(columns):
            charsets[columns[index]] = charset_of_collation(collation)
    return charsets


def type_text(column: MapColumn) -> str:  # noqa: PLR0911  one line per type
    """Return the column type of a map column, as far as the map has it."""
    suffix = " unsigned" if column.unsigned else ""
    binary = column.charset in ("", "binary")
    width = max(bytes_per_character(column.charset), 1)
    if column.type in INTEGERS:
        return INTEGERS[column.type][1] + suffix
    if column.type in TEMPORALS:
        base, has_fsp = TEMPORALS[column.type]
        return f"{base}({column.meta})" if has_fsp and column.meta else base
    match column.type:
        case 4:  # FLOAT
            return "float" + suffix
        case 5:  # DOUBLE
            return "double" + suffix
        case 13:  # YEAR
            return "year"
        case 246:  # NEWDECIMAL
            return f"decimal({column.meta >> 8},{column.meta & 0xFF}){suffix}"
        case 16:  # BIT
            return f"bit({column.meta})"
        case 15 | 253:  # VARCHAR
            return f"varbinary({column.meta})" if binary else f"varchar({column.meta // width})"
        case 254:  # STRING
            return f"binary({column.meta})" if binary else f"char({column.meta // width})"
        case 249 | 250 | 251 | 252:
            return BLOBS.get(column.meta, ("longtext", "longblob"))[binary]
        case 245:
            return "json"
        case 255:
            return "geometry"
        case 242:
            return "vector"
        case 247 | 248:
            word = "enum" if column.type == ENUM else "set"
            quoted = (label.replace("\\", "\\\\").replace("'", "''") for label in column.labels)
            return word + "(" + ",".join(f"'{label}'" for label in quoted) + ")"
        case _:
            return f"type {column.type}"


#: The options for users who inspect a log: an invalid date is shown as the server prints it.
AS_LOGGED = TypeOptions(invalid_dates="text")


def infer_table(table_map: TableMap) -> MySqlTable:
    """Return a table inferred from the map alone, with logged names or ``@1``….

    Without metadata integers count as signed, and character and binary columns cannot be distinguished: they are read
    as bytes and marked `TEXT_OR_BYTES`. ENUM and SET without labels become their number. Dates are `AS_LOGGED`.
    """
    columns = []
    logged = list(table_map.columns)
    # MariaDB's hashes of unique keys are no columns of the table.
    while len(logged) > 1 and logged[-1].type == LONGLONG and logged[-1].name.startswith("DB_ROW_HASH_"):
        logged.pop()
    for index, column in enumerate(logged):
        unknown = column.type in _CHARACTER and not column.charset
        text = type_text(column)
        if column.type in (ENUM, SET) and not column.labels:
            text = "bigint"
        charset = "" if column.charset == "binary" else column.charset
        found = MySqlColumn(column.name or f"@{index + 1}", text, charset, collation=TEXT_OR_BYTES if unknown else "")
        columns.append(AS_LOGGED.treat(found))
    key = tuple(columns[k].name for k in table_map.primary_key if k < len(columns))
    return MySqlTable(table_map.table, tuple(columns), key, for_people=True)
