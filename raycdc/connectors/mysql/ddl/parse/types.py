"""Converts column types as written in a statement to the form of ``information_schema.COLUMN_TYPE``.

Two spellings exist: MySQL 8.0.19 and later leave the display width of integers and years out, MariaDB and older MySQL
print it (`display_width`). Reference: MySQL manual, "Data Types" and "Using Data Types from Other Database Engines".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raycdc.errors import SchemaError

#: Words for types that are aliases of another type; ``(words) → base``. Longer ones come before their beginnings.
ALIASES: dict[tuple[str, ...], str] = {
    ("NATIONAL", "CHARACTER", "VARYING"): "nvarchar",
    ("NATIONAL", "CHAR", "VARYING"): "nvarchar",
    ("NATIONAL", "VARCHARACTER"): "nvarchar",
    ("NATIONAL", "VARCHAR"): "nvarchar",
    ("NATIONAL", "CHARACTER"): "nchar",
    ("NATIONAL", "CHAR"): "nchar",
    ("NCHAR", "VARCHARACTER"): "nvarchar",
    ("NCHAR", "VARCHAR"): "nvarchar",
    ("NCHAR", "VARYING"): "nvarchar",
    ("CHARACTER", "VARYING"): "varchar",
    ("CHAR", "VARYING"): "varchar",
    ("CHAR", "BYTE"): "binary",
    ("LONG", "CHARACTER", "VARYING"): "mediumtext",
    ("LONG", "CHAR", "VARYING"): "mediumtext",
    ("LONG", "VARCHARACTER"): "mediumtext",
    ("LONG", "VARCHAR"): "mediumtext",
    ("LONG", "VARBINARY"): "mediumblob",
    ("LONG",): "mediumtext",
    ("VARCHAR2",): "varchar",
    ("CLOB",): "longtext",
    ("RAW",): "varbinary",
    ("DOUBLE", "PRECISION"): "double",
    ("CHARACTER",): "char",
    ("VARCHARACTER",): "varchar",
    ("INTEGER",): "int",
    ("INT1",): "tinyint",
    ("INT2",): "smallint",
    ("INT3",): "mediumint",
    ("MIDDLEINT",): "mediumint",
    ("INT4",): "int",
    ("INT8",): "bigint",
    ("FLOAT4",): "float",
    ("FLOAT8",): "double",
    ("REAL",): "double",
    ("DEC",): "decimal",
    ("FIXED",): "decimal",
    ("NUMERIC",): "decimal",
    ("NUMBER",): "decimal",
    ("BOOL",): "boolean",
    ("GEOMCOLLECTION",): "geomcollection",
}

#: Character sets in which even ASCII characters take several bytes.
_WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
#: The longest VARCHAR and VARBINARY in bytes.
_VAR_BYTES_MAX = 65_535
_INTEGER_WIDTHS = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
_TO_BINARY = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_SIZED = (("tiny", 1 << 8), ("", 1 << 16), ("medium", 1 << 24), ("long", 1 << 32))
#: Every word that may be a type; any other word is refused.
TYPE_WORDS = frozenset(
    {
        *(
            "bit",
            "boolean",
            "tinyint",
            "smallint",
            "mediumint",
            "int",
            "bigint",
            "serial",
            "decimal",
            "float",
            "double",
        ),
        *("date", "time", "datetime", "timestamp", "year", "char", "varchar", "nchar", "nvarchar", "binary"),
        *("varbinary", "tinyblob", "blob", "mediumblob", "longblob", "tinytext", "text", "mediumtext", "longtext"),
        *("enum", "set", "json", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
        *("multipolygon", "geometrycollection", "geomcollection", "vector", "uuid", "inet4", "inet6", "xmltype"),
    }
)
_COMPRESSED = " /*M!100301 COMPRESSED*/"
CHARACTER_BASES = frozenset({*_TO_BINARY, "nchar", "nvarchar", "enum", "set"})


@dataclass(frozen=True, slots=True)
class WrittenType:
    """A parsed type: base word (aliases resolved), numbers in parentheses, and the numeric attributes.

    Labels written in hexadecimal are bytes in the column's character set.
    """

    base: str
    numbers: tuple[int, ...] = ()
    labels: tuple[str | bytes, ...] = ()
    unsigned: bool = False
    zerofill: bool = False
    compressed: bool = False


def spell(  # noqa: PLR0911  one line per type
    written: WrittenType, *, charset: str, display_width: bool, mysql8: bool = True
) -> str:
    """Return the ``COLUMN_TYPE`` of `written` with character set `charset` (empty: unknown or none).

    `mysql8`: GEOMETRYCOLLECTION has another name, and TEXT(0) and BLOB(0) become the smallest types.
    """
    if written.compressed:
        plain = replace(written, compressed=False)
        return spell(plain, charset=charset, display_width=display_width) + _COMPRESSED
    base = written.base
    if base in _INTEGER_WIDTHS:
        return _integer(written, display_width=display_width)
    if charset == "binary" and base in _TO_BINARY:
        return spell(WrittenType(_TO_BINARY[base], written.numbers), charset="", display_width=display_width)
    first = written.numbers[0] if written.numbers else None
    match base:
        case "geometrycollection" | "geomcollection":
            return "geomcollection" if mysql8 else "geometrycollection"
        case "varchar" | "nvarchar" | "varbinary" if (
            first is not None and first * _width(base, charset) > _VAR_BYTES_MAX
        ):
            # Without strict mode, the server takes the smallest TEXT or BLOB that fits.
            return _sized("blob" if base == "varbinary" else "text", first, charset)
        case "boolean":
            return "tinyint(1)"
        case "serial":
            return "bigint(20) unsigned" if display_width else "bigint unsigned"
        case "decimal":
            precision = 10 if first is None or first == 0 else first
            scale = written.numbers[1] if len(written.numbers) > 1 else 0
            return f"decimal({precision},{scale}){_sign(written)}"
        case "float" | "double":
            return _floating(written)
        case "nchar" | "char" | "nvarchar" | "binary" | "bit":
            length = 1 if first is None or (base == "bit" and first == 0) else first
            return f"{base.removeprefix('n')}({length})"
        case "text" | "blob":
            return base if first is None or (first == 0 and not mysql8) else _sized(base, first, charset)
        case "enum" | "set":
            return f"{base}({','.join(_label(text, charset) for text in label_texts(written, charset))})"
        case "year":
            # MariaDB has YEAR(2). MySQL refuses it, or makes it a YEAR.
            return f"year({2 if first == 2 else 4})" if display_width else "year"
        case "datetime" | "timestamp" | "time":
            return f"{base}({first})" if first else base
        case _:
            inside = ",".join(str(number) for number in written.numbers)
            return f"{base}({inside})" if inside else base


def _integer(written: WrittenType, *, display_width: bool) -> str:
    signed, unsigned = _INTEGER_WIDTHS[written.base]
    is_unsigned = written.unsigned or written.zerofill
    # A width of 0 means that there is none.
    width = (written.numbers or (0,))[0] or (unsigned if is_unsigned else signed)
    # MySQL 8 keeps a width that has a meaning: with ZEROFILL, and in TINYINT(1), which drivers read as a boolean.
    kept = display_width or written.zerofill or (written.base == "tinyint" and width == 1 and not is_unsigned)
    return f"{written.base}({width}){_sign(written)}" if kept else f"{written.base}{_sign(written)}"


def _floating(written: WrittenType) -> str:
    base = written.base
    if len(written.numbers) == 2 and any(written.numbers):
        return f"{base}({written.numbers[0]},{written.numbers[1]}){_sign(written)}"
    # FLOAT(p) only selects one of two sizes (MySQL manual, "Floating-Point Types").
    if base == "float" and written.numbers and written.numbers[0] > 24:
        base = "double"
    return f"{base}{_sign(written)}"


def _width(base: str, charset: str) -> int:
    from raycdc.connectors.mysql.values.charsets import bytes_per_character

    return 1 if base == "varbinary" else max(1, bytes_per_character(charset))


def _sized(base: str, length: int, charset: str) -> str:
    """Return the smallest type that holds n characters or bytes, for TEXT(n) and BLOB(n)."""
    from raycdc.connectors.mysql.values.charsets import bytes_per_character

    size = length * (max(1, bytes_per_character(charset)) if base == "text" else 1)
    return next((f"{prefix}{base}" for prefix, limit in _SIZED if size < limit), f"long{base}")


def _sign(written: WrittenType) -> str:
    unsigned = " unsigned" if written.unsigned or written.zerofill else ""
    return f"{unsigned} zerofill" if written.zerofill else unsigned


def label_texts(written: WrittenType, charset: str) -> tuple[str, ...]:
    """Return the labels as text. Raises `SchemaError` for bytes that are invalid in `charset`."""
    return tuple(label if isinstance(label, str) else _decoded(label, charset) for label in written.labels)


def _decoded(label: bytes, charset: str) -> str:
    from raycdc.connectors.mysql.values.charsets import bytes_per_character, codec_of

    try:
        if charset == "binary":
            return label.decode("ascii")
        if charset in _WIDE:
            unit = 4 if charset == "utf32" else 2
            label = label.rjust(-(-len(label) // unit) * unit, b"\0")
        if not bytes_per_character(charset):
            raise SchemaError(f"the label 0x{label.hex()} is in a character set that is not known ({charset})")
        return label.decode(codec_of(charset))
    except UnicodeDecodeError as cause:
        raise SchemaError(f"the label 0x{label.hex()} is no text in {charset}") from cause


def _label(text: str, charset: str) -> str:
    """Return a label quoted as the server prints it.

    Trailing spaces are removed unless it is binary (manual, "The ENUM Type").
    """
    escaped = (
        (text if charset == "binary" else text.rstrip(" "))
        .replace("\\", "\\\\")
        .replace("\0", "\\0")
        .replace("\n", "\\n")
        .replace("\r", "\\r")
    )
    return "'" + escaped.replace("'", "''") + "'"


def number_text(default: str | None) -> str | None:
    """Return ``b'101'`` and ``0x1F`` as a decimal number, and any other text unchanged."""
    if default is None:
        return None
    text = default.lower()
    if text.startswith(("b'", "0b")):
        return str(int(text.strip("b'").removeprefix("0b") or "0", 2))
    if text.startswith(("x'", "0x")):
        return str(int(text.removeprefix("0x").strip("x'") or "0", 16))
    return default
