"""Every column type with values as SQL, and how its values are compared with what the server prints."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.values.charset_loops import FAMILY_GB18030, GB18030_PLANES
from raycdc.connectors.mysql.values.charsets import code_points, family_of
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.connectors.mysql.values.value_text import printers

Values = Callable[[random.Random], str]

#: The sets that every server of these tests has; gb18030 is MySQL's alone.
CHARSETS = (
    *("armscii8", "ascii", "big5", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "cp932", "dec8"),
    *("eucjpms", "euckr", "gb2312", "gbk", "geostd8", "greek", "hebrew", "hp8", "keybcs2", "koi8r", "koi8u", "latin1"),
    *("latin2", "latin5", "latin7", "macce", "macroman", "sjis", "swe7", "tis620", "ucs2", "ujis", "utf16", "utf16le"),
    *("utf32", "utf8mb4"),
)


@dataclass(frozen=True, slots=True)
class TypeCase:
    """A column type and a function that makes a value of it, as SQL."""

    sql: str
    value: Values


def one_of(*texts: str) -> Values:
    return lambda generator: generator.choice(texts)


def _whole(low: int, high: int) -> Values:
    return lambda g: str(g.choice([low, high, 0 if low <= 0 else low, g.randint(low, high)]))


def _decimal(precision: int, scale: int, *, unsigned: bool = False) -> Values:
    def make(g: random.Random) -> str:
        digits = g.choice([1, precision // 2 or 1, precision])
        number = Decimal(g.randrange(10**digits)).scaleb(-scale)
        return f"{'' if unsigned or g.random() < 0.5 else '-'}{number:f}"

    return make


def _float(bits: int) -> Values:
    code, word = ("<f", "<I") if bits == 32 else ("<d", "<Q")

    def make(g: random.Random) -> str:
        value = struct.unpack(code, struct.pack(word, g.getrandbits(bits)))[0]
        # Numbers near the largest are refused by the server, which reads them from text.
        if math.isnan(value) or abs(value) > (3e38 if bits == 32 else 1e308):
            value = 0.1
        return g.choice([f"{value:.17e}", f"{g.randint(-1000, 1000)}.5e0", "0e0", "1.1e0", "16777217e0"])

    return make


def _bytes(most: int) -> Values:
    return lambda g: f"X'{g.randbytes(g.choice([0, 1, most // 2, most])).hex()}'"


def _moment(fsp: int) -> Values:
    def make(g: random.Random) -> str:
        year = g.choice([1, 99, 1000, 1969, 1970, 2024, 9999, g.randint(1, 9999)])
        text = f"{year:04d}-{g.randint(1, 12):02d}-{g.randint(1, 28):02d}"
        text += f" {g.randint(0, 23):02d}:{g.randint(0, 59):02d}:{g.randint(0, 59):02d}"
        return f"'{text}.{g.randrange(10**fsp):0{fsp}d}'" if fsp else f"'{text}'"

    return make


def _instant(fsp: int) -> Values:
    def make(g: random.Random) -> str:
        part = f".{g.randrange(10**fsp):0{fsp}d}" if fsp else ""
        return f"FROM_UNIXTIME({g.choice([1, 2147483647 - 1, g.randint(2, 2147483000)])}{part})"

    return make


def _time(fsp: int) -> Values:
    def make(g: random.Random) -> str:
        hours = g.choice([0, 8, 99, 100, 837])
        part = f".{g.randrange(10**fsp):0{fsp}d}" if fsp else ""
        text = f"{g.choice(['', '-'])}{hours}:{g.randint(0, 59):02d}:{g.randint(0, 59):02d}{part}"
        return g.choice([f"'{text}'", "'838:59:59'", "'-838:59:59'", "'00:00:00'"])

    return make


def characters(charset: str, g: random.Random, count: int) -> bytes:
    """`count` random characters of the set, as its bytes."""
    codes = all_codes(charset)
    return b"".join(g.choice(codes) for _ in range(count))


def all_codes(charset: str) -> list[bytes]:
    """Every code of a set; of the Unicode ones a sample with characters beyond U+FFFF."""
    points = [*range(32, 127), 0xE4, 0x20AC, 0x4E2D, 0xFFFD, *([] if charset == "ucs2" else [0x1F600, 0x10FFFF])]
    codec = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}.get(charset)
    if charset in ("utf8mb4", "ascii") or codec:
        text = [chr(p) for p in points] if charset != "ascii" else [chr(p) for p in range(1, 128)]
        return [c.encode(codec or "utf-8") for c in text]
    table = code_points(charset)
    codes = [bytes([n]) for n in range(1, 256) if table[n] >= 0]
    if len(table) > 256:
        codes += [n.to_bytes(2, "big") for n in np.flatnonzero(table[256:65792] >= 0).tolist()]
    if family_of(charset) == FAMILY_GB18030:
        numbers = [*np.flatnonzero(table[65792:] >= 0).tolist(), GB18030_PLANES, GB18030_PLANES + 0xFFFFF]
        codes += [
            bytes([0x81 + n // 12600, 0x30 + n // 1260 % 10, 0x81 + n // 10 % 126, 0x30 + n % 10]) for n in numbers
        ]
    elif len(table) > 65792:
        codes += [b"\x8f" + n.to_bytes(2, "big") for n in np.flatnonzero(table[65792:] >= 0).tolist()]
    return codes


def _text(charset: str, most: int) -> Values:
    def make(g: random.Random) -> str:
        return f"_{charset} X'{characters(charset, g, g.choice([0, 1, most // 2, most])).hex()}'"

    return make


def _json_value(g: random.Random, depth: int) -> Any:
    kind = g.randrange(8 if depth else 6)
    match kind:
        case 0:
            return g.choice([None, True, False])
        case 1:
            return g.choice([0, -1, 32767, -32769, 65536, (1 << 31) - 1, -(1 << 63), (1 << 64) - 1, g.getrandbits(40)])
        case 2:
            return g.choice([0.5, -2.25, 1e100, 5e-324, 1.7976931348623157e308, g.random(), g.random() * 1e-9])
        case 3 | 4:
            return "".join(g.choice('a"\\/\n\t\x01ä€😀 z') for _ in range(g.choice([0, 3, 40, 200])))
        case 5:
            return g.choice([[], {}])
        case 6:
            return [_json_value(g, depth - 1) for _ in range(g.randrange(5))]
        case _:
            return {
                f"k{g.randrange(9)}{'x' * g.randrange(9)}": _json_value(g, depth - 1) for _ in range(g.randrange(5))
            }


def _json(depth_max: int) -> Values:
    def make(g: random.Random) -> str:
        if g.random() < 0.1:
            return quote("[" * depth_max + "1" + "]" * depth_max)
        return quote(json.dumps(_json_value(g, 3), ensure_ascii=False))

    return make


def quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


#: MySQL's own: values that only its binary JSON can hold.
_JSON_SPECIAL = (
    "JSON_ARRAY(CAST('2020-01-02 03:04:05.5' AS DATETIME(6)), CAST('-100:11:12.5' AS TIME(1)), DATE'2020-01-02')",
    "JSON_ARRAY(1.50, -0.05, CAST(1 AS DECIMAL(65,30)), x'0102ff', b'101', 0.1e0 + 0.2e0, 1e15, 1e-16)",
    "JSON_OBJECT('big', REPEAT('z', 70000), 'n', 18446744073709551615)",
)

_GEOMETRIES = (
    "ST_GeomFromText('POINT(1.5 -2)')",
    "ST_GeomFromText('LINESTRING(0 0, 1 1, 2 0.1)')",
    "ST_GeomFromText('POLYGON((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1))')",
    "ST_GeomFromText('MULTIPOINT(1 1, 2 2)')",
    "ST_GeomFromText('MULTIPOLYGON(((0 0, 4 0, 4 4, 0 0)))')",
    "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1e-10 123456789.25))')",
)


def _lengths() -> Iterator[TypeCase]:
    """Where the log writes a length in another way: beyond 255 bytes (of a CHAR: in its table map, too) and 64 KiB."""
    for length, charset in ((100, "utf8mb4"), (255, "utf8mb4"), (255, "latin1"), (100, "utf32"), (200, "utf16")):
        yield TypeCase(f"CHAR({length}) CHARACTER SET {charset}", _text(charset, length))
    for length, charset in ((63, "utf8mb4"), (64, "utf8mb4"), (255, "latin1"), (256, "latin1"), (127, "ucs2")):
        yield TypeCase(f"VARCHAR({length}) CHARACTER SET {charset}", _text(charset, length))
    yield TypeCase("BINARY(255)", _bytes(255))
    yield TypeCase("VARBINARY(255)", _bytes(255))
    yield TypeCase("TINYBLOB", _bytes(255))
    yield TypeCase("MEDIUMBLOB", _bytes(66_000))
    yield TypeCase("LONGBLOB", _bytes(66_000))


def _many_labels() -> Iterator[TypeCase]:
    """ENUM and SET in each number of bytes that they may have."""
    for count in (255, 256, 300):
        labels = ",".join(f"'label {n}'" for n in range(count))
        yield TypeCase(f"ENUM({labels})", _whole(1, count))
    for count in (8, 9, 16, 17, 24, 25, 32, 33):
        labels = ",".join(f"'m{n}'" for n in range(count))
        yield TypeCase(f"SET({labels})", _whole(0, (1 << count) - 1))
    for charset in ("utf16", "utf32", "big5"):
        yield TypeCase(f"ENUM('x','中') CHARACTER SET {charset}", one_of("1", "2"))


def type_cases(*, mariadb: bool, mysql8: bool) -> list[TypeCase]:
    """All types the server has."""
    labels = ",".join(f"'m{n}'" for n in range(64))
    cases = [
        *(
            TypeCase(f"{name}{' UNSIGNED' if low == 0 else ''}", _whole(low, high))
            for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))
            for low, high in ((-(1 << bits - 1), (1 << bits - 1) - 1), (0, (1 << bits) - 1))
        ),
        TypeCase("INT(7) UNSIGNED ZEROFILL", _whole(0, 99)),
        TypeCase("TINYINT(1)", _whole(-128, 127)),
        *(
            TypeCase(f"DECIMAL({p},{s})", _decimal(p, s))
            for p, s in ((1, 0), (5, 5), (9, 4), (12, 2), (18, 9), (19, 0), (38, 10), (39, 3), (65, 0), (65, 30))
        ),
        TypeCase("DECIMAL(20,3) UNSIGNED", _decimal(20, 3, unsigned=True)),
        TypeCase("FLOAT", _float(32)),
        TypeCase("DOUBLE", _float(64)),
        *(TypeCase(f"BIT({n})", _whole(0, (1 << n) - 1)) for n in (1, 7, 8, 9, 33, 63, 64)),
        TypeCase("DATE", lambda g: _moment(0)(g)[:11] + "'"),
        *(TypeCase(f"DATETIME({n})", _moment(n)) for n in range(7)),
        *(TypeCase(f"TIMESTAMP({n}) NULL", _instant(n)) for n in range(7)),
        *(TypeCase(f"TIME({n})", _time(n)) for n in range(7)),
        TypeCase("YEAR", one_of("0", "1901", "2155", "2024")),
        TypeCase("ENUM('a','ä''x','c,d','€') CHARACTER SET utf8mb4", one_of("'a'", "'ä''x'", "'c,d'", "'€'", "0")),
        TypeCase("ENUM('ä','я') CHARACTER SET koi8r", one_of("2")),
        TypeCase(f"SET({labels})", lambda g: str(g.choice([0, 1, 1 << 63, (1 << 64) - 1, g.getrandbits(64)]))),
        TypeCase("SET('x','中') CHARACTER SET gbk", one_of("0", "1", "2", "3")),
        TypeCase("CHAR(10) CHARACTER SET utf8mb4", _text("utf8mb4", 10)),
        TypeCase("VARCHAR(300) CHARACTER SET utf8mb4", _text("utf8mb4", 300)),
        TypeCase("TEXT CHARACTER SET utf8mb4", _text("utf8mb4", 2000)),
        TypeCase("TINYTEXT CHARACTER SET latin1", _text("latin1", 200)),
        TypeCase("MEDIUMTEXT CHARACTER SET cp1251", _text("cp1251", 3000)),
        TypeCase("LONGTEXT CHARACTER SET utf16", _text("utf16", 300)),
        TypeCase("BINARY(9)", one_of("X'0001020000'", "X''", "X'ffffffffffffffffff'", "X'20'")),
        TypeCase("VARBINARY(300)", _bytes(300)),
        TypeCase("BLOB", _bytes(3000)),
        TypeCase("GEOMETRY", one_of(*_GEOMETRIES)),
        TypeCase("JSON", _json(30 if mariadb else 99)),
        *(TypeCase(f"VARCHAR(40) CHARACTER SET {name}", _text(name, 20)) for name in CHARSETS if name != "utf8mb4"),
        *_lengths(),
        *_many_labels(),
        TypeCase("FLOAT(7,4)", lambda g: f"{g.randint(-999, 999)}.{g.randrange(10**4):04d}"),
        TypeCase("DOUBLE(12,3) UNSIGNED", lambda g: f"{g.randrange(10**9)}.{g.randrange(1000):03d}"),
        TypeCase("DECIMAL(12,2) ZEROFILL", _decimal(12, 2, unsigned=True)),
        TypeCase("BIGINT(20) UNSIGNED ZEROFILL", _whole(0, (1 << 64) - 1)),
        TypeCase("POINT", one_of("ST_GeomFromText('POINT(1.5 -2)', 4326)", "ST_GeomFromText('POINT(0 0)')")),
        TypeCase("MULTIPOLYGON", one_of(_GEOMETRIES[4])),
    ]
    if mariadb:
        cases += [
            TypeCase("UUID", lambda g: f"'{g.randbytes(16).hex()}'"),
            TypeCase("INET4", lambda g: "'" + ".".join(str(g.choice([0, 1, 255])) for _ in range(4)) + "'"),
            TypeCase(
                "INET6", lambda g: "'" + ":".join(g.choice(["0", "0", "1", "ffff", "a0"]) for _ in range(8)) + "'"
            ),
            TypeCase(
                "INET6", lambda g: g.choice(["'::'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'::1'", "'::1:1'", "'1::'"])
            ),
        ]
    else:
        cases += [TypeCase("JSON", one_of(*_JSON_SPECIAL))]
    if mysql8:
        cases += [TypeCase("VARCHAR(40) CHARACTER SET gb18030", _text("gb18030", 20))]
    return cases


def printed(column: MySqlColumn) -> str:
    """SQL for what the server makes of a value, in a form that `as_printed` makes of ours."""
    name = f"`{column.name}`"
    match column.shape.base:
        case "float" | "double":
            return f"{name} + 0e0"
        case "bit" | "year":
            return f"CAST({name} + 0 AS CHAR)"
        case base if column.charset and base != "json":
            return f"HEX(CONVERT({name} USING utf8mb4))"
        case base if base.endswith(("binary", "blob", "geometry", "point", "polygon")):
            return f"HEX({name})"
        case base if base.endswith("int") or "zerofill" in column.column_type:
            return f"CAST({name} + 0 AS CHAR)"
        case _:
            return f"CAST({name} AS CHAR)"


def as_printed(column: MySqlColumn, array: pa.Array) -> list[Any]:
    """Our values as `printed` has them."""
    match column.shape.base:
        case "float":
            return [None if v is None else np.float32(v) for v in array.to_pylist()]
        case "double":
            return array.to_pylist()  # type: ignore[no-any-return]
        case "json":
            return array.to_pylist()  # type: ignore[no-any-return]
    if column.charset:
        return [None if v is None else v.encode().hex().upper() for v in array.to_pylist()]
    if pa.types.is_binary(array.type):
        return [None if v is None else v.hex().upper() for v in array.to_pylist()]
    texts = [json.loads(text) for text in printers(column)(array)]
    return [None if v is None else str(v) for v in texts]


def server_values(connection: Any, table: MySqlTable) -> list[list[Any]]:
    """Per column what the server prints, ordered by id."""
    names = ", ".join(printed(column) for column in table.columns)
    rows = query(connection, f"SELECT {names} FROM `{table.id.db}`.`{table.id.table}` ORDER BY id")
    columns = [list(cells) for cells in zip(*rows, strict=True)] if rows else [[] for _ in table.columns]
    for index, column in enumerate(table.columns):
        if column.shape.base == "float":
            columns[index] = [None if v is None else np.float32(v) for v in columns[index]]
    return columns
