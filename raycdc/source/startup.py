"""Where a pipeline without state begins, for sources of tables with one log: the options that all of them share.

Options of a source's section that are about single tables, by the tables' names. Pure.

A table's option is a mistake where the section does not select the table, and its value is judged by itself. Both are
found when the configuration is read, so that all of them are told at once; whether the table is there, and has the
columns that an option names, only the source knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Self, TypeVar

from pydantic import model_validator

from raycdc.config import Options, SourceConfig, option
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector


class StartupMode(StrEnum):
    """Where a pipeline without state begins. A connector's options list those that its log can do."""

    INITIAL = "initial"
    SNAPSHOT = "snapshot"
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


class StartupOptions(Options):
    """Where to begin; consulted only while the pipeline has no state."""

    mode: str = option(StartupMode.INITIAL.value, help="Where to begin.")
    timestamp_ms: int | None = option(None, help="Time to start at, with mode = timestamp.", unit="ms", ge=0)

    @model_validator(mode="after")
    def _names_a_time(self) -> Self:
        if self.mode == StartupMode.TIMESTAMP and self.timestamp_ms is None:
            raise ValueError('mode = "timestamp" needs timestamp_ms')
        return self

    @property
    def bounded(self) -> bool:
        """Whether the rows that are there at the start are all that is read."""
        return self.mode == StartupMode.SNAPSHOT

    @property
    def moment_ms(self) -> int | None:
        """The time to start at, where that is what was asked for."""
        return self.timestamp_ms if self.mode == StartupMode.TIMESTAMP else None

    @property
    def takes_snapshot(self) -> bool:
        """Whether the rows that are there at the start are read."""
        return self.mode in (StartupMode.INITIAL, StartupMode.SNAPSHOT)


class SelectedTablesConfig(SourceConfig):
    """A source's section that selects its tables by names and patterns."""

    def selector(self) -> TableSelector:
        """The tables to capture."""
        raise NotImplementedError

    @property
    def table_patterns(self) -> tuple[str, ...]:
        selector = self.selector()
        return (*selector.include, *selector.exclude)

    def captures(self, table: TableId) -> bool:
        return self.selector().matches(table)


ValueT = TypeVar("ValueT")


def require_selected(section: SelectedTablesConfig, options: Mapping[str, Iterable[str]], *, noun: str) -> None:
    """Raises ValueError for a table that has an option and is not selected. `options` has the tables' names by key.

    `noun` is what people call a table.
    """
    for key, names in options.items():
        for name in names:
            if not section.captures(TableId.parse(name)):
                raise ValueError(f"{key}: {name} {not_captured(noun)}")


def not_captured(noun: str) -> str:
    """The end of a sentence about a table that has an option."""
    return f"is not one of the captured {noun}s"


def checked(values: Mapping[str, ValueT], check: Callable[[ValueT], object]) -> None:
    """Judge the value of each table by `check`, whose ValueError is raised with the table's name before it."""
    for name, value in values.items():
        try:
            check(value)
        except ValueError as cause:
            raise ValueError(f"{name}: {cause}") from cause
