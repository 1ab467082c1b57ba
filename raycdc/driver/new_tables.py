"""Tables that a running pipeline follows although its state did not know them: each is told of, once.

A source follows what its configuration selects without being asked: a table that is made, or renamed into a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raycdc.run_events import NewTable
from raycdc.source.protocol.job_status import JobStatus


class NewTables:
    """Hears each status of the source side. `known` are the tables of the state when the run began; at a first start
    (None) those of the first status that has any, and a source whose tables come one after another tells of none.
    """

    def __init__(self, known: Iterable[str] | None, tell: Callable[[NewTable], None]) -> None:
        self._known = None if known is None else set(known)
        self._tell = tell

    def __repr__(self) -> str:
        return f"NewTables({len(self._known or ())} known)"

    def heard(self, status: JobStatus | None) -> None:
        """For the thread that looks at statuses."""
        if status is None or not status.tables:
            return
        progress = {str(table): told.progress for table, told in status.tables.items()}
        if self._known is None:
            if any(reader.metrics.partitions is not None for reader in status.readers):
                return
            self._known = set(progress)
        for name in sorted(progress.keys() - self._known):
            self._known.add(name)
            parked = progress[name].parked
            if parked is None or parked.again:
                self._tell(NewTable(name))
