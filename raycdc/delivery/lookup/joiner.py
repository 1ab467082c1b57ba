"""Writes joined segments: one file per segment, made once and kept until its epoch is recorded.

The dimension changes over time, so a segment that is joined twice may get different documents. An epoch that is
committed in steps, or staged again after a crash, would then be inconsistent. Each joined segment is therefore durable
before the sink gets it, and is reused until its epoch is recorded.

| rows | are joined | without a document (`missing` = drop) |
|---|---|---|
| inserts, after-images | with the present document | left out; an update becomes a deletion |
| deletions and before-images, in an upsert target | not joined, because the key suffices | kept, which is harmless |
| deletions and before-images, in a changelog | with NULL if their key is NULL; others are refused | as by a filter |

In a changelog, a deletion would have to repeat the document that was found when the row was inserted, which is not
stored.

A *note* maps a segment of an epoch to its joined segment. A note is never replaced: if two drivers join the same
segment, the second one uses the first one's file.

| | state in a folder | state on an object store |
|---|---|---|
| joined segment | a file | a file of this machine, and a copy of it as an object that no other process writes |
| note | a file, made by a link | an object, written in one step with the check of the generations |

*Crashes*: before the note is written, the segment counts as not joined, and the next start deletes the file. After the
note is written, every later driver finds the joined segment, on any machine.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.core.failpoints import reach
from raycdc.core.typed_codec import JsonObject, stored
from raycdc.delivery.lookup.queries import KEY, LookupQuery, canonical
from raycdc.errors import RowRefusedError, SegmentUnavailableError, StateError
from raycdc.model import RowKind
from raycdc.model.redaction import row_named
from raycdc.segments import SegmentWriter
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.segments.bad_rows import BadRecords, FilteredSegment, judged, whole_updates
from raycdc.segments.reading import read_segment, verify_segments
from raycdc.state.codec import NEW_STATE
from raycdc.state.documents import DriverDocuments
from raycdc.state.files.folder import LocalFolder
from raycdc.state.manifests.manifest import Segment
from raycdc.state.store import CheckpointStore
from raycdc.transform import ResolvedTransform
from raycdc.transform.resolved import ResolvedLookup

#: The folders in the state: of notes, and of copied segments on an object store.
_NOTES = "looked_up"
_SEGMENTS = "joined"
_NOTE = ".json"


class LookupSegments:
    """The joined segments of a state; see the module's docstring. Callable from any thread.

    Errors are `StateError`, and `FencedError` if another driver took over. Joined segments are written to the folder
    `path` of this machine. `documents` are the documents of the state, which include the notes. If the folder may be
    lost, joined segments are `copied` there, too.
    """

    def __init__(self, path: Path, documents: DriverDocuments, *, copied: bool = False) -> None:
        self.path = path
        self._here = LocalFolder(path)
        self._documents = documents
        self._state = documents.folder
        self._copied = copied

    def __repr__(self) -> str:
        return f"Answers({str(self.path)!r}, {self._state.where!r})"

    def note(self, name: str) -> bytes | None:
        """Return the content of the note `name`; None if there is none."""
        self._here.create()
        return self._state.read(_document(name))

    def keep(self, name: str, note: bytes, file: str) -> bytes:
        """Write the note `note` for a segment that was joined into `file` (empty: no row is left), unless a note
        exists.

        Return the note that exists afterwards. If that note names a different file, `file` is deleted.
        """
        if file and self._copied:
            self._state.write(_copy(file), (self.path / file).read_bytes())
        found = self._documents.as_driver(name, partial(self._noted, _document(name), note))
        if found != note and file:
            self._delete(file)
        return found

    def fetch(self, file: str) -> None:
        """Copy the joined segment `file` to this machine if it is missing here and has a copy."""
        if not self._copied or (self.path / file).exists():
            return
        data = self._state.read(_copy(file))
        if data is not None:
            self._here.write(file, data)

    def forget(self, epoch: int) -> None:
        """Delete the notes and segments of `epoch`, which is recorded and needs them no more."""
        names = [name for name in self._notes() if _epoch_of(name) == epoch]
        if names:
            for file in self._state.atomically(partial(self._taken, names)):
                self._delete(file)

    def sweep(self, committed: int) -> None:
        """Delete segments of epochs up to `committed`, and files without a note. Call it while nothing is staged."""
        # Files are listed before notes, so a file without a note is unfinished.
        copies = self._state.list(_SEGMENTS) if self._copied else []
        here = [file for file in self._here.list(".") if not file.endswith(_NOTE)]
        names = self._notes()
        done = [name for name in names if _epoch_of(name) <= committed]
        kept = {_file_of(self._state.read(f"{_NOTES}/{name}")) for name in names if name not in done}
        self._documents.as_driver(f"the segments joined since epoch {committed}", partial(self._taken, done))
        for file in {*copies, *here} - kept:
            self._delete(file)

    def _noted(self, document: str, note: bytes) -> bytes:
        self._state.create_once(document, note)
        found = self._state.read(document)
        if found is None:
            raise StateError(f"{self._state.origin(document)} disappeared; is another process deleting it?")
        return found

    def _notes(self) -> list[str]:
        return [name for name in self._state.list(_NOTES) if name.endswith(_NOTE)]

    def _taken(self, names: list[str]) -> list[str]:
        """Delete the notes, and return the files that they named."""
        files = [_file_of(self._state.read(f"{_NOTES}/{name}")) for name in names]
        for name in names:
            self._state.delete(f"{_NOTES}/{name}")
        return [file for file in files if file]

    def _delete(self, file: str) -> None:
        self._here.delete(file)
        if self._copied:
            self._state.delete(_copy(file))


def answers_of(store: CheckpointStore) -> LookupSegments:
    """Return the lookup segments of the driver that has the state of `store`."""
    return LookupSegments(store.path / _NOTES, store.documents, copied=store.location.on_store)


def _document(name: str) -> str:
    return f"{_NOTES}/{name}{_NOTE}"


def _copy(file: str) -> str:
    return f"{_SEGMENTS}/{file}"


def _file_of(note: bytes | None) -> str:
    """Return the joined segment that a note names; empty if it names none."""
    return str(json.loads(note or b"{}").get("file", ""))


def begins(epoch: int) -> str:
    """Return the prefix of the names of an epoch's notes and segments."""
    return f"{epoch:010d}-"


