"""The layout of a target table: its partitions, and the properties with which it is created.

Pure. A partition is spelled as in the DDL of Spark and Flink: ``country``, ``days(created_at)``, ``bucket(16, id)``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from raycdc.model.column_names import spark_fold

Kind = Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"]

#: The SQL names of partition functions. The names for units of time are also accepted in the singular.
_SQL_NAMES: dict[str, str] = {
    "year": "years", "month": "months", "day": "days", "hour": "hours", "bucket": "bucket", "truncate": "truncate",
}  # fmt: skip
_KINDS = {name: kind for kind, spelled in _SQL_NAMES.items() for name in (kind, spelled)}
_COUNTED = ("bucket", "truncate")

_NAME = r"(?:[^\W\d]\w*|`(?:[^`]|``)+`)"
_COLUMN = re.compile(_NAME)
_CALL = re.compile(rf"(?P<kind>\w+)\s*\(\s*(?:(?P<width>\d{{1,9}})\s*,\s*)?(?P<column>{_NAME})\s*\)")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A partition of a target table: the values of a column, or the results of the function `kind` for them.

    `width` is the parameter of ``bucket`` and ``truncate``.
    """

    column: str
    kind: Kind = "identity"
    width: int = 0

    def sql(self) -> str:
        """Return the partition as in a CREATE TABLE."""
        column = "`" + self.column.replace("`", "``") + "`"
        if self.kind == "identity":
            return column
        counted = f"{self.width}, " if self.kind in _COUNTED else ""
        return f"{_SQL_NAMES[self.kind]}({counted}{column})"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The layout of a target table, as ``partition_by`` and ``table_options`` configure it.

    If no partitions are configured, an existing table keeps its own.
    """

    partitions: tuple[PartitionField, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.partitions or self.options)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that partitions are based on."""
        return tuple(field.column for field in self.partitions)


#: The layout if none is configured.
ANY_LAYOUT = TableLayout()


def partition_field(text: str) -> PartitionField:
    """Return the partition that `text` describes. Raises ValueError if it describes none."""
    text = text.strip()
    if _COLUMN.fullmatch(text):
        return PartitionField(_unquoted(text))
    call = _CALL.fullmatch(text)
    kind = _KINDS.get(call["kind"].lower()) if call else None
    if call is None or kind is None:
        raise ValueError(
            f'"{text}" is neither a column nor years, months, days or hours of one, bucket(16, column) or '
            "truncate(10, column)"
        )
    width = int(call["width"] or 0)
    if (kind in _COUNTED) != (width > 0):
        wanted = f"{kind}(16, column)" if kind in _COUNTED else f"{_SQL_NAMES[kind]}(column)"
        raise ValueError(f'"{text}" is spelled {wanted}')
    return PartitionField(_unquoted(call["column"]), cast("Kind", kind), width)


def partition_fields(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """Return all partitions. Raises ValueError if one is invalid or occurs twice."""
    fields = tuple(map(partition_field, texts))
    seen = {(spark_fold(field.column), field.kind) for field in fields}
    if len(seen) < len(fields):
        raise ValueError("partitions twice by the same")
    return fields


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
