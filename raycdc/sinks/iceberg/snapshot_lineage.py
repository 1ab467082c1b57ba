"""Finds this pipeline's last commit in an Iceberg table's metadata, and detects a rollback after it.

It also decides which snapshots a commit expires. Every commit writes the whole metadata, which lists every snapshot;
with ten thousand snapshots this is about 8 MB. The commits of raycdc may therefore drop old snapshots while they add
rows. Files that only dropped snapshots name are not deleted, because a reader may be using them;
``remove_orphan_files`` finds them later.

| snapshots that stay | set by |
|---|---|
| snapshots up to an age | ``sink.expire_snapshots`` |
| a number of the newest | ``sink.keep_snapshots``; if neither is set, the table's property `KEEP` |
| all | ``sink.keep_snapshots = 0``; a table without any of these; ``gc.enabled = false`` |

Upsert tables that raycdc creates have the property `KEEP`.

*Only the oldest snapshots are dropped, never one between two that stay.* Some versions of Iceberg's own clean-up
(``IncrementalFileCleanup``) delete files by the snapshots that added them. They treat a snapshot before such a gap as
rolled back, and delete the files that it added although the table still has them. For the same reason, while a branch
or tag exists, all snapshots that are newer than its snapshot stay.
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

#: The table property by which a user confirms a snapshot whose lineage cannot be verified any more.
CONFIRMED = "raycdc.confirmed-snapshot"

#: The advice in errors about missing rows.
DROP_IT = "drop the table (in a hadoop catalog: delete its folder) and read its source table anew"


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The vector of a pipeline, and the snapshot of its last commit; None if that commit made none."""

    vector: CommitVector
    snapshot: int | None


_VECTOR = "raycdc.commit."


def vector_property(app_id: str) -> str:
    """Return the name of the table property that holds the vector of a pipeline."""
    return f"{_VECTOR}{hashlib.sha256(app_id.encode()).hexdigest()[:16]}"


def foreign_records(metadata: TableMetadata, app_id: str) -> list[str]:
    """Return the names of the properties that hold the vectors of other pipelines."""
    return [name for name in metadata.properties if name.startswith(_VECTOR) and name != vector_property(app_id)]


@dataclass(frozen=True, slots=True)
class NotedSnapshot:
    """The snapshot of the last commit of a pipeline, and the table property that names it."""

    property_name: str
    pipeline: str
    snapshot: int


def noted_snapshots(metadata: TableMetadata) -> list[NotedSnapshot]:
    """Return the snapshots that the records of all pipelines in the table name."""
    found = []
    for name, text in metadata.properties.items():
        if not name.startswith(_VECTOR):
            continue
        try:
            note = json.loads(text)
            pipeline, snapshot = str(note.get("pipeline", "")), note.get("snapshot")
        except (ValueError, AttributeError):
            continue  # Another client changed the property of another pipeline.
        if snapshot is not None:
            found.append(NotedSnapshot(name, pipeline, snapshot))
    return found


def record_of(metadata: TableMetadata, app_id: str) -> TableRecord | None:
    """Return the pipeline's record in the table; None if there is none."""
    text = metadata.properties.get(vector_property(app_id))
    if text is None:
        return None
    try:
        note = json.loads(text)
        if note["pipeline"] != app_id:
            return None
        vector = CommitVector(note["epoch"], note["step"], note["generation"], note.get("digest", 0))
        return TableRecord(vector, note["snapshot"])
    except (ValueError, KeyError, TypeError) as cause:
        raise TargetModifiedError(
            f"The property {vector_property(app_id)} of an Iceberg table is not what this pipeline wrote: another "
            f"client changed it. Set it back, or {DROP_IT}."
        ) from cause


class SnapshotLineage:
    """The newest vector of each table that this run has seen. If a table has an older vector later, it was restored."""

    def __init__(self) -> None:
        self._vectors: dict[TableId, CommitVector] = {}

    def of(self, table: TableId) -> CommitVector | None:
        """Return the newest vector with which the table was read."""
        return self._vectors.get(table)

    def forget(self, table: TableId) -> None:
        """Forget a table that is created again."""
        self._vectors.pop(table, None)

    def check(self, table: TableId, seen: CommitVector | None, held: CommitVector | None) -> None:
        """Raise `SinkError` if the table's vector `held` is less than `seen`, because the rows in between are
        missing.
        """
        if seen is not None and (held is None or held.progress < seen.progress):
            raise TargetDroppedError(
                f"The Iceberg table {table} holds less than before: it had epoch {seen.epoch} of this pipeline and "
                f"has {f'epoch {held.epoch}' if held else 'nothing'} now. It was restored from an older copy, or "
                f"another writer replaced its metadata. Bring that version back, or {DROP_IT}."
            )
        known = self.of(table)
        if held is not None and (known is None or known.progress < held.progress):
            self._vectors[table] = held


