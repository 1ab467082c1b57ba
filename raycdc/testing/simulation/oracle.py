"""The oracle: laws of every manifest when it is written, and of the sinks at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raycdc.checkpoint.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.checkpoint.opaque import SealedSplit
from raycdc.model import TableId
from raycdc.source.snapshot.enumerator_state import SealedEnumerator
from raycdc.source.snapshot.stream_state import StreamState, stream_of
from raycdc.source.split import SnapshotSplit
from raycdc.source.table_life import AsOf, Behind, Followed, InSnapshot, Live, SnapshotState
from raycdc.testing.changelog import check_changelog
from raycdc.testing.simulation.chunks import all_chunks, in_chunk
from raycdc.testing.simulation.database import KEYS, SimDatabase, SimTable, TableKind
from raycdc.testing.simulation.place import SimPlace
from raycdc.testing.simulation.sinks import ModelSink, Target
from raycdc.testing.simulation.spool import Author, MemorySpool


class Oracle:
    """Collects what is wrong in `problems`; the simulation stops at the first."""

    def __init__(self, database: SimDatabase, spool: MemorySpool) -> None:
        self.problems: list[str] = []
        #: Epoch that was open when a reader was fenced: it may have reported that one, none later.
        self.fenced: dict[Author, int] = {}
        self._database = database
        self._spool = spool
        #: Places the log was moved to as it was lost before.
        self.starts: set[int] = set()
        #: Where the log was first read from.
        self._start: int | None = None

    def manifest(self, manifest: Manifest, previous: Manifest | None, *, caught_up: bool) -> None:
        """Look at a manifest about to become durable; `previous` is the newest durable one.

        `caught_up`: the run ends with it because it has read everything.
        """
        if previous is not None and not self._continues(manifest, previous):
            self._say(f"epoch {manifest.epoch} does not begin where epoch {previous.epoch} ended")
        boundaries = {0, *(t.ordinal for t in self._database.log)}
        stream = stream_of(manifest)
        first = _ordinal(manifest.from_splits)
        if first is not None and (self._start is None or first < self._start):
            self._start = first
        if stream is not None and SimPlace.of(stream.position).ordinal not in boundaries:
            self._say(f"epoch {manifest.epoch} ends inside a transaction")
        for segment in manifest.segments:
            if segment.table not in manifest.tables or manifest.tables[segment.table].schema != segment.schema:
                self._say(f"epoch {manifest.epoch}: {segment} has not the schema of its table")
            author = self._spool.authors[segment.path]
            if segment.kind == "log" and manifest.epoch > self.fenced.get(author, manifest.epoch):
                self._say(f"epoch {manifest.epoch} has rows of {author}, which was fenced")
            if segment.path not in self._spool:
                self._say(f"epoch {manifest.epoch} has a deleted segment {segment}")
        if stream is not None and caught_up:
            begun = [str(table) for table, state in stream.followed.items() if isinstance(state, InSnapshot | AsOf)]
            begun += [str(table) for table, parked in stream.parked.items() if parked.again]
            begun += map(str, stream.catching_up)
            if begun:
                self._say(f"epoch {manifest.epoch} is said to be the last, but {', '.join(begun)} was begun only")
        if stream is not None:
            for table, parked in stream.parked.items():
                if parked.reason == "misfit" and table not in self._database.unlogged:
                    self._say(f"epoch {manifest.epoch}: rows of {table} do not fit, which always fitted the log")
            for table, state in stream.followed.items():
                self._snapshot_state(manifest, table, state)

    def _continues(self, manifest: Manifest, previous: Manifest) -> bool:
        """Whether the epoch begins where the one before ended, or where a request moved the log to."""
        before, after = _ordinal(previous.to_splits), _ordinal(manifest.from_splits)
        if before is None or after is None:
            return before is None
        # The place, whatever the server that answers calls it.
        return after in {before, *self.starts}

    def _snapshot_state(self, manifest: Manifest, table_id: TableId, state: Followed) -> None:
        """Every key's chunk is either closed in the stream's state or still to be read, never both or neither."""
        snapshot = state.snapshot if isinstance(state, InSnapshot | AsOf) else None
        enumerator = SealedEnumerator.of(manifest.enumerator)
        table = self._database.tables[table_id]
        told = manifest.tables.get(table_id)
        if told is not None and told.snapshot != (snapshot is not None):
            self._say(f"epoch {manifest.epoch}: {table_id} snapshot={told.snapshot}, but its state is {snapshot}")
        known = enumerator.tables.get(table_id)
        if known is None:
            return
        incarnation = state.incarnation
        if known.incarnation != incarnation:
            self._say(f"epoch {manifest.epoch}: incarnations of {table_id} are {known.incarnation} and {incarnation}")
        chunks = [replace(chunk, incarnation=incarnation) for chunk in all_chunks(table)]
        planned = len(chunks) if known.planner is None else known.planned
        unread = {c.split_id for c in chunks[planned:]} | {split.split_id for split in enumerator.unfinished}
        values: list[int | None] = [*range(-1, KEYS + 1), None]
        for value in values:
            row = {"id": value, "grp": value}
            mine = [c.split_id for c in chunks if in_chunk(table, c, row)]
            if not mine:
                continue
            closed = snapshot is None or _closed(table, snapshot, value)
            if closed == (mine[0] in unread):
                self._say(
                    f"epoch {manifest.epoch}: key {value} of {table_id} is {'closed' if closed else 'not closed'}, "
                    f"its chunk {mine[0]} {'unread' if mine[0] in unread else 'read'}"
                )

    def committed(self, manifest: Manifest, sink: ModelSink) -> None:
        """The sink holds the epoch: tables that a backfill is beside are as the log alone would have left them."""
        stream = stream_of(manifest)
        again = {segment.table for segment in manifest.segments if segment.kind == "backfill"}
        for name in sorted(again):
            table, target = self._database.tables[name], sink.targets[name]
            if stream is None or not isinstance(stream.followed.get(name), Live | Behind):
                continue
            place = SimPlace.of(stream.position).ordinal
            if any(t.ddl is not None and t.ddl[0] == name and t.ordinal > place for t in self._database.log):
                continue  # Its rows of then cannot be told any more.
            columns = [column.name for column in table.schema.columns[:3]]
            have = sorted(str([row[column] for column in columns]) for row in target.rows.values())
            rows = self._database.rows_at(table, place) or []
            if have != (want := sorted(str([row[column] for column in columns]) for row in rows)):
                self._say(f"epoch {manifest.epoch}: {name} has {have} at {place} instead of {want}")

    def final(self, sink: ModelSink) -> None:
        """Compare the sinks with the source."""
        for table in self._database.tables.values():
            target = sink.targets.get(table.id)
            if target is None:
                self._say(f"{table.id} never arrived")
            elif table.kind is TableKind.KEYLESS:
                self._keyless(table, target)
            else:
                self._keyed(table, target)
            if target is not None:
                self._log_rows(table, target)

    def _keyed(self, table: SimTable, target: Target) -> None:
        if target.rows != table.rows:
            missing = {k: v for k, v in table.rows.items() if target.rows.get(k) != v}
            extra = {k: v for k, v in target.rows.items() if k not in table.rows}
            self._say(f"{table.id}: sink is not source; missing or wrong {missing}, too many {extra}")
        defaults = {c.name: None if c.default is None else int(c.default) for c in table.schema.columns[3:]}
        for problem in check_changelog(target.log, table.schema.primary_key, added_columns=defaults)[:3]:
            self._say(f"{table.id}: {problem}")

    def _keyless(self, table: SimTable, target: Target) -> None:
        names = [c.name for c in table.schema.columns[:3]]
        bag: Counter[tuple[Any, ...]] = Counter()
        for row in target.log:
            if row["_op"] == "T":
                bag.clear()
                continue
            values = tuple(row[name] for name in names)
            bag[values] += 1 if row["_op"] in ("+I", "+U") else -1
            if bag[values] < 0:
                self._say(f"{table.id}: {values} was deleted before it was inserted")
        want = Counter(tuple(row[name] for name in names) for row in table.rows.values())
        if +bag != want:
            self._say(f"{table.id}: changelog adds up to {+bag - want} too many and {want - +bag} too few")

    def _log_rows(self, table: SimTable, target: Target) -> None:
        """Log rows arrive once, unchanged; and once a key's changes are let through, all later ones are."""
        changes = {str(c.ordinal): c for t in self._database.log for c in t.changes if c.table == table.id}
        seen: Counter[tuple[str, str]] = Counter()
        first: dict[Any, int] = {}
        truncations: Counter[str] = Counter()
        again = False
        for row in target.log:
            if row["_pos"] is None:
                if row["_op"] == "T":
                    # The table began again: what came before is moot.
                    first.clear()
                    again = True
                continue
            if row["_op"] == "T":
                truncations[row["_pos"]] += 1
                continue
            change = changes[row["_pos"]]
            after = row["_op"] in ("+I", "+U")
            image, key = (change.after, change.after_key) if after else (change.before, change.before_key)
            if image is None or any(row[name] != value for name, value in image.items()):
                self._say(f"{table.id}: {row} is not what the log has: {image}")
            seen[row["_pos"], "after" if after else "before"] += 1
            if table.kind is TableKind.KEYLESS:
                key = ()
            first[key] = min(first.get(key, change.ordinal), change.ordinal)
        self._pairs(table, target)
        start = self._start or 0
        wanted = Counter(
            str(t.ordinal)
            for t in self._database.log
            if t.ddl and t.ddl[0] == table.id and _truncates(t.ddl[2]) and t.ordinal > start
        )
        if truncations != wanted and not (again and truncations <= wanted):
            self._say(f"{table.id}: truncations {dict(truncations)} instead of {dict(wanted)}")
        for place, count in seen.items():
            if count > 1:
                self._say(f"{table.id}: log row {place} arrived {count} times")
        if table.kind is TableKind.MOVING:
            return  # A row that moves to a chunk that is not open yet is rightly silent until that is read.
        for position, change in changes.items():
            for side, row_key in (("before", change.before_key), ("after", change.after_key)):
                key = () if table.kind is TableKind.KEYLESS and row_key is not None else row_key
                if key in first and change.ordinal >= first[key] and (position, side) not in seen:
                    self._say(f"{table.id}: log row {(position, side)} of key {key} is missing")

    def _pairs(self, table: SimTable, target: Target) -> None:
        """The two halves of an update come together, or as a delete and an insert."""
        halves = {(row["_op"], row["_pos"]): row["_seq"] for row in target.log if row["_op"] in ("-U", "+U")}
        for (op, position), seq in halves.items():
            other = halves.get(("+U" if op == "-U" else "-U", position))
            if other != (seq + 1 if op == "-U" else seq - 1):
                self._say(f"{table.id}: {op} at {position} without its other half")

    def _say(self, problem: str) -> None:
        self.problems.append(problem)


def _truncates(event: dict[str, Any]) -> bool:
    return bool(event["type"] == "truncate_table")


def _ordinal(splits: Mapping[str, SealedSplit]) -> int | None:
    """Where the log stands in a manifest's splits; None where it is not among them yet."""
    stream = splits.get(STREAM_SPLIT_ID)
    return None if stream is None else SimPlace.of(StreamState.of(stream).position).ordinal


def _closed(table: SimTable, snapshot: SnapshotState, value: int | None) -> bool:
    if value is None or table.key is None:
        return snapshot.null_closed
    row = {table.key: value}
    ranges = [SnapshotSplit(table.id, 0, table.key, low, high) for low, high in snapshot.closed]
    return any(in_chunk(table, split, row) for split in ranges)
