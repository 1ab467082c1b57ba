"""Keeps the last row of each key of each source table, to make changes exact (``changelog = "full"``).

The rows are in Delta tables under ``<state>/known``, in a folder or on an object store. The Delta sink writes them like
any target, with schema changes and commit vectors. For each table and epoch, *exact* segments are made once from the
epoch's segments; transforms and sinks then get the exact segments.

Invariant: an epoch is added to the row store after every target holds it, and before it is recorded. When the exact
segments of an epoch are made, the row store therefore has the rows from before the epoch. If a row store holds an
epoch, all targets hold it, too. Recovery treats a row store like an additional target of its source table
(`raycdc.delivery.record_keeper`). If an epoch's rows are lost before they were added to the row store, the table is
resnapshotted, which empties the row store.

*Crashes*: before or during the targets' commits, the same exact segments are made again. After the targets' commits and
before those of the row stores, recovery finds that the row stores lack the epoch, and adds it. The next run deletes the
files that an earlier run left.

Each change becomes exact steps, which start from the result of the previous step:

| the change | its key exists | its key is new |
|---|---|---|
| an insert, or the row after an update | ``-U`` with the stored row, ``+U``; nothing if equal | ``+I`` |
| a deletion, or the row before an update that moves its key | ``-D`` with the stored row | nothing |
| a truncation | itself; no key exists after it | the same |

The changes are processed by Arrow and numpy, and not row by row in Python. Rows are sorted by key, so that each row
comes right after the previous row of its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.delivery.record_keeper import KNOWN
from raycdc.errors import DataError, SinkError, TableRefusedError, TargetDroppedError, TargetModifiedError
from raycdc.model import META_FIELDS, RowKind, TableId, changelog_schema
from raycdc.model.batch import BATCH_ROWS_MAX
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.evolution.events import CreateTableEvent, DropTableEvent, TruncateTableEvent
from raycdc.model.keys import comparable
from raycdc.model.rules.layout import TableLayout
from raycdc.segments import SegmentWriter
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.segments.reading import read_segment
from raycdc.segments.writing import MadeSegments
from raycdc.sinks.api import UPSERT, SinkContext, TableCommit
from raycdc.sinks.delta.key_lookup import rows_with
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.delta.table import DeltaTarget, is_the_tables
from raycdc.sinks.lakes.unreachable import is_absent
from raycdc.sinks.targets import table_folder
from raycdc.state.location import StateLocation
from raycdc.state.manifests.manifest import SEQ_COUNTER_BITS, Segment
from raycdc.state.recovery import STEP_LAST, CommitVector

_NOWHERE = -1
_CAME = (RowKind.INSERT, RowKind.UPDATE_AFTER)


@dataclass(frozen=True, slots=True)
class Steps:
    """The rows of an exact changelog, in order.

    For each row, `of` is the index of the change from which the row was made. `values` is the index of the row with its
    values, in a table of the stored rows followed by the changes. `second` is True for the second row of an update.
    """

    ops: npt.NDArray[np.int8]
    of: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    second: npt.NDArray[np.bool_]


def key_ids(keys: pa.Table) -> npt.NDArray[np.int64]:
    """Return a number per row that is equal for equal keys, and only for them."""
    ids = np.zeros(keys.num_rows, np.int64)
    for column in comparable(keys, keys.column_names).columns:
        codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
        if len(codes):
            ids = np.unique(ids * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
    return ids


def exact_steps(ops: np.ndarray, numbers: np.ndarray, rows: pa.Table, key: Sequence[str], *, known: int) -> Steps:
    """Return the exact steps for changes with the given `_op` codes and `_seq`. The first `known` rows of `rows` are
    the stored rows, one per key; the rows of the changes follow.
    """
    ids = key_ids(rows.select(list(key)))
    order = np.argsort(numbers, kind="stable")
    codes, ids_now = ops[order], ids[known:][order]
    emptied = codes == RowKind.TRUNCATE
    counts = ~emptied
    # A before-image counts only if the update changes the key. Otherwise the stored row is used, because it is more
    # reliable.
    counts[_answered(codes, numbers[order], ids_now)] = False
    last = _row_before(ids[:known], ids_now, np.cumsum(emptied), counts, came=np.isin(codes, _CAME))
    # Convert indexes among the ordered changes to indexes in `rows`.
    indexes = np.concatenate([np.arange(known), known + order])
    there = last != _NOWHERE
    old = np.where(there, indexes[last], _NOWHERE)
    new = indexes[known:]
    comes = counts & np.isin(codes, _CAME)
    update = comes & there
    update[update] = ~_same(rows, old[update], new[update])
    insert, delete = comes & ~there, counts & ~comes & there
    first = np.select(
        [update, insert, delete, emptied],
        [RowKind.UPDATE_BEFORE, RowKind.INSERT, RowKind.DELETE, RowKind.TRUNCATE],
        _NOWHERE,
    )
    both = np.stack([first, np.where(update, int(RowKind.UPDATE_AFTER), _NOWHERE)], axis=1)
    values = np.stack([np.where(update | delete, old, new), new], axis=1)
    kept = both.ravel() != _NOWHERE
    of = np.repeat(order, 2)[kept]
    second = np.tile(np.array([False, True]), len(order))[kept]
    return Steps(both.ravel()[kept].astype(np.int8), of, values.ravel()[kept], second)


def _answered(codes: np.ndarray, numbers: np.ndarray, ids: np.ndarray) -> npt.NDArray[np.int64]:
    """Return the indexes of before-images whose after-image has the same key."""
    if not (codes == RowKind.UPDATE_BEFORE).any():
        return np.zeros(0, np.int64)
    # Sort by key, because rows of other keys may be between the two images of an update.
    order = np.lexsort((np.arange(len(ids)), ids))
    here, following = order[:-1], order[1:]
    both = (codes[here] == RowKind.UPDATE_BEFORE) & (codes[following] == RowKind.UPDATE_AFTER)
    found: npt.NDArray[np.int64] = here[
        both & (ids[here] == ids[following]) & (numbers[following] == numbers[here] + 1)
    ]
    return found


def _row_before(
    known: np.ndarray, ids: np.ndarray, emptied: np.ndarray, counts: np.ndarray, *, came: np.ndarray
) -> npt.NDArray[np.int64]:
    """Return for each change the index of its key's previous row, among stored rows and changes."""
    changes = np.flatnonzero(counts)
    number = np.concatenate([np.arange(len(known)), len(known) + changes])
    # Stored rows are in the first era, which ends at a truncation.
    era = np.concatenate([np.zeros(len(known), np.int64), emptied[changes]])
    whose = np.concatenate([known, ids[changes]])
    is_there = np.concatenate([np.ones(len(known), np.bool_), came[changes]])
    order = np.lexsort((number, whose, era))
    here, earlier = order[1:], order[:-1]
    follows = (era[here] == era[earlier]) & (whose[here] == whose[earlier]) & is_there[earlier]
    last = np.full(len(known) + len(ids), _NOWHERE)
    last[number[here[follows]]] = number[earlier[follows]]
    found: npt.NDArray[np.int64] = last[len(known) :]
    return found


