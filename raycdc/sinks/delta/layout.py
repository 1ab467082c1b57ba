"""The layouts that a Delta table can have: its partition columns, the form of their values, and its properties. Pure.

The values of a partition column are not in the data files; they exist only as text in the log. A partition column must
therefore have a type whose text every reader parses to the same value. An empty text is refused as a value, because
every reader takes it for NULL. A text that cannot be a folder name is refused, because other writers, including Spark's
MERGE, name folders by partition values.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import RowRefusedError
from raycdc.model import TableSchema
from raycdc.model.arrays import beyond_calendar
from raycdc.model.rules.layout import TableLayout
from raycdc.plugins import did_you_mean

#: The folder of rows that have no value, as Hive, Spark and delta-rs call it.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

#: The most bytes of a folder name, which writers build from column and value. File systems allow 255.
_FOLDER_BYTES_MAX = 250


#: Properties that do not affect how raycdc reads and writes rows.
OPTIONS = frozenset(
    {
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.checkpointInterval",
        "delta.deletedFileRetentionDuration",
        "delta.enableDeletionVectors",
        "delta.enableExpiredLogCleanup",
        "delta.logRetentionDuration",
        "delta.targetFileSize",
        "delta.tuneFileSizesForRewrites",
    }
)
#: Properties that Spark sets instead of delta-rs. They change which features readers must support, and delta-rs would
#: require more features than necessary.
BY_SPARK = frozenset({"delta.enableDeletionVectors"})

#: The defaults of properties that a table does not have.
ABSENT = {"delta.enableDeletionVectors": "false"}

#: The reasons why a configuration cannot set certain other properties.
_REFUSED: dict[str, str] = {
    "delta.appendOnly": "a truncation could not empty the table",
    "delta.columnMapping.mode": "data files have the names of the table's columns",
    "delta.dataSkippingNumIndexedCols": "merges find files by statistics, which raycdc keeps exact",
    "delta.dataSkippingStatsColumns": "merges find files by statistics, which raycdc keeps exact",
    "delta.setTransactionRetentionDuration": "the record of what was committed would expire",
}


def no_layout(layout: TableLayout, schema: TableSchema) -> str:
    """Return the reason why a Delta table of `schema` cannot have this layout; empty if it can."""
    for field in layout.partitions:
        if field.kind != "identity":
            return (
                f"partition_by: {field.sql()}: Delta tables are partitioned by columns alone. Give the projection "
                f"such a column, as in date({field.column}) AS day, and name that."
            )
        column = next(c for c in schema.columns if c.name == field.column)
        if invalid := unfit(column.name, column.type.arrow()):
            return f"partition_by: {invalid}"
    if layout.partitions and {c.name for c in schema.columns} <= set(layout.columns):
        return "partition_by: a Delta table needs a column that it is not partitioned by."
    for name in dict(layout.options):
        if name.startswith("raycdc."):
            return f"table_options: {name} is raycdc's own. Leave it out."
        if name in _REFUSED:
            return f"table_options: {name} cannot be set: {_REFUSED[name]}. Leave it out."
        if name in BY_SPARK and dict(layout.options)[name] not in ("true", "false"):
            return f"table_options: {name} is true or false."
        if name.startswith("delta.") and name not in OPTIONS:
            return (
                f"table_options: {name} is not among the properties that raycdc writes by: {', '.join(sorted(OPTIONS))}"
                f"{did_you_mean(name, OPTIONS) or '.'}"
            )
    return ""


def set_by_us(layout: TableLayout) -> dict[str, str]:
    """Return the requested properties without those that are set `BY_SPARK`."""
    return {name: value for name, value in layout.options if name not in BY_SPARK}


def unfit(name: str, arrow: pa.DataType) -> str:
    """Return the reason why a column of this type cannot partition a table; empty if it can."""
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
    if any(is_one(arrow) for is_one in kinds):
        return ""
    return (
        f"column {name!r} is {arrow}: readers of Delta tables agree on the values of text, whole numbers, booleans and "
        "dates. Make one of these of it in the projection."
    )


def value_text(value: Any) -> str | None:
    """Return the text of a partition's value in the log."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime.date():
            return value.isoformat()
        case _:
            return str(value)


def partition_values(names: Sequence[str], values: Sequence[Any], target: str) -> dict[str, str | None]:
    """Return the values of one partition as text. Raises `DataError` for a value that cannot partition a table."""
    for name, value in zip(names, values, strict=True):
        if invalid := _why_invalid(name, value):
            raise _refused(target, name, invalid)
    return {name: value_text(value) for name, value in zip(names, values, strict=True)}


def check_days(rows: pa.Table, names: Sequence[str], target: str) -> None:
    """Raise `DataError` if a row has a date outside the years 1 to 9999 in one of the columns `names`."""
    for name in names:
        is_day = name in rows.column_names and pa.types.is_date(rows.schema.field(name).type)
        if is_day and beyond_calendar(rows.column(name)):
            raise _refused(target, name, "a day outside the years 1 to 9999, which not every reader has")


def check_values(rows: pa.Table, names: Sequence[str], target: str) -> None:
    """Raise `DataError` if one of the columns `names` has a value that cannot partition a table. Names of columns that
    `rows` do not have are ignored.
    """
    check_days(rows, names, target)
    for name in names:
        if name not in rows.column_names or not pa.types.is_string(rows.schema.field(name).type):
            continue
        texts = rows.column(name)
        sizes = pc.binary_length(texts)
        # A byte becomes at most three characters of a folder's name, so shorter texts need no check.
        sure = max(0, (_FOLDER_BYTES_MAX - len(_escaped(name)) - 1) // 3)
        # Texts of the length of the text that stands for NULL are checked, too.
        uneven_sizes = pc.or_(pc.equal(sizes, 0), pc.equal(sizes, len(NO_VALUE)))
        unsure = texts.filter(pc.or_(uneven_sizes, pc.greater(sizes, sure)))
        for text in unsure.unique().to_pylist():
            if invalid := _why_invalid(name, text):
                raise _refused(target, name, invalid)


def folder_of(values: Mapping[str, str | None]) -> str:
    """Return the folder of a partition's files, relative to the table's: ``country=AT/day=2024-02-29``; empty without
    partitions.

    Readers use the values in the log, not those in the folder's name. Special characters are written as %XX.
    """
    return "/".join(f"{_escaped(name)}={NO_VALUE if text is None else _escaped(text)}" for name, text in values.items())


def _escaped(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _why_invalid(name: str, value: Any) -> str:
    """Return the reason why a partition cannot have this value; empty if it can."""
    if value == "":
        return "an empty text, for which every reader would see NULL"
    if value == NO_VALUE:
        return f"the text {NO_VALUE}, which stands for NULL"
    if isinstance(value, str) and len(folder_of({name: value})) > _FOLDER_BYTES_MAX:
        return "a text that is too long for the name of a folder"
    return ""


def _refused(target: str, name: str, invalid: str) -> RowRefusedError:
    return RowRefusedError(
        f"{target}: a row has {invalid}, in column {name!r}, which the Delta table is partitioned by. Make something "
        "else of it in the projection, or partition by another column."
    )