def _epoch_of(name: str) -> int:
    """Return the epoch of a note or segment; for other names a number greater than any epoch."""
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else 1 << 62


#: The kinds of rows with the present values.
_CAME = (RowKind.INSERT, RowKind.UPDATE_AFTER)
#: The most bytes of looked-up values in one batch. A document is repeated for each row with its key, and a text column
#: of Arrow is limited to 2 GiB.
JOINED_BYTES_MAX = 8 << 20


def _stored_segment(segment: Segment | None) -> object:
    return None if segment is None else segment.stored()


@dataclass(frozen=True, slots=True)
class _Note(JsonObject):
    """The note of a joined segment: its file (empty: no row is left), and the identity of its transform."""

    file: str
    segment: Segment | None = field(metadata=stored(write=_stored_segment))
    asked: str


class Joiner:
    """Joins segments with the documents of lookups; see the module's docstring.

    Callable from any thread; segments of different tables are joined concurrently. `asking` returns the `LookupQuery`
    of a lookup. `records` is the policy for bad rows, which includes if the sink updates rows and if images may lack
    values. `warn` reports values that became NULL.
    """

    def __init__(
        self,
        answers: LookupSegments,
        asking: Callable[[ResolvedLookup], LookupQuery],
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
        self, segments: Sequence[Segment], made: Sequence[FilteredSegment], resolved: ResolvedTransform, epoch: int
    ) -> list[FilteredSegment]:
        """Join each of the transformed segments `made`, which were made from `segments`, and return the joined
        segments. A result's `segment` is None if no row is left.

        Blocks. Raises `SegmentUnavailableError`, `DataError`, and the errors of a dimension that cannot be queried.
        """
        joined = []
        for segment, one in zip(segments, made, strict=True):
            there = None if one.segment is None else self._joined(segment.name, one.segment, resolved, epoch)
            joined.append(replace(one, segment=there))
        return joined

    def forget(self, epoch: int) -> None:
        """Delete the joined segments of `epoch`, which is recorded."""
        self._answers.forget(epoch)

    def sweep(self, committed: int) -> None:
        """Delete joined segments of epochs up to `committed`, and unfinished ones. Call it while nothing is staged."""
        self._answers.sweep(committed)

    def _joined(self, name: str, made: Segment, resolved: ResolvedTransform, epoch: int) -> Segment | None:
        """Return the joined segment for `made`, the transformed segment `name`.

        Reads the note of an earlier join if there is one.
        """
        note, asked = f"{begins(epoch)}{name}", resolved.transform.identity()
        there = self._answers.note(note)
        if there is None:
            fresh, lost = self._written(made, resolved, epoch)
            ours = json.dumps(_Note(fresh.name if fresh else "", fresh, asked).to_json()).encode()
            there = self._answers.keep(note, ours, fresh.name if fresh else "")
            reach("after_lookup")
            if lost:
                where = ", ".join(one.lookup.key_path for one in resolved.lookups)
                self._warn(
                    f"{resolved.table}: {lost} values that {where} found do not fit their columns, and are NULL."
                )
            if there == ours:
                return fresh
        noted = _Note.from_json(json.loads(there))
        if noted.asked != asked:
            raise StateError(
                f"The [[lookup]] or [[transform]] of {resolved.table} differs from when epoch {epoch} was begun, of "
                "which a part may be in the sink. Take it back, or "
                f"{NEW_STATE}."
            )
        if noted.segment is None:
            return None
        self._answers.fetch(noted.file)
        segment = noted.segment.located(self._answers.path)
        if not verify_segments([segment]):
            raise StateError(
                f"{segment.path} is missing or damaged. It has the answers of lookups for epoch {epoch}, of which a "
                "part may be in the sink. Take it back from a copy, or "
                f"{NEW_STATE}."
            )
        return segment

    def _written(self, made: Segment, resolved: ResolvedTransform, epoch: int) -> tuple[Segment | None, int]:
        """Write the joined rows of `made` to a new file; return it and the number of values that became NULL."""
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
        """Return the documents of all keys of the segment, and the number of values that do not fit their column. Each
        distinct key is queried once.
        """
        keys = [task.keys(batch, lookup) for batch in task.batches()]
        distinct = pc.unique(pa.chunked_array(keys)).drop_null()
        answer = self._asking(lookup).answer(distinct)
        return answer.documents.combine_chunks(), answer.lost


