"""The hand-off's races, made on purpose: every write hits a chunk that is open, or the one about to be opened.

Three writers look at which chunks the log reader holds open in this very moment and write there, or into the chunk
behind them, which opens within milliseconds: rows that are in the log, and not yet visible, when it does. On MySQL
the time in between is made long (`binlog_group_commit_sync_delay`). The changelog must be exact nevertheless.

A short share runs always; ``make test-races`` reads 2,000 chunks on each kind of server.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from raycdc.config import config_from_dict
from raycdc.pipeline import Pipeline
from raycdc.source.hand_off import PublishChunk
from raycdc.source.log_reader import LogReader
from raycdc.testing.changelog import check_changelog
from raycdc.testing.servers import DatabaseServer, MySqlServer

pytestmark = pytest.mark.server

CHUNK_ROWS = 10
WRITERS = 3
#: A transaction is in the log this long before it is visible: about as long as reading a chunk takes.
WINDOW_US = 4_000
PASSWORD = "RAYCDC_TEST_PASSWORD"
LABELS = ("z", "b", "y", "a")
CHUNKS_LONG = int(os.environ.get("RAYCDC_RACE_CHUNKS", "2000"))


@dataclass(frozen=True)
class Case:
    """`account` root may see who is committing, cdc may not: there time is waited for, or the ring reaches back."""

    fixture: str
    account: str = "cdc"
    #: With more chunks the writers, which share this process with the log reader, may be the quicker ones for ever.
    chunks: int = 4
    #: The key is (g, id), where g is an ENUM whose labels are not in the order of their text.
    composite: bool = False


@dataclass
class OpenChunks:
    """The key ranges the log reader holds open now, as writers see them."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    opened: int = 0
    #: Chunks that held rows were folded into (the server does not say what a SELECT saw) or released behind.
    met: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Keys to each value of `g`; 0: the key is a number.
    group: int = 0

    def number(self, bound: Any) -> int:
        """A bound as a number of a row."""
        if not self.group:
            return int(bound)
        label, *rest = bound
        return int(rest[0]) if rest else (int(label) - 1) * self.group

    def where(self, key: int) -> str:
        """SQL that sets, or with AND finds, the row's key."""
        return f"g = {key // self.group + 1}, id = {key}" if self.group else f"id = {key}"

    def values(self, key: int) -> str:
        return f"{key // self.group + 1}, {key}" if self.group else str(key)

    def aim(self, chance: random.Random, keys: int) -> tuple[int, bool]:
        """A key in a chunk that is open, or in the next one."""
        with self.lock:
            found = list(self.ranges.values())
        if not found:
            return 1 + chance.randrange(CHUNK_ROWS), False
        low, high = chance.choice(found)
        if chance.random() < 0.3:
            low, high = high, high + CHUNK_ROWS
        return min(keys, chance.randrange(low, high)), True


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[OpenChunks]:
    """What the log reader has open, taken from the log reader itself."""
    chunks = OpenChunks()
    opening, carrying_out, voiding = LogReader._open, LogReader._carry_out, LogReader._voided

    def opened(self: LogReader, split: Any, **named: Any) -> None:
        with chunks.lock:
            low = 0 if split.lower is None else chunks.number(split.lower)
            high = low + CHUNK_ROWS if split.upper is None else chunks.number(split.upper)
            chunks.ranges[split.split_id] = (low, max(high, low + 1))
        opening(self, split, **named)

    def carried_out(self: LogReader, decision: Any) -> None:
        with chunks.lock:
            if isinstance(decision, PublishChunk):
                chunks.ranges.pop(decision.split.split_id, None)
                chunks.opened += 1
                chunks.met += bool(decision.released)
            else:
                chunks.met += 1
        carrying_out(self, decision)

    def voided(self: LogReader, split: Any, *values: Any, **named: Any) -> None:
        with chunks.lock:
            chunks.ranges.pop(split.split_id, None)
        voiding(self, split, *values, **named)

    patch.setattr(LogReader, "_open", opened)
    patch.setattr(LogReader, "_carry_out", carried_out)
    patch.setattr(LogReader, "_voided", voided)
    yield chunks


@contextmanager
def writing(server: DatabaseServer, database: str, chunks: OpenChunks, keys: int) -> Iterator[Counter[str]]:
    """Single-row transactions aimed at open chunks, as fast as the server takes them."""
    stop = threading.Event()
    counts: Counter[str] = Counter()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        number = 0
        with server.connect(database=database) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                key, hit = chunks.aim(chance, keys)
                other, _ = chunks.aim(chance, keys)
                number += 1
                here, values = chunks.where(key).replace(",", " AND"), chunks.values(key)
                statement = chance.choice(
                    [
                        f"UPDATE t SET v = v + 1, w = {seed * 1_000_000 + number} WHERE {here}",
                        f"INSERT INTO t VALUES ({values}, 0, {number}) ON DUPLICATE KEY UPDATE v = v + 1",
                        f"DELETE FROM t WHERE {here}",
                        f"UPDATE IGNORE t SET {chunks.where(other)} WHERE {here}",
                        f"REPLACE INTO t VALUES ({values}, -1, {number})",
                    ]
                )
                try:
                    cursor.execute(statement)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in (1205, 1213):  # A deadlock among the writers themselves.
                        raise
                counts["hit" if hit else "before"] += 1

    threads = [threading.Thread(target=write, args=(seed,), daemon=True) for seed in range(1, WRITERS + 1)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)


