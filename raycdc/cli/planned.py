"""The targets that a plan has, and of which tables they are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source table of a target: its size, as far as it is known, and how its rows become the target's."""

    table: str
    rows: int
    chunks: int
    transform: str
    how: str


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of a target, with its type as Spark spells it."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """A target as a run would make it; as JSON, its fields are the keys. `ddl` is empty where the sink has none."""

    target: str
    write: str
    sources: tuple[PlannedSource, ...]
    columns: tuple[PlannedColumn, ...]
    primary_key: tuple[str, ...]
    ddl: str