@dataclass(frozen=True, slots=True)
class _Task:
    """The join of one segment."""

    segment: Segment
    resolved: ResolvedTransform
    records: BadRecords
    access: SegmentAccess

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the segment's stored rows in batches that never separate the two images of an update."""
        return whole_updates(read_segment(self.segment, access=self.access))

    def keys(self, batch: pa.RecordBatch, lookup: ResolvedLookup) -> pa.Array:
        """Return the lookup key of each row; NULL for rows that have no key or are not joined."""
        outputs = {output.name: output for output in self.resolved.projection().outputs}
        key_path = f"{self.resolved.table}, {lookup.lookup.key_path}"
        keys = canonical(batch.column(outputs[lookup.key].stored), lookup.key_type, key_path=key_path)
        ops = batch.column("_op").to_numpy()
        if self.records.upsert:
            # With soft deletion, the deleted row stays in the target, so it keeps its looked-up columns.
            return keys if self.resolved.transform.soft else pc.if_else(_is_in(ops, _CAME), keys, _null(keys))
        goes = _is_in(ops, (RowKind.UPDATE_BEFORE, RowKind.DELETE))
        if (bad := np.flatnonzero(pc.and_(goes, keys.is_valid()).to_numpy(zero_copy_only=False))).size:
            raise RowRefusedError(
                f"{key_path}: {row_named(batch, int(bad[0]), self.resolved.source)} was updated or deleted, and in a "
                "changelog that repeats what was found when the row came, which nobody knows any more. Use "
                'sink.write = "upsert", or leave the lookup out.'
            )
        return keys

    def joined(self, batch: pa.RecordBatch, answers: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `batch` that are kept, with the looked-up columns appended.

        Each part has at most `JOINED_BYTES_MAX` of looked-up values, or a single row.
        """
        indexes = []
        missing = np.zeros(batch.num_rows, np.bool_)
        for lookup, documents in zip(self.resolved.lookups, answers, strict=True):
            indexes.append(pc.index_in(self.keys(batch, lookup), value_set=documents.column(KEY).combine_chunks()))
            if lookup.lookup.drop:
                missing |= indexes[-1].is_null().to_numpy(zero_copy_only=False)
        ops, numbers = batch.column("_op").to_numpy(), batch.column("_seq").to_numpy()
        if self.records.upsert:
            missing &= np.isin(ops, _CAME)
        missing &= ops != RowKind.TRUNCATE
        ops, kept = judged(ops, numbers, np.ones(len(ops), np.bool_), missing, self.records)
        at = batch.schema.get_field_index("_op")
        passed = pa.array(kept)
        rows = batch.set_column(at, batch.schema.field(at), pa.array(ops, pa.int8())).filter(passed)
        looked_up = {
            name: (documents.column(column.name).combine_chunks(), key_path.filter(passed))
            for lookup, documents, key_path in zip(self.resolved.lookups, answers, indexes, strict=True)
            for name, column in lookup.stored()
        }
        for start, stop in _parts(rows.num_rows, looked_up.values()):
            columns = {name: rows.column(name).slice(start, stop - start) for name in rows.schema.names}
            columns |= {
                name: values.take(key_path.slice(start, stop - start)) for name, (values, key_path) in looked_up.items()
            }
            yield pa.RecordBatch.from_pydict(columns)


def _parts(rows: int, looked_up: Iterable[tuple[pa.Array, pa.Array]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges into which rows are divided by the size of their looked-up values."""
    sizes = np.zeros(rows, np.int64)
    for values, indexes in looked_up:
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            sizes += pc.fill_null(pc.binary_length(values).take(indexes), 0).to_numpy(zero_copy_only=False)
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
