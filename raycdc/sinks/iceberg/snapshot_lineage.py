"""The last commit of this pipeline in an Iceberg table's metadata, and whether the table went back behind it.

Snapshots that a table's metadata need not name any more.

Every commit writes the whole metadata, which names every snapshot: after ten thousand of them that is some 8 MB each
time. So a commit of ours may leave out old ones, in the same update as its rows. The files that only they name stay
where they are, because a reader may be at them: `remove_orphan_files` finds them later.

| how many stay | say |
|---|---|
| those of so long | ``sink.expire_snapshots`` |
| so many | ``sink.keep_snapshots``; where neither is set the table's property `KEEP`, which upsert tables get from us |
| all | ``sink.keep_snapshots = 0``; a table without any of these; ``gc.enabled = false`` |

*Only the oldest go, and never one between two that stay.* Iceberg's own clean-up, in the versions that delete files by
what snapshots added (``IncrementalFileCleanup``), takes a snapshot before such a gap for one that was rolled back, and
deletes the files that it added, although the table has them: history must not be thinned. So a branch or tag, for as
long as it is there, keeps all that is newer than the snapshot that it names.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from raycdc.errors import TargetDroppedError, TargetModifiedError
from raycdc.model import TableId
from raycdc.sinks.api import CommitVector, ignore_text

#: Table property by which a person vouches for a snapshot whose descent cannot be seen any more.
CONFIRMED = "raycdc.confirmed-snapshot"

#: The advice where rows are missing in the table.
_DROP_IT = "drop the table (in a hadoop catalog: delete its folder) and read its source table anew"


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The vector of a pipeline, and the snapshot that its last commit made; None where that had no rows."""

    vector: CommitVector
    snapshot: int | None


_VECTOR = "raycdc.commit."


def vector_property(app_id: str) -> str:
    """The table property that holds the vector of a pipeline."""
    return f"{_VECTOR}{hashlib.sha256(app_id.encode()).hexdigest()[:16]}"


def foreign_records(metadata: TableMetadata, app_id: str) -> list[str]:
    """The properties with the vectors of other pipelines: none of them goes on in the table without its own."""
    return [name for name in metadata.properties if name.startswith(_VECTOR) and name != vector_property(app_id)]


@dataclass(frozen=True, slots=True)
class NotedSnapshot:
    """The snapshot that the last commit of a pipeline made, and the table property that says so."""

    property_name: str
    pipeline: str
    snapshot: int


def noted_snapshots(metadata: TableMetadata) -> list[NotedSnapshot]:
    """Of all pipelines with a record in the table whose last commit made a snapshot."""
    notes = {name: json.loads(text) for name, text in metadata.properties.items() if name.startswith(_VECTOR)}
    return [
        NotedSnapshot(name, str(note.get("pipeline", "")), note["snapshot"])
        for name, note in notes.items()
        if note.get("snapshot") is not None
    ]


def record_of(metadata: TableMetadata, app_id: str) -> TableRecord | None:
    """The vector of the pipeline in the table; None when there is none."""
    text = metadata.properties.get(vector_property(app_id))
    note = None if text is None else json.loads(text)
    if note is None or note["pipeline"] != app_id:
        return None
    return TableRecord(CommitVector(note["epoch"], note["step"], note["generation"]), note["snapshot"])


class SnapshotLineage:
    """How far each table of a run was: no handle of one may find less afterwards."""

    def __init__(self) -> None:
        self._vectors: dict[TableId, CommitVector] = {}

    def of(self, table: TableId) -> CommitVector | None:
        """How far the table was when it was last looked at."""
        return self._vectors.get(table)

    def forget(self, table: TableId) -> None:
        """The table that was is over: one is made anew."""
        self._vectors.pop(table, None)

    def check(self, table: TableId, seen: CommitVector | None, held: CommitVector | None) -> None:
        """`SinkError` when the table has `held`, which is less than `seen`: rows that came in between are missing."""
        if seen is not None and (held is None or held.progress < seen.progress):
            raise TargetDroppedError(
                f"The Iceberg table {table} holds less than before: it had epoch {seen.epoch} of this pipeline and "
                f"has {f'epoch {held.epoch}' if held else 'nothing'} now. It was restored from an older copy, or "
                f"another writer replaced its metadata. Bring that version back, or {_DROP_IT}."
            )
        known = self.of(table)
        if held is not None and (known is None or known.progress < held.progress):
            self._vectors[table] = held


