"""Columns, partitions and data files in pyiceberg's form. Pure; called by `raycdc.sinks.iceberg.table` and `catalog`.

`updated` applies updates to a table's metadata by pyiceberg's own functions, but without copying everything.
pyiceberg's `update_table_metadata` ends with a deep copy of the metadata, at every step of a transaction and once more
in the catalog. With 2,000 snapshots, this is half of the cost of a commit. The copy is not needed, because parts of
metadata are frozen, and each update makes new lists. The imported private names exist in the pinned version of
pyiceberg.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from raycdc.model.rules.layout import TableLayout
from raycdc.sinks.iceberg.files import IcebergColumn, WrittenFile
from raycdc.sinks.iceberg.layout import partition_name, transform_text


def iceberg_schema(columns: Sequence[IcebergColumn], *, number: int = 0, before: Schema | None = None) -> Schema:
    """Return pyiceberg's schema for columns.

    All columns are optional, because a changelog has rows from before a column existed or was NOT NULL. If another
    client made columns of the schema `before` required, or identifier fields, they stay so.
    """
    required = set() if before is None else {field.field_id for field in before.fields if field.required}
    fields = [
        NestedField(field_id=column.id, name=column.name, field_type=column.type, required=column.id in required)
        for column in columns
    ]
    ids = {column.id for column in columns}
    identifiers = [] if before is None else [number for number in before.identifier_field_ids if number in ids]
    return Schema(*fields, schema_id=number, identifier_field_ids=identifiers)


def partition_spec(layout: TableLayout, ids: Mapping[str, int]) -> PartitionSpec:
    """Return pyiceberg's partition spec for the requested partitions, of columns with these `ids`."""
    fields = [
        IcebergPartitionField(
            source_id=ids[field.column],
            field_id=PARTITION_FIELD_ID_START + at,
            transform=parse_transform(transform_text(field)),
            name=partition_name(field),
        )
        for at, field in enumerate(layout.partitions)
    ]
    return PartitionSpec(*fields) if fields else UNPARTITIONED_PARTITION_SPEC


def data_file(written: WrittenFile, location: str, spec_id: int) -> DataFile:
    """Return a file that a task wrote at `location`, in the form of a manifest."""
    statistics = written.statistics
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(*written.partition),
        record_count=written.rows,
        file_size_in_bytes=written.size,
        column_sizes=statistics.sizes,
        value_counts=statistics.values,
        null_value_counts=statistics.nulls,
        nan_value_counts={},
        lower_bounds=statistics.lower,
        upper_bounds=statistics.upper,
        split_offsets=written.splits,
        sort_order_id=None,
        spec_id=spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def updated(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> TableMetadata:
    """Return metadata with these updates applied."""
    context = _TableMetadataUpdateContext()
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    return metadata


def next_version(current: TableMetadata, updates: Iterable[TableUpdate], *, location: str) -> TableMetadata:
    """Return the metadata that follows `current`, whose file is at `location`.

    Raises `ValueError` for updates that do not apply.
    """
    following = _update_table_metadata_log(updated(current, updates), location, current.last_updated_ms)
    following.spec().check_compatible(following.schema())
    following.sort_order().check_compatible(following.schema())
    if following.last_updated_ms != current.last_updated_ms:
        return following
    return following.model_copy(update={"last_updated_ms": time.time_ns() // 1_000_000})
