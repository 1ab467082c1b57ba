"""Decides whether a column's values stay unchanged when its type changes: always, only if nothing is cut, or never.

A server that converts a column logs nothing about its values. `keeps_values` returns True if every value that was
converted without an error is unchanged. `may_lose` describes how a statement could have cut, rounded or replaced a
value without an error (``INSERT IGNORE``, ``ALTER IGNORE``, a session without strict mode). No mode reports trailing
spaces that are cut from a text. `recomputed` and `equals_as_before` are about side effects of a conversion.

`tests/integration/connectors/mysql/test_mysql_conversions.py` tries pairs of types on real servers.
"""

from __future__ import annotations

from collections.abc import Iterable

from raycdc.connectors.mysql.values.charsets import bytes_per_character
from raycdc.connectors.mysql.values.types import CHARACTER_TYPES, GEOMETRIES, MySqlColumn
from raycdc.model import TypeKind

#: The kinds that contain all values of a kind, with the same meaning.
_WIDENS_TO: dict[TypeKind, frozenset[TypeKind]] = {
    TypeKind.INT8: frozenset({TypeKind.INT16, TypeKind.INT32, TypeKind.INT64}),
    TypeKind.INT16: frozenset({TypeKind.INT32, TypeKind.INT64}),
    TypeKind.INT32: frozenset({TypeKind.INT64}),
    TypeKind.FLOAT32: frozenset({TypeKind.FLOAT64}),
    TypeKind.ENUM: frozenset({TypeKind.STRING}),
    TypeKind.SET: frozenset({TypeKind.STRING}),
}
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_BLOB_BYTES = {"tiny": 1 << 8, "": 1 << 16, "medium": 1 << 24, "long": 1 << 32}
_UNICODE = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
#: Character sets in which a text has the same bytes, if all of its characters exist.
_UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
#: Unicode sets without the characters beyond U+FFFF.
_BASIC_UNICODE = frozenset({"utf8mb3", "utf8", "ucs2"})
#: Character sets in which every byte is a character, so that their texts cannot be damaged.
_WHOLE = _UNICODE | _UTF8 | _BASIC_UNICODE | {"latin1"}
_FLOATS = frozenset({"float", "double"})
#: The lengths in characters of values that are text in targets, but not in the source.
_TEXT_LENGTHS = {"date": 10, "datetime": 19, "timestamp": 19, "uuid": 36, "inet4": 15, "inet6": 45}


def keeps_values(before: MySqlColumn, after: MySqlColumn) -> bool:
    """Return True if every value that was converted without an error is unchanged."""
    old, new = before.logical(), after.logical()
    if old.kind is not new.kind:
        return _widens(before, after) and not _rounds(before, after)
    if before.shape.base == "timestamp" and before.nullable and not after.nullable:
        # MariaDB replaces NULL with the time of the statement, without an error in any mode.
        return False
    match old.kind:
        case TypeKind.DECIMAL:
            return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
        case TypeKind.ENUM:
            return set(before.labels) <= set(after.labels)
        case TypeKind.SET:
            # A value's text has its labels in the order of the type.
            labels = set(before.labels)
            return tuple(label for label in after.labels if label in labels) == before.labels
        case TypeKind.FLOAT32 | TypeKind.FLOAT64:
            return not _rounds(before, after)
        case TypeKind.BIT:
            return new.length >= old.length
        case TypeKind.DATETIME | TypeKind.TIMESTAMP:
            return new.fsp >= old.fsp
        case TypeKind.TIME:
            # Targets and keys have the text of a TIME: 10:00:00 differs from 10:00:00.000.
            return new.fsp == old.fsp
        case TypeKind.BINARY:
            # BINARY(n) is padded with zeros, so that a longer column has other bytes.
            return before.column_type == after.column_type or not after.column_type.startswith("binary")
        case TypeKind.STRING:
            return _keeps_text(before, after)
        case _:
            return True


def _widens(before: MySqlColumn, after: MySqlColumn) -> bool:
    """Return True if values of one kind are values of the other one, with the same meaning."""
    old, new = before.logical().kind, after.logical().kind
    if new not in _WIDENS_TO.get(old, frozenset()):
        return False
    # A label becomes its number in a decimal of many digits, which targets have as text. Labels that are bytes may
    # become other characters, or end in spaces.
    return new is not TypeKind.STRING or (after.shape.base in CHARACTER_TYPES and before.charset not in ("", "binary"))


def _keeps_text(before: MySqlColumn, after: MySqlColumn) -> bool:
    """Return True if every value that is text here is unchanged: of a character type, or of a type without another
    form.
    """
    old, new = before.shape, after.shape
    if new.base in CHARACTER_TYPES:
        # CHAR cuts trailing spaces.
        return new.base != "char" or old.base not in CHARACTER_TYPES or old.base == "char"
    if old.base == new.base == "decimal":
        return new.scale == old.scale and new.precision >= old.precision
    return (old.base, old.fsp) == (new.base, new.fsp)


def _rounds(before: MySqlColumn, after: MySqlColumn) -> bool:
    """Return True if a FLOAT or DOUBLE becomes FLOAT(M,D), to which the server rounds."""
    if after.shape.base not in _FLOATS or (before.column_type == after.column_type):
        return False
    digits = after.shape.digits
    digits_before = before.shape.digits if before.shape.base == after.shape.base else None
    return digits is not None and (digits_before is None or digits < digits_before)


