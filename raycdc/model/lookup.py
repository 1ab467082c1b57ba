"""What ``[[lookup]]`` adds to a table's rows, but not from where: an address may hold a password. Pure, picklable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from raycdc.model.selector import is_plain_name
from raycdc.model.table import TableId
from raycdc.model.types import LogicalType


@dataclass(frozen=True, slots=True)
class LookedUpColumn:
    """The field `field` of a document, as the column `name`."""

    field: str
    name: str
    type: LogicalType


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One ``[[lookup]]``, the `number`-th: of the tables that `table` names, a name or a regular expression in full.

    The document of `dimension` whose `field` equals the row's column `key` gives `columns`; `key_type` is that of the
    field where the column's own does not say it (empty). `drop`: a row without a document is left out. `rules` are
    other words of the configuration that change what is found; those that only say when the run ends (many, on_misfit)
    may become others, as the messages that end it advise.
    """

    number: int
    table: str
    dimension: str
    key: str
    field: str
    columns: tuple[LookedUpColumn, ...]
    key_type: str = ""
    drop: bool = False
    rules: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where the configuration has it, for messages."""
        return f"lookup[{self.number}]"

    @property
    def plain_table(self) -> TableId | None:
        """The one table it names; None for a regular expression."""
        return TableId.parse(self.table) if is_plain_name(self.table) else None

    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.table) if is_plain_name(self.table) else self.table)

    def identity(self) -> list[Any]:
        """What rows would be others with."""
        columns = [[column.field, column.name, column.type.native] for column in self.columns]
        return [self.dimension, self.key, self.field, self.key_type, columns, self.drop, self.rules]
