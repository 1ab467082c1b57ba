"""``[[lookup]]``: the columns that a lookup adds to a table's rows, without the address of the dimension, because an
address may hold a password. Pure, picklable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raycdc.model.rules.selector import NamePattern, plain_table
from raycdc.model.table import TableId
from raycdc.model.types import LogicalType


@dataclass(frozen=True, slots=True)
class LookupColumn:
    """The field `field` of a document, added as the column `name`."""

    field: str
    name: str
    type: LogicalType


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The `number`-th ``[[lookup]]``, for the tables that `table` names by a name or by a regular expression in full.

    The document of `dimension` whose `field` equals the row's column `key` supplies `columns`. `key_type` is the type
    of the field, empty if the column's type determines it. `drop`: a row without a document is left out. `rules` are
    other keys of the configuration that change the answers. Keys that only say when the run ends (many,
    on_type_mismatch) are not among them, because they may be changed, as the messages that end the run advise.
    """

    number: int
    table: str
    dimension: str
    key: str
    field: str
    columns: tuple[LookupColumn, ...]
    key_type: str = ""
    drop: bool = False
    rules: tuple[str, ...] = ()

    @property
    def key_path(self) -> str:
        """Return the location of the lookup in the configuration, for messages."""
        return f"lookup[{self.number}]"

    @property
    def plain_table(self) -> TableId | None:
        """Return the one table that the lookup names; None for a regular expression."""
        return plain_table(self.table)

    def pattern(self) -> NamePattern:
        return NamePattern.of(self.table)

    def identity(self) -> list[Any]:
        """Return everything that affects the joined rows, to detect changes."""
        columns = [[column.field, column.name, column.type.native] for column in self.columns]
        return [self.dimension, self.key, self.field, self.key_type, columns, self.drop, self.rules]