def _same(rows: pa.Table, left: np.ndarray, right: np.ndarray) -> npt.NDArray[np.bool_]:
    """Return for each pair of rows whether all values are equal; NULL equals NULL, and floats compare by bits."""
    equal = np.ones(len(left), np.bool_)
    if not len(left):
        return equal
    for column in rows.columns:
        one, other = (_bits(column.take(pa.array(indexes))) for indexes in (left, right))
        both_null = pc.and_(one.is_null(), other.is_null())
        same = pc.or_(pc.fill_null(pc.equal(one, other), fill_value=False), both_null)
        equal &= same.to_numpy()
    return equal


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(column.type):
        return column
    wanted = pa.int64() if column.type.bit_width == 64 else pa.int32()
    return pa.chunked_array([chunk.view(wanted) for chunk in column.chunks], wanted)


#: The interval at which files of old versions are deleted, which are never read.
_CLEANED_EVERY_S = 60.0
#: The number of row stores that commit concurrently.
_COMMITS_AT_ONCE = 4
#: Nobody reads old log entries of a row store, and keeping them for Delta's default of 30 days costs too much if there
#: are many epochs.
_LAYOUT = TableLayout(options=(("delta.logRetentionDuration", "interval 1 hours"),))
_COUNTER = (1 << SEQ_COUNTER_BITS) - 1
_META = tuple(field.name for field in META_FIELDS)