def race(server: DatabaseServer, case: Case, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with server.fresh_database() as database, watched(patch) as chunks:
        keys = case.chunks * CHUNK_ROWS
        # The last key must have a label, too.
        chunks.group = keys // len(LABELS) + 1 if case.composite else 0
        label = f"g ENUM({', '.join(map(repr, LABELS))}) NOT NULL, " if case.composite else ""
        key_names = ["g", "id"] if case.composite else ["id"]
        server.execute(
            "SET SESSION sql_log_bin = 0",
            f"CREATE TABLE t ({label}id INT, v INT NOT NULL, w INT NOT NULL, PRIMARY KEY ({', '.join(key_names)}))",
            "INSERT INTO t VALUES " + ", ".join(f"({chunks.values(key)}, 0, 0)" for key in range(1, keys + 1)),
            "ANALYZE TABLE t",
            database=database,
        )
        patch.setenv(PASSWORD, case.account)
        config = config_from_dict(
            {
                "pipeline": {"name": "races", "state": str(folder), "epoch_interval": "200ms"},
                "source": {
                    "type": "mysql",
                    "port": server.port,
                    "user": case.account,
                    "password": f"${{env:{PASSWORD}}}",
                    "tables": [f"{database}.t"],
                    "snapshot": {
                        "strategy": "uneven" if case.composite else "even",
                        "chunk_rows": CHUNK_ROWS,
                        "visible_within": "2s",
                    },
                },
                "readers": {"min": 3, "max": 3},
                "sink": {"type": "console"},
            }
        )
        rows: list[dict[str, Any]] = []
        with writing(server, database, chunks, keys) as counts:
            for epoch in Pipeline.from_config(config).epochs(until="caught-up"):
                for table in epoch.tables:
                    rows.extend(row for batch in epoch.batches(table) for row in batch.to_pylist())
                epoch.ack()
        # What was written while the run ended.
        for epoch in Pipeline.from_config(config).epochs(until="caught-up"):
            for table in epoch.tables:
                rows.extend(row for batch in epoch.batches(table) for row in batch.to_pylist())
            epoch.ack()
        sys.stdout.write(
            f"{server.flavor} as {case.account}: {chunks.opened} chunks, {chunks.met} met writes, of {dict(counts)}\n"
        )
        assert check_changelog(rows, key_names) == []
        assert chunks.opened >= case.chunks
        assert chunks.met > 0
        assert held(rows) == set(server.execute("SELECT id, v, w FROM t", database=database))


def held(rows: list[dict[str, Any]]) -> set[tuple[int, int, int]]:
    """The table that the changelog adds up to."""
    found: dict[int, tuple[int, int, int]] = {}
    for row in sorted(rows, key=lambda each: int(each["_seq"])):
        if row["_op"] in ("+I", "+U"):
            found[row["id"]] = (row["id"], row["v"], row["w"])
        else:
            found.pop(row["id"], None)
    return set(found.values())


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[tuple[DatabaseServer, Case]]:
    case: Case = request.param
    found: DatabaseServer = request.getfixturevalue(case.fixture)
    if isinstance(found, MySqlServer):
        found.execute(f"SET GLOBAL binlog_group_commit_sync_delay = {WINDOW_US}")
    try:
        yield found, case
    finally:
        if isinstance(found, MySqlServer):
            found.execute("SET GLOBAL binlog_group_commit_sync_delay = 0")


def name_of(case: Case) -> str:
    return f"{case.fixture}-{case.account}{'-composite' if case.composite else ''}"


SHORT = [
    Case("mariadb"),
    Case("mysql80"),
    Case("mysql80_nogtid", "root"),
    Case("mysql80_nogtid"),
    Case("mariadb", composite=True),
    Case("mysql80", composite=True),
]
LONG = [replace(case, chunks=CHUNKS_LONG) for case in SHORT]


@pytest.mark.parametrize("server", SHORT, ids=name_of, indirect=True)
def test_writes_into_chunks_being_read_are_in_the_changelog_once(
    server: tuple[DatabaseServer, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    race(*server, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("server", LONG, ids=name_of, indirect=True)
def test_thousands_of_chunks_under_writes_give_an_exact_changelog(
    server: tuple[DatabaseServer, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    race(*server, tmp_path, monkeypatch)
