"""What the entry point names. It imports quickly: the sink itself is imported when a pipeline uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from raycdc.config import SinkConfig, option
from raycdc.plugins import Plugin


class SqliteChangesConfig(SinkConfig):
    """``[sink] type = "sqlite-changes"``."""

    type: Literal["sqlite-changes"] = option("sqlite-changes", help="Changes as rows of an SQLite database.")
    write: Literal["changelog"] = option("changelog", help="Every change is a row.")
    path: str = option(help="The database's file.", example="./changes.db", change="location", min_length=1)

    @property
    def folder(self) -> str:
        """So that `check` and `run` refuse a place where no file can be made."""
        return str(Path(self.path).parent)


PLUGIN = Plugin("sqlite-changes", "SQLite, changelog", SqliteChangesConfig, "sqlite_changes.sink:SqliteChangesSink")
