"""Where a pipeline without state begins, for sources of tables with one log: the options that all of them share."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import model_validator

from raycdc.config import Options, SourceConfig, option
from raycdc.model import TableId
from raycdc.model.selector import TableSelector


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