def recomputed(columns: Iterable[tuple[MySqlColumn | None, MySqlColumn]], *, row_end: str = "") -> str:
    """Return why generated columns among `columns` (before, after) have new values though the statement does not name
    them.

    The result is empty if there are none. A generated column changes if it is computed from a column that gets another
    type or collation. `row_end` is that of a system-versioned table, whose period is no function of its columns.
    """
    pairs = [(before, after) for before, after in columns if before is not None]
    period = ("timestamp(6)",) if row_end else ()
    generated = [after.name for _, after in pairs if after.is_generated and after.column_type not in period]
    changed = [after for before, after in pairs if _form(before) != _form(after)]
    if not generated or not changed:
        return ""
    return (
        f"the column {generated[0]!r} is generated, and may be computed from {changed[0].name!r}, which was converted"
    )


def _form(column: MySqlColumn) -> tuple[str, str, str]:
    return column.column_type, column.charset, column.collation


def equals_as_before(before: MySqlColumn, after: MySqlColumn) -> bool:
    """Return True if all texts that differ in `before` differ in `after`, so that rows cannot collide."""
    old, new = before.collation, after.collation
    if old == new or not after.charset:
        return True
    if not old or not new:
        return False
    rules = new.partition("_")[2]
    if {before.charset, after.charset} <= _UTF8 and rules == old.partition("_")[2]:
        return True
    # Trailing spaces count in some collations only.
    spaces = [any(word in name for word in ("nopad", "0900")) or name == "binary" for name in (old, new)]
    return rules.endswith("bin") and (spaces[1] or not spaces[0])


def may_lose(before: MySqlColumn, after: MySqlColumn, *, forgiving: bool) -> str:
    """Return a text about the changes that a conversion could have made to values of `before` silently; empty if none.

    A `forgiving` statement does not report values that do not fit. All other statements cut only trailing spaces.
    """
    if not forgiving:
        # The values of CHAR, and the labels of ENUM and SET, have no trailing spaces. An unchanged type has room for
        # the same texts, unless one of them filled it and needs more bytes in another character set.
        spaces = before.charset not in ("", "binary") and before.shape.base not in ("char", "enum", "set")
        shorter = before.shape != after.shape and _longest(before) > _room(after, before)
        return "spaces at the end of texts were cut" if spaces and shorter else ""
    if before.nullable and not after.nullable:
        return "NULL became another value"
    if before.shape.base in _INTEGER_BITS and after.shape.base in _INTEGER_BITS:
        low, high = _range(before)
        fits = _range(after)[0] <= low and high <= _range(after)[1]
        return "" if fits else "numbers were cut"
    if after.unsigned and not before.unsigned and before.shape.base in {"decimal", *_FLOATS}:
        return "negative numbers were cut"
    if after.shape.digits is not None and before.column_type != after.column_type:
        return "numbers were cut"
    if before.charset and after.charset and not _holds(after.charset, before.charset):
        return f"characters that {after.charset} lacks were replaced"
    if before.charset and after.charset and before.charset != after.charset and before.charset not in _WHOLE:
        return f"bytes that are no character in {before.charset} were replaced"
    return "texts were cut" if _longest(before) > _room(after, before) else ""


def _range(column: MySqlColumn) -> tuple[int, int]:
    bits = _INTEGER_BITS[column.shape.base]
    return (0, (1 << bits) - 1) if column.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _longest(column: MySqlColumn) -> int:
    """Return the characters (or bytes) of the longest value; 0 for types without such a limit."""
    shape = column.shape
    match shape.base:
        case "enum":
            return max(map(len, shape.labels), default=0)
        case "set":
            return sum(len(label) + 1 for label in shape.labels)
        case "char" | "varchar" | "binary" | "varbinary":
            return shape.length
        case "decimal":
            # The digits, a zero before the decimal point, the point and a sign.
            return shape.precision + 3
        case base if base in _TEXT_LENGTHS:
            return _TEXT_LENGTHS[base] + (shape.fsp and 1 + shape.fsp)
        case base if base in GEOMETRIES:
            return _BLOB_BYTES["long"] - 1
        case _:
            return _blob_bytes(shape.base)


def _room(column: MySqlColumn, before: MySqlColumn) -> int:
    """Return the characters (or bytes) that certainly fit into `column` if they come from `before`."""
    limit = _blob_bytes(column.shape.base)
    if limit == 0:
        return column.shape.length or _longest(before)
    same_bytes = before.charset == column.charset or {before.charset, column.charset} <= _UTF8
    if same_bytes and _blob_bytes(before.shape.base):
        return limit
    return limit // max(1, bytes_per_character(column.charset))


def _blob_bytes(base: str) -> int:
    for word in ("text", "blob"):
        if base.endswith(word):
            return _BLOB_BYTES[base.removesuffix(word)] - 1
    return 0


def _holds(charset: str, other: str) -> bool:
    """Return True if `charset` has every character of `other`."""
    if charset == other or charset in _UNICODE or other == "ascii":
        return True
    return charset in _BASIC_UNICODE and other not in _UNICODE