def check_lineage(
    table: TableId, metadata: TableMetadata, record: TableRecord | None, earlier: Iterable[TableMetadata] = ()
) -> None:
    """`SinkError` unless the current snapshot is the one of our `record` or descends from it.

    Expiring a snapshot cuts what it led to: Spark leaves the name of the parent, pyiceberg not even that. Then the
    table's `earlier` metadata is read, newest first, which has the snapshots that were expired since.
    """
    if record is None or record.snapshot is None:
        return
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    kept = record.snapshot in parents
    head = metadata.current_snapshot_id
    if str(head) == metadata.properties.get(CONFIRMED):
        return  # Our next commit takes the word away, so that it vouches for no rollback to there.
    if _leads_to(record.snapshot, head, parents):
        return
    for older in earlier:
        for snapshot in older.snapshots:
            if parents.get(snapshot.snapshot_id) is None:
                parents[snapshot.snapshot_id] = snapshot.parent_snapshot_id
        if _leads_to(record.snapshot, head, parents):
            return
    if kept:
        raise TargetDroppedError(
            f"The Iceberg table {table} was rolled back or replaced after this pipeline had written to it: "
            f"rows are missing that will not come again. Roll it forward again, or {_DROP_IT}."
        )
    raise TargetModifiedError(
        f"Other writers committed to the Iceberg table {table} since this pipeline did, and the snapshots "
        "in between are expired, with the metadata that had them: whether the table was rolled back meanwhile cannot "
        f"be seen. If it was not, say so: ALTER TABLE … SET TBLPROPERTIES ('{CONFIRMED}' = '{head}')."
    )


def _leads_to(snapshot: int, head: int | None, parents: Mapping[int, int | None]) -> bool:
    """Whether `head` is the snapshot, or descends from it."""
    number = head
    while number is not None and number != snapshot:
        number = parents.get(number)
    return number is not None


#: So many are left out at once, because that costs as much as a commit; and so many at most, for a table that has a
#: great many when it begins.
EXPIRED_LEAST, EXPIRED_MOST = 50, 200

#: So many stay where nothing else was said, of upsert tables that raycdc makes: a commit writes some 400 kB of them.
KEPT = 500

#: A table with more snapshots than this is told of: their names are some 4 MB.
MANY = 5_000

#: Table property with the number of snapshots that stay where the configuration says nothing.
KEEP = "raycdc.keep-snapshots"


@dataclass(frozen=True, slots=True)
class Retention:
    """What a configuration says: after how many seconds a snapshot goes, and how many stay (0: all). None: nothing."""

    after_s: float | None = None
    keep: int | None = None

    @property
    def is_said(self) -> bool:
        return self.after_s is not None or self.keep is not None

    def surplus(self, snapshots: list[Snapshot], properties: Mapping[str, str], *, now_s: float) -> list[Snapshot]:
        """Of all snapshots of a table with these `properties`, oldest first, those that are too old or too many.

        What somebody told a table with Iceberg's own properties goes before what raycdc gave it when it made it.
        """
        if self.is_said:
            before_ms = None if self.after_s is None else (now_s - self.after_s) * 1000
            beyond = len(snapshots) - self.keep if self.keep else 0
            many, old = snapshots[: max(beyond, 0)], list(takewhile(lambda one: _is_before(one, before_ms), snapshots))
            return max(many, old, key=len)
        keep = _number(properties.get(KEEP))
        if not keep:
            return []
        least = max(keep, _number(properties.get("history.expire.min-snapshots-to-keep")) or 0)
        young_ms = _number(properties.get("history.expire.max-snapshot-age-ms"))
        before_ms = None if young_ms is None else now_s * 1000 - young_ms
        many = snapshots[: max(len(snapshots) - least, 0)]
        return many if before_ms is None else list(takewhile(lambda one: _is_before(one, before_ms), many))


