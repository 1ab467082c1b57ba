"""The location of a Delta table for delta-rs: a folder of this machine, or a URL with the options to reach it.

Each commit to a store is one conditional put by delta-rs (``aws_conditional_put`` is ``etag`` for S3; other stores need
no option). Spark never writes to a store, because delta-spark 4.4 puts commits without a condition, so two writers
would overwrite each other's.
"""

from __future__ import annotations

import re
from itertools import islice

from deltalake import DeltaTable

from raycdc.storage.files import AnyPath, StorePath, each_below, is_there, names_in
from raycdc.storage.settings import delta_options

#: The path, relative to the table's folder, of a file that was staged for a partition (`raycdc.sinks.delta.tasks`).
_STAGED = re.compile(r"([^/=]+=[^/]*/)+part-[0-9]{5}-[0-9]{10}-[0-9a-f-]{36}\.snappy\.parquet")

#: The most files of a partition whose names are checked.
_LISTED_MAX = 10_000


def storage_options(path: AnyPath) -> dict[str, str] | None:
    """Return the storage options for delta-rs; None for a folder of this machine."""
    return delta_options(path.location, path.access.settings) if isinstance(path, StorePath) else None


def is_table(path: AnyPath) -> bool:
    """Return True if a Delta table exists there. Raises `OSError` if a store is unreachable."""
    if isinstance(path, StorePath):
        # delta-rs blocks all threads of the process while it queries a store (deltalake 1.6).
        return any(name.endswith((".json", ".parquet")) for name in names_in(path / "_delta_log"))
    return DeltaTable.is_deltatable(str(path))


def foreign(path: AnyPath) -> str:
    """Return a file in a folder without a Delta table that another program wrote and readers would not skip; empty if
    none.

    Files that raycdc staged may remain after a table was deleted, or if it was never created.
    """
    for name in names_in(path):
        if name.startswith(("_", ".", "part-")):
            continue
        if "=" not in name:
            return name
        if _is_file(path / name):
            return name
        below = (f"{name}/{file}" for file in islice(each_below(path / name), _LISTED_MAX))
        if invalid := next((file for file in below if not _is_staged(file)), ""):
            return invalid
    return ""


def _is_staged(file: str) -> bool:
    """Return True if raycdc staged the file, or if it is an incomplete file whose writer died."""
    return file.rpartition("/")[2].startswith(".") or _STAGED.fullmatch(file) is not None


def _is_file(path: AnyPath) -> bool:
    return is_there(path) if isinstance(path, StorePath) else path.is_file()


def table_at(path: AnyPath, version: int | None = None) -> DeltaTable:
    """Return the table at a version (None: the newest)."""
    return opened_with(storage_options(path), path, version)


def opened_with(options: dict[str, str] | None, path: AnyPath, version: int | None = None) -> DeltaTable:
    """Return the table like `table_at`, opened with `options`, which it keeps even if the store's keys change."""
    return DeltaTable(str(path), version=version, storage_options=options)
