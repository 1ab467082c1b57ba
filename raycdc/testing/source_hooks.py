"""The hooks that a test of a source supplies for `raycdc.testing.SourceConformance`: the source, and its changes.

The stories call them, each with its own folder, in which a source may keep files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from raycdc.model import RowKind, TableId
from raycdc.source.connector import IncrementalSource, SourceContext
from raycdc.testing.source_play import Row


class SourceHooks(ABC):
    """The hooks of a source's test. A hook with a default need not be supplied."""

    #: The kinds of changes that the source has. An update is represented by the row after it.
    kinds: ClassVar[frozenset[RowKind]] = frozenset({RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE})

    @abstractmethod
    def new_source(self, folder: Path, context: SourceContext | None = None) -> IncrementalSource[Any]:
        """Return the source, as any process creates it."""

    @abstractmethod
    def change(self, folder: Path, step: int) -> None:
        """Change rows of all tables at the source, in all of its `kinds`. `step` counts from 1.

        Sources that were created earlier see the change, too, as with a server.
        """

    @abstractmethod
    def rows(self, folder: Path, table: TableId) -> list[Row]:
        """Return the present rows of `table` at the source, as Python values by column."""

    def acknowledged(self, folder: Path) -> int | None:
        """Return the ordinal up to which everything was acknowledged to the source; None if it does not keep that."""
        return None

    def lose_log(self, folder: Path) -> bool:
        """Purge the present log of the source; return False if that is not possible."""
        return False
