"""Helpers for targets that sinks share: checks of names and of ``sink.write``, common errors, and statements of
``raycdc plan``.

Only `absent` reads files; everything else is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from raycdc.errors import ColumnsRefusedError, ConfigError, NameRefusedError, TargetExistsError, TargetModifiedError
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.rules.layout import ANY_LAYOUT, TableLayout
from raycdc.model.rules.names import NameRules
from raycdc.sinks.api import CHANGELOG, TargetShape
from raycdc.sinks.rows import META_TYPES
from raycdc.storage.files import AnyPath, FileName, is_there

Folder = TypeVar("Folder", Path, AnyPath)

_FOLDER = NameRules("this sink", folder=True)


def table_folder(root: Folder, target: TableId) -> Folder:
    """Return ``ROOT/DB/TABLE``. Raises `SinkError` for a name that would leave the folder or be a hidden file."""
    if why := _FOLDER.no_table(target):
        raise NameRefusedError(f"{target}: {why}.")
    return root / target.db / target.table


def check_names(
    rules: NameRules, target: TableId, columns: Iterable[str], key: Sequence[str] = (), *, upsert: bool = True
) -> None:
    """Raise `SinkError` for names that the target cannot hold. Normally such names are replaced, or the table is
    parked, before rows reach the sink.
    """
    if why := rules.no_table(target):
        raise NameRefusedError(f"{target}: {why}.")
    for name in columns:
        if why := rules.no_column(name, is_key=upsert and tuple(key) == (name,)):
            raise ColumnsRefusedError(
                f"{target}: column {name!r} {why}, which {rules.store} cannot hold. Give it another name by a "
                "[[transform]], or leave the table out (source.exclude)."
            )


def is_of_pipeline(app_id: str, ours: str) -> bool:
    """Return True if `app_id` is of the same pipeline as `ours`, possibly with another state."""
    return bool(app_id) and app_id.rpartition(":")[0] == ours.rpartition(":")[0]


def absent(paths: Iterable[FileName]) -> list[str]:
    """Return the files that do not exist."""
    return [str(path) for path in paths if not is_there(path)]


def lost_files(location: str, epoch: int, paths: Sequence[str]) -> TargetModifiedError:
    """Return the error for a commit to `location` whose files someone deleted during the commit."""
    return TargetModifiedError(
        f"{location} names {len(paths)} files of epoch {epoch} that were deleted while it was committed, {paths[0]} "
        "among them: files that are in no commit yet were cleaned up (VACUUM, remove_orphan_files). Readers fail, and "
        "rows are missing. Clean up with a retention longer than an epoch takes."
    )


def occupied_error(location: str, elsewhere: str, *, replaced: str = "to empty it first") -> TargetExistsError:
    """Return the error for a target that others created.

    In the message, `elsewhere` describes how to use another target, and `replaced` describes what ``on_existing =
    "replace"`` does to this target.
    """
    return TargetExistsError(
        f"{location} exists and was not created by this pipeline (or its state was deleted). Set pipeline.on_existing "
        f'to "merge" to write into it or "replace" {replaced}, or {elsewhere}.'
    )


def check_write(kind: str, supported: tuple[str, ...], wanted: str) -> None:
    """Raise `ConfigError` if the sink does not support the ``sink.write`` that the user wants."""
    if wanted not in supported:
        raise ConfigError(f'sink.write = "{wanted}": {kind} supports {" and ".join(supported)} only.')


def shape_of(write: str, target: TableId, schema: TableSchema, layout: TableLayout = ANY_LAYOUT) -> TargetShape:
    """Return the target that rows of `schema` would get if ``sink.write`` is `write`."""
    changelog = write == CHANGELOG
    more = (Column(name, kind) for name, kind in META_TYPES.items() if changelog)
    return TargetShape(target, (*schema.columns, *more), () if changelog else schema.primary_key, layout)


def spark_statement(shape: TargetShape, using: str, root: str = "") -> str:
    """Return a CREATE TABLE of Spark's SQL for a table with files in the format `using`.

    `root` is the folder that contains the table's folder; empty if the catalog chooses the location.
    """
    columns = [f"{quoted(column.name, '`')} {column.type.spark().upper()}" for column in shape.columns]
    name = f"{quoted(shape.name.db, '`')}.{quoted(shape.name.table, '`')}"
    statement = f"CREATE TABLE {name} ({', '.join(columns)}) USING {using}"
    if shape.layout.partitions:
        statement += f" PARTITIONED BY ({', '.join(field.sql() for field in shape.layout.partitions)})"
    if root:
        statement += f" LOCATION '{root.rstrip('/')}/{shape.name.db}/{shape.name.table}'"
    if shape.layout.options:
        pairs = (f"{_text(key)} = {_text(value)}" for key, value in shape.layout.options)
        statement += f" TBLPROPERTIES ({', '.join(pairs)})"
    return statement


def quoted(name: str, quote: str) -> str:
    """Return a name between quotes, with the quotes in the name doubled."""
    return quote + name.replace(quote, quote * 2) + quote


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