class RowStore(MadeSegments):
    """The row stores of a pipeline; see the module's docstring.

    `sink` is open, updates rows and follows every schema change. Exact segments are written to `folder`, on this
    machine. Methods block, and are called by one thread at a time.
    """

    def __init__(
        self, sink: DeltaSink, folder: Path, *, app_id: str, access: SegmentAccess = HERE, empties: bool = True
    ) -> None:
        """Create it. `empties` says that a truncated table has no stored rows afterwards."""
        super().__init__(folder)
        self._empties = empties
        self._sink = sink
        self._exact_folder = folder
        self._app_id = app_id
        self._access = access
        #: Each handle is used by one thread at a time, because an epoch is made exact only after the previous epoch was
        #: added.
        self._targets: dict[TableId, DeltaTarget] = {}
        self._cleaned_s: dict[TableId, float] = {}

    @classmethod
    def opened(cls, state: StateLocation, context: SinkContext) -> RowStore:
        """Return the row store of the pipeline with this `state` and this `context` of its sink."""
        sink = DeltaSink(DeltaSinkConfig(path=str(state.below(KNOWN))))
        # If targets ignore truncations and drops, the row store keeps the rows, too.
        left_out = context.left_out & {TruncateTableEvent.type, DropTableEvent.type}
        sink.open(
            replace(
                context,
                write=UPSERT,
                on_existing="fail",
                schema_change=SchemaChangeBehavior.EVOLVE,
                left_out=left_out,
                order_by="",
            )
        )
        empties = not left_out
        return cls(sink, state.work / "exact", app_id=context.app_id, access=context.access, empties=empties)

    def committed(self, table: TableId) -> CommitVector | None:
        """Return the vector that the row store of `table` holds."""
        target = self._target(table)
        return target.vector() if target.refresh() else None

    def exact(self, work: TableCommit) -> dict[str, Segment | None]:
        """Make the exact segments of `work`, a source table's part of an epoch. Return them by the names of the
        original segments; None for a segment of which no row is left. Raises `SegmentUnavailableError` if a segment
        cannot be read now.
        """
        if self._empties and _is_resnapshot(work):
            self._make_way(work)
        held = self.committed(work.source)
        if held is not None and held.progress >= (work.epoch, STEP_LAST):
            raise TargetDroppedError(
                f"{work.source}: its known rows hold epoch {work.epoch}, and a target lacks it: the target was "
                "restored from an older copy. Bring the newer one back, or read the table anew."
            )
        self._follow(work)
        if not work.segments:
            return {}
        keys, ops = self._keys(work)
        known = self._known(work, keys)
        if not known.num_rows and (ops == RowKind.INSERT).all() and len(np.unique(key_ids(keys))) == keys.num_rows:
            # The rows are inserts of new keys, as in a snapshot, so they are exact already.
            return {segment.name: segment for segment in work.segments}
        return _Task(work, known, self._exact_folder, self._access).made()

    def add(
        self, commits: Sequence[TableCommit], made: Mapping[str, Segment | None]
    ) -> dict[TableId, TableRefusedError]:
        """Add an epoch that all targets hold, and return the tables whose row store refuses it, with the error.

        `commits` are the parts of the epoch's source tables. `made` has the results of `exact`; exact segments that are
        not in `made` are made now.
        """
        refused: dict[TableId, TableRefusedError] = {}
        with ThreadPoolExecutor(_COMMITS_AT_ONCE, thread_name_prefix="raycdc-known") as pool:
            pending = {work.source: pool.submit(self._add, work, made) for work in commits}
            for source, future in pending.items():
                try:
                    future.result()
                except TableRefusedError as error:
                    refused[source] = error
        return refused

    def tombstone(self, work: TableCommit) -> None:
        """Write a tombstone for the epoch of `work`, which will never be added."""
        self._sink.tombstone(replace(work, segments=(), layout=_LAYOUT))

    def close(self) -> None:
        self._sink.close()

    def _add(self, work: TableCommit, made: Mapping[str, Segment | None]) -> None:
        held = self.committed(work.source)
        if held is not None and held.progress >= (work.epoch, STEP_LAST):
            return
        if any(segment.name not in made for segment in work.segments):
            made = self.exact(work)
        else:
            self._follow(work)
        segments = [found for segment in work.segments if (found := made[segment.name]) is not None]
        exact = replace(work, segments=tuple(segments), layout=_LAYOUT)

        def commit() -> None:
            self._sink.commit(exact, self._sink.stage([exact])[work.target])

        self._naming_table(work, commit)
        self._clean(work.source)

    def _make_way(self, work: TableCommit) -> None:
        """Empty the row store of a table that is resnapshotted.

        A store that another client damaged or changed, so that it cannot be emptied, is deleted.
        """
        try:
            self._follow(work)
        except TableRefusedError:
            self._targets.pop(work.source, None)
            self._sink.discard(work.target)

    def _follow(self, work: TableCommit) -> None:
        if work.changes:
            laid_out = replace(work, layout=_LAYOUT)
            self._naming_table(work, lambda: self._sink.apply_schema(laid_out))

    def _target(self, table: TableId) -> DeltaTarget:
        if table not in self._targets:
            self._targets[table] = DeltaTarget(table_folder(self._sink.root, table), table, self._app_id)
        return self._targets[table]

    def _keys(self, work: TableCommit) -> tuple[pa.Table, np.ndarray]:
        """Return the keys of all rows of `work` except truncations, and the codes of all rows."""
        key = list(work.schema.primary_key)
        batches = [batch for segment in work.segments for batch in self._read(segment, [*key, "_op"])]
        rows = pa.Table.from_batches(batches)
        ops = rows.column("_op").to_numpy()
        return rows.select(key).filter(pa.array(ops != RowKind.TRUNCATE)), ops

    def _known(self, work: TableCommit, keys: pa.Table) -> pa.Table:
        """Return the stored rows with one of `keys`, from before the epoch, with the epoch's columns."""
        target = self._target(work.source)
        if not target.refresh():
            raise TargetDroppedError(
                f"The known rows of {work.source} are gone from {target.path}. Bring them back, or read the table anew."
            )
        there = set(target.arrow().names)
        if missing := [column.name for column in work.schema.columns if column.name not in there]:
            raise TargetModifiedError(
                f"The known rows of {work.source} in {target.path} lack the column {missing[0]!r}: somebody changed "
                "them. Bring them back, or read the table anew."
            )
        try:
            rows = rows_with(target, keys)
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            kind = SinkError if is_absent(cause) else TargetModifiedError
            raise kind(f"The known rows of {work.source} in {target.path} cannot be read: {cause}") from cause
        return rows.select([column.name for column in work.schema.columns]).cast(work.schema.arrow())

    def _read(self, segment: Segment, names: list[str]) -> Iterable[pa.RecordBatch]:
        return read_segment(replace(segment, view=None), names, access=self._access)

    def _naming_table(self, work: TableCommit, act: Any) -> None:
        try:
            act()
        except SinkError as cause:
            raise type(cause)(f'Known rows of {work.source} (source.changelog = "full"): {cause}') from cause

    def _clean(self, table: TableId) -> None:
        """Delete files that only old versions use."""
        now_s = time.monotonic()
        if now_s - self._cleaned_s.setdefault(table, now_s) < _CLEANED_EVERY_S:
            return
        self._cleaned_s[table] = now_s
        target = self._target(table)
        if target.refresh():
            # This deletes files that commits removed, but none that is being staged.
            target.table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=False)


