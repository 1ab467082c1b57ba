"""The layout of a table's columns in an arena: the step between the type mapping (`types`) and the compiled loops.

The arena (`columns`) and both plans (`binlog.tables.plan`, `snapshot.resultset`) use `layout_of`, so that tables of
labels and code points have the same numbers in all of them. A layout depends only on the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache

import pyarrow as pa

from raycdc.connectors.mysql.values import charsets
from raycdc.connectors.mysql.values.charset_loops import FAMILY_UTF8
from raycdc.connectors.mysql.values.time_loops import DATES_ERROR, DATES_NULL
from raycdc.connectors.mysql.values.types import TEXT_OR_BYTES, MySqlColumn, MySqlTable, ValueTreatment
from raycdc.model import TypeKind


class ArenaColumnKind(Enum):
    """The kind of values that a column of an arena holds."""

    INTEGER = auto()
    UINT64 = auto()
    FLOAT32 = auto()
    FLOAT64 = auto()
    DECIMAL = auto()
    DECIMAL_TEXT = auto()
    BOOLEAN = auto()
    TEXT = auto()
    BYTES = auto()
    DATE = auto()
    DATETIME = auto()
    TIMESTAMP = auto()
    TIME = auto()
    YEAR = auto()
    BIT = auto()
    BIT64 = auto()
    ENUM = auto()
    SET = auto()
    JSON = auto()
    GEOJSON = auto()
    ADDRESS = auto()
    """MariaDB's UUID, INET4, INET6."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The layout of one column.

    `width` is the bytes per value in the fixed-width memory (booleans: one), 0 for text. `as_text`: dates are text, as
    the server prints them. `family` and `charset` determine the conversion of text. `first_label` is the number of the
    first label in the table's labels (for an ENUM, this is the empty label of index 0); `labels` counts them.
    `check_utf8`: values should be UTF-8. `exact`: different values must become different texts, because the column is
    in a key.
    """

    form: ArenaColumnKind
    width: int
    arrow: pa.DataType
    as_text: bool = False
    dates: int = DATES_NULL
    pad: int = 0
    family: int = FAMILY_UTF8
    charset: str = ""
    first_label: int = 0
    labels: int = 0
    check_utf8: bool = False
    exact: bool = False


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The layouts of all columns, the labels of all ENUMs and SETs, and the character sets with a table, in order of
    use.
    """

    columns: tuple[ColumnLayout, ...]
    labels: tuple[bytes, ...]
    charsets: tuple[str, ...]

    def points_of(self, column: int) -> int:
        """Return where the code points of the column's character set begin in the arena's `points`."""
        charset = self.columns[column].charset
        if charset not in self.charsets:
            return 0
        before = self.charsets[: self.charsets.index(charset)]
        return sum(len(charsets.code_points(name)) for name in before)


_FORMS: dict[TypeKind, ArenaColumnKind] = {
    TypeKind.INT8: ArenaColumnKind.INTEGER,
    TypeKind.INT16: ArenaColumnKind.INTEGER,
    TypeKind.INT32: ArenaColumnKind.INTEGER,
    TypeKind.INT64: ArenaColumnKind.INTEGER,
    TypeKind.UINT64: ArenaColumnKind.UINT64,
    TypeKind.FLOAT32: ArenaColumnKind.FLOAT32,
    TypeKind.FLOAT64: ArenaColumnKind.FLOAT64,
    TypeKind.DECIMAL: ArenaColumnKind.DECIMAL,
    TypeKind.BOOLEAN: ArenaColumnKind.BOOLEAN,
    TypeKind.BINARY: ArenaColumnKind.BYTES,
    TypeKind.TIME: ArenaColumnKind.TIME,
    TypeKind.YEAR: ArenaColumnKind.YEAR,
    TypeKind.BIT: ArenaColumnKind.BIT,
    TypeKind.ENUM: ArenaColumnKind.ENUM,
    TypeKind.SET: ArenaColumnKind.SET,
    TypeKind.JSON: ArenaColumnKind.JSON,
}
_BY_BASE: dict[str, ArenaColumnKind] = {
    "decimal": ArenaColumnKind.DECIMAL_TEXT,
    "date": ArenaColumnKind.DATE,
    "datetime": ArenaColumnKind.DATETIME,
    "timestamp": ArenaColumnKind.TIMESTAMP,
    "uuid": ArenaColumnKind.ADDRESS,
    "inet4": ArenaColumnKind.ADDRESS,
    "inet6": ArenaColumnKind.ADDRESS,
}


@lru_cache(maxsize=1024)
def layout_of(table: MySqlTable) -> ArenaLayout:
    """Return the layout of `table`. Raises `SchemaError` for an unsupported type."""
    labels: list[bytes] = []
    names: list[str] = []
    columns: list[ColumnLayout] = []
    for column in table.columns:
        columns.append(_column(column, labels))
        if column.name in table.primary_key and not table.for_people and columns[-1].form is ArenaColumnKind.TEXT:
            last = columns[-1]
            distinct = last.charset + charsets.DISTINCT if charsets.has_table(last.family) else last.charset
            columns[-1] = replace(last, charset=distinct, exact=True)
        family, charset = columns[-1].family, columns[-1].charset
        if charsets.has_table(family) and charset not in names:
            names.append(charset)
    return ArenaLayout(tuple(columns), tuple(labels), tuple(names))


def _column(column: MySqlColumn, labels: list[bytes]) -> ColumnLayout:
    logical, shape = column.logical(), column.shape
    arrow = logical.arrow()
    form = _BY_BASE.get(shape.base, ArenaColumnKind.TEXT)
    if column.treatment is ValueTreatment.GEOJSON:
        return ColumnLayout(ArenaColumnKind.GEOJSON, 0, arrow)
    if form in (ArenaColumnKind.TEXT, ArenaColumnKind.DECIMAL_TEXT) and logical.kind in _FORMS:
        form = _FORMS[logical.kind]
    width = 0 if pa.types.is_string(arrow) or pa.types.is_binary(arrow) else max(int(arrow.bit_width) // 8, 1)
    match form:
        case ArenaColumnKind.TEXT | ArenaColumnKind.ENUM | ArenaColumnKind.SET:
            first, count = len(labels), 0
            if form is not ArenaColumnKind.TEXT:
                labels.extend([b""] if form is ArenaColumnKind.ENUM else [])
                labels.extend(label.encode() for label in shape.labels)
                count = len(labels) - first
            family = charsets.family_of(column.charset)
            utf8 = family == FAMILY_UTF8
            return ColumnLayout(
                form, 0, arrow, family=family, charset=column.charset, first_label=first, labels=count, check_utf8=utf8
            )
        case ArenaColumnKind.DATE | ArenaColumnKind.DATETIME | ArenaColumnKind.TIMESTAMP:
            as_text = column.treatment is ValueTreatment.DATES_TEXT
            policy = DATES_ERROR if column.treatment is ValueTreatment.DATES_ERROR else DATES_NULL
            return ColumnLayout(form, width, arrow, as_text=as_text, dates=policy)
        case ArenaColumnKind.BIT:
            return ColumnLayout(ArenaColumnKind.BIT64 if shape.length > 63 else form, width, arrow)
        case ArenaColumnKind.BYTES:
            # If the column may be a CHAR, it is unknown if the log left out zeros or spaces.
            padded = shape.base == "binary" and column.collation != TEXT_OR_BYTES
            return ColumnLayout(form, 0, arrow, pad=shape.length if padded else 0)
        case _:
            return ColumnLayout(form, width, arrow, check_utf8=form is ArenaColumnKind.JSON)
