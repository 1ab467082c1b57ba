"""Scheduled maintenance of a lake's tables: decides when it is due, and which files are combined.

Called by the sinks of lakes after a commit, on the committing thread, so no commit of this driver to the table is
running. The rules are the same for Delta and Iceberg. Maintenance moves rows without changing them. Its commit has no
epoch, and succeeds only if the table has not changed since it was read. If another writer or a newer driver committed
in between, the attempt ends, and a new one is made after a later commit. A fenced driver does nothing. The time of the
last maintenance is stored as the modification time of a file next to the table's files. If the process is killed during
maintenance, files remain that no version of the table names, as after any interrupted commit.

*After a failure*, because another writer was faster or something was unreachable, the next attempt waits ten times as
long as the failed attempt took. The wait doubles after each further failure, up to the whole interval. Maintenance
therefore takes only a small part of the time, even if other writers commit often. If another writer was faster, the
next attempt processes half as much data, until it fits between two commits of that writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Protocol, TypeVar

from raycdc.model import TableId
from raycdc.sinks.api import CommitVector, ignore_text
from raycdc.storage.files import AnyPath, modified, touch

#: A file larger than this fraction of the target size is not combined.
LARGE = 0.75

#: The most bytes of files that are rewritten after one commit.
RUN_BYTES_MAX = 1 << 30

#: After a failed attempt, the next attempt waits this many times as long as the failed attempt took. An attempt counts
#: as at least one second.
WAIT_FACTOR = 10.0
_TOOK_MIN_S = 1.0

#: Users are warned if other writers were faster this many times in succession.
OVERTAKEN_REPORTED = 3

#: The name of the file whose modification time is the time of the last maintenance.
MARK = "optimized"

FileT = TypeVar("FileT")


class LakeTable(Protocol):
    """A table that is used by the thread that has just committed to it."""

    name: TableId

    def refresh(self) -> bool:
        """Read the newest version. Returns False if there is no table."""

    def vector(self) -> CommitVector | None:
        """Return the vector of this pipeline in that version."""


class MaintenanceOutcome(Enum):
    """The outcome of an attempt at maintenance."""

    #: Nothing is left to do, or maintenance is impossible for the table in its present state.
    DONE = auto()
    #: Work is left, which continues after the next commit.
    MORE = auto()
    #: Another writer was faster.
    OVERTAKEN = auto()
    #: A store or catalog did not answer.
    AWAY = auto()


@dataclass(slots=True)
class _Failures:
    """The failures for a table since its last successful maintenance.

    `tries` is the number of failed attempts in succession, `overtaken` is the number of attempts at which another
    writer was faster, and `halved` is the number of times that the amount was halved.
    """

    tries: int = 0
    overtaken: int = 0
    halved: int = 0


class MaintenanceSchedule:
    """The maintenance schedule of one sink. Callable from several threads, if each table is used by one thread at a
    time.
    """

    def __init__(
        self,
        every: timedelta,
        clock: Callable[[], float] = time.time,
        warn: Callable[[str], None] = ignore_text,
    ) -> None:
        self._every_s = every.total_seconds()
        self._clock = clock
        self._warn = warn
        #: For each table's `mark` the earliest time at which maintenance may be due. Before that time, the file's time
        #: need not be read.
        self._due_s: dict[str, float] = {}
        self._failures: dict[str, _Failures] = {}
        self._reported: set[str] = set()

    def run(
        self, table: LakeTable, mark: AnyPath, generation: int, optimize: Callable[[int], MaintenanceOutcome]
    ) -> None:
        """Call `optimize` if maintenance is due and no driver newer than `generation` wrote to the table.

        Maintenance is due if the time of the table's file `mark` is old enough. `optimize` gets the number of bytes
        that it may rewrite. An error of `optimize` or of the store counts as a failed attempt.
        """
        if not self._is_time(mark):
            return
        failures = self._failures.get(str(mark), _Failures())
        began_s = self._clock()
        outcome = MaintenanceOutcome.AWAY
        try:
            if not table.refresh():
                outcome = MaintenanceOutcome.MORE
                return
            held = table.vector()
            if held is None or held.generation > generation:
                outcome = MaintenanceOutcome.MORE
                return
            outcome = optimize(max(1, RUN_BYTES_MAX >> failures.halved))
            if outcome is MaintenanceOutcome.DONE:
                touch(mark)
                self._due_s.pop(str(mark), None)
                self._failures.pop(str(mark), None)
            elif outcome is MaintenanceOutcome.MORE:
                failures.tries = failures.overtaken = 0
        finally:
            if outcome in (MaintenanceOutcome.OVERTAKEN, MaintenanceOutcome.AWAY):
                self._failed(table.name, mark, failures, outcome, took_s=self._clock() - began_s)

    def _failed(
        self, name: TableId, mark: AnyPath, failures: _Failures, outcome: MaintenanceOutcome, *, took_s: float
    ) -> None:
        self._failures[str(mark)] = failures
        wait_s = min(WAIT_FACTOR * max(took_s, _TOOK_MIN_S) * 2.0 ** min(failures.tries, 32), self._every_s)
        self._due_s[str(mark)] = self._clock() + wait_s
        failures.tries += 1
        if outcome is not MaintenanceOutcome.OVERTAKEN:
            return
        failures.overtaken += 1
        failures.halved += 1
        if failures.overtaken >= OVERTAKEN_REPORTED and str(mark) not in self._reported:
            self._reported.add(str(mark))
            self._warn(
                f"sink.optimize: the small files of {name} stay as they are for now, and rows are written as before: "
                f"another writer of the table was faster {failures.overtaken} times on end. It is tried again, now and "
                "then and with fewer files at once. Have the other writer pause, or let it make the files larger."
            )

    def _is_time(self, mark: AnyPath) -> bool:
        if self._clock() < self._due_s.get(str(mark), 0.0):
            return False
        last_s = modified(mark)
        if last_s is None:
            # At the first check, the interval begins now.
            touch(mark)
            last_s = modified(mark) or self._clock()
        self._due_s[str(mark)] = last_s + self._every_s
        return self._clock() - last_s >= self._every_s


def small_groups(
    files: Sequence[FileT],
    *,
    target_bytes: int,
    size: Callable[[FileT], int],
    partition: Callable[[FileT], Hashable],
    run_bytes: int = RUN_BYTES_MAX,
) -> tuple[list[list[FileT]], bool]:
    """Return groups of small files to combine, and True if there are no further groups. The files of a group are of one
    partition and in order. All groups together have at most `run_bytes`. If the first group alone has more, only its
    first files are returned, but at least two.
    """
    small = [file for file in files if size(file) < target_bytes * LARGE]
    groups = [g for g in groups_of(small, bytes_max=target_bytes, size=size, partition=partition) if len(g) > 1]
    taken: list[list[FileT]] = []
    total = 0
    for group in groups:
        total += sum(map(size, group))
        if taken and total > run_bytes:
            return taken, False
        if not taken and total > run_bytes and run_bytes < min(target_bytes, RUN_BYTES_MAX):
            return [_first(group, run_bytes, size)], False
        taken.append(group)
    return taken, True


def _first(group: Sequence[FileT], bytes_max: int, size: Callable[[FileT], int]) -> list[FileT]:
    """Return the first files of a group, at least two, that have at most `bytes_max` in total."""
    count, total = 2, sum(map(size, group[:2]))
    while count < len(group) and total + size(group[count]) <= bytes_max:
        total += size(group[count])
        count += 1
    return list(group[:count])


def groups_of(
    files: Sequence[FileT], *, bytes_max: int, size: Callable[[FileT], int], partition: Callable[[FileT], Hashable]
) -> list[list[FileT]]:
    """Return the files divided into groups, in their order. The files of a group are of one partition. A group has at
    most `bytes_max`, or is a single larger file.
    """
    each: dict[Hashable, list[FileT]] = {}
    for file in files:
        each.setdefault(partition(file), []).append(file)
    groups: list[list[FileT]] = []
    for of_partition in each.values():
        group: list[FileT] = []
        total = 0
        for file in of_partition:
            if group and total + size(file) > bytes_max:
                groups.append(group)
                group, total = [], 0
            group.append(file)
            total += size(file)
        groups.append(group)
    return groups
