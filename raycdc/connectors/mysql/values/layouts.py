"""How a table's columns lie in an arena: the step between the type mapping (`types`) and the compiled loops.

`layout_of` is asked by the arena (`columns`) and by both plans (`binlog.plan`, `snapshot.resultset`), so that label
and code-point tables are numbered once. A layout depends on the table alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

import pyarrow as pa

from raycdc.connectors.mysql.values import charsets
from raycdc.connectors.mysql.values.charset_loops import FAMILY_UTF8
from raycdc.connectors.mysql.values.time_loops import DATES_ERROR, DATES_NULL
from raycdc.connectors.mysql.values.types import TEXT_OR_BYTES, MySqlColumn, MySqlTable, Treatment
from raycdc.model import TypeKind


class Form(Enum):
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
    """One column. `width` is bytes per value in the fixed-width memory (booleans: one), 0 for text.

    `as_text`: dates as the server prints them. `family` and `charset` say how text is converted; `first_label` is the
    number of the first label in the table's labels (an ENUM's is the empty one of index 0); `labels` counts them.
    `check_utf8`: values are supposed to arrive as UTF-8.
    """

    form: Form
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


@dataclass(frozen=True, slots=True)
class TableLayout:
    """All columns, the labels of all ENUMs and SETs, and the character sets that need a table, in order of use."""

    columns: tuple[ColumnLayout, ...]
    labels: tuple[bytes, ...]
    charsets: tuple[str, ...]

    def points_of(self, column: int) -> int:
        """Where the code points of the column's character set begin in the arena's `points`."""
        charset = self.columns[column].charset
        if charset not in self.charsets:
            return 0
        before = self.charsets[: self.charsets.index(charset)]
        return sum(len(charsets.code_points(name)) for name in before)


_FORMS: dict[TypeKind, Form] = {
    TypeKind.INT8: Form.INTEGER,
    TypeKind.INT16: Form.INTEGER,
    TypeKind.INT32: Form.INTEGER,
    TypeKind.INT64: Form.INTEGER,
    TypeKind.UINT64: Form.UINT64,
    TypeKind.FLOAT32: Form.FLOAT32,
    TypeKind.FLOAT64: Form.FLOAT64,
    TypeKind.DECIMAL: Form.DECIMAL,
    TypeKind.BOOLEAN: Form.BOOLEAN,
    TypeKind.BINARY: Form.BYTES,
    TypeKind.TIME: Form.TIME,
    TypeKind.YEAR: Form.YEAR,
    TypeKind.BIT: Form.BIT,
    TypeKind.ENUM: Form.ENUM,
    TypeKind.SET: Form.SET,
    TypeKind.JSON: Form.JSON,
}
_BY_BASE: dict[str, Form] = {
    "decimal": Form.DECIMAL_TEXT,
    "date": Form.DATE,
    "datetime": Form.DATETIME,
    "timestamp": Form.TIMESTAMP,
    "uuid": Form.ADDRESS,
    "inet4": Form.ADDRESS,
    "inet6": Form.ADDRESS,
}


@lru_cache(maxsize=1024)
def layout_of(table: MySqlTable) -> TableLayout:
    """The layout of `table`. Raises `SchemaError` for a type that cannot be carried."""
    labels: list[bytes] = []
    names: list[str] = []
    columns: list[ColumnLayout] = []
    for column in table.columns:
        columns.append(_column(column, labels))
        family, charset = columns[-1].family, columns[-1].charset
        if charsets.has_table(family) and charset not in names:
            names.append(charset)
    return TableLayout(tuple(columns), tuple(labels), tuple(names))


def _column(column: MySqlColumn, labels: list[bytes]) -> ColumnLayout:
    logical, shape = column.logical(), column.shape
    arrow = logical.arrow()
    form = _BY_BASE.get(shape.base, Form.TEXT)
    if column.treatment is Treatment.GEOJSON:
        return ColumnLayout(Form.GEOJSON, 0, arrow)
    if form in (Form.TEXT, Form.DECIMAL_TEXT) and logical.kind in _FORMS:
        form = _FORMS[logical.kind]
    width = 0 if pa.types.is_string(arrow) or pa.types.is_binary(arrow) else max(int(arrow.bit_width) // 8, 1)
    match form:
        case Form.TEXT | Form.ENUM | Form.SET:
            first, count = len(labels), 0
            if form is not Form.TEXT:
                labels.extend([b""] if form is Form.ENUM else [])
                labels.extend(label.encode() for label in shape.labels)
                count = len(labels) - first
            family = charsets.family_of(column.charset)
            utf8 = family == FAMILY_UTF8
            return ColumnLayout(
                form, 0, arrow, family=family, charset=column.charset, first_label=first, labels=count, check_utf8=utf8
            )
        case Form.DATE | Form.DATETIME | Form.TIMESTAMP:
            as_text = column.treatment is Treatment.DATES_TEXT
            policy = DATES_ERROR if column.treatment is Treatment.DATES_ERROR else DATES_NULL
            return ColumnLayout(form, width, arrow, as_text=as_text, dates=policy)
        case Form.BIT:
            return ColumnLayout(Form.BIT64 if shape.length > 63 else form, width, arrow)
        case Form.BYTES:
            # Where it may be a CHAR, nothing tells whether zeros or spaces were left out.
            padded = shape.base == "binary" and column.collation != TEXT_OR_BYTES
            return ColumnLayout(form, 0, arrow, pad=shape.length if padded else 0)
        case _:
            return ColumnLayout(form, width, arrow, check_utf8=form is Form.JSON)
