"""The findings of ``raycdc check`` about an Iceberg sink: the catalog answers, and its folder can be written.

Changes nothing, but that a SQL catalog makes its own tables when it is opened for the first time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.iceberg.descent import Seen
from raycdc.sinks.iceberg.expiry import NO_EXPIRY
from raycdc.sinks.iceberg.places import Reach, is_in_store, local_path
from raycdc.sinks.iceberg.plugin import IcebergSinkConfig
from raycdc.sinks.iceberg.reopened import ReopenedCatalog
from raycdc.sinks.iceberg.table import IcebergTarget
from raycdc.source.checks import CheckResult
from raycdc.stores.settings import StorageSettings

#: At most so many tables are looked at.
_TABLES_MAX = 50


def check_sink(config: IcebergSinkConfig, tables: Sequence[TableId], storage: StorageSettings) -> list[CheckResult]:
    """All findings; `tables` are the targets that are known now."""
    place = config.place()
    # Where it is a store, `raycdc.startup_checks` has looked at that.
    is_folder = place.type != "rest" and not is_in_store(place.warehouse) and bool(place.warehouse)
    folder = [_folder(Path(place.warehouse).absolute())] if is_folder else []
    if any(not found.ok for found in folder):
        return folder  # Opening a SQL catalog would make its folder.
    try:
        catalog = ReopenedCatalog(place, storage)
        catalog.open()
        there = {table: _found(catalog, table, storage) for table in tables[:_TABLES_MAX]}
    except SinkError as cause:
        return [*folder, CheckResult("sink", str(cause), "Correct the [sink] section or the catalog.")]
    answered = CheckResult("sink", f"The {place.type} catalog of Iceberg tables answers.", ok=True)
    return [*folder, answered, *(found for found in there.values() if found is not None)]


def _found(catalog: ReopenedCatalog, table: TableId, storage: StorageSettings) -> CheckResult | None:
    """The findings about a table that is there already."""
    target = IcebergTarget(catalog, table, "", seen=Seen(), reach=Reach(storage), expiry=NO_EXPIRY)
    if not target.refresh():
        return None
    target.columns()
    target.check_plain()
    location = target.table.location()
    return None if is_in_store(location) else _folder(local_path(location))


def _folder(folder: Path) -> CheckResult:
    """Whether files can be made in `folder`, or it in the nearest folder that is there."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    ok = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    text = f"{folder} can be written." if ok else f"{folder} cannot be written ({nearest} refuses)."
    return CheckResult("sink folder", text, "Choose another folder, or let this user write there.", ok=ok)
