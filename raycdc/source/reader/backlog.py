"""Assigns the splits of one fetcher manager to its fetchers.

The reader's thread adds, removes and pauses splits. Each fetcher's thread takes the changes of its splits, and waits
here while it has nothing to read.

Splits with the same name are read one after the other, in the order in which they were added, for any number of
fetchers. A split that is removed and added again counts as a new split. It waits until its fetcher has taken the
removal, and the end of the earlier split does not affect it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from raycdc.source.reader.split_reader import FetchedSplit, SplitsAddition, SplitsChange, SplitsPause, SplitsRemoval

SplitT = TypeVar("SplitT", bound=FetchedSplit)


class FetcherSplits(Generic[SplitT]):
    """The splits of one fetcher. Its thread calls all methods; the backlog's lock guards the state."""

    def __init__(self, backlog: SplitBacklog[SplitT], wake_up: Callable[[], None]) -> None:
        self.wake_up = wake_up
        #: The splits of the fetcher after all `changes` are handled.
        self.split_ids: set[str] = set()
        #: Changes that the fetcher has not taken yet. A change that adds splits has the number of the addition.
        self.changes: deque[tuple[SplitsChange[SplitT], int]] = deque()
        self._backlog = backlog

    def __repr__(self) -> str:
        return f"FetcherSplits({sorted(self.split_ids)})"

    @property
    def closed(self) -> bool:
        """Return True if the fetcher should end."""
        return self._backlog.closed

    def take(self) -> Sequence[tuple[SplitsChange[SplitT], int]] | None:
        """Return the changes to handle before the next fetch; None if the fetcher should end.

        Blocks while there is nothing to read. The changes of one call never remove and add the same split.
        """
        return self._backlog.take(self)

    def finished(self, split_ids: Sequence[str]) -> None:
        """Note that these splits were read to their end."""
        self._backlog.finished(self, split_ids)


class SplitBacklog(Generic[SplitT]):
    """The splits of one fetcher manager; see the module's docstring.

    A fetcher has up to `at_once` splits at a time (None: no limit).
    """

    def __init__(self, *, at_once: int | None) -> None:
        self._at_once = at_once
        self._condition = threading.Condition()
        self._waiting: deque[tuple[SplitT, int]] = deque()
        self._fetchers: list[FetcherSplits[SplitT]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"SplitBacklog({len(self._waiting)} wait, {self._fetchers})"

    def __len__(self) -> int:
        """Return the number of splits that could be read at the same time."""
        with self._condition:
            waiting = {split.split_id for split, _ in self._waiting}
            return len(waiting.union(*(fetcher_splits.split_ids for fetcher_splits in self._fetchers)))

    @property
    def closed(self) -> bool:
        with self._condition:
            return self._closed

    def add_fetcher(self, wake_up: Callable[[], None]) -> FetcherSplits[SplitT]:
        """Return the splits of another fetcher; `wake_up` ends its reader's blocked fetch."""
        with self._condition:
            fetcher_splits = FetcherSplits(self, wake_up)
            self._fetchers.append(fetcher_splits)
            return fetcher_splits

    def add(self, splits: Sequence[SplitT], *, addition: int) -> None:
        with self._condition:
            self._waiting.extend((split, addition) for split in splits)
            self._condition.notify_all()
            # A fetcher without a split waits here, so its reader need not be woken.
            woken = [
                fetcher_splits
                for fetcher_splits in self._fetchers
                if fetcher_splits.split_ids and self._has_room(fetcher_splits)
            ]
        for fetcher_splits in woken:
            fetcher_splits.wake_up()

    def remove(self, split_ids: Sequence[str]) -> None:
        """Remove splits: a waiting split is forgotten, and the fetcher of a running one is notified."""
        with self._condition:
            self._waiting = deque(entry for entry in self._waiting if entry[0].split_id not in split_ids)
        self._notify(split_ids, SplitsRemoval)

    def pause(self, split_ids: Sequence[str]) -> None:
        self._notify(split_ids, lambda own: SplitsPause(paused=own))

    def resume(self, split_ids: Sequence[str]) -> None:
        self._notify(split_ids, lambda own: SplitsPause(resumed=own))

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _notify(
        self, split_ids: Sequence[str], change: Callable[[tuple[str, ...]], SplitsRemoval | SplitsPause]
    ) -> None:
        woken = []
        with self._condition:
            for fetcher_splits in self._fetchers:
                if self._at_once is None:
                    # The fetcher gets a waiting split before the split can be paused. A fetcher that reads one split at
                    # a time takes the split itself when its current one ends.
                    self._give(fetcher_splits)
                if own := tuple(split_id for split_id in split_ids if split_id in fetcher_splits.split_ids):
                    reported = change(own)
                    fetcher_splits.changes.append((reported, 0))
                    if isinstance(reported, SplitsRemoval):
                        fetcher_splits.split_ids -= set(own)
                    woken.append(fetcher_splits)
            self._condition.notify_all()
        for fetcher_splits in woken:
            fetcher_splits.wake_up()

    def take(self, fetcher_splits: FetcherSplits[SplitT]) -> Sequence[tuple[SplitsChange[SplitT], int]] | None:
        with self._condition:
            while True:
                self._give(fetcher_splits)
                if self._closed:
                    return None
                if fetcher_splits.changes or fetcher_splits.split_ids:
                    break
                self._condition.wait()
            changes = []
            removed: set[str] = set()
            while fetcher_splits.changes and removed.isdisjoint(_added(fetcher_splits.changes[0][0])):
                change, addition = fetcher_splits.changes.popleft()
                removed |= _removed(change)
                changes.append((change, addition))
            if removed:
                self._condition.notify_all()  # Other fetchers may read them now.
            return changes

    def finished(self, fetcher_splits: FetcherSplits[SplitT], split_ids: Sequence[str]) -> None:
        with self._condition:
            # If the fetcher has not taken this split yet, it cannot have read it, so the split that ended is an earlier
            # one with the same name.
            fetcher_splits.split_ids -= set(split_ids) - _all_of(fetcher_splits, _added)
            self._condition.notify_all()

    def _give(self, fetcher_splits: FetcherSplits[SplitT]) -> None:
        if not self._waiting or not self._has_room(fetcher_splits):
            return
        others = [other for other in self._fetchers if other is not fetcher_splits]
        taken = fetcher_splits.split_ids.union(*(other.split_ids | _all_of(other, _removed) for other in others))
        passed_over: deque[tuple[SplitT, int]] = deque()
        while self._waiting and self._has_room(fetcher_splits):
            split, addition = self._waiting.popleft()
            if split.split_id in taken:
                passed_over.append((split, addition))
                continue
            taken.add(split.split_id)
            fetcher_splits.split_ids.add(split.split_id)
            fetcher_splits.changes.append((SplitsAddition((split,)), addition))
        self._waiting = passed_over + self._waiting

    def _has_room(self, fetcher_splits: FetcherSplits[SplitT]) -> bool:
        return self._at_once is None or len(fetcher_splits.split_ids) < self._at_once


def _added(change: SplitsChange[SplitT]) -> set[str]:
    return {split.split_id for split in change.splits} if isinstance(change, SplitsAddition) else set()


def _removed(change: SplitsChange[SplitT]) -> set[str]:
    return set(change.split_ids) if isinstance(change, SplitsRemoval) else set()


def _all_of(fetcher_splits: FetcherSplits[SplitT], part: Callable[[SplitsChange[SplitT]], set[str]]) -> set[str]:
    """Return the splits that `part` selects from the changes that the fetcher has not taken yet."""
    return set().union(*(part(change) for change, _ in fetcher_splits.changes))
