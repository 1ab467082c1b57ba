"""Another table, or other partitions, come under a table's name at each step of reading it; the log reader is late.

What a schema change tool does at its cut-over, and what partitions are exchanged for. One run has a table for each
such statement; the statement comes while the table's only chunk is at the step, and the log reader reads nothing until
it has decided about the chunk. So a chunk that was read from the wrong table would be published before the log says so.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.connectors.mysql.log.log_reader import MySqlLogReader
from raycdc.connectors.mysql.snapshot import chunk_reader as visibility
from raycdc.connectors.mysql.snapshot.chunk_reader import MySqlChunkReader
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.source.snapshot.chunk_events import ChunkSchemaMismatch, CloseChunkRequest, LogEvent
from raycdc.source.snapshot.log.log_reader import LogReader

pytestmark = pytest.mark.server

PASSWORD = "RAYCDC_TEST_PASSWORD"
ROWS = 90
BY_RANGE = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (20), PARTITION p1 VALUES LESS THAN (1000))"
ONE_PART = "PARTITION BY RANGE (id) (PARTITION p1 VALUES LESS THAN (1000))"
CUT_ANEW = "PARTITION q0 VALUES LESS THAN (50), PARTITION q1 VALUES LESS THAN (2000)"
STEPS = ("opened", "before_select", "after_select", "after_high_watermark", "closed")


@dataclass(frozen=True)
class TakenTable:
    """What happens to table `t`, and what was made ready before a snapshot could be opened; `{t}` is its name."""

    statements: tuple[str, ...]
    ready: tuple[str, ...] = ()
    key: str = ", PRIMARY KEY (id)"
    options: str = ""
    mariadb_only: bool = False


def values(first: int, last: int) -> str:
    return ", ".join(f"({number}, {number})" for number in range(first, last))


def swapped(shadow: str, old: str, **how: Any) -> TakenTable:
    """A tool's table: half full before the snapshot, complete after it."""
    ready = (f"CREATE TABLE {shadow} LIKE {{t}}", f"INSERT INTO {shadow} SELECT * FROM {{t}} WHERE id < 50")
    rest = f"INSERT INTO {shadow} SELECT * FROM {{t}} WHERE id >= 50"
    swap = f"RENAME /* gh-ost */ TABLE {{t}} TO {old}, {shadow} TO {{t}}"
    return TakenTable((rest, swap, "INSERT INTO {t} VALUES (500, 1)"), ready, **how)


STORIES = {
    "gh_ost": swapped("_{t}_gho", "_{t}_del"),
    "gh_ost_keyless": swapped("_{t}_gho", "_{t}_del", key=""),
    "pt_osc": swapped("_{t}_new", "_{t}_old"),
    "exchanged": TakenTable(
        ("INSERT INTO other_{t} VALUES (31, 7)", "ALTER TABLE {t} EXCHANGE PARTITION p1 WITH TABLE other_{t}"),
        ("CREATE TABLE other_{t} (id INT NOT NULL, v INT, PRIMARY KEY (id))", "INSERT INTO other_{t} VALUES (30, 7)"),
        options=BY_RANGE,
    ),
    "exchanged_with": TakenTable(
        (
            "INSERT INTO parts_{t} VALUES (131, 7)",
            "ALTER TABLE parts_{t} EXCHANGE PARTITION p1 WITH TABLE {t}",
        ),
        (
            f"CREATE TABLE parts_{{t}} (id INT NOT NULL, v INT, PRIMARY KEY (id)) {ONE_PART}",
            "INSERT INTO parts_{t} VALUES (130, 7)",
        ),
    ),
    "partition_dropped": TakenTable(("ALTER TABLE {t} DROP PARTITION p0",), options=BY_RANGE),
    "partition_emptied": TakenTable(("ALTER TABLE {t} TRUNCATE PARTITION p0",), options=BY_RANGE),
    "partitions_cut_anew": TakenTable(
        (
            "INSERT INTO {t} VALUES (600, 1)",
            f"ALTER TABLE {{t}} REORGANIZE PARTITION p1 INTO ({CUT_ANEW})",
        ),
        options=BY_RANGE,
    ),
    "partition_made_a_table": TakenTable(
        ("ALTER TABLE {t} CONVERT PARTITION p0 TO TABLE made_{t}",), options=BY_RANGE, mariadb_only=True
    ),
    "table_made_a_partition": TakenTable(
        ("ALTER TABLE {t} CONVERT TABLE more_{t} TO PARTITION p2 VALUES LESS THAN (3000)",),
        (
            "CREATE TABLE more_{t} (id INT NOT NULL, v INT, PRIMARY KEY (id))",
            "INSERT INTO more_{t} VALUES (2000, 1)",
        ),
        options=BY_RANGE,
        mariadb_only=True,
    ),
}


