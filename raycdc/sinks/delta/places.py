"""Where a Delta table is, in delta-rs's words: its folder on this machine, or its URL and how to reach that.

Every commit to a store is one conditional put of delta-rs's (``aws_conditional_put`` of S3 is ``etag``, as other stores
need nothing said). Spark never writes there: delta-spark 4.4 puts a commit without any condition, and two writers
overwrite each other's.
"""

from __future__ import annotations

from deltalake import DeltaTable

from raycdc.stores.files import AnyPath, StorePath, names_in
from raycdc.stores.libraries import delta_options


def storage_options(path: AnyPath) -> dict[str, str] | None:
    """As delta-rs takes them; None for a folder of this machine."""
    return delta_options(path.place, path.access.settings) if isinstance(path, StorePath) else None


def is_table(path: AnyPath) -> bool:
    """Whether there is a Delta table. `OSError` where a store is away."""
    if isinstance(path, StorePath):
        # delta-rs keeps all threads of the process waiting while it asks a store (deltalake 1.6).
        return any(name.endswith((".json", ".parquet")) for name in names_in(path / "_delta_log"))
    return DeltaTable.is_deltatable(str(path))


def table_at(path: AnyPath, version: int | None = None) -> DeltaTable:
    """The table as of a version, or of the newest."""
    return opened_with(storage_options(path), path, version)


def opened_with(options: dict[str, str] | None, path: AnyPath, version: int | None = None) -> DeltaTable:
    """`table_at`, reached by `options`, which the table keeps: keys may be others when they are read once more."""
    return DeltaTable(str(path), version=version, storage_options=options)
