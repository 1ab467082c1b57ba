"""Stores the columns whose targets have them under a different name (`raycdc.transform.naming`).

``names.json`` is written before the first row, and entries are never removed: a column that is dropped and added again
has the same name as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raycdc.model import TableId
from raycdc.state.store import CheckpointStore

_NAME = "names.json"


def column_names(store: CheckpointStore) -> dict[str, dict[str, str]]:
    """Return, for each source table, the columns with another name in its targets.

    Raises `StateError` if the document cannot be read.
    """
    document = store.documents.read(_NAME)
    return {} if document is None else {table: dict(names) for table, names in document["tables"].items()}


def add_column_names(store: CheckpointStore, table: str, names: Mapping[str, str]) -> dict[str, str]:
    """Record `names` of `table` durably. Returns the names that are new."""
    known = column_names(store)
    new = {name: made for name, made in names.items() if name not in known.get(table, {})}
    if new:
        store.documents.write(_NAME, {"tables": {**known, table: {**known.get(table, {}), **new}}})
    return new


def keep_column_names(
    store: CheckpointStore, warn: Callable[[str], None], table: TableId, names: Mapping[str, str]
) -> None:
    """Call `add_column_names` before any row of `table` is written, and warn once of each new name."""
    if new := add_column_names(store, str(table), names):
        shown = ", ".join(f"{name!r} is {made!r}" for name, made in new.items())
        warn(f"{table}: {shown} in the target, which cannot hold the column's own name.")