class Meddler:
    """Lets a table's story happen at a step of reading it, once, and keeps the log reader back meanwhile."""

    def __init__(self, server: DatabaseServer, database: str, step: str, patch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._database = database
        self._step = step
        self._on_time = threading.Event()
        self._on_time.set()
        self._reading = ""
        self._threads: dict[str, threading.Thread] = {}
        self._hook(patch)

    def wait(self) -> set[str]:
        """The tables whose story happened."""
        for thread in self._threads.values():
            thread.join(timeout=120)
            assert not thread.is_alive()
        return set(self._threads)

    def _hook(self, patch: pytest.MonkeyPatch) -> None:
        opening, controlling = LogReader._open, LogReader._control
        reading, fetching = MySqlChunkReader.read, MySqlLogReader.fetch

        def opened(reader: LogReader, request: Any, **named: Any) -> None:
            table = request.split.table.table
            if table not in self._threads:
                self._execute(table, STORIES[table].ready)
            opening(reader, request, **named)
            self._reach("opened", table)

        def read(reader: MySqlChunkReader, split: Any, **named: Any) -> Any:
            self._reading = split.table.table
            yield from reading(reader, split, **named)

        def control(reader: LogReader, event: LogEvent, **named: Any) -> None:
            if isinstance(event, CloseChunkRequest | ChunkSchemaMismatch):
                self._reach("closed", event.chunk.table.table)
            controlling(reader, event, **named)
            # Not when the event arrives: it may have to wait for the end of a transaction that was read before.
            if isinstance(event, CloseChunkRequest | ChunkSchemaMismatch):
                self._on_time.set()

        def fetch(reader: MySqlLogReader) -> Any:
            return fetching(reader) if self._on_time.wait(0.05) else None

        patch.setattr(LogReader, "_open", opened)
        patch.setattr(LogReader, "_control", control)
        patch.setattr(MySqlChunkReader, "read", read)
        patch.setattr(MySqlLogReader, "fetch", fetch)
        patch.setattr(visibility, "reach", lambda step: self._reach(step, self._reading))

    def _reach(self, step: str, table: str) -> None:
        if step != self._step or table in self._threads:
            return
        self._on_time.clear()
        story = threading.Thread(target=self._execute, args=(table, STORIES[table].statements))
        self._threads[table] = story
        story.start()
        # Statements wait while a SELECT's transaction is open; then they come right after it.
        story.join(timeout=0.3 if step == "after_select" else 120)

    def _execute(self, table: str, statements: tuple[str, ...]) -> None:
        self._server.execute(*(statement.format(t=table) for statement in statements), database=self._database)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseServer)
    return found


@pytest.fixture
def database(server: DatabaseServer) -> Iterator[str]:
    with server.fresh_database() as name:
        yield name


CASES = [(kind, step) for kind in ("mariadb", "mysql80") for step in STEPS]
#: Without GTIDs it is another way of waiting, before the SELECT.
CASES += [("mysql80_nogtid", "opened"), ("mysql80_nogtid", "before_select")]


@pytest.mark.parametrize(("server", "step"), CASES, indirect=["server"])
def test_a_chunk_is_of_the_table_that_the_log_says(
    server: DatabaseServer, database: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = {t: s for t, s in STORIES.items() if isinstance(server, MariaDbServer) or not s.mariadb_only}
    for table, story in stories.items():
        server.execute(
            f"CREATE TABLE {table} (id INT NOT NULL, v INT{story.key}) {story.options}",
            f"INSERT INTO {table} VALUES {values(0, ROWS)}",
            database=database,
        )
    meddler = Meddler(server, database, step, monkeypatch)
    rows = [*read(server, database, stories, tmp_path, monkeypatch)]
    assert meddler.wait() == set(stories)
    rows += read(server, database, stories, tmp_path, monkeypatch)
    found = {table: held([row for row in rows if row["_table"] == table]) for table in stories}
    assert found == {
        table: Counter(server.execute(f"SELECT id, v FROM {table}", database=database)) for table in stories
    }


def read(
    server: DatabaseServer, database: str, stories: dict[str, TakenTable], folder: Path, patch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """What a run until the log's end brings."""
    patch.setenv(PASSWORD, "root")
    source = {"type": "mysql", "port": server.port, "user": "root", "password": f"${{env:{PASSWORD}}}"}
    config = config_from_dict(
        {
            "pipeline": {"name": "taken", "state": str(folder), "epoch_interval": "100ms"},
            "source": {**source, "tables": [f"{database}.{table}" for table in stories]},
            "readers": {"min": 1, "max": 1},
            "sink": {"type": "console"},
        }
    )
    for epoch in Pipeline.from_config(config).epochs(until="caught-up"):
        for table in epoch.tables:
            yield from (row for batch in epoch.batches(table) for row in batch.to_pylist())
        epoch.ack()


def held(rows: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """The rows that the changelog of one table adds up to."""
    found: Counter[tuple[int, int]] = Counter()
    for row in sorted(rows, key=lambda each: int(each["_seq"])):
        if row["_op"] == "T":
            found.clear()
            continue
        found[row["id"], row["v"]] += 1 if row["_op"] in ("+I", "+U") else -1
    assert all(count >= 0 for count in found.values())
    return +found
