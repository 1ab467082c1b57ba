"""Reads and writes data files of Iceberg tables, with columns found by field id and with statistics as manifests have
them. Uses Arrow only, and does no I/O except of Parquet files. Called inside stage tasks and by `table`. pyiceberg is
not imported, because that takes a worker seconds.

Bounds in manifests are used here to skip files that cannot have a changed key (`KeyBounds`), and by every reader to
skip files that cannot match a filter. Bounds may therefore be exact or too wide, but never too narrow. Long texts are
cut, and a cut upper bound becomes the next greater text. Floating-point columns (because of NaN and -0.0) and booleans
have no bounds. The method is in the Iceberg table specification, "Data Files" and "Appendix D: Single-value
serialization".
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycdc.errors import TargetModifiedError
from raycdc.sinks.tasks import write_parquet
from raycdc.storage.files import FileName, delete, reading

#: Bounds of texts and bytes are cut to this many characters, Iceberg's own default.
BOUND_LENGTH_MAX = 16

#: The approximate bytes in memory of a batch. In a file, values that repeat take less.
BATCH_BYTES_MAX = 16 << 20

_ID = b"PARQUET:field_id"

#: Python's default context would round after 28 digits.
_EXACT = decimal.Context(prec=80)

_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_NAMES = {arrow: name for name, arrow in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class IcebergColumn:
    """A column of a table: its field id, name, and type as Iceberg writes it (``"decimal(10, 2)"``)."""

    id: int
    name: str
    type: str

    @property
    def arrow(self) -> pa.DataType:
        return arrow_type(self.type)

    def field(self) -> pa.Field:
        return pa.field(self.name, self.arrow, metadata={_ID: str(self.id).encode()})


@dataclass(frozen=True, slots=True)
class Statistics:
    """A manifest's statistics of a data file's columns, by field id. Bounds are encoded as Iceberg stores them."""

    sizes: dict[int, int] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that a task wrote.

    `splits` are the offsets of its row groups. `partition` contains the values of its partition as Iceberg stores them.
    """

    path: FileName
    rows: int
    size: int
    statistics: Statistics
    splits: list[int]
    partition: tuple[Any, ...] = ()


def is_known(text: str) -> bool:
    """Return True if this sink writes the type. It writes no nested types."""
    return text in _TYPES or text.startswith("decimal(")


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type for values of an Iceberg type."""
    if text.startswith("decimal("):
        precision, scale = text.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES[text]


def type_text(arrow: pa.DataType) -> str:
    """Return the Iceberg type for values of an Arrow type that a `LogicalType` has. Small integers become ``int``."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision}, {arrow.scale})"
    return _NAMES[pa.int32() if arrow in (pa.int8(), pa.int16()) else arrow]


def stored(schema: pa.Schema) -> pa.Schema:
    """Return `schema` as a table has it: nullable, and with Iceberg's types."""
    return pa.schema([pa.field(field.name, arrow_type(type_text(field.type))) for field in schema])


def as_stored(batch: pa.RecordBatch, columns: Sequence[IcebergColumn]) -> pa.RecordBatch:
    """Return the columns of `batch` in the order and with the types of `columns`."""
    arrays = [batch.column(column.name).cast(column.arrow) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field() for column in columns]))


def write_data_file(
    path: FileName, columns: Sequence[IcebergColumn], batches: Iterable[pa.RecordBatch]
) -> WrittenFile | None:
    """Write `batches`, which are `as_stored`, and return the description of the file for `table`; None if there is no
    row.
    """
    schema = pa.schema([column.field() for column in columns])
    written = write_parquet(path, schema, batches, store_decimal_as_integer=True)
    if not written.rows:
        delete([path])
        return None
    statistics, splits = _statistics(written.footer, columns), _splits(written.footer)
    return WrittenFile(written.path, written.rows, written.size, statistics, splits)


def read_columns(
    path: FileName, columns: Sequence[IcebergColumn], *, rows: int, only: bool = False
) -> Iterable[pa.RecordBatch]:
    """Yield the batches of a data file with `columns`, found by their field ids and cast; null if the file lacks one.

    A batch has at most `rows` rows and about `BATCH_BYTES_MAX` bytes. With `only`, just these columns are read. Raises
    `SinkError` for a file without field ids.
    """
    with reading(path) as source, pq.ParquetFile(source) as file:
        names = _names_by_id(file.schema_arrow, path)
        wanted = [names[column.id] for column in columns if column.id in names]
        at_once = _rows_at_once(file.metadata, wanted if only else names.values(), rows)
        for batch in file.iter_batches(at_once, columns=wanted if only else None):
            arrays = [
                batch.column(names[column.id]).cast(column.arrow)
                if column.id in names
                else pa.nulls(batch.num_rows, column.arrow)
                for column in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field() for column in columns]))


def _rows_at_once(footer: Any, names: Iterable[str], rows: int) -> int:
    """Return how many rows, at most `rows`, take about `BATCH_BYTES_MAX` in the row group with the widest rows."""
    wanted = frozenset(names)
    widest = 0.0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in wanted)
        widest = max(widest, size / max(group.num_rows, 1))
    return max(1, min(rows, int(BATCH_BYTES_MAX / widest))) if widest else rows


def rows_in(path: FileName) -> int:
    """Return the number of rows in a data file, from its footer."""
    with reading(path) as source, pq.ParquetFile(source) as file:
        return int(file.metadata.num_rows)


