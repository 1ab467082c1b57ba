"""Snapshots that a table's metadata need not name any more.

Every commit writes the whole metadata, which names every snapshot: after ten thousand of them that is some 8 MB each
time. So a commit of ours may leave out old ones, in the same update as its rows. The files that only they name stay
where they are, because a reader may be at them: `remove_orphan_files` finds them later.
"""

from __future__ import annotations

import time

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from raycdc.sinks.iceberg.descent import snapshots_of_records

#: So many are left out at once, because that costs as much as a commit; and so many at most, for a table that has a
#: great many when it begins.
EXPIRED_LEAST, EXPIRED_MOST = 50, 200


def expired_by_now(metadata: TableMetadata, after_s: float | None) -> list[int]:
    """The snapshots older than so many seconds that a commit leaves out now; None: none is."""
    return [] if after_s is None else expired(metadata, before_ms=round((time.time() - after_s) * 1000))


def expired(metadata: TableMetadata, *, before_ms: int) -> list[int]:
    """The snapshots from before `before_ms` that a commit leaves out, oldest first.

    Never the current one, that of a branch or tag, or one since the last commit of any pipeline with a record: by them
    the next start sees that the table was not rolled back.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    needed = {*snapshots_of_records(metadata), metadata.current_snapshot_id}
    known = [_age(by_id[number]) for number in needed if number in by_id]
    if not known:
        # The table was replaced by somebody, and holds nothing yet.
        return []
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    old = [
        snapshot
        for snapshot in sorted(metadata.snapshots, key=_age)
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in named and _age(snapshot) < min(known)
    ]
    return [snapshot.snapshot_id for snapshot in old[:EXPIRED_MOST]] if len(old) >= EXPIRED_LEAST else []


def _age(snapshot: Snapshot) -> tuple[int, int]:
    # Tables of format version 1 have no numbers.
    return snapshot.sequence_number or 0, snapshot.timestamp_ms