@dataclass(slots=True)
class Expiry:
    """Which snapshots the commits of a run leave out; it tells once of each table that keeps a great many. May be used
    by several threads.
    """

    retention: Retention
    warn: Callable[[str], None]
    #: Whether rows are updated, so that nobody follows the table snapshot by snapshot.
    upsert: bool
    _reported: set[TableId] = field(default_factory=set)

    @property
    def of_new_tables(self) -> dict[str, str]:
        """The properties of a table that is made now: who reads its properties sees that snapshots go."""
        return {KEEP: str(KEPT)} if self.upsert and not self.retention.is_said else {}

    def left_out(self, table: TableId, metadata: TableMetadata, app_id: str) -> list[int]:
        """The snapshots that a commit of the pipeline `app_id` leaves out now, oldest first."""
        expired_ids = expired(metadata, self.retention, now_s=time.time())
        if not expired_ids and len(metadata.snapshots) > MANY and table not in self._reported:
            self._reported.add(table)
            self.warn(self._many(table, metadata, app_id))
        return expired_ids

    def _many(self, table: TableId, metadata: TableMetadata, app_id: str) -> str:
        has = f"The Iceberg table {table} has {len(metadata.snapshots):,d} snapshots, which each commit writes anew."
        if _keeps_all(metadata):
            return f"{has} They stay because the table's property gc.enabled is false."
        surplus = self.retention.surplus(_in_order(metadata), metadata.properties, now_s=time.time())
        if len(surplus) >= EXPIRED_LEAST and (holding := _named_first(metadata, surplus)):
            return f"{has} {holding}"
        made_ms = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in metadata.snapshots}
        others = [one for one in noted_snapshots(metadata) if one.pipeline != app_id and one.snapshot in made_ms]
        if len(surplus) < EXPIRED_LEAST or not others:
            cure = "Let old ones go with sink.keep_snapshots or a shorter sink.expire_snapshots"
            return f"{has} {cure}, or make fewer with a longer pipeline.epoch_interval."
        first = min(others, key=lambda one: made_ms[one.snapshot])
        when = datetime.fromtimestamp(made_ms[first.snapshot] / 1000, UTC)
        return (
            f"{has} They stay because the pipeline {first.pipeline}, which wrote to the table last at "
            f"{when:%Y-%m-%d %H:%M} UTC, looks back to there when it goes on. If it is gone for good, take its record "
            f"out of the table: ALTER TABLE … UNSET TBLPROPERTIES ('{first.property_name}')."
        )


#: Of who commits nothing.
NO_EXPIRY = Expiry(Retention(keep=0), ignore_text, upsert=False)


def expired(metadata: TableMetadata, retention: Retention, *, now_s: float) -> list[int]:
    """The snapshots that a commit leaves out, oldest first.

    Never the current one, one since that of a branch or tag, or since the last commit of any pipeline with a record: by
    these the next start sees that the table was not rolled back.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    needed = {*(noted.snapshot for noted in noted_snapshots(metadata)), metadata.current_snapshot_id}
    known = [_age(by_id[number]) for number in needed if number in by_id]
    if not known or _keeps_all(metadata):
        # Without any the table was replaced by somebody, and holds nothing yet.
        return []
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    surplus = retention.surplus(_in_order(metadata), metadata.properties, now_s=now_s)
    # Up to the first that stays: what is behind it would leave a gap.
    old = list(takewhile(lambda one: one.snapshot_id not in named and _age(one) < min(known), surplus))
    return [one.snapshot_id for one in old[:EXPIRED_MOST]] if len(old) >= EXPIRED_LEAST else []


def _named_first(metadata: TableMetadata, surplus: list[Snapshot]) -> str:
    """For people, which branch or tag keeps the `surplus` of a table; empty where it is a pipeline's record."""
    names = {ref.snapshot_id: (name, ref) for name, ref in metadata.refs.items() if name != MAIN_BRANCH}
    noted = {one.snapshot for one in noted_snapshots(metadata)}
    first = next((one for one in surplus if one.snapshot_id in names or one.snapshot_id in noted), None)
    if first is None or first.snapshot_id not in names:
        return ""
    name, ref = names[first.snapshot_id]
    kind = ref.snapshot_ref_type.value
    when = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
    return (
        f"They stay because the {kind} {name!r} names one of {when:%Y-%m-%d %H:%M} UTC, and none goes "
        "from between two that stay. If nobody needs it any more, drop it: "
        f"ALTER TABLE … DROP {kind.upper()} `{name}`."
    )


def _keeps_all(metadata: TableMetadata) -> bool:
    """As Iceberg's own ``expire_snapshots``, which refuses such a table: others may have its files."""
    return metadata.properties.get("gc.enabled", "").lower() == "false"


def _in_order(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(metadata.snapshots, key=_age)


def _age(snapshot: Snapshot) -> tuple[int, int]:
    # Tables of format version 1 have no numbers.
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def _is_before(snapshot: Snapshot, before_ms: float | None) -> bool:
    return before_ms is not None and snapshot.timestamp_ms < before_ms


def _number(text: str | None) -> int | None:
    """What somebody wrote into a property; None where that is no number, so that nothing goes by mistake."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
