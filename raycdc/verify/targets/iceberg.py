"""Reads Iceberg tables by pyiceberg at their newest snapshot, in its catalogs or in a warehouse folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.expressions
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import IntegerType, LongType, StringType

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.storage.settings import StorageSettings, iceberg_properties, with_tls
from raycdc.storage.url import FolderLocation, parse_location
from raycdc.verify.changelog import EMPTIED, KIND
from raycdc.verify.targets.api import NotComparedError, RowFilter, spans

#: pyiceberg's classes accept arguments that pydantic's types do not show.
_has: Any = pyiceberg.expressions

_METADATA = re.compile(r"v(\d+)(?:\.gz)?\.metadata\.json")


@dataclass(frozen=True, slots=True)
class Warehouse:
    """The location of tables according to the sink's section: `type` is hadoop, sql, rest or glue."""

    type: str
    name: str
    warehouse: str
    uri: str = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    storage: StorageSettings

    def table(self, target: TableId) -> Table:
        """Return the table.

        Raises `NotComparedError` if there is no such table, or if this module cannot read its catalog.
        """
        absent = NotComparedError(f"there is no Iceberg table {target} in the catalog")
        if self.type == "hadoop":
            location = parse_location(self.warehouse)
            if not isinstance(location, FolderLocation):
                raise NotComparedError("a warehouse of type hadoop on an object store is not read by verify")
            folder = Path(location.path).absolute() / target.db / target.table / "metadata"
            names = [name.name for name in folder.glob("v*.metadata.json")] if folder.is_dir() else []
            versions = {int(match[1]): name for name in names if (match := _METADATA.fullmatch(name))}
            if not versions:
                raise absent
            return StaticTable.from_metadata(f"file://{folder / versions[max(versions)]}")
        try:
            catalog = load_catalog(self.name, **with_tls(self._properties()))  # type: ignore[arg-type]  # TLS is nested
            return catalog.load_table((target.db, target.table))
        except NoSuchTableError:
            raise absent from None
        except Exception as cause:  # SQLAlchemy's driver, boto3 and the HTTP library raise different errors.
            raise SinkError(
                f"The {self.type} catalog of the Iceberg sink cannot be read ({type(cause).__name__}). Check "
                "sink.catalog.uri and properties."
            ) from cause

    def _properties(self) -> dict[str, str]:
        properties = {"type": self.type, **({"uri": self.uri} if self.uri else {})}
        if self.type == "rest":
            properties |= {"warehouse": self.warehouse} if self.warehouse else {}
        elif self.warehouse:
            location = parse_location(self.warehouse)
            if isinstance(location, FolderLocation):
                properties["warehouse"] = f"file://{Path(location.path).absolute()}"
            else:
                properties |= {"warehouse": str(location), **iceberg_properties(location, self.storage)}
        return {**properties, **self.properties}


class IcebergRows:
    """The rows of the table ``DB.TABLE``; a `TargetTable`."""

    one_zero = False

    def __init__(self, warehouse: Warehouse, target: TableId) -> None:
        self._warehouse = warehouse
        self._target = target

    def __repr__(self) -> str:
        return f"IcebergRows({self._target}, {self._warehouse!r})"

    def columns(self) -> Sequence[str]:
        return [field.name for field in self._warehouse.table(self._target).schema().fields]

    def rows_about(self) -> int:
        snapshot = self._warehouse.table(self._target).current_snapshot()
        summary = None if snapshot is None else snapshot.summary
        return int((summary["total-records"] if summary is not None else None) or 0)

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        table = self._warehouse.table(self._target)
        scan = table.scan(row_filter=_condition(wanted, table.schema()), selected_fields=tuple(columns))
        for batch in scan.to_arrow_batch_reader():
            yield batch.select(list(columns))


def _condition(wanted: RowFilter | None, schema: Schema) -> BooleanExpression:
    """Return the condition by which files and groups of rows are skipped.

    It has spans of integers and texts, because their bounds are exact.
    """
    parts: list[Any] = []
    for name, values in () if wanted is None else wanted.values.items():
        kind = schema.find_field(name).field_type
        numbers = isinstance(kind, IntegerType | LongType) and pa.types.is_integer(values.type)
        texts = isinstance(kind, StringType) and pa.types.is_string(values.type)
        # A name with a dot would be taken for a field of a struct.
        if "." not in name and (numbers or texts):
            parts.append(reduce(_has.Or, (_between(name, low, high) for low, high in spans(values))))
    if wanted is None or not parts:
        return AlwaysTrue()
    condition: BooleanExpression = reduce(_has.And, parts)
    if wanted.of_changes:
        condition = _has.Or(condition, _has.EqualTo(KIND, EMPTIED))
    return condition


def _between(name: str, low: object, high: object) -> object:
    return _has.And(_has.GreaterThanOrEqual(name, low), _has.LessThanOrEqual(name, high))
