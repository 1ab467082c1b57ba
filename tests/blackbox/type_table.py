"""Every column type with the values at its ends, as the SQL that writes them.

`plain` types arrive as they are; `odd` dates need a policy of ``source.types`` and are played with each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.blackbox.story import Server, Sink

MARIADB, MYSQL80 = (Server.MARIADB,), (Server.MYSQL80,)


@dataclass(frozen=True, slots=True)
class TypeCase:
    """A type and its values; NULL is always one of them."""

    sql: str
    values: tuple[str, ...]
    servers: tuple[Server, ...] = (Server.MARIADB, Server.MYSQL80)
    sinks: tuple[Sink, ...] = tuple(Sink)


def case(
    sql: str,
    *values: str,
    servers: tuple[Server, ...] = (Server.MARIADB, Server.MYSQL80),
    sinks: tuple[Sink, ...] = tuple(Sink),
) -> TypeCase:
    return TypeCase(sql, values, servers, sinks)


def _nines(precision: int, scale: int) -> str:
    whole = "9" * (precision - scale)
    return f"{whole}.{'9' * scale}" if scale else whole


def _decimals() -> Iterator[TypeCase]:
    for precision, scale in ((1, 0), (5, 5), (9, 4), (18, 9), (19, 0), (38, 0), (38, 10), (39, 3), (65, 0), (65, 30)):
        most = _nines(precision, scale)
        least = f"0.{'0' * (scale - 1)}1" if scale else "1"
        yield case(f"DECIMAL({precision},{scale})", most, f"-{most}", "0", least, f"-{least}")
    yield case("DECIMAL(20,3) UNSIGNED", _nines(20, 3), "0", "0.001")


def _integers() -> Iterator[TypeCase]:
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)):
        yield case(name, str(-(1 << bits - 1)), str((1 << bits - 1) - 1), "0", "-1")
        yield case(f"{name} UNSIGNED", "0", str((1 << bits) - 1), str(1 << bits - 1))


#: Text at its ends: empty, blanks at its end, quotes and control characters, four bytes, characters made of several.
TEXTS = (
    "''",
    "'a '",
    "'it''s \\\\ \"x\" \\t\\r\\n'",
    "'😀 𝒳'",
    "'e\u0301 👩‍👩‍👧'",
    "'\u200b\ufeff'",
    "'\\Z\\b'",
)
BYTES = ("X''", "X'00'", "X'00FF80'", "X'20'", "X'5C270A'")

TYPES: tuple[TypeCase, ...] = (
    *_integers(),
    case("BOOL", "0", "1", "-128"),
    case("INT(7) UNSIGNED ZEROFILL", "0", "42", "4294967295"),
    *_decimals(),
    case("FLOAT", "3.402823e38", "-3.402823e38", "1.17549435e-38", "1e-45", "0", "-0e0", "1.1", "16777217"),
    case("FLOAT UNSIGNED", "0", "3.402823e38"),
    case(
        "DOUBLE",
        "1.7976931348623157e308",
        "-1.7976931348623157e308",
        "2.2250738585072014e-308",
        "5e-324",
        "-0e0",
        "0.1",
    ),
    case("DOUBLE(20,5)", "123456789012345.12345", "-0.00001"),
    *(case(f"BIT({n})", "0", "1", str((1 << n) - 1), str(1 << n - 1)) for n in (1, 8, 9, 64)),
    case("YEAR", "1901", "2155", "0"),
    case("DATE", "'1000-01-01'", "'9999-12-31'", "'0001-01-01'", "'2024-02-29'", "'1582-10-10'"),
    # A year that both servers have, and neither Python nor PostgreSQL.
    case("DATE", "'0000-01-01'", "'0000-12-31'", sinks=(Sink.DELTA, Sink.JSONL)),
    case("DATETIME(6)", "'0000-01-01 00:00:00'", "'0000-12-31 23:59:59.999999'", sinks=(Sink.DELTA, Sink.JSONL)),
    case("DATETIME", "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'1582-10-10 12:00:00'"),
    case("DATETIME(3)", "'1969-12-31 23:59:59.999'", "'2024-03-31 02:30:00.001'"),
    case("DATETIME(6)", "'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"),
    case("TIMESTAMP NULL", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"),
    case("TIMESTAMP(6) NULL", "'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.499999'"),
    case("TIME", "'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'", "'24:00:00'"),
    case("TIME(3)", "'-838:59:58.999'", "'-00:00:00.001'", "'100:00:00.5'"),
    case("TIME(6)", "'-838:59:58.999999'", "'838:59:58.999999'", "'-00:00:00.000001'", "'-01:00:00'"),
    case("CHAR(50)", *TEXTS),
    case("CHAR(0)", "''"),
    case("VARCHAR(300)", *TEXTS, "REPEAT('😀', 300)"),
    case("VARCHAR(50) CHARACTER SET latin1", "'äÿ€'", "''", "'a '"),
    case("VARCHAR(50) CHARACTER SET utf16", "'😀'", "''", "'中'"),
    case("VARCHAR(50) CHARACTER SET ucs2", "'中'", "''"),
    case("VARCHAR(50) CHARACTER SET utf32", "'😀'"),
    case("VARCHAR(50) CHARACTER SET utf8mb3", "'中é'"),
    case("VARCHAR(50) CHARACTER SET sjis", "'表ソ'", "'ｱ'"),
    case("VARCHAR(50) CHARACTER SET gbk", "'中'"),
    case("VARCHAR(50) CHARACTER SET cp1251", "'ЯяЁ'"),
    case("VARCHAR(50) COLLATE utf8mb4_bin", "'a'", "'A'"),
    case("VARCHAR(9)", "'a\\0b'", "'\\0'", sinks=(Sink.DELTA, Sink.JSONL)),
    case("TINYTEXT", "''", "REPEAT('a', 255)"),
    case("TEXT", *TEXTS, "REPEAT('é', 32767)"),
    case("MEDIUMTEXT", "REPEAT('😀', 40000)"),
    case("LONGTEXT", "''", "REPEAT('long ', 300000)"),
    case("BINARY(5)", *BYTES, "X'0102030405'"),
    case("VARBINARY(300)", *BYTES, "REPEAT(X'FF', 300)"),
    case("TINYBLOB", *BYTES, "REPEAT(X'00', 255)"),
    case("BLOB", *BYTES, "REPEAT(X'80', 65535)"),
    case("MEDIUMBLOB", "REPEAT(X'0A0D', 60000)"),
    case("LONGBLOB", "X''", "REPEAT(X'DEADBEEF', 300000)"),
    case("ENUM('','a','ü','it''s','a,b','😀')", "''", "'a'", "'ü'", "'it''s'", "'a,b'", "'😀'", "'none of them'"),
    case("ENUM(" + ",".join(f"'label {n}'" for n in range(300)) + ")", "1", "255", "256", "300"),
    case("SET('x','y y','ä')", "''", "'x'", "'x,y y,ä'"),
    case("SET(" + ",".join(f"'m{n}'" for n in range(64)) + ")", "0", "1", str(1 << 63), str((1 << 64) - 1)),
    # Lines show JSON's null and NULL alike, as the manual says.
    case("JSON", "'null'", servers=MYSQL80, sinks=(Sink.DELTA, Sink.POSTGRES)),
    case(
        "JSON",
        "'[]'",
        "'{}'",
        "'\"\"'",
        "'[1, -1, 18446744073709551615, -9223372036854775808, 1e308, 5e-324, true, null]'",
        '\'{"ä": "😀\\\\\\\\ \\\\u0001", "a.b": {"": [[[]]]}}\'',
        "CONCAT(REPEAT('[', 30), REPEAT(']', 30))",
    ),
    case(
        "JSON",
        "JSON_ARRAY(CAST('-100:11:12.5' AS TIME(1)), DATE'2020-01-02', CAST('2020-01-02 03:04:05.5' AS DATETIME(6)))",
        "JSON_ARRAY(1.50, CAST(-0.05 AS DECIMAL(65,30)))",
        "JSON_OBJECT('big', REPEAT('z', 70000))",
        servers=MYSQL80,
    ),
    case("GEOMETRY", "ST_GeomFromText('POINT(1.5 -2)')", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1e-300 1e300))')"),
    case("POINT", "ST_GeomFromText('POINT(0 0)')", "ST_GeomFromText('POINT(1 1)', 4326)"),
    case("POLYGON", "ST_GeomFromText('POLYGON((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1))')"),
    case("MULTILINESTRING", "ST_GeomFromText('MULTILINESTRING((0 0, 1 1), (2 2, 3 3.5))')"),
    case("UUID", "'00000000-0000-0000-0000-000000000000'", "'FFFFFFFF-ffff-1fff-8fff-ffffffffffff'", servers=MARIADB),
    case("INET4", "'0.0.0.0'", "'255.255.255.255'", servers=MARIADB),
    case("INET6", "'::'", "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'", "'::ffff:192.0.2.1'", servers=MARIADB),
)

#: Dates that no calendar has, and what becomes of them by default; as text they arrive as the server prints them.
ODD_DATES: tuple[TypeCase, ...] = (
    case("DATE", "'0000-00-00'", "'2024-00-10'", "'2024-02-00'", "'2024-02-29'"),
    case("DATETIME", "'0000-00-00 00:00:00'", "'2024-00-00 10:11:12'", "'2024-02-29 10:11:12'"),
    case("DATETIME(6)", "'0000-00-00 00:00:00.000001'", "'2024-02-29 10:11:12.999999'"),
    case("TIMESTAMP NULL", "'0000-00-00 00:00:00'", "'2024-02-29 10:11:12'"),
    case("TIMESTAMP(3) NULL", "'0000-00-00 00:00:00'", "'2024-02-29 10:11:12.5'"),
)
