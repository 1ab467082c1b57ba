"""The common checks of a target before it exists: the way of writing, and the place of a table's folder. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from raycdc.errors import ColumnsRefusedError, ConfigError, NameRefusedError, TargetTakenError, TargetTouchedError
from raycdc.model import TableId
from raycdc.model.names import NameRules
from raycdc.stores.files import AnyPath, FileName, is_there

Folder = TypeVar("Folder", Path, AnyPath)

_FOLDER = NameRules("this sink", folder=True)


def table_folder(root: Folder, target: TableId) -> Folder:
    """``ROOT/DB/TABLE``. `SinkError` for a name that would leave the folder or hide in it."""
    if why := _FOLDER.no_table(target):
        raise NameRefusedError(f"{target}: {why}.")
    return root / target.db / target.table


def check_names(
    rules: NameRules, target: TableId, columns: Iterable[str], key: Sequence[str] = (), *, upsert: bool = True
) -> None:
    """`SinkError` for names that the target cannot hold: the table was to be parked, or to have others, before."""
    if why := rules.no_table(target):
        raise NameRefusedError(f"{target}: {why}.")
    for name in columns:
        if why := rules.no_column(name, is_key=upsert and tuple(key) == (name,)):
            raise ColumnsRefusedError(
                f"{target}: column {name!r} {why}, which {rules.store} cannot hold. Give it another name by a "
                "[[transform]], or leave the table out (source.exclude)."
            )


def is_of_pipeline(app_id: str, ours: str) -> bool:
    """Whether the commits of `app_id` are those of the pipeline of `ours`, with this or another state."""
    return bool(app_id) and app_id.rpartition(":")[0] == ours.rpartition(":")[0]


def absent(paths: Iterable[FileName]) -> list[str]:
    """The files that are not there any more."""
    return [str(path) for path in paths if not is_there(path)]


def lost_files(place: str, epoch: int, paths: Sequence[str]) -> TargetTouchedError:
    """A commit to `place` names files of an epoch that somebody deleted at that moment."""
    return TargetTouchedError(
        f"{place} names {len(paths)} files of epoch {epoch} that were deleted while it was committed, {paths[0]} among "
        "them: files that are in no commit yet were cleaned up (VACUUM, remove_orphan_files). Readers fail, and rows "
        "are missing. Clean up with a retention longer than an epoch takes."
    )


def taken_by_others(place: str, elsewhere: str, *, replaced: str = "to empty it first") -> TargetTakenError:
    """The refusal of a target that others made. `elsewhere` is the way to another target, and `replaced` what
    ``on_existing = "replace"`` does to this one.
    """
    return TargetTakenError(
        f"{place} exists and was not created by this pipeline (or its state was deleted). Set pipeline.on_existing to "
        f'"merge" to write into it or "replace" {replaced}, or {elsewhere}.'
    )


def check_write(kind: str, supported: tuple[str, ...], wanted: str) -> None:
    """`ConfigError` when the sink cannot write the way the user wants."""
    if wanted not in supported:
        raise ConfigError(f'sink.write = "{wanted}": {kind} supports {" and ".join(supported)} only.')
