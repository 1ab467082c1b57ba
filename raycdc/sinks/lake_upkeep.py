"""Upkeep of a lake's tables by the pipeline itself: when it is due, and which files become one.

Called by the sinks of lakes after a commit, on the thread that committed, so that no commit of this driver to the table
is under way. What upkeep may do is the same in each lake: it moves rows and changes none, its commit says nothing of
epochs, and it is for the table as it was read or it is not at all: whatever comes between, of another writer or a newer
driver, it is given up, and tried again after the next commit. A driver that a newer one has fenced does nothing. When
it was last done is the time of a file beside the table's; whoever is killed in between leaves files that no version of
the table names, as any interrupted commit does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

from raycdc.sinks.api import CommitVector
from raycdc.stores.files import AnyPath, modified, touch

#: A file of more than this share of the wanted size is large enough.
LARGE = 0.75

#: Files that are written anew at once; the rest waits for the next commit.
RUN_BYTES_MAX = 1 << 30

#: The file whose time says when it was last done, in a folder beside the table's files.
MARK = "optimized"

FileT = TypeVar("FileT")


class LakeTable(Protocol):
    """A table in the hands of the thread that has just committed to it."""

    def refresh(self) -> bool:
        """Bring it to its newest version; False when there is none."""

    def vector(self) -> CommitVector | None:
        """The vector of this pipeline in that version."""


class Schedule:
    """When upkeep is due. One per sink; may be used by several threads, a table by one at a time."""

    def __init__(self, every: timedelta, clock: Callable[[], float] = time.time) -> None:
        self._every_s = every.total_seconds()
        self._clock = clock
        #: Of a mark when it is due at the earliest, so that a store is not asked after every commit.
        self._due_s: dict[str, float] = {}

    def run(self, table: LakeTable, mark: AnyPath, generation: int, optimize: Callable[[], bool]) -> None:
        """Do `optimize` where it is time, `mark` being the table's own, and no driver newer than `generation` wrote to
        it. What it returns says whether it is done; else the next commit goes on with it.
        """
        if not self._is_time(mark) or not table.refresh():
            return
        held = table.vector()
        if held is not None and held.generation <= generation and optimize():
            touch(mark)
            self._due_s.pop(str(mark), None)

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
) -> tuple[list[list[FileT]], bool]:
    """Groups of small files of one partition each, in their order, which become a file each; and whether these are all
    that there are.
    """
    small = [file for file in files if size(file) < target_bytes * LARGE]
    groups = [g for g in groups_of(small, bytes_max=target_bytes, size=size, partition=partition) if len(g) > 1]
    taken: list[list[FileT]] = []
    total = 0
    for group in groups:
        total += sum(map(size, group))
        if taken and total > RUN_BYTES_MAX:
            return taken, False
        taken.append(group)
    return taken, True


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
