"""Counts the rows of each table that were left out (``pipeline.on_bad_record``), in step with committed epochs.

``bad_rows.json`` is written before the commits of an epoch that leaves rows out, with the counts before and after it.
The commit record later decides which counts are valid, so a crash neither loses nor doubles any.
"""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.state.store import CheckpointStore

_NAME = "bad_rows.json"


def bad_rows(store: CheckpointStore, committed: int) -> dict[str, int]:
    """Return the number of rows left out of each table in epochs up to `committed`, the last epoch in the sink.

    Tables from which no rows were left out are missing. Raises `StateError` if the file cannot be read.
    """
    document = store.documents.read(_NAME)
    return {} if document is None else dict(document["after" if document["epoch"] <= committed else "before"])


def add_bad_rows(store: CheckpointStore, epoch: int, more: Mapping[str, int], *, committed: int) -> None:
    """Record that `epoch`, about to be committed after `committed`, leaves out the rows in `more`.

    Repeating the call changes nothing. A repeated call may have fewer tables, because some targets already hold the
    epoch.
    """
    before, document = bad_rows(store, committed), store.documents.read(_NAME)
    reported = dict(document["after"]) if document is not None and document["epoch"] == epoch else {}
    after = {
        name: max(before.get(name, 0) + more.get(name, 0), reported.get(name, 0))
        for name in sorted({*before, *more, *reported})
    }
    store.documents.write(_NAME, {"epoch": epoch, "before": before, "after": after})


def resolve_bad_rows(store: CheckpointStore, committed: int) -> None:
    """Forget the counts of an epoch that was not committed, because it is staged again or was dropped.

    Called at a start, after recovery.
    """
    document = store.documents.read(_NAME)
    if document is not None and document["epoch"] > committed:
        store.documents.write(_NAME, {**document, "epoch": committed, "after": document["before"]})
