"""The rules by which a target follows its source's schema changes, and if a failed change is an error.

`columns` (databases) and `lake_columns` (Delta, Iceberg) plan the effect of a change on a target's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from raycdc.errors import SinkError
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.evolution.events import DropTableEvent, SchemaChangeEvent, TruncateTableEvent

ColumnT = TypeVar("ColumnT")


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """``pipeline.schema_change`` for targets that are `upsert` or changelogs; `left_out` are the types of changes that
    they are spared.
    """

    upsert: bool
    behavior: SchemaChangeBehavior
    left_out: frozenset[str] = frozenset()

    @property
    def may_lack(self) -> bool:
        """Return True if changes may be left out by configuration, so that a column may be missing in the target."""
        skips = self.behavior in (SchemaChangeBehavior.IGNORE, SchemaChangeBehavior.TRY_EVOLVE)
        return skips or not {"add_column", "rename_column"}.isdisjoint(self.left_out)

    @property
    def ignores(self) -> bool:
        """Return True if targets keep their columns."""
        return self.behavior is SchemaChangeBehavior.IGNORE

    @property
    def in_place(self) -> bool:
        """Return True if columns of targets are dropped, renamed and moved like the source's."""
        return self.behavior.in_place

    def followed(self, changes: Sequence[SchemaChangeEvent]) -> tuple[SchemaChangeEvent, ...]:
        """`changes` but those left out."""
        return tuple(event for event in changes if event.type not in self.left_out)

    def empties(self, events: Sequence[SchemaChangeEvent]) -> bool:
        """Return True if the target's rows are removed; a changelog keeps them."""
        return self.upsert and any(isinstance(event, TruncateTableEvent | DropTableEvent) for event in events)

    def after_all(
        self,
        columns: list[ColumnT],
        events: Sequence[SchemaChangeEvent],
        after: Callable[[list[ColumnT], SchemaChangeEvent], list[ColumnT]],
    ) -> list[ColumnT]:
        """Return the columns `after` all events. ``try_evolve`` skips events that raise `SinkError`."""
        for event in events:
            try:
                columns = after(columns, event)
            except SinkError:
                if self.behavior is not SchemaChangeBehavior.TRY_EVOLVE:
                    raise
        return columns
