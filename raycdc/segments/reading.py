"""Reads segments: those of this node are mapped from disk, those of other nodes come through Arrow Flight.

Called inside sink tasks, in Spark's Python workers or in the driver. Both ways give the same batches, and reading a
segment twice gives the same rows, so a task can be retried. Reading a segment that is missing or has another size than
its descriptor says raises `StateError`: the epoch must be replayed or read again. The caller passes the node of the
process (`raycdc.segments.access`).

The rows of a segment with a view (`raycdc.model.view`) are read in the form of its target: columns are chosen, renamed
and added, and types are widened. `raycdc.model.evolution.merge` decides the types of a merged target. Values are
converted exactly; a value that does not fit raises a `DataError` that names the table, column and row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import RowRefusedError, RulesRefusedError, SegmentUnavailableError
from raycdc.model import META_COLUMNS, Column, LogicalType, RowKind, TableId, TypeKind
from raycdc.model.arrays import failing
from raycdc.model.batch import SYMBOLS
from raycdc.model.column_names import find_name, mysql_fold
from raycdc.model.json_text import decimal_text, timestamp_text
from raycdc.model.keys import OWNER, owners
from raycdc.model.redaction import row_named
from raycdc.model.view import Output, Projection, RowView, constant_type
from raycdc.segments.access import ANYWHERE, HERE, SegmentAccess, batch_range, checksum_of, mapped_reader
from raycdc.segments.bad_rows import ON_BAD_RECORD
from raycdc.state.manifests.manifest import Segment


def stored_names(view: RowView, columns: Sequence[str]) -> list[str]:
    """Return the stored columns to read for `columns`, which may be columns of the target and metadata columns.

    The result is never empty, because a batch without columns has no number of rows.
    """
    found = _unmerged_names(view, columns)
    if view.projection is not None:
        there = {output.name: output.stored for output in view.projection.outputs}
        found = [name for name in (there.get(name, name) for name in found) if name]
        if view.projection.deleted:
            found = [*(name for name in found if name != view.projection.deleted), "_op"]
    if OWNER in columns:
        found = [*found, *view.owner]
    return list(dict.fromkeys(found)) or ["_op"]


def viewed(batch: pa.RecordBatch, view: RowView, columns: Sequence[str], *, table: TableId) -> pa.RecordBatch:
    """Return `batch` with `columns` in the types of the target.

    `batch` has the columns of `stored_names`, with codes in `_op`.
    """
    owned = owners(batch, view.owner) if OWNER in columns else None
    if view.projection is not None:
        batch = _projected(batch, view.projection, _unmerged_names(view, columns))
    sources = {column.name: column for column in view.source.columns}
    targets = {column.name: column for column in view.target.columns}
    arrays = []
    for name in columns:
        if name == OWNER:
            arrays.append(owned)
        elif name in META_COLUMNS:
            arrays.append(batch.column(name))
        elif (source := find_name(name, sources, mysql_fold)) is None:
            arrays.append(_missing(targets[name], batch.num_rows, fill=view.fill, table=table))
        else:
            arrays.append(_turned(batch, sources[source], targets[name].type, view, table))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _unmerged_names(view: RowView, columns: Sequence[str]) -> list[str]:
    """Return those of `columns` that rows of the view's source have, and metadata columns."""
    there = [column.name for column in view.source.columns]
    meta = [name for name in columns if name in META_COLUMNS]
    matches = (find_name(name, there, mysql_fold) for name in columns if name not in META_COLUMNS)
    return [*(name for name in matches if name is not None), *meta]


def _projected(batch: pa.RecordBatch, projection: Projection, names: Sequence[str]) -> pa.RecordBatch:
    """Return `batch` with the columns `names` of the projection, which may include metadata columns."""
    outputs = {output.name: output for output in projection.outputs}
    deleted = _is_deleted(batch.column("_op")) if projection.deleted else None
    arrays = []
    for name in names:
        if name == "_op" and deleted is not None:
            arrays.append(pc.if_else(deleted, pa.scalar(RowKind.UPDATE_AFTER, pa.int8()), batch.column(name)))
        elif name == projection.deleted:
            truncated = pc.equal(batch.column("_op"), pa.scalar(RowKind.TRUNCATE, pa.int8()))
            arrays.append(pc.if_else(truncated, pa.scalar(None, pa.bool_()), deleted))
        else:
            arrays.append(_output(batch, outputs.get(name) or Output(name, name)))
    return pa.RecordBatch.from_arrays(arrays, names=list(names)) if arrays else batch


