"""Writers that aim at the chunks a log reader holds open, in a process of their own.

In the log reader's process they would take turns with it at Python's lock, and the test would measure that.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from raycdc.sandbox.servers import DatabaseServer

CHUNK_ROWS = 10
WRITERS = 3
RANGES_MAX = 256
#: A new process; a fork would take over locks that other threads hold.
PROCESSES = multiprocessing.get_context("spawn")
#: Both count from the start, whole.
HIT, BEFORE = range(2)


@dataclass(frozen=True)
class Keys:
    """The keys 1 to `count` of table `t`; with a `group`, g is key // group + 1 and the key is (g, id)."""

    count: int
    group: int = 0

    def number(self, bound: Any) -> int:
        """A chunk's bound as a number of a row."""
        if not self.group:
            return int(bound)
        label, *rest = bound
        return int(rest[0]) if rest else (int(label) - 1) * self.group

    def where(self, key: int, joined: str = " AND ") -> str:
        """SQL that finds the row, or with commas sets its key."""
        return f"g = {key // self.group + 1}{joined}id = {key}" if self.group else f"id = {key}"

    def values(self, key: int) -> str:
        return f"{key // self.group + 1}, {key}" if self.group else str(key)


class OpenRanges:
    """Key ranges shared with the writers: the newest state, not a history."""

    def __init__(self) -> None:
        self._cells: Any = PROCESSES.Array("q", 1 + 2 * RANGES_MAX)

    def set(self, ranges: Sequence[tuple[int, int]]) -> None:
        flat = [bound for pair in ranges[:RANGES_MAX] for bound in pair]
        with self._cells.get_lock():
            self._cells[: 1 + len(flat)] = [len(flat) // 2, *flat]

    def choose(self, chance: random.Random) -> tuple[int, int] | None:
        with self._cells.get_lock():
            count = self._cells[0]
            if not count:
                return None
            at = 1 + 2 * chance.randrange(count)
            low, high = self._cells[at : at + 2]
            return low, high

    def aim(self, chance: random.Random, keys: int) -> tuple[int, bool]:
        """A key in a chunk that is open, or in the next one."""
        found = self.choose(chance)
        if found is None:
            return 1 + chance.randrange(CHUNK_ROWS), False
        low, high = found
        if chance.random() < 0.3:
            low, high = high, high + CHUNK_ROWS
        return min(keys, chance.randrange(low, high)), True


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    database: str

    def connect(self) -> Any:
        return pymysql.connect(
            host=self.host, port=self.port, user="root", password="root", database=self.database, autocommit=True
        )


@contextmanager
def writing(server: DatabaseServer, database: str, ranges: OpenRanges, keys: Keys) -> Iterator[Any]:
    """Single-row transactions aimed at open chunks, as fast as the server takes them; yields [hits, others]."""
    stop, begun = PROCESSES.Event(), PROCESSES.Event()
    counts: Any = PROCESSES.Array("q", 2)
    target = Target(server.host, server.port, database)
    process = PROCESSES.Process(target=_write_all, args=(target, ranges, keys, stop, begun, counts), daemon=True)
    process.start()
    try:
        assert begun.wait(timeout=300), f"the writers have not begun: {process}"
        yield counts
    finally:
        stop.set()
        process.join(timeout=300)
    assert process.exitcode == 0, f"a writer failed: {process}"


def _write_all(target: Target, ranges: OpenRanges, keys: Keys, stop: Any, begun: Any, counts: Any) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(_write, seed, target, ranges, keys, stop, begun, counts) for seed in range(WRITERS)]
    for writer in writers:
        writer.result()


def _write(seed: int, target: Target, ranges: OpenRanges, keys: Keys, stop: Any, begun: Any, counts: Any) -> None:
    chance = random.Random(seed)
    number = 0
    with target.connect() as connection, connection.cursor() as cursor:
        while not stop.is_set():
            key, hit = ranges.aim(chance, keys.count)
            other, _ = ranges.aim(chance, keys.count)
            number += 1
            here, values = keys.where(key), keys.values(key)
            statement = chance.choice(
                [
                    f"UPDATE t SET v = v + 1, w = {seed * 1_000_000 + number} WHERE {here}",
                    f"INSERT INTO t VALUES ({values}, 0, {number}) ON DUPLICATE KEY UPDATE v = v + 1",
                    f"DELETE FROM t WHERE {here}",
                    f"UPDATE IGNORE t SET {keys.where(other, ', ')} WHERE {here}",
                    f"REPLACE INTO t VALUES ({values}, -1, {number})",
                ]
            )
            try:
                cursor.execute(statement)
            except pymysql.err.OperationalError as error:
                if error.args[0] not in (1205, 1213):  # A deadlock among the writers themselves.
                    raise
            with counts.get_lock():
                counts[HIT if hit else BEFORE] += 1
            begun.set()
