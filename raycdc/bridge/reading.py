"""Reading segments: mapped from disk on the node that has them, through Arrow Flight from everywhere else.

Called inside sink tasks, in Spark's Python workers or in the driver. Both ways give the same batches, and reading a
segment twice gives the same rows, which is what makes a task's retry safe. A segment that is missing or has another
size than its descriptor says is a `StateError`: the epoch must be replayed or read again, not written in part.

Which node a process is on is what its caller says (`raycdc.bridge.access`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge.access import ANYWHERE, HERE, SegmentAccess
from raycdc.bridge.mapped import batch_range, checksum_of, mapped_reader
from raycdc.bridge.views import all_names, stored_names, symbols_of, viewed
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import SegmentUnavailableError
from raycdc.model.view import RowView

#: Columns that are not stored in a segment but follow from its descriptor.
DESCRIPTOR_COLUMNS = ("_db", "_table")


def read_segment(
    segment: Segment,
    columns: Sequence[str] | None = None,
    *,
    access: SegmentAccess = HERE,
    part: tuple[int, int] = (0, 1),
    symbols: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The batches of `segment` in order, with absolute `_seq`.

    `columns` picks and orders columns and may name ``_db`` and ``_table``; None gives the stored ones. `part` (i, n)
    reads the i-th of n nearly equal runs of batches, so that several tasks share a large segment. With `symbols`,
    `_op` is text (``+I``) instead of its code. With a view on it the segment has the columns of its target. Blocks on
    disk or network.
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
    place = batch.schema.get_field_index("_op")
    if place < 0:
        return batch
    return batch.set_column(place, "_op", symbols_of(batch.column(place)))


def segment_schema(segment: Segment, *, access: SegmentAccess = HERE) -> pa.Schema:
    """Schema of the stored columns of `segment`."""
    if _is_local(segment, access):
        with _open(segment) as reader:
            schema: pa.Schema = reader.schema
            return schema
    if not segment.flight:
        raise _away(segment)
    from raycdc.bridge.flight import fetch_schema

    return fetch_schema(segment, access)


def _away(segment: Segment) -> SegmentUnavailableError:
    return SegmentUnavailableError(
        f"Segment {segment.name} is on node {segment.node}, which is not there now. If that is another machine, its "
        'segments cannot be read from here with ray.flight = "loopback".'
    )


def verify_segments(segments: Iterable[Segment], *, access: SegmentAccess = HERE, checksum: bool = False) -> bool:
    """Whether every segment is there with its exact size, and with `checksum` its exact content, on its node."""
    for segment in segments:
        if _is_local(segment, access):
            intact = _intact_here(segment, checksum=checksum)
        elif not segment.flight:
            intact = False
        else:
            from raycdc.bridge.flight import intact_there

            intact = intact_there(segment, access, checksum=checksum)
        if not intact:
            return False
    return True


def delete_there(segment: Segment, access: SegmentAccess) -> None:
    """Delete a segment in another node's spool; harmless when that node is not there now."""
    from raycdc.bridge import flight

    flight.delete_there(segment, access)


def stored_columns(columns: Sequence[str] | None) -> list[str] | None:
    """The columns to fetch for `columns`, without those that follow from the descriptor."""
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
        raise _away(segment)
    from raycdc.bridge.flight import fetch

    return fetch(segment, stored_columns(columns), part, access)


def _finished(
    batch: pa.RecordBatch, segment: Segment, columns: Sequence[str] | None, *, symbols: bool
) -> pa.RecordBatch:
    """The stored batch with absolute numbers and the columns of the descriptor, in the order asked for."""
    names = batch.schema.names
    arrays = {name: batch.column(i) for i, name in enumerate(names)}
    if segment.seq_base and "_seq" in arrays:
        arrays["_seq"] = pc.add(arrays["_seq"], pa.scalar(segment.seq_base, pa.int64()))
    if symbols and "_op" in arrays:
        arrays["_op"] = symbols_of(arrays["_op"])
    wanted = list(columns) if columns is not None else names
    for name, text in zip(DESCRIPTOR_COLUMNS, (segment.table.db, segment.table.table), strict=True):
        if name in wanted and name not in arrays:
            arrays[name] = pa.repeat(pa.scalar(text, pa.string()), batch.num_rows)
    return pa.RecordBatch.from_arrays([arrays[name] for name in wanted], names=wanted)
