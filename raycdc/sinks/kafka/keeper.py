"""Keeps the commit records of quiet tables: brokers forget a group's offsets ``offsets.retention.minutes`` (7 days by
default) after the last one was committed, and a table may well have no change for longer.

A thread of the driver writes such a record once more, in a transaction of its own, as every write of a record: so a
driver that sleeps through its replacement cannot bring an old one back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.kafka.tasks import renew
from raycdc.sinks.kafka.transactions import Target

#: Records older than this are written anew; what a cluster keeps for a shorter time is not meant to be kept.
RENEW_AFTER_S = 6 * 3600.0
#: How often it is looked for such records.
LOOK_EVERY_S = 300.0


class RecordKeeper:
    """See the module's docstring. Threads: `writing` on any, one at a time per table."""

    def __init__(self) -> None:
        self._locks: dict[TableId, threading.RLock] = {}
        self._written_s: dict[TableId, float] = {}
        self._targets: dict[TableId, Target] = {}
        self._changing = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raycdc-kafka-records", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def using(self, table: TableId, target: Target, *, writes: bool) -> Iterator[None]:
        """Nobody else writes the table's record meanwhile; `writes`: the block does."""
        with self._changing:
            lock = self._locks.setdefault(table, threading.RLock())
        with lock:
            yield
            with self._changing:
                self._targets[table] = target
                # How old one is that was only read is not known.
                self._written_s.setdefault(table, time.monotonic() - RENEW_AFTER_S)
                if writes:
                    self._written_s[table] = time.monotonic()

    def close(self) -> None:
        """Ends the thread, after the record under way."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_EVERY_S):
            with self._changing:
                due_s = time.monotonic() - RENEW_AFTER_S
                due = [table for table, written_s in self._written_s.items() if written_s <= due_s]
            for table in due:
                if not self._closed.is_set():
                    self._renew(table)

    def _renew(self, table: TableId) -> None:
        target = self._targets[table]
        # A cluster that is away now is asked at the next look; there are days of them.
        with contextlib.suppress(SinkError), self.using(table, target, writes=True):
            renew(target)
