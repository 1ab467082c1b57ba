"""The layouts that an Iceberg table can have, and the partitions of its rows, computed column by column. Arrow only.

Called by the configuration, inside stage tasks and by the sink. pyiceberg is not imported, because that takes a worker
seconds; only its compiled functions for partition transforms are. Manifests store the values of a partition in
Iceberg's internal form; a day, for example, is a number. Readers take partition values from manifests, and never from
the name of a file's folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from raycdc.errors import RowRefusedError
from raycdc.model import TableSchema
from raycdc.model.arrays import beyond_calendar
from raycdc.model.rules.layout import Kind, PartitionField, TableLayout
from raycdc.sinks.iceberg.files import IcebergColumn, WrittenFile, stored, type_text, write_data_file
from raycdc.sinks.lakes.partitioning import Values, gathered
from raycdc.storage.files import FileName, StorePath

_WHOLE = ("int", "long", "string")
_TIMES = ("timestamp", "timestamptz")

#: The types, without their parameters, from which each kind of partition can be computed.
_SOURCES: dict[Kind, tuple[str, ...]] = {
    "identity": ("boolean", *_WHOLE, "decimal", "date", *_TIMES),
    "year": ("date", *_TIMES),
    "month": ("date", *_TIMES),
    "day": ("date", *_TIMES),
    "hour": _TIMES,
    "bucket": (*_WHOLE, "decimal", "date", *_TIMES, "binary"),
    "truncate": (*_WHOLE, "decimal"),
}
_SUFFIXES: dict[Kind, str] = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}

#: Names that users cannot set: properties on which raycdc's writing depends, and names that are not table properties.
_REFUSED = re.compile(
    r"raycdc\..*|commit\..*|format-version|uuid|schema|last-.*|current-.*|default-.*|snapshot-.*|schema\.name-mapping.*"
    r"|write\.(delete|update|merge)\.(mode|distribution-mode|isolation-level)|write\.format\.default"
    r"|write\.metadata\.(path|compression-codec|delete-after-commit\.enabled|previous-versions-max)|write\.data\.path"
    r"|encryption\..*"
)

_TRANSFORM = re.compile(r"(bucket|truncate)\[(\d+)\]")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.\-]{1,60}")


def no_layout(layout: TableLayout, schema: TableSchema) -> str:
    """Return the reason why an Iceberg table of `schema` cannot have this layout; empty if it can."""
    types = {field.name: type_text(field.type) for field in stored(schema.arrow())}
    for field in layout.partitions:
        kind = types[field.column]
        if kind.partition("(")[0] not in _SOURCES[field.kind]:
            can = [kind_ for kind_, of in _SOURCES.items() if kind.partition("(")[0] in of]
            return (
                f"partition_by: {field.sql()}: column {field.column!r} is {kind}, of which Iceberg "
                f"{'takes ' + ', '.join(can) if can else 'has no partition here'}."
            )
    names = [partition_name(field) for field in layout.partitions]
    for field, name in zip(layout.partitions, names, strict=True):
        if names.count(name) > 1 or (field.kind != "identity" and name in types):
            return f"partition_by: {field.sql()} would be called {name!r}, which something else is called already."
    for name in dict(layout.options):
        if _REFUSED.fullmatch(name):
            return f"table_options: {name} is raycdc's to set: it says how the table is written. Leave it out."
    return ""


def partition_name(field: PartitionField) -> str:
    """Return the name that a partition field gets in the table."""
    return field.column + _SUFFIXES.get(field.kind, f"_{field.kind}")


def transform_text(field: PartitionField) -> str:
    """Return the transform in the form of Iceberg's metadata: ``bucket[16]``."""
    return f"{field.kind}[{field.width}]" if field.width else field.kind


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition field of a table: its name, the field id of the column that it is computed from, and its transform as
    Iceberg writes it.
    """

    source: int
    name: str
    transform: str

    @property
    def is_known(self) -> bool:
        return self.transform in ("identity", "year", "month", "day", "hour") or bool(
            _TRANSFORM.fullmatch(self.transform)
        )

    def of(self, column: pa.Array) -> pa.Array:
        """Return the partition of each value; a number if Iceberg stores a number."""
        from pyiceberg_core import transform as compiled

        if counted := _TRANSFORM.fullmatch(self.transform):
            function: Callable[..., pa.Array] = getattr(compiled, counted[1])
            return function(column, int(counted[2]))
        if self.transform == "identity":
            return _numbers(column)
        return _numbers(getattr(compiled, self.transform)(column))


def _numbers(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def write_data_files(
    path: FileName,
    columns: Sequence[IcebergColumn],
    batches: Iterable[pa.RecordBatch],
    partitions: Sequence[StoredPartition],
) -> list[WrittenFile]:
    """Write `batches`, which are `as_stored`, and return the files; none if there is no row.

    With `partitions`, each partition has separate files in folders below that of `path`, and the field ``partition`` of
    each file has the partition's values. If a partition column is missing, its value is null. Raises `RowRefusedError`
    for a time that cannot partition a table.
    """
    if not partitions:
        written = write_data_file(path, columns, batches)
        return [] if written is None else [written]
    names = {column.id: column.name for column in columns}

    def keys(rows: pa.Table) -> list[pa.Array]:
        for one in partitions:
            name = names.get(one.source, "")
            if name and pa.types.is_temporal(rows.schema.field(name).type) and beyond_calendar(rows.column(name)):
                raise RowRefusedError(
                    "A row has a moment outside the years 1 to 9999, which not every reader has, in column "
                    f"{name!r}, which the Iceberg table is partitioned by. Make something else of it in the "
                    "projection, or partition by another column."
                )
        return [
            one.of(_one_chunk(rows.column(names[one.source]))) if one.source in names else pa.nulls(rows.num_rows)
            for one in partitions
        ]

    files = []
    for number, (values, rows) in enumerate(gathered(batches, keys)):
        location = path if isinstance(path, StorePath) else Path(path)
        stem, _, suffix = location.name.rpartition(".")
        location = location.parent / folder_of(partitions, values) / f"{stem}-{number:05d}.{suffix}"
        described = write_data_file(location, columns, rows)
        assert described is not None, location
        files.append(replace(described, partition=tuple(values)))
    return files


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def folder_of(partitions: Sequence[StoredPartition], values: Values) -> str:
    """Return the name of a partition's folder, for people: ``id_bucket=3/day=19754``."""
    return "/".join(
        f"{_plain(one.name)}={'null' if value is None else _plain(str(value))}"
        for one, value in zip(partitions, values, strict=True)
    )


def _plain(text: str) -> str:
    if _PLAIN_VALUE.fullmatch(text) and text not in ("null", ".", ".."):
        return text
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', text)[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
