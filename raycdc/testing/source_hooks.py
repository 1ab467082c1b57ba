"""The page that a test of a source supplies for `raycdc.testing.SourceConformance`: the source, and what changes it.

Called by the stories, each in a folder of its own, where a source may keep things.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from raycdc.model import RowKind, TableId
from raycdc.source.connector import IncrementalSource, SourceContext
from raycdc.testing.source_play import Row


class SourceHooks(ABC):
    """The source, and how others change it and see it. A hook with a default need not be supplied."""

    #: The kinds of changes that the source has; an update is its row after.
    kinds: ClassVar[frozenset[RowKind]] = frozenset({RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE})

    @abstractmethod
    def new_source(self, folder: Path, context: SourceContext | None = None) -> IncrementalSource[Any]:
        """The source, as any process makes it."""

    @abstractmethod
    def change(self, folder: Path, step: int) -> None:
        """Change rows of all tables at the source, in all of its `kinds`. `step` counts from 1.

        Sources that were made before see the change, too, as they would at a server.
        """

    @abstractmethod
    def rows(self, folder: Path, table: TableId) -> list[Row]:
        """The rows that `table` has at the source now, as Python values by column."""

    def acknowledged(self, folder: Path) -> int | None:
        """The ordinal up to which the source was told that all is safe; None for one that does not keep it."""
        return None

    def lose_log(self, folder: Path) -> bool:
        """Purge the log that is there at the source; False if that cannot be."""
        return False
