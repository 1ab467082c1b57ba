"""A column of the rows that a transform makes."""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.model import LogicalType


@dataclass(frozen=True, slots=True)
class ResolvedColumn:
    """A column of the result: the table's or a metadata column `stored` unchanged, a `constant`, or computed by `sql`.

    `flows` is True for one that ``*`` brought. One that is looked up is `stored` in the segment that has it.
    """

    name: str
    type: LogicalType
    nullable: bool = True
    stored: str = ""
    constant: int | str | bool | None = None
    sql: str = ""
    flows: bool = False
    default: str | None = None
