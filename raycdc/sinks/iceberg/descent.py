"""The last commit of this pipeline in an Iceberg table's metadata, and whether the table went back behind it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from raycdc.errors import TargetGoneError, TargetTouchedError
from raycdc.model import TableId
from raycdc.sinks.api import CommitVector

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


def records_of_others(metadata: TableMetadata, app_id: str) -> list[str]:
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


class Seen:
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
        if seen is not None and (held is None or held.place < seen.place):
            raise TargetGoneError(
                f"The Iceberg table {table} holds less than before: it had epoch {seen.epoch} of this pipeline and "
                f"has {f'epoch {held.epoch}' if held else 'nothing'} now. It was restored from an older copy, or "
                f"another writer replaced its metadata. Bring that version back, or {_DROP_IT}."
            )
        known = self.of(table)
        if held is not None and (known is None or known.place < held.place):
            self._vectors[table] = held


def check_descent(
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
        raise TargetGoneError(
            f"The Iceberg table {table} was rolled back or replaced after this pipeline had written to it: "
            f"rows are missing that will not come again. Roll it forward again, or {_DROP_IT}."
        )
    raise TargetTouchedError(
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
