"""Random values of columns, as literals of SQL."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

_TEXTS = ("", "a", "A", "fünf", "it's", "two  words ", "%_", "NULL", "ÄÖ", "line\\nbreak", "ß", "0")
_WHOLE = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_LABEL = re.compile(r"'([^']*)'")


@dataclass(frozen=True, slots=True)
class Column:
    """A column as ``information_schema.COLUMNS`` has it, of those values that `literal` needs."""

    name: str
    kind: str
    declared: str
    nullable: bool
    key: bool
    generated: bool
    charset: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """From name, data type, column type, nullability, key, extra and character set."""
        name, kind, declared, nullable, key, extra, charset = ("" if value is None else str(value) for value in row)
        declared += f" CHARACTER SET {charset}" if charset else ""
        declared += "" if nullable == "YES" else " NOT NULL"
        return cls(name, kind, declared, nullable == "YES", key == "PRI", "GENERATED" in extra.upper(), charset)


def literal(source: random.Random, column: Column) -> str:  # noqa: PLR0911  a case per type
    """A value for the column; now and then one that the server refuses or changes."""
    if column.nullable and source.random() < 0.12:
        return "NULL"
    labels = _LABEL.findall(column.declared)
    if column.kind in _WHOLE:
        bits = _WHOLE[column.kind]
        unsigned = "unsigned" in column.declared
        low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return str(source.choice([0, 1, low, high, source.randint(0, 100), source.randint(low, high)]))
    match column.kind:
        case "decimal":
            return f"{source.randint(-9999, 9999)}.{source.randint(0, 99):02}"
        case "float" | "double":
            return repr(source.choice([0.0, -1.5, 1e20, 0.1, source.uniform(-1000, 1000)]))
        case "enum":
            return f"'{source.choice(labels)}'"
        case "set":
            return "'" + ",".join(label for label in labels if source.random() < 0.5) + "'"
        case "date":
            return f"'{source.randint(1000, 9999)}-0{source.randint(1, 9)}-1{source.randint(0, 9)}'"
        case "datetime":
            return f"'{source.randint(1000, 9999)}-12-31 23:59:{source.randint(10, 58)}.{source.randint(0, 999):03}'"
        case "timestamp":
            return f"'{source.randint(1972, 2036)}-07-01 12:34:{source.randint(10, 58)}'"
        case "time":
            return f"'{source.choice(['', '-'])}{source.randint(0, 838)}:59:{source.randint(10, 58)}.25'"
        case "year":
            return str(source.choice([0, 1901, 2155, source.randint(1950, 2050)]))
        case "bit":
            return f"b'{source.randint(0, 511):b}'"
        case "blob" | "mediumblob" | "longblob" | "varbinary" | "binary":
            return "x'" + source.randbytes(source.choice([0, 1, 9, 300])).hex() + "'"
        case _ if column.kind == "json" or column.name == "j":
            number = source.choice(["1", "1.5", "-0.25", "true", '"t"', "[1, null]"])
            return f"""'{{"a": {number}, "b": "x{source.randint(0, 9)}"}}'"""
        case _:
            text = source.choice([*_TEXTS, str(source.randint(0, 999))])
            more = source.choice(["", "", "🙂"]) if column.charset == "utf8mb4" else ""
            return "'" + (text + more).replace("'", "''") + "'"