def _output(batch: pa.RecordBatch, output: Output) -> pa.Array:
    if not output.stored:
        # The row of a truncation has no values.
        constant = pa.scalar(output.constant, constant_type(output.constant).arrow())
        if "_op" not in batch.schema.names:
            return pa.repeat(constant, batch.num_rows)
        truncated = pc.equal(batch.column("_op"), pa.scalar(RowKind.TRUNCATE, pa.int8()))
        return pc.if_else(truncated, pa.scalar(None, constant.type), constant)
    array = batch.column(output.stored)
    return symbols_of(array) if output.stored == "_op" and output.name != "_op" else array


def _is_deleted(ops: pa.Array) -> pa.Array:
    """Return a mask of the rows that delete their key. A before-image counts as a deletion; if the key stays the same,
    the after-image inserts it again.
    """
    return pc.is_in(ops, pa.array([RowKind.UPDATE_BEFORE, RowKind.DELETE], pa.int8()))


def symbols_of(ops: pa.Array) -> pa.Array:
    """Return the symbol (``+I``) of each code of `_op`."""
    return _symbols().take(ops)


@cache
def _symbols() -> pa.StringArray:
    """Return the symbols as an Arrow array.

    This is not a constant, because pyarrow would import pandas before `raycdc.core.startup_tuning` prevents it.
    """
    return pa.array(SYMBOLS, pa.string())


def turned(array: pa.Array, have: LogicalType, want: LogicalType) -> pa.Array:
    """Return values of type `have` converted to type `want`, into which `have` was merged with the types of other
    tables.

    Raises pyarrow's error for a value that does not fit.
    """
    if have.arrow() == want.arrow():
        return array
    if pa.types.is_string(want.arrow()):
        return text_of(array, have)
    if have.kind is TypeKind.BOOLEAN:
        array = array.cast(pa.int8())
    return array.cast(want.arrow(), safe=True)


def text_of(array: pa.Array, have: LogicalType) -> pa.Array:
    """Return each value as text: decimals and temporals as MySQL prints them (TIMESTAMP in UTC), bytes as UTF-8."""
    match have.kind:
        case TypeKind.DATETIME | TypeKind.TIMESTAMP:
            return timestamp_text(array, have.fsp)
        case TypeKind.DECIMAL:
            return decimal_text(array, have.scale)
        case TypeKind.BIT | TypeKind.UINT64 if pa.types.is_decimal(array.type):
            return decimal_text(array, 0)
        case _:
            return array.cast(pa.string(), safe=True)


def _turned(batch: pa.RecordBatch, have: Column, want: LogicalType, view: RowView, table: TableId) -> pa.Array:
    array = batch.column(have.name)
    try:
        return turned(array, have.type, want)
    except pa.ArrowException:
        index = int(np.flatnonzero(failing(array, lambda part: turned(part, have.type, want)))[0])
        raise RowRefusedError(
            f"{table}: a value of column {have.name!r} ({have.type.kind}) is no {want.arrow()}, which its merged "
            f"target has, in {row_named(batch, index, view.source)}. Route the table elsewhere, or give the "
            f"column one type in all merged tables. {ON_BAD_RECORD}"
        ) from None


def _missing(column: Column, rows: int, *, fill: bool, table: TableId) -> pa.Array:
    wanted = column.type.arrow()
    if not fill or column.default is None:
        return pa.nulls(rows, wanted)
    text = pa.scalar(column.default)
    try:
        constant = text.cast(pa.timestamp("us")).cast(wanted) if pa.types.is_timestamp(wanted) else text.cast(wanted)
    except pa.ArrowException:
        raise RulesRefusedError(f"{table}: the default of column {column.name!r} is no {wanted}") from None
    return pa.repeat(constant, rows)


def all_names(view: RowView) -> list[str]:
    """Return the columns that `read_segment` gives for a view if the caller names none."""
    return [*(column.name for column in view.target.columns), *(n for n in META_COLUMNS if n not in ("_db", "_table"))]


#: Columns that are not stored in a segment but follow from its descriptor.
DESCRIPTOR_COLUMNS = ("_db", "_table", OWNER)


