"""How a Delta table may be laid out: what it can be partitioned by, how values stand in its log, its properties. Pure.

A partition's value is text in the log and nowhere else: the column is not in the data files. So only types are taken
whose text every reader takes for the same value; and an empty text, which every reader takes for NULL, is refused, as
is one that makes no name of a folder, which other writers of the table (a merge by Spark, too) give to its files.
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

#: A folder's name, in bytes: file systems end at 255, and every writer makes one of column and value.
_FOLDER_BYTES_MAX = 250


#: Properties that change nothing of how rows are read and written here.
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
#: Those that Spark gives a table, as they change what its readers must know of. delta-rs asks readers for more.
BY_SPARK = frozenset({"delta.enableDeletionVectors"})

#: The values of properties that a table does not name.
ABSENT = {"delta.enableDeletionVectors": "false"}

#: Why others are not for a configuration.
_REFUSED: dict[str, str] = {
    "delta.appendOnly": "a truncation could not empty the table",
    "delta.columnMapping.mode": "data files have the names of the table's columns",
    "delta.dataSkippingNumIndexedCols": "merges find files by statistics, which raycdc keeps exact",
    "delta.dataSkippingStatsColumns": "merges find files by statistics, which raycdc keeps exact",
    "delta.setTransactionRetentionDuration": "the record of what was committed would expire",
}


def no_layout(layout: TableLayout, schema: TableSchema) -> str:
    """Why a Delta table of `schema` cannot be laid out so; empty where it can."""
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
    """The properties asked for but those `BY_SPARK`."""
    return {name: value for name, value in layout.options if name not in BY_SPARK}


def unfit(name: str, arrow: pa.DataType) -> str:
    """Why a column of this type cannot partition; empty where it can."""
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
    if any(is_one(arrow) for is_one in kinds):
        return ""
    return (
        f"column {name!r} is {arrow}: readers of Delta tables agree on the values of text, whole numbers, booleans and "
        "dates. Make one of these of it in the projection."
    )


def value_text(value: Any) -> str | None:
    """A partition's value as the log has it."""
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
    """The values of one partition as the log has them. `DataError` for one that no reader or writer could have."""
    for name, value in zip(names, values, strict=True):
        if invalid := _why_invalid(name, value):
            raise _refused(target, name, invalid)
    return {name: value_text(value) for name, value in zip(names, values, strict=True)}


def check_days(rows: pa.Table, names: Sequence[str], target: str) -> None:
    """`DataError` where a row has a day that no partition may have in one of the columns `names`."""
    for name in names:
        is_day = name in rows.column_names and pa.types.is_date(rows.schema.field(name).type)
        if is_day and beyond_calendar(rows.column(name)):
            raise _refused(target, name, "a day outside the years 1 to 9999, which not every reader has")


def check_values(rows: pa.Table, names: Sequence[str], target: str) -> None:
    """`DataError` where a row has such a value in one of the columns `names`, as far as it has them."""
    check_days(rows, names, target)
    for name in names:
        if name not in rows.column_names or not pa.types.is_string(rows.schema.field(name).type):
            continue
        texts = rows.column(name)
        sizes = pc.binary_length(texts)
        # Each byte is three characters of a folder's name at most.
        sure = max(0, (_FOLDER_BYTES_MAX - len(_escaped(name)) - 1) // 3)
        # The text that stands for NULL has a length of its own, too.
        uneven_sizes = pc.or_(pc.equal(sizes, 0), pc.equal(sizes, len(NO_VALUE)))
        unsure = texts.filter(pc.or_(uneven_sizes, pc.greater(sizes, sure)))
        for text in unsure.unique().to_pylist():
            if invalid := _why_invalid(name, text):
                raise _refused(target, name, invalid)


def folder_of(values: Mapping[str, str | None]) -> str:
    """The folder of a partition's files, below the table's: ``country=AT/day=2024-02-29``; empty without partitions.

    Readers go by the log. Every character that is not plain is written as %XX.
    """
    return "/".join(f"{_escaped(name)}={NO_VALUE if text is None else _escaped(text)}" for name, text in values.items())


def _escaped(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _why_invalid(name: str, value: Any) -> str:
    """Why no partition has this value; empty where one may."""
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
