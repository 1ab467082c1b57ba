"""What every sink asks of a target before it has one: the way of writing, and where a table's folder lies. Pure."""

from __future__ import annotations

from pathlib import Path

from raycdc.errors import ConfigError, SinkError
from raycdc.model import TableId


def table_folder(root: Path, target: TableId) -> Path:
    """``ROOT/DB/TABLE``. `SinkError` for a name that would leave the folder or hide in it."""
    for part in (target.db, target.table):
        if "/" in part or "\0" in part or part in ("", ".", "..") or part.startswith("_"):
            raise SinkError(f"{target} cannot be a folder of this sink; route it to another name.")
    return root / target.db / target.table


def check_write(kind: str, supported: tuple[str, ...], wanted: str) -> None:
    """`ConfigError` when the sink cannot write the way the user wants."""
    if wanted not in supported:
        raise ConfigError(f'sink.write = "{wanted}": {kind} supports {" and ".join(supported)} only.')
