"""Segments with what was looked up for their rows: one file beside each segment, made once and kept for its epoch.

The answers of a dimension change by themselves, so a segment must not be joined twice with two answers: an epoch that
is committed in steps, or staged again after a crash, would be of two minds. Each joined segment is durable before a
sink sees any of it, and is taken again from there until its epoch is recorded.

| rows | are joined | without a document (`missing` = drop) |
|---|---|---|
| inserts, after-images | with what there is now | not passed on; an update becomes a deletion |
| rows that go, where rows are updated | with nothing: the table's key tells them | pass always: harmless |
| rows that go, in a changelog | with NULL where their key is; others are refused | as a filter has it |

A changelog would have to repeat what was found when the row came, which nobody knows any more.

Where they are kept, and what a process that dies leaves of them: `raycdc.lookup.answers`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge import SegmentWriter
from raycdc.bridge.access import HERE, SegmentAccess
from raycdc.bridge.bad_rows import BadRecords, Sifted, judged, whole_updates
from raycdc.bridge.reading import read_segment, verify_segments
from raycdc.checkpoint.manifest import Segment, SegmentJson
from raycdc.errors import RowRefusedError, SegmentUnavailableError, StateError
from raycdc.failpoints import reach
from raycdc.lookup.answers import Answers, begins
from raycdc.lookup.api import KEY, canonical
from raycdc.lookup.asking import Asking
from raycdc.model import RowKind
from raycdc.model.untold import row_named
from raycdc.transform import ResolvedTransform
from raycdc.transform.lookups import ResolvedLookup

#: Rows that say what is there now.
_CAME = (RowKind.INSERT, RowKind.UPDATE_AFTER)
#: Bytes that are looked up for the rows of one batch: a document is repeated for each row, and Arrow's columns of text
#: end at 2 GiB.
JOINED_BYTES_MAX = 8 << 20


class _Note(TypedDict):
    """Noted of a segment that was joined: its file (empty: no row is left), and the transform that it was made by."""

    file: str
    segment: SegmentJson | None
    asked: str


class Joiner:
    """See the module's docstring. Callable from any thread; segments of different tables at once.

    `asking` gives who asks for a lookup's keys. `records` says whether the sink updates rows, and whether images may
    lack values. `warn` is told of values that became NULL.
    """

    def __init__(
        self,
        answers: Answers,
        asking: Callable[[ResolvedLookup], Asking],
        *,
        records: BadRecords,
        access: SegmentAccess = HERE,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._answers = answers
        self._asking = asking
        self._records = records
        self._access = access
        self._warn = warn

    def __repr__(self) -> str:
        return f"Joiner({self._answers!r})"

    def __call__(
        self, segments: Sequence[Segment], made: Sequence[Sifted], resolved: ResolvedTransform, epoch: int
    ) -> list[Sifted]:
        """`made` of `segments` by a transform, each joined; None where no row is left.

        Blocks. Raises `SegmentUnavailableError`, `DataError`, and what a dimension does that cannot be asked.
        """
        joined = []
        for segment, one in zip(segments, made, strict=True):
            there = None if one.segment is None else self._joined(segment.name, one.segment, resolved, epoch)
            joined.append(replace(one, segment=there))
        return joined

    def forget(self, epoch: int) -> None:
        """`epoch` is recorded: nobody asks for its segments again."""
        self._answers.forget(epoch)

    def sweep(self, committed: int) -> None:
        """Delete what is of epochs up to `committed`, and what a process had only begun. While nothing is staged."""
        self._answers.sweep(committed)

    def _joined(self, name: str, made: Segment, resolved: ResolvedTransform, epoch: int) -> Segment | None:
        """`made` of the segment `name`, joined now or before."""
        note, asked = f"{begins(epoch)}{name}", resolved.transform.identity()
        there = self._answers.note(note)
        if there is None:
            fresh, lost = self._written(made, resolved, epoch)
            stored = fresh.stored() if fresh else None
            told: _Note = {"file": fresh.name if fresh else "", "segment": stored, "asked": asked}
            ours = json.dumps(told).encode()
            there = self._answers.keep(note, ours, fresh.name if fresh else "")
            reach("after_lookup")
            if lost:
                where = ", ".join(one.lookup.place for one in resolved.lookups)
                self._warn(
                    f"{resolved.table}: {lost} values that {where} found do not fit their columns, and are NULL."
                )
            if there == ours:
                return fresh
        noted: _Note = json.loads(there)
        if noted["asked"] != asked:
            raise StateError(
                f"The [[lookup]] or [[transform]] of {resolved.table} differs from when epoch {epoch} was begun, of "
                "which a part may be in the sink. Take it back, or begin with another pipeline.state and a new "
                "snapshot."
            )
        if noted["segment"] is None:
            return None
        self._answers.fetch(noted["file"])
        segment = Segment.from_json(noted["segment"]).placed(self._answers.path)
        if not verify_segments([segment]):
            raise StateError(
                f"{segment.path} is missing or damaged. It has the answers of lookups for epoch {epoch}, of which a "
                "part may be in the sink. Take it back from a copy, or begin with another pipeline.state and a new "
                "snapshot."
            )
        return segment

    def _written(self, made: Segment, resolved: ResolvedTransform, epoch: int) -> tuple[Segment | None, int]:
        """`made`, joined, as a file of its own, and how many values became NULL."""
        if not verify_segments([made], access=self._access):
            raise SegmentUnavailableError(f"A segment of {made.table} is not there now.")
        task = _Task(replace(made, view=None, seq_base=0), resolved, self._records.of_kind(made.kind), self._access)
        answers = [self._answer(task, one) for one in resolved.lookups]
        writer = SegmentWriter.remaking(made, self._answers.path, f"{begins(epoch)}{uuid.uuid4().hex}.arrow")
        try:
            for batch in task.batches():
                for joined in task.joined(batch, [documents for documents, _ in answers]):
                    writer.append(joined)
            return writer.finish(seq_base=made.seq_base) if writer.rows else None, sum(lost for _, lost in answers)
        except BaseException:
            writer.abort()
            raise

    def _answer(self, task: _Task, lookup: ResolvedLookup) -> tuple[pa.Table, int]:
        """The documents of all keys of the segment: one request for each key, whatever number of rows has it."""
        keys = [task.keys(batch, lookup) for batch in task.batches()]
        distinct = pc.unique(pa.chunked_array(keys)).drop_null()
        answer = self._asking(lookup).answer(distinct)
        return answer.documents.combine_chunks(), answer.lost


@dataclass(frozen=True, slots=True)
class _Task:
    """One segment to be joined."""

    segment: Segment
    resolved: ResolvedTransform
    records: BadRecords
    access: SegmentAccess

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows as they are stored, updates whole."""
        return whole_updates(read_segment(self.segment, access=self.access))

    def keys(self, batch: pa.RecordBatch, lookup: ResolvedLookup) -> pa.Array:
        """The key of each row that is joined; NULL for one that has none, or is joined with nothing."""
        outputs = {output.name: output for output in self.resolved.projection().outputs}
        place = f"{self.resolved.table}, {lookup.lookup.place}"
        keys = canonical(batch.column(outputs[lookup.key].stored), lookup.key_type, place=place)
        ops = batch.column("_op").to_numpy()
        if self.records.upsert:
            # A row that is deleted but stays keeps its columns.
            return keys if self.resolved.transform.soft else pc.if_else(_is_in(ops, _CAME), keys, _null(keys))
        goes = _is_in(ops, (RowKind.UPDATE_BEFORE, RowKind.DELETE))
        if (bad := np.flatnonzero(pc.and_(goes, keys.is_valid()).to_numpy(zero_copy_only=False))).size:
            raise RowRefusedError(
                f"{place}: {row_named(batch, int(bad[0]), self.resolved.source)} was updated or deleted, and in a "
                "changelog that repeats what was found when the row came, which nobody knows any more. Use "
                'sink.write = "upsert", or leave the lookup out.'
            )
        return keys

    def joined(self, batch: pa.RecordBatch, answers: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
        """The rows of `batch` that pass, with the columns that were looked up behind their own. In parts, each with
        `JOINED_BYTES_MAX` of these, or one row.
        """
        places = []
        missing = np.zeros(batch.num_rows, np.bool_)
        for lookup, documents in zip(self.resolved.lookups, answers, strict=True):
            places.append(pc.index_in(self.keys(batch, lookup), value_set=documents.column(KEY).combine_chunks()))
            if lookup.lookup.drop:
                missing |= places[-1].is_null().to_numpy(zero_copy_only=False)
        ops, numbers = batch.column("_op").to_numpy(), batch.column("_seq").to_numpy()
        if self.records.upsert:
            missing &= np.isin(ops, _CAME)
        missing &= ops != RowKind.TRUNCATE
        ops, kept = judged(ops, numbers, np.ones(len(ops), np.bool_), missing, self.records)
        at = batch.schema.get_field_index("_op")
        passed = pa.array(kept)
        rows = batch.set_column(at, batch.schema.field(at), pa.array(ops, pa.int8())).filter(passed)
        looked_up = {
            name: (documents.column(column.name).combine_chunks(), place.filter(passed))
            for lookup, documents, place in zip(self.resolved.lookups, answers, places, strict=True)
            for name, column in lookup.stored()
        }
        for start, stop in _parts(rows.num_rows, looked_up.values()):
            columns = {name: rows.column(name).slice(start, stop - start) for name in rows.schema.names}
            columns |= {
                name: values.take(place.slice(start, stop - start)) for name, (values, place) in looked_up.items()
            }
            yield pa.RecordBatch.from_pydict(columns)


def _parts(rows: int, looked_up: Iterable[tuple[pa.Array, pa.Array]]) -> Iterator[tuple[int, int]]:
    """Where rows are cut, whose values are at places of arrays."""
    sizes = np.zeros(rows, np.int64)
    for values, places in looked_up:
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            sizes += pc.fill_null(pc.binary_length(values).take(places), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes)
    start = 0
    while start < rows:
        begin = int(ends[start] - sizes[start])
        stop = max(start + 1, int(np.searchsorted(ends, begin + JOINED_BYTES_MAX, side="right")))
        yield start, stop
        start = stop


def _is_in(ops: Any, kinds: Sequence[int]) -> pa.Array:
    return pa.array(np.isin(ops, kinds))


def _null(like: pa.Array) -> pa.Scalar:
    return pa.scalar(None, like.type)