def read_whole(path: FileName, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file of keys or carried values completely; only `columns`, if they are given."""
    with reading(path) as source:
        return pq.read_table(source, columns=None if columns is None else list(columns))


def _names_by_id(schema: pa.Schema, path: FileName) -> dict[int, str]:
    if any(_ID not in (field.metadata or {}) for field in schema):
        raise TargetModifiedError(
            f"The data file {path} has no field ids, so its columns cannot be told for certain: somebody added it to "
            "the table as it was. Have it rewritten (Spark's rewrite_data_files with rewrite-all) and start again."
        )
    return {int(field.metadata[_ID]): field.name for field in schema}


def _splits(footer: Any) -> list[int]:
    starts = [footer.row_group(group).column(0) for group in range(footer.num_row_groups)]
    return sorted(
        min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset) for chunk in starts
    )


def _statistics(footer: Any, columns: Sequence[IcebergColumn]) -> Statistics:
    groups = range(footer.num_row_groups)
    found = Statistics()
    for index, column in enumerate(columns):
        chunks = [footer.row_group(group).column(index) for group in groups]
        found.sizes[column.id] = sum(chunk.total_compressed_size for chunk in chunks)
        found.values[column.id] = footer.num_rows
        statistics = [chunk.statistics for chunk in chunks]
        if any(one is None or not one.has_null_count for one in statistics):
            continue
        found.nulls[column.id] = sum(one.null_count for one in statistics)
        valued = [one for one in statistics if one.num_values]
        if valued and all(one.has_min_max for one in valued):
            low = _bound(column.type, [one.min_raw for one in valued], upper=False)
            high = _bound(column.type, [one.max_raw for one in valued], upper=True)
            if low is not None:
                found.lower[column.id] = low
            if high is not None:
                found.upper[column.id] = high
    return found


def _bound(kind: str, values: list[Any], *, upper: bool) -> bytes | None:
    """Return a bound in a manifest's form for the least or greatest value in a footer; None if there is no safe one."""
    chosen = max if upper else min
    match kind:
        case "int" | "date":
            return int(chosen(values)).to_bytes(4, "little", signed=True)
        case "long" | "timestamp" | "timestamptz":
            return int(chosen(values)).to_bytes(8, "little", signed=True)
        case "string" | "binary":
            return _cut(chosen(_raw(value) for value in values), text=kind == "string", upper=upper)
        case _ if kind.startswith("decimal("):
            unscaled = chosen(_unscaled(value) for value in values)
            return unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
        case _:
            return None


def _raw(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _unscaled(value: Any) -> int:
    return value if isinstance(value, int) else int.from_bytes(value, "big", signed=True)


def _cut(value: bytes, *, text: bool, upper: bool) -> bytes | None:
    """Return `value` cut to `BOUND_LENGTH_MAX`. A cut upper bound becomes the next greater value of that length; None
    if there is no greater value. Returns None for a text that is not UTF-8, too.
    """
    if not text:
        if len(value) <= BOUND_LENGTH_MAX:
            return value
        kept = value[:BOUND_LENGTH_MAX]
        if not upper:
            return kept
        kept = kept.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    try:
        whole = value.decode()
    except UnicodeDecodeError:
        return None  # Other writers may store bytes that are not UTF-8 (Spark: CAST(x'ff' AS STRING)).
    cut = whole[:BOUND_LENGTH_MAX]
    if cut == whole or not upper:
        return cut.encode()
    for index in range(len(cut) - 1, -1, -1):
        following = ord(cut[index]) + 1
        if following == 0xD800:  # Surrogates are not characters.
            following = 0xE000
        if following <= 0x10FFFF:
            return (cut[:index] + chr(following)).encode()
    return None


class KeyBounds:
    """Decides by bounds which data files may contain one of an epoch's changed keys. `keys` has the key columns."""

    def __init__(self, columns: Sequence[IcebergColumn], keys: pa.Table) -> None:
        self._ranges: list[tuple[int, str, Any, Any]] = []
        self._numbers: tuple[int, np.ndarray] | None = None
        for column in columns:
            values = keys.column(column.name)
            if column.type in ("boolean", "float", "double") or values.null_count:
                continue
            least, most = (_comparable(column.type, scalar) for scalar in pc.min_max(values).values())
            self._ranges.append((column.id, column.type, least, most))
            if self._numbers is None and column.type in ("int", "long", "date", "timestamp", "timestamptz"):
                width = pa.int32() if column.type in ("int", "date") else pa.int64()
                self._numbers = column.id, np.unique(values.cast(width).to_numpy())

    def may_have(self, lower: Mapping[int, bytes] | None, upper: Mapping[int, bytes] | None) -> bool:
        """Return True if a file with these bounds (by field id) may have one of the keys."""
        for number, kind, least, most in self._ranges:
            low = decoded(kind, (lower or {}).get(number))
            high = decoded(kind, (upper or {}).get(number))
            if (low is not None and most < low) or (high is not None and least > high):
                return False
            if self._numbers and self._numbers[0] == number and low is not None and high is not None:
                at = int(np.searchsorted(self._numbers[1], low))
                if at == len(self._numbers[1]) or self._numbers[1][at] > high:
                    return False
        return True


def decoded(kind: str, bound: bytes | None) -> Any:
    """Return a manifest's bound as a number or bytes. It may have the narrower type that the column had when the file
    was written.
    """
    if bound is None:
        return None
    if kind in ("string", "binary"):
        return bytes(bound)  # Bytes of UTF-8 sort like the characters.
    return int.from_bytes(bound, "big" if kind.startswith("decimal(") else "little", signed=True)


def _comparable(kind: str, scalar: pa.Scalar) -> Any:
    """Return a key's value in the form in which `decoded` returns bounds."""
    if kind == "string":
        return scalar.as_py().encode()
    if kind == "binary":
        return scalar.as_py()
    if kind.startswith("decimal("):
        return int(_EXACT.scaleb(scalar.as_py(), scalar.type.scale))
    return scalar.cast(pa.int32() if kind in ("int", "date") else pa.int64()).as_py()
