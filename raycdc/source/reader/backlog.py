"""Which fetcher reads which split: the splits of one manager, and the share of them that each fetcher has.

The reader's thread adds, removes and pauses; each fetcher's thread takes what has changed for it, and waits here while
it has nothing to read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from raycdc.source.reader.split_reader import FetchedSplit, SplitsAddition, SplitsChange, SplitsPause, SplitsRemoval

SplitT = TypeVar("SplitT", bound=FetchedSplit)


class SplitShare(Generic[SplitT]):
    """The splits of one fetcher. Its thread calls everything; what it holds is guarded by the backlog's lock."""

    def __init__(self, backlog: SplitBacklog[SplitT], wake_up: Callable[[], None]) -> None:
        self.wake_up = wake_up
        #: As they are once all `changes` are handled.
        self.split_ids: set[str] = set()
        #: Changes that the fetcher has not taken yet, each with the number of the addition where it is one.
        self.changes: deque[tuple[SplitsChange[SplitT], int]] = deque()
        self._backlog = backlog

    def __repr__(self) -> str:
        return f"SplitShare({sorted(self.split_ids)})"

    @property
    def has_splits(self) -> bool:
        return bool(self.split_ids)

    def take(self) -> Sequence[tuple[SplitsChange[SplitT], int]] | None:
        """The changes to handle before the next fetch. Blocks while there is nothing to read; None: it is over."""
        return self._backlog.take(self)

    def finished(self, split_ids: Sequence[str]) -> None:
        """These splits were read to their end."""
        self._backlog.finished(self, split_ids)


class SplitBacklog(Generic[SplitT]):
    """See the module's docstring. A fetcher has up to `at_once` splits at a time; None: as many as there are."""

    def __init__(self, *, at_once: int | None) -> None:
        self._at_once = at_once
        self._condition = threading.Condition()
        self._waiting: deque[tuple[SplitT, int]] = deque()
        self._shares: list[SplitShare[SplitT]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"SplitBacklog({len(self._waiting)} wait, {self._shares})"

    def __len__(self) -> int:
        """Splits that wait or are read."""
        with self._condition:
            return len(self._waiting) + sum(len(share.split_ids) for share in self._shares)

    def share(self, wake_up: Callable[[], None]) -> SplitShare[SplitT]:
        """The share of another fetcher, whose reader's blocked fetch `wake_up` ends."""
        with self._condition:
            share = SplitShare(self, wake_up)
            self._shares.append(share)
            return share

    # -- the reader's thread

    def add(self, splits: Sequence[SplitT], *, addition: int) -> None:
        with self._condition:
            self._waiting.extend((split, addition) for split in splits)
            self._condition.notify_all()
            # One that has no split waits here, and its reader is not to be disturbed.
            woken = [share for share in self._shares if share.split_ids and self._has_room(share)]
        for share in woken:
            share.wake_up()

    def remove(self, split_ids: Sequence[str]) -> None:
        """A split that waits is forgotten; the fetcher that has one is told."""
        with self._condition:
            self._waiting = deque(entry for entry in self._waiting if entry[0].split_id not in split_ids)
        self._tell(split_ids, SplitsRemoval)

    def pause(self, split_ids: Sequence[str]) -> None:
        self._tell(split_ids, lambda own: SplitsPause(paused=own))

    def resume(self, split_ids: Sequence[str]) -> None:
        self._tell(split_ids, lambda own: SplitsPause(resumed=own))

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _tell(self, split_ids: Sequence[str], change: Callable[[tuple[str, ...]], SplitsRemoval | SplitsPause]) -> None:
        woken = []
        with self._condition:
            for share in self._shares:
                self._give(share)
                if own := tuple(split_id for split_id in split_ids if split_id in share.split_ids):
                    told = change(own)
                    share.changes.append((told, 0))
                    if isinstance(told, SplitsRemoval):
                        share.split_ids -= set(own)
                    woken.append(share)
            self._condition.notify_all()
        for share in woken:
            share.wake_up()

    # -- the fetchers' threads

    def take(self, share: SplitShare[SplitT]) -> Sequence[tuple[SplitsChange[SplitT], int]] | None:
        with self._condition:
            while True:
                self._give(share)
                if self._closed:
                    return None
                if share.changes or share.split_ids:
                    break
                self._condition.wait()
            changes = list(share.changes)
            share.changes.clear()
            return changes

    def finished(self, share: SplitShare[SplitT], split_ids: Sequence[str]) -> None:
        with self._condition:
            share.split_ids -= set(split_ids)

    def _give(self, share: SplitShare[SplitT]) -> None:
        while self._waiting and self._has_room(share):
            split, addition = self._waiting.popleft()
            share.split_ids.add(split.split_id)
            share.changes.append((SplitsAddition((split,)), addition))

    def _has_room(self, share: SplitShare[SplitT]) -> bool:
        return self._at_once is None or len(share.split_ids) < self._at_once
