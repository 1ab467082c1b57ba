"""What a browser is sent every second: the pipeline's status with a page of its tables, and what is new in its
history.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from raycdc.control.history import ChangeReport, EpochReport, Series
from raycdc.control.model import Status, TableReport

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1


@dataclass(frozen=True, slots=True)
class HeldSplits:
    """The splits that a reader holds."""

    reader: int
    node: str
    pid: int
    splits: Annotated[tuple[str, ...], Field(description="The first of them.")]
    count: int


@dataclass(frozen=True, slots=True)
class May:
    """What whoever looks may do."""

    act: Annotated[bool, Field(description="Give commands about tables.")]
    verify: Annotated[bool, Field(description="Have tables compared; for whoever may act.")]


@dataclass(frozen=True, slots=True)
class Look:
    """See the module's docstring. `status.tables` are those that were asked for."""

    version: int
    may: May
    status: Status
    matching: Annotated[int, Field(description="Tables that were asked for, on all pages.")]
    offset: Annotated[int, Field(description="How many of them come before those that are here.")]
    table: Annotated[TableReport | None, Field(description="The one that is looked at closely.")]
    parked: Annotated[tuple[TableReport, ...], Field(description="The first tables that are parked.")]
    splits: tuple[HeldSplits, ...]
    series: Annotated[tuple[Series, ...], Field(description="Samples since the look before; all in the first.")]
    epochs: Annotated[tuple[EpochReport, ...], Field(description="In the same way.")]
    changes: Annotated[tuple[ChangeReport, ...], Field(description="Of schemas, the newest last.")]

    def to_json(self) -> bytes:
        """The document, in UTF-8, in one line."""
        return _adapter().dump_json(self)


@cache
def _adapter() -> TypeAdapter[Look]:
    from pydantic import TypeAdapter

    return TypeAdapter(Look)
