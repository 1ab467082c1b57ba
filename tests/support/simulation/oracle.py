"""The oracle: laws of every manifest when it is written, and of the sinks at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from raycdc.model import TableId
from raycdc.sandbox.compare import check_changelog, final_rows
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.enumerator_state import SealedEnumerator
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.table_life import (
    AsOf,
    Behind,
    Followed,
    InSnapshot,
    Live,
    Parked,
    ParkedPhase,
    SnapshotState,
    TableState,
    Unknown,
)
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.opaque import SealedSplit
from tests.support.simulation.chunk_source import all_chunks, in_chunk
from tests.support.simulation.database import KEYS, Row, RowKey, SimDatabase, SimPosition, SimTable, TableKind
from tests.support.simulation.sinks import ModelSink, SimTargetTable
from tests.support.simulation.state import Author, MemorySpool

#: Statements that end a table, and those about names.
DROPS = ("drop_table", "replace_table")
NAMES = (*DROPS, "rename_away", "rename_back", "renew")


class Oracle:
    """Collects what is wrong in `problems`; the simulation stops at the first."""

    def __init__(self, database: SimDatabase, spool: MemorySpool, document: Callable[[str], SchemaDocument]) -> None:
        self.problems: list[str] = []
        #: Epoch that was open when a reader was fenced: it may have reported that one, none later.
        self.fenced: dict[Author, int] = {}
        #: Whether every change of a table is to come that was made while the job read the log, or stood still.
        self.tells_made_tables = False
        self._database = database
        self._spool, self._document = spool, document
        #: Rows of tables that were followed until they were renamed away, with the number that they are parked by.
        self._renamed: dict[TableId, tuple[int, dict[RowKey, Row]]] = {}
        #: Places the log was moved to as it was lost before.
        self.starts: set[int] = set()
        #: Tables whose target has refused an epoch, and has nothing of those behind it.
        self.refused: Collection[TableId] = ()
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
        if stream is not None and SimPosition.of(stream.position).ordinal not in boundaries:
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
            self._parked_tables(manifest, stream, stream_of(previous) or StreamState(stream.position, 0))

    def _parked_tables(self, manifest: Manifest, stream: StreamState, before: StreamState) -> None:
        """Nothing comes of a table that stays parked; its target has what it had."""
        for table, parked in stream.parked.items():
            was = before[table]
            if isinstance(was, Parked) and was.incarnation == parked.incarnation and table in manifest.tables:
                self._say(f"epoch {manifest.epoch} has something of {table}, which is parked: {parked.reason}")
            if parked.phase is ParkedPhase.ENDED and isinstance(was, Live):
                at = SimPosition.of(parked.position).ordinal
                renamed = (t for t in self._database.log if t.ordinal == at and t.ddl is not None)
                if (one := next(renamed, None)) is not None and one.ddl is not None and one.ddl[0] == table:
                    self._renamed[table] = parked.incarnation, one.removed

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
        told = manifest.tables.get(table_id)
        if told is not None and told.snapshot != (snapshot is not None):
            self._say(f"epoch {manifest.epoch}: {table_id} snapshot={told.snapshot}, but its state is {snapshot}")
        known = enumerator.tables.get(table_id)
        if known is None:
            return
        incarnation = state.incarnation
        table = self._database.shapes[table_id]
        if snapshot is not None:
            table = table.as_planned(self._document(state.schema).schema, snapshot.key)
        elif len(self._database.kinds[table_id]) > 1:
            return  # Chunks of an earlier table of the name may be about to be refused.
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
            if not closed and self._is_dropped_next(manifest, table_id):
                continue  # What is said of its chunks then may come before the manifest that it is behind.
            if closed == (mine[0] in unread):
                self._say(
                    f"epoch {manifest.epoch}: key {value} of {table_id} is {'closed' if closed else 'not closed'}, "
                    f"its chunk {mine[0]} {'unread' if mine[0] in unread else 'read'}"
                )

    def _is_dropped_next(self, manifest: Manifest, table: TableId) -> bool:
        place = _ordinal(manifest.to_splits)
        following = next((t for t in self._database.log if place is not None and t.ordinal > place), None)
        statement = None if following is None else following.ddl
        return statement is not None and statement[0] == table and statement[2]["type"] in DROPS

    def committed(self, manifest: Manifest, sink: ModelSink) -> None:
        """The sink holds the epoch: tables that a backfill is beside are as the log alone would have left them."""
        stream = stream_of(manifest)
        again = {segment.table for segment in manifest.segments if segment.kind == "backfill"}
        for name in sorted(again):
            table, target = self._database.shapes[name], sink.targets[name]
            if stream is None or not isinstance(stream.followed.get(name), Live | Behind):
                continue
            place = SimPosition.of(stream.position).ordinal
            if any(t.ddl is not None and t.ddl[0] == name and t.ordinal > place for t in self._database.log):
                continue  # Its rows of then cannot be told any more.
            columns = [column.name for column in table.schema.columns[:3]]
            have = sorted(str([row[column] for column in columns]) for row in target.rows.values())
            rows = self._database.rows_at(table, place) or []
            if have != (want := sorted(str([row[column] for column in columns]) for row in rows)):
                self._say(f"epoch {manifest.epoch}: {name} has {have} at {place} instead of {want}")

    def final(self, sink: ModelSink, stream: StreamState) -> None:
        """Compare the sinks with the source, where the log is in that state."""
        for name in self._database.shapes:
            table, target, state = self._database.tables.get(name), sink.targets.get(name), stream[name]
            if table is None:
                self._absent(name, target, state)
            elif target is None:
                self._say(f"{name} never arrived")
            elif table.kind is TableKind.KEYLESS:
                self._keyless(name, target, table.rows)
            else:
                self._keyed(table, target)
            if target is not None:
                self._changelog(name, target)
                self._log_rows(name, target, state)

    def _absent(self, name: TableId, target: SimTargetTable | None, state: TableState) -> None:
        """A table that is no more: the log said so, or it has ended, and its target keeps what it had."""
        number, rows = self._renamed.get(name, (None, {}))
        if isinstance(state, Unknown):
            rows = {}
        elif not isinstance(state, Parked):
            self._say(f"{name} is no more, and is {state}")
            return
        elif number != state.incarnation:
            return
        if target is None or name in self.refused:
            return
        if not target.schema.primary_key:
            self._keyless(name, target, rows)
        elif not self._database.keeps_dropped and self._images(target.rows) != self._images(rows):
            self._say(f"{name} is no more, and its target has {target.rows} instead of {rows}")

    def _images(self, rows: Mapping[RowKey, Row]) -> list[str]:
        return sorted(str([row[name] for name in ("id", "grp", "val")]) for row in rows.values())

    def _keyed(self, table: SimTable, target: SimTargetTable) -> None:
        rows = target.rows
        if self._database.keeps_dropped:
            start, schema = target.sections[-1]
            empty: dict[str, None] = dict.fromkeys(column.name for column in schema.columns)
            arrow = pa.schema([(name, pa.int64()) for name in empty])
            told = final_rows(target.log[start:], schema.primary_key, arrow).to_pylist()
            rows = {tuple(row[name] for name in schema.primary_key): row for row in told}
            lacks = {
                key: row
                for key, row in rows.items()
                if self._images({key: row}) != self._images({key: target.rows[key]} if key in target.rows else {})
            }
            if lacks:
                self._say(f"{table.id}: sink lacks {lacks}")
            if self._images(rows) != self._images(table.rows):
                self._say(f"{table.id}: the changelog has {rows} instead of {table.rows}")
        elif rows != table.rows:
            missing = {k: v for k, v in table.rows.items() if rows.get(k) != v}
            extra = {k: v for k, v in rows.items() if k not in table.rows}
            self._say(f"{table.id}: sink is not source; missing or wrong {missing}, too many {extra}")

    def _changelog(self, name: TableId, target: SimTargetTable) -> None:
        """Each table that had the name has a changelog of its own; only the first row of one may undo another."""
        ends = [*(start for start, _ in target.sections[1:]), len(target.log)]
        for (start, schema), end in zip(target.sections, ends, strict=True):
            if not schema.primary_key:
                continue
            defaults = {c.name: None if c.default is None else int(c.default) for c in schema.columns[3:]}
            rows = target.log[start:end]
            for problem in check_changelog(rows, schema.primary_key, added_columns=defaults)[:3]:
                self._say(f"{name}: {problem}")

    def _keyless(self, name: TableId, target: SimTargetTable, rows: Mapping[RowKey, Row]) -> None:
        names = ["id", "grp", "val"]
        bag: Counter[tuple[Any, ...]] = Counter()
        for row in target.log[target.sections[-1][0] :]:
            if row["_op"] == "T":
                bag.clear()
                continue
            values = tuple(row[name] for name in names)
            bag[values] += 1 if row["_op"] in ("+I", "+U") else -1
            if bag[values] < 0:
                self._say(f"{name}: {values} was deleted before it was inserted")
        want = Counter(tuple(row[name] for name in names) for row in rows.values())
        if +bag != want:
            self._say(f"{name}: changelog adds up to {+bag - want} too many and {want - +bag} too few")

    def _log_rows(self, name: TableId, target: SimTargetTable, state: TableState) -> None:
        """Log rows arrive once, unchanged; and once a key's changes are let through, all later ones are."""
        kinds = self._database.kinds[name]
        changes = {str(c.ordinal): c for t in self._database.log for c in t.changes if c.table == name}
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
            if image is None or any(row[column] != value for column, value in image.items()):
                self._say(f"{name}: {row} is not what the log has: {image}")
            seen[row["_pos"], "after" if after else "before"] += 1
            if not change.schema.primary_key:
                key = ()
            first[key] = min(first.get(key, change.ordinal), change.ordinal)
        self._pairs(name, target)
        start = self._start or 0
        wanted = Counter(
            str(t.ordinal)
            for t in self._database.log
            if t.ddl and t.ddl[0] == name and self._truncates(t.ddl[2]) and t.ordinal > start
        )
        partly = again or isinstance(state, Parked) or len(kinds) > 1
        if truncations != wanted and not (partly and truncations <= wanted):
            self._say(f"{name}: truncations {dict(truncations)} instead of {dict(wanted)}")
        for place, count in seen.items():
            if count > 1:
                self._say(f"{name}: log row {place} arrived {count} times")
        if self.tells_made_tables and self._was_made(name):
            for position, change in changes.items():
                sides = [("before", change.before_key), ("after", change.after_key)]
                lacks = [side for side, row_key in sides if row_key is not None and (position, side) not in seen]
                if lacks or again:
                    self._say(f"{name} was made while the job had begun, and lacks its change {position}: {lacks}")
                    return
        if TableKind.MOVING in kinds or isinstance(state, Parked):
            return  # A row that moves to a chunk that is not open yet is rightly silent until that is read.
        for position, change in changes.items():
            for side, row_key in (("before", change.before_key), ("after", change.after_key)):
                key = () if not change.schema.primary_key and row_key is not None else row_key
                if key in first and change.ordinal >= first[key] and (position, side) not in seen:
                    self._say(f"{name}: log row {(position, side)} of key {key} is missing")

    def _was_made(self, name: TableId) -> bool:
        """Whether the log behind its first place has the statement that made the table, and none about its name."""
        start = self._start or 0
        statements = (t.ddl for t in self._database.log if t.ddl is not None and t.ddl[0] == name)
        if any(event["type"] in NAMES for _, _, event in statements):
            return False
        made = (t for t in self._database.log if t.ddl is not None and t.ddl[2]["type"] == "create_table")
        return any(t.ddl is not None and t.ddl[0] == name and t.ordinal > start for t in made)

    def _pairs(self, name: TableId, target: SimTargetTable) -> None:
        """The two halves of an update come together, or as a delete and an insert."""
        halves = {(row["_op"], row["_pos"]): row["_seq"] for row in target.log if row["_op"] in ("-U", "+U")}
        for (op, position), seq in halves.items():
            other = halves.get(("+U" if op == "-U" else "-U", position))
            if other != (seq + 1 if op == "-U" else seq - 1):
                self._say(f"{name}: {op} at {position} without its other half")

    def _truncates(self, event: dict[str, Any]) -> bool:
        drops = () if self._database.keeps_dropped else DROPS
        return event["type"] in ("truncate_table", *drops)

    def _say(self, problem: str) -> None:
        self.problems.append(problem)


def _ordinal(splits: Mapping[str, SealedSplit]) -> int | None:
    """Where the log stands in a manifest's splits; None where it is not among them yet."""
    stream = splits.get(STREAM_SPLIT_ID)
    return None if stream is None else SimPosition.of(StreamState.of(stream).position).ordinal


def _closed(table: SimTable, snapshot: SnapshotState, value: int | None) -> bool:
    if value is None or table.key is None:
        return snapshot.null_closed
    row = {table.key: value}
    ranges = [SnapshotSplit(table.id, 0, table.key, low, high) for low, high in snapshot.closed]
    return any(in_chunk(table, split, row) for split in ranges)