def check_lineage(
    table: TableId, metadata: TableMetadata, record: TableRecord | None, earlier: Iterable[TableMetadata] = ()
) -> None:
    """Raise `SinkError` unless the current snapshot is the one of our `record`, or descends from it.

    When a snapshot is expired, the chain from its descendants to its ancestors is cut. (Spark leaves the id of the
    expired parent in its children, and pyiceberg removes it.) The expired snapshots are then looked up in the table's
    `earlier` metadata, newest first.
    """
    if record is None or record.snapshot is None:
        return
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    kept = record.snapshot in parents
    head = metadata.current_snapshot_id
    if str(head) == metadata.properties.get(CONFIRMED):
        return  # Our next commit removes the property, so that it does not confirm a later rollback.
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
            f"rows are missing that will not come again. Roll it forward again, or {DROP_IT}."
        )
    raise TargetModifiedError(
        f"Other writers committed to the Iceberg table {table} since this pipeline did, and the snapshots "
        "in between are expired, with the metadata that had them: whether the table was rolled back meanwhile cannot "
        f"be seen. If it was not, say so: ALTER TABLE … SET TBLPROPERTIES ('{CONFIRMED}' = '{head}')."
    )


def _leads_to(snapshot: int, head: int | None, parents: Mapping[int, int | None]) -> bool:
    """Return True if `head` is the snapshot or one of its descendants."""
    number = head
    while number is not None and number != snapshot:
        number = parents.get(number)
    return number is not None


#: The least and the most snapshots that are dropped at a time. Dropping snapshots costs as much as a commit, and at
#: first a table may have very many of them.
EXPIRED_LEAST, EXPIRED_MOST = 50, 200

#: The number of snapshots kept by default in upsert tables that raycdc creates. A commit writes about 400 kB for them.
KEPT = 500

#: A table with more snapshots than this is reported, because their list takes about 4 MB.
MANY = 5_000

#: The table property with the number of snapshots that stay if the configuration sets nothing.
KEEP = "raycdc.keep-snapshots"


@dataclass(frozen=True, slots=True)
class Retention:
    """The configured retention: the age in seconds at which a snapshot expires, and the number of newest snapshots that
    stay (0: all). None if not set.
    """

    after_s: float | None = None
    keep: int | None = None

    @property
    def is_said(self) -> bool:
        return self.after_s is not None or self.keep is not None

    def surplus(self, snapshots: list[Snapshot], properties: Mapping[str, str], *, now_s: float) -> list[Snapshot]:
        """Return those `snapshots`, oldest first, that are too old or too many for a table with these `properties`.

        Iceberg's own table properties, if a user has set them, override the property that raycdc set when it created
        the table.
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
    """Decides which snapshots the commits of a run drop, and reports once for each table if it has very many snapshots.
    Thread-safe.
    """

    retention: Retention
    warn: Callable[[str], None]
    #: True if rows are updated, so that readers do not follow the table snapshot by snapshot.
    upsert: bool
    _reported: set[TableId] = field(default_factory=set)

    @property
    def of_new_tables(self) -> dict[str, str]:
        """Return the properties of a new table. They show readers that old snapshots will be dropped."""
        return {KEEP: str(KEPT)} if self.upsert and not self.retention.is_said else {}

    def left_out(self, table: TableId, metadata: TableMetadata, app_id: str) -> list[int]:
        """Return the snapshots that a commit of the pipeline `app_id` drops now, oldest first."""
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


#: The policy that drops no snapshot, for code that makes no commits.
NO_EXPIRY = Expiry(Retention(keep=0), ignore_text, upsert=False)


def expired(metadata: TableMetadata, retention: Retention, *, now_s: float) -> list[int]:
    """Return the snapshots that the next commit drops, oldest first.

    The current snapshot stays. The snapshots of branches, tags and the pipelines' last commits stay, too, and so do all
    snapshots that are newer than one of these. The next start needs the snapshot of the last commit to see that the
    table was not rolled back.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    needed = {*(noted.snapshot for noted in noted_snapshots(metadata)), metadata.current_snapshot_id}
    known = [_age(by_id[number]) for number in needed if number in by_id]
    if not known or _keeps_all(metadata):
        # None is known if another writer replaced the table, which is still empty.
        return []
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    surplus = retention.surplus(_in_order(metadata), metadata.properties, now_s=now_s)
    # Stop at the first snapshot that stays, because dropping later ones would leave a gap.
    old = list(takewhile(lambda one: one.snapshot_id not in named and _age(one) < min(known), surplus))
    return [one.snapshot_id for one in old[:EXPIRED_MOST]] if len(old) >= EXPIRED_LEAST else []


def _named_first(metadata: TableMetadata, surplus: list[Snapshot]) -> str:
    """Return a text about the branch or tag that keeps the `surplus` of a table; empty if a pipeline's record keeps
    it.
    """
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
    """Return True if no snapshot may be dropped, because other tables may use its files (Iceberg's ``gc.enabled``)."""
    return metadata.properties.get("gc.enabled", "").lower() == "false"


def _in_order(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(metadata.snapshots, key=_age)


def _age(snapshot: Snapshot) -> tuple[int, int]:
    # Tables of format version 1 have no sequence numbers.
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def _is_before(snapshot: Snapshot, before_ms: float | None) -> bool:
    return before_ms is not None and snapshot.timestamp_ms < before_ms


def _number(text: str | None) -> int | None:
    """Return the number in a property; None if it is not a number, so that nothing is dropped by mistake."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
