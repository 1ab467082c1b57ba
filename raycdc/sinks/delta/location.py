"""Where a Delta table is, in delta-rs's words: its folder on this machine, or its URL and how to reach that.

Every commit to a store is one conditional put of delta-rs's (``aws_conditional_put`` of S3 is ``etag``, as other stores
need nothing said). Spark never writes there: delta-spark 4.4 puts a commit without any condition, and two writers
overwrite each other's.
"""

from __future__ import annotations

import re
from itertools import islice

from deltalake import DeltaTable

from raycdc.storage.files import AnyPath, StorePath, each_below, is_there, names_in
from raycdc.storage.settings import delta_options

#: A file that was staged in the folder of a partition (`raycdc.sinks.delta.tasks`), below the table's.
_STAGED = re.compile(r"([^/=]+=[^/]*/)+part-[0-9]{5}-[0-9]{10}-[0-9a-f-]{36}\.snappy\.parquet")

#: The number of files of a partition that are checked for such names.
_LISTED_MAX = 10_000


def storage_options(path: AnyPath) -> dict[str, str] | None:
    """Return the storage options for delta-rs; None for a folder of this machine."""
    return delta_options(path.location, path.access.settings) if isinstance(path, StorePath) else None


def is_table(path: AnyPath) -> bool:
    """Return True if a Delta table exists there. Raises `OSError` if a store is unreachable."""
    if isinstance(path, StorePath):
        # delta-rs keeps all threads of the process waiting while it asks a store (deltalake 1.6).
        return any(name.endswith((".json", ".parquet")) for name in names_in(path / "_delta_log"))
    return DeltaTable.is_deltatable(str(path))


def foreign(path: AnyPath) -> str:
    """Return a file in a folder without a table that raycdc did not stage and readers would not skip; empty if none.

    Staged files may remain when a table was deleted, or was never created.
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
    """Return True if it is a staged file, or the remains of one whose writer died."""
    return file.rpartition("/")[2].startswith(".") or _STAGED.fullmatch(file) is not None


def _is_file(path: AnyPath) -> bool:
    return is_there(path) if isinstance(path, StorePath) else path.is_file()


def table_at(path: AnyPath, version: int | None = None) -> DeltaTable:
    """The table as of a version, or of the newest."""
    return opened_with(storage_options(path), path, version)


def opened_with(options: dict[str, str] | None, path: AnyPath, version: int | None = None) -> DeltaTable:
    """`table_at`, reached by `options`, which the table keeps: keys may be others when they are read once more."""
    return DeltaTable(str(path), version=version, storage_options=options)
