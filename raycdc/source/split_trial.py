"""Strategies of cutting tables that a source lets be compared, and what its server says that cutting costs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

SourceT_co = TypeVar("SourceT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """What a server did: statements that it answered, rows that it read for them, seconds of its CPU, of all its
    threads and for whoever asked. None where it does not say.
    """

    queries: int | None = None
    rows_read: int | None = None
    cpu_s: float | None = None

    def since(self, before: ServerCosts) -> ServerCosts:
        """What was done after `before`."""
        return ServerCosts(
            None if self.queries is None or before.queries is None else self.queries - before.queries,
            None if self.rows_read is None or before.rows_read is None else self.rows_read - before.rows_read,
            None if self.cpu_s is None or before.cpu_s is None else self.cpu_s - before.cpu_s,
        )


@dataclass(frozen=True, slots=True)
class SplitTrial(Generic[SourceT_co]):
    """One strategy, for comparing it with others.

    `source` is the user's source, set to cut by the strategy; it can be pickled. `costs` says what its server did so
    far, for the statements of this `source` in this process where the server can tell them apart. It blocks.
    `settings` are the lines of the configuration that choose the strategy.
    """

    name: str
    settings: str
    source: SourceT_co
    costs: Callable[[], ServerCosts]
