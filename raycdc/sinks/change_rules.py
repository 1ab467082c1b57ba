"""The rules by which a target follows its source's schema changes.

They also decide if a change that cannot be carried out is an error. `raycdc.sinks.columns` plans the effect of a change
on a target's columns.
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
    """The rules for the targets of one sink.

    `behavior` is ``pipeline.schema_change``. Targets are changelogs unless `upsert` is True. Targets ignore changes of
    the types in `left_out`.
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
        """Return True if targets keep their columns whatever changes at the source."""
        return self.behavior is SchemaChangeBehavior.IGNORE

    @property
    def in_place(self) -> bool:
        """Return True if columns of targets are dropped, renamed and moved like the source's."""
        return self.behavior.in_place

    def followed(self, changes: Sequence[SchemaChangeEvent]) -> tuple[SchemaChangeEvent, ...]:
        """Return the `changes` without those whose type is in `left_out`."""
        return tuple(event for event in changes if event.type not in self.left_out)

    def empties(self, events: Sequence[SchemaChangeEvent]) -> bool:
        """Return True if `events` remove all rows of the target. A changelog keeps its rows."""
        return self.upsert and any(isinstance(event, TruncateTableEvent | DropTableEvent) for event in events)

    def after_all(
        self,
        columns: list[ColumnT],
        events: Sequence[SchemaChangeEvent],
        after: Callable[[list[ColumnT], SchemaChangeEvent], list[ColumnT]],
    ) -> list[ColumnT]:
        """Return the columns after all `events`. `after` returns the columns after one event; with ``try_evolve``,
        events for which `after` raises `SinkError` are skipped.
        """
        for event in events:
            try:
                columns = after(columns, event)
            except SinkError:
                if self.behavior is not SchemaChangeBehavior.TRY_EVOLVE:
                    raise
        return columns
