"""The start options of sources with one log, and checks of options about single tables.

An option about a table is an error if the section does not select the table, or if its value is invalid. Both are
checked when the configuration is read, so that all errors are reported together. Later, the source checks that the
table exists and has the columns that the option names. Pure.
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
    """How a pipeline without a state starts. A connector's options list the modes that its log supports."""

    INITIAL = "initial"
    SNAPSHOT = "snapshot"
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


class StartupOptions(Options):
    """The start position; used only while the pipeline has no state."""

    mode: str = option(StartupMode.INITIAL.value, help="Where to begin.")
    timestamp_ms: int | None = option(None, help="Time to start at, with mode = timestamp.", unit="ms", ge=0)

    @model_validator(mode="after")
    def _names_a_time(self) -> Self:
        if self.mode == StartupMode.TIMESTAMP and self.timestamp_ms is None:
            raise ValueError('mode = "timestamp" needs timestamp_ms')
        return self

    @property
    def bounded(self) -> bool:
        """Return True if only the rows that exist at the start are read."""
        return self.mode == StartupMode.SNAPSHOT

    @property
    def moment_ms(self) -> int | None:
        """Return the time to start at, if the mode is ``timestamp``."""
        return self.timestamp_ms if self.mode == StartupMode.TIMESTAMP else None

    @property
    def takes_snapshot(self) -> bool:
        """Return True if the rows that exist at the start are read."""
        return self.mode in (StartupMode.INITIAL, StartupMode.SNAPSHOT)


class SelectedTablesConfig(SourceConfig):
    """A source's section that selects its tables by names and patterns."""

    def selector(self) -> TableSelector:
        """Return the selector of the tables to capture."""
        raise NotImplementedError

    @property
    def table_patterns(self) -> tuple[str, ...]:
        selector = self.selector()
        return (*selector.include, *selector.exclude)

    def captures(self, table: TableId) -> bool:
        return self.selector().matches(table)


ValueT = TypeVar("ValueT")


def require_selected(section: SelectedTablesConfig, options: Mapping[str, Iterable[str]], *, noun: str) -> None:
    """Raise ValueError if a table has an option but is not selected.

    `options` has, for each configuration key, the names of tables that have an option there. `noun` is the word for a
    table in messages.
    """
    for key, names in options.items():
        for name in names:
            if not section.captures(TableId.parse(name)):
                raise ValueError(f"{key}: {name} {not_captured(noun)}")


def not_captured(noun: str) -> str:
    """Return the end of a sentence about a table that has an option but is not captured."""
    return f"is not one of the captured {noun}s"


def checked(values: Mapping[str, ValueT], check: Callable[[ValueT], object]) -> None:
    """Return the result of `check` for the value of each table.

    Its ValueError is raised with the table's name in front.
    """
    for name, value in values.items():
        try:
            check(value)
        except ValueError as cause:
            raise ValueError(f"{name}: {cause}") from cause