class _Task:
    """Makes the exact segments of one source table's part of an epoch."""

    def __init__(self, work: TableCommit, known: pa.Table, folder: Path, access: SegmentAccess) -> None:
        self._work = work
        self._folder = folder
        self._access = access
        self._schema = changelog_schema(work.schema)
        names = self._schema.names
        read = [self._batches(segment, names) for segment in work.segments]
        self._counts = [sum(batch.num_rows for batch in batches) for batches in read]
        changes = pa.Table.from_batches([batch for batches in read for batch in batches], self._schema)
        self._meta = changes.select(list(_META)).combine_chunks()
        columns = [column.name for column in work.schema.columns]
        both = pa.concat_tables([known.select(columns), changes.select(columns)])
        # The text of a whole epoch may exceed the 2 GiB that 32-bit offsets allow.
        self._rows = pa.table({name: _large(both.column(name)) for name in columns}).combine_chunks()
        self._known = known.num_rows

    def made(self) -> dict[str, Segment | None]:
        ops = self._meta.column("_op").to_numpy()
        numbers = self._meta.column("_seq").to_numpy()
        steps = exact_steps(ops, numbers, self._rows, self._work.schema.primary_key, known=self._known)
        ends = np.cumsum(self._counts)
        segment_of = np.searchsorted(ends, steps.of, side="right")
        return {
            segment.name: self._written(segment, steps, np.flatnonzero(segment_of == number))
            for number, segment in enumerate(self._work.segments)
        }

    def _written(self, segment: Segment, steps: Steps, indexes: np.ndarray) -> Segment | None:
        if not len(indexes):
            return None
        inserts = bool((steps.ops[indexes] == RowKind.INSERT).all())
        # The exact segment keeps the kind of a snapshot's segment only if it has nothing but inserts of new keys. Its
        # name is the same each time it is made, because the notes of lookups refer to it.
        kind = segment.kind if inserts else "log"
        writer = SegmentWriter.remaking(segment, self._folder, f"exact-{segment.name}", kind=kind)
        numbers = _doubled(self._meta.column("_seq").to_numpy()[steps.of[indexes]], str(segment.table))
        # Segments of the log share one base. Chunks are ordered by their bases.
        base = int(numbers[0]) if segment.kind == "snapshot" else int(numbers[0]) & ~_COUNTER
        numbers += steps.second[indexes] - base
        try:
            for first in range(0, len(indexes), BATCH_ROWS_MAX):
                part = slice(first, first + BATCH_ROWS_MAX)
                writer.append(self._batch(steps, indexes[part], numbers[part]))
            return writer.finish(seq_base=base)
        except BaseException:
            writer.abort()
            raise

    def _batch(self, steps: Steps, indexes: np.ndarray, numbers: np.ndarray) -> pa.RecordBatch:
        rows = self._rows.take(pa.array(steps.values[indexes]))
        meta = self._meta.take(pa.array(steps.of[indexes]))
        columns = {name: rows.column(name) for name in rows.column_names} | {
            "_op": pa.chunked_array([pa.array(steps.ops[indexes], pa.int8())]),
            "_seq": pa.chunked_array([pa.array(numbers, pa.int64())]),
            "_ts_ms": meta.column("_ts_ms"),
            "_pos": meta.column("_pos"),
        }
        made = pa.table([columns[field.name].cast(field.type) for field in self._schema], schema=self._schema)
        return made.combine_chunks().to_batches()[0]

    def _batches(self, segment: Segment, names: list[str]) -> list[pa.RecordBatch]:
        batches = read_segment(replace(segment, view=None), names, access=self._access)
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self._schema) for batch in batches]


def _is_resnapshot(work: TableCommit) -> bool:
    """Return True if the table is emptied and filled again in this epoch."""
    created = any(isinstance(change, CreateTableEvent) for change in work.changes)
    return created and any(isinstance(change, TruncateTableEvent | DropTableEvent) for change in work.changes)


def _doubled(numbers: np.ndarray, table: str) -> np.ndarray:
    """Return the `_seq` of rows with room for a second row after each, because a change may become two rows."""
    counters = numbers & _COUNTER
    if (counters >> (SEQ_COUNTER_BITS - 1)).any():
        raise DataError(f"{table}: an epoch of more than two billion rows cannot be made an exact changelog.")
    doubled: np.ndarray = numbers + counters
    return doubled


def _large(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary(column.type) else column
