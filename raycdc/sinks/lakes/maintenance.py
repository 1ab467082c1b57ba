"""Upkeep of a lake's tables by the pipeline itself: when it is due, and which files become one.

Called by the sinks of lakes after a commit, on the thread that committed, so that no commit of this driver to the table
is under way. What upkeep may do is the same in each lake: it moves rows and changes none, its commit says nothing of
epochs, and it is for the table as it was read or it is not at all: whatever comes between, of another writer or a newer
driver, it is given up, and tried again after a later commit. A driver that a newer one has fenced does nothing. When
it was last done is the time of a file beside the table's; whoever is killed in between leaves files that no version of
the table names, as any interrupted commit does.

*A try that failed* because another writer was faster, or because something was away, is followed by the next one only
after ten times as long as it took, and after twice that when it fails again, up to the whole interval: so however busy
others are, upkeep costs a small share of the time. After another writer was faster, half as much is done at once, until
a try fits between two commits of theirs.
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

#: A file of more than this share of the wanted size is large enough.
LARGE = 0.75

#: Files that are written anew at once; the rest waits for the next commit.
RUN_BYTES_MAX = 1 << 30

#: After a try that failed nothing is tried for so many times as long as it took, which counts as a second at least.
WAIT_FACTOR = 10.0
_TOOK_MIN_S = 1.0

#: People are told when other writers were faster so many times on end.
OVERTAKEN_REPORTED = 3

#: The file whose time says when it was last done, in a folder beside the table's files.
MARK = "optimized"

FileT = TypeVar("FileT")


class LakeTable(Protocol):
    """A table in the hands of the thread that has just committed to it."""

    name: TableId

    def refresh(self) -> bool:
        """Bring it to its newest version; False when there is none."""

    def vector(self) -> CommitVector | None:
        """The vector of this pipeline in that version."""


class MaintenanceOutcome(Enum):
    """What came of a try."""

    #: It is done, or not possible with the table as it is.
    DONE = auto()
    #: The next commit goes on with it.
    MORE = auto()
    #: Another writer was faster.
    OVERTAKEN = auto()
    #: Something that it needs did not answer.
    AWAY = auto()


@dataclass(slots=True)
class _Failures:
    """Of a table since upkeep was done last: tries that failed on end, those of them that other writers overtook, and
    how often the bytes of a try were halved.
    """

    tries: int = 0
    overtaken: int = 0
    halved: int = 0


class MaintenanceSchedule:
    """When upkeep is due. One per sink; may be used by several threads, a table by one at a time."""

    def __init__(
        self,
        every: timedelta,
        clock: Callable[[], float] = time.time,
        warn: Callable[[str], None] = ignore_text,
    ) -> None:
        self._every_s = every.total_seconds()
        self._clock = clock
        self._warn = warn
        #: Of a mark when it is due at the earliest, so that a store is not asked after every commit.
        self._due_s: dict[str, float] = {}
        self._failures: dict[str, _Failures] = {}
        self._reported: set[str] = set()

    def run(
        self, table: LakeTable, mark: AnyPath, generation: int, optimize: Callable[[int], MaintenanceOutcome]
    ) -> None:
        """Do `optimize` where it is time, `mark` being the table's own, and no driver newer than `generation` wrote to
        it. It is given how many bytes it may write anew at once. What it or the store raises counts as a try that
        failed.
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
            # The first look: from here on.
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
    """Groups of small files of one partition each, in their order, which become a file each; and whether these are all
    that there are. They have `run_bytes` together, or are a single group, which has these or two files.
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
    """The first files, two at least, which have not more than `bytes_max` together."""
    count, total = 2, sum(map(size, group[:2]))
    while count < len(group) and total + size(group[count]) <= bytes_max:
        total += size(group[count])
        count += 1
    return list(group[:count])


def groups_of(
    files: Sequence[FileT], *, bytes_max: int, size: Callable[[FileT], int], partition: Callable[[FileT], Hashable]
) -> list[list[FileT]]:
    """The files in groups of one partition each, in their order; a group has `bytes_max`, or is a single file."""
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
