"""The object that the entry point names. It imports quickly: the sink itself is imported when a pipeline uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from raycdc.config import SinkConfig, option
from raycdc.plugins import Plugin


class SqliteChangesConfig(SinkConfig):
    """The configuration section ``[sink] type = "sqlite-changes"``."""

    type: Literal["sqlite-changes"] = option("sqlite-changes", help="Changes as rows of an SQLite database.")
    write: Literal["changelog"] = option("changelog", help="Every change is a row.")
    path: str = option(help="The database's file.", example="./changes.db", change="location", min_length=1)

    @property
    def folder(self) -> str:
        """Return the folder of the file, so that `check` and `run` refuse a folder that cannot be written."""
        return str(Path(self.path).parent)


PLUGIN = Plugin("sqlite-changes", "SQLite, changelog", SqliteChangesConfig, "sqlite_changes.sink:SqliteChangesSink")
