"""The hand-off's races, made on purpose: every write hits a chunk that is open, or the one about to be opened.

Three writers look at which chunks the log reader holds open in this very moment and write there, or into the chunk
behind them, which opens within milliseconds: rows that are in the log, and not yet visible, when it does. On MySQL
the time in between is made long (`binlog_group_commit_sync_delay`). The changelog must be exact nevertheless.

A short share runs always; the suite ``races`` reads 2,000 chunks on each kind of server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.pipeline import Pipeline
from raycdc.sandbox.compare import check_changelog
from raycdc.sandbox.servers import DatabaseServer, MySqlServer
from raycdc.source.snapshot.handoff.hand_off import HandOff, PublishChunkRequest
from raycdc.source.snapshot.log.log_reader import LogReader
from tests.integration.race_writers import CHUNK_ROWS, HIT, Keys, OpenRanges, writing

pytestmark = pytest.mark.server

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
    chunks: int = 40
    #: The key is (g, id), where g is an ENUM whose labels are not in the order of their text.
    composite: bool = False


@dataclass
class OpenChunks:
    """What the log reader holds open now, told to the writers."""

    keys: Keys
    shared: OpenRanges = field(default_factory=OpenRanges)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    opened: int = 0
    #: Chunks that held rows were folded into (the server does not say what a SELECT saw) or released behind.
    met: int = 0

    def open(self, split: Any) -> None:
        low = 0 if split.lower is None else self.keys.number(split.lower)
        high = low + CHUNK_ROWS if split.upper is None else self.keys.number(split.upper)
        self.ranges[split.split_id] = (low, max(high, low + 1))
        self.shared.set(list(self.ranges.values()))

    def close(self, split: Any) -> None:
        self.ranges.pop(split.split_id, None)
        self.shared.set(list(self.ranges.values()))


@contextmanager
def watched(patch: pytest.MonkeyPatch, keys: Keys) -> Iterator[OpenChunks]:
    """What the log reader has open, taken from the log reader itself."""
    chunks = OpenChunks(keys)
    opening, carrying_out, refusing = LogReader._open, LogReader._carry_out, LogReader._refuse_chunk
    voiding = HandOff.void_table

    def opened(self: LogReader, request: Any, **named: Any) -> None:
        chunks.open(request.split)
        opening(self, request, **named)

    def carried_out(self: LogReader, decision: Any, **named: Any) -> None:
        if isinstance(decision, PublishChunkRequest):
            chunks.close(decision.split)
            chunks.opened += 1
            chunks.met += bool(decision.released)
        else:
            chunks.met += 1
        carrying_out(self, decision, **named)

    def refused(self: LogReader, split: Any, *values: Any, **named: Any) -> None:
        chunks.close(split)
        refusing(self, split, *values, **named)

    def voided(self: HandOff, table: Any, **named: Any) -> Any:
        splits = voiding(self, table, **named)
        for split in splits:
            chunks.close(split)
        return splits

    patch.setattr(LogReader, "_open", opened)
    patch.setattr(LogReader, "_carry_out", carried_out)
    patch.setattr(LogReader, "_refuse_chunk", refused)
    patch.setattr(HandOff, "void_table", voided)
    yield chunks


def race(server: DatabaseServer, case: Case, folder: Path, patch: pytest.MonkeyPatch) -> None:
    count = case.chunks * CHUNK_ROWS
    # The last key must have a label, too.
    keys = Keys(count, group=count // len(LABELS) + 1 if case.composite else 0)
    with server.fresh_database() as database, watched(patch, keys) as chunks:
        label = f"g ENUM({', '.join(map(repr, LABELS))}) NOT NULL, " if case.composite else ""
        key_names = ["g", "id"] if case.composite else ["id"]
        server.execute(
            "SET SESSION sql_log_bin = 0",
            f"CREATE TABLE t ({label}id INT, v INT NOT NULL, w INT NOT NULL, PRIMARY KEY ({', '.join(key_names)}))",
            "INSERT INTO t VALUES " + ", ".join(f"({keys.values(key)}, 0, 0)" for key in range(1, count + 1)),
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
        with writing(server, database, chunks.shared, keys) as counts:
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
            f"{server.flavor} as {case.account}: {chunks.opened} chunks, {chunks.met} met writes of {counts[HIT]}\n"
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


@pytest.mark.long(suite="races")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("server", LONG, ids=name_of, indirect=True)
def test_thousands_of_chunks_under_writes_give_an_exact_changelog(
    server: tuple[DatabaseServer, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    race(*server, tmp_path, monkeypatch)