def read_segment(
    segment: Segment,
    columns: Sequence[str] | None = None,
    *,
    access: SegmentAccess = HERE,
    part: tuple[int, int] = (0, 1),
    symbols: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `segment` in order, with absolute `_seq`.

    `columns` chooses and orders the columns, and may also name ``_db``, ``_table`` and `OWNER`; None: the stored
    columns. `part` (i, n) reads the i-th of n nearly equal runs of batches, so that several tasks share a large
    segment. With `symbols`, `_op` is text (``+I``) instead of its code. If the segment has a view, its columns are
    those of the view's target. Blocks on disk or network.
    """
    if segment.view is not None:
        return _viewed(segment, segment.view, columns, access=access, part=part, symbols=symbols)
    local = _is_local(segment, access)
    batches = _mapped(segment, columns, part) if local else _flight(segment, columns, part, access)
    return (_finished(batch, segment, columns, symbols=symbols) for batch in batches)


def _viewed(
    segment: Segment, view: RowView, columns: Sequence[str] | None, *, symbols: bool, **how: Any
) -> Iterator[pa.RecordBatch]:
    names = all_names(view) if columns is None else list(columns)
    batches = read_segment(replace(segment, view=None), stored_names(view, names), **how)
    found = (viewed(batch, view, names, table=segment.table) for batch in batches)
    return (_with_symbols(batch) for batch in found) if symbols else found


def _with_symbols(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("_op")
    if index < 0:
        return batch
    return batch.set_column(index, "_op", symbols_of(batch.column(index)))


def segment_schema(segment: Segment, *, access: SegmentAccess = HERE) -> pa.Schema:
    """Return the schema of the stored columns of `segment`."""
    if _is_local(segment, access):
        with _open(segment) as reader:
            schema: pa.Schema = reader.schema
            return schema
    if not segment.flight:
        raise _unavailable(segment)
    from raycdc.segments.flight import fetch_schema

    return fetch_schema(segment, access)


def _unavailable(segment: Segment) -> SegmentUnavailableError:
    return SegmentUnavailableError(
        f"Segment {segment.name} is on node {segment.node}, which is not there now. If that is another machine, its "
        'segments cannot be read from here with ray.flight = "loopback".'
    )


def verify_segments(segments: Iterable[Segment], *, access: SegmentAccess = HERE, checksum: bool = False) -> bool:
    """Return True if every segment is on its node with its exact size, and with `checksum` its exact content."""
    for segment in segments:
        if _is_local(segment, access):
            intact = _intact_here(segment, checksum=checksum)
        elif not segment.flight:
            intact = False
        else:
            from raycdc.segments.flight import intact_there

            intact = intact_there(segment, access, checksum=checksum)
        if not intact:
            return False
    return True


def delete_there(segment: Segment, access: SegmentAccess) -> None:
    """Delete a segment in another node's spool; harmless if that node is unavailable."""
    from raycdc.segments import flight

    flight.delete_there(segment, access)


def stored_columns(columns: Sequence[str] | None) -> list[str] | None:
    """Return `columns` without those that follow from the descriptor; None if all are requested."""
    return None if columns is None else [c for c in columns if c not in DESCRIPTOR_COLUMNS]


def _is_local(segment: Segment, access: SegmentAccess) -> bool:
    return _intact_here(segment, checksum=False) if access.node == ANYWHERE else access.is_own(segment)


def _open(segment: Segment) -> Any:
    return mapped_reader(Path(segment.path), segment.bytes)


def _intact_here(segment: Segment, *, checksum: bool) -> bool:
    path = Path(segment.path)
    try:
        if path.stat().st_size != segment.bytes:
            return False
        return not checksum or checksum_of(path) == segment.crc32
    except OSError:
        return False


def _mapped(segment: Segment, columns: Sequence[str] | None, part: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    reader = _open(segment)
    picked = stored_columns(columns)
    for index in batch_range(reader.num_record_batches, part):
        batch = reader.get_batch(index)
        yield batch if picked is None else batch.select(picked)


def _flight(
    segment: Segment, columns: Sequence[str] | None, part: tuple[int, int], access: SegmentAccess
) -> Iterator[pa.RecordBatch]:
    if not segment.flight:
        raise _unavailable(segment)
    from raycdc.segments.flight import fetch

    return fetch(segment, stored_columns(columns), part, access)


def _finished(
    batch: pa.RecordBatch, segment: Segment, columns: Sequence[str] | None, *, symbols: bool
) -> pa.RecordBatch:
    """Return the stored batch with an absolute `_seq`, with the columns that the descriptor implies, and with `columns`
    in the requested order.
    """
    names = batch.schema.names
    arrays = {name: batch.column(i) for i, name in enumerate(names)}
    if segment.seq_base and "_seq" in arrays:
        arrays["_seq"] = pc.add(arrays["_seq"], pa.scalar(segment.seq_base, pa.int64()))
    if symbols and "_op" in arrays:
        arrays["_op"] = symbols_of(arrays["_op"])
    wanted = list(columns) if columns is not None else names
    for name, text in (("_db", segment.table.db), ("_table", segment.table.table)):
        if name in wanted and name not in arrays:
            arrays[name] = pa.repeat(pa.scalar(text, pa.string()), batch.num_rows)
    if OWNER in wanted:
        arrays[OWNER] = owners(batch, ())
    return pa.RecordBatch.from_arrays([arrays[name] for name in wanted], names=wanted)
