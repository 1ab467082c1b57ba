"""Hundreds of tables in one job: what an upsert epoch that touches all of them takes, beside a MERGE per table.

The job runs all the time (``raycdc run --json`` on Ray and Spark); the server changes rows of every table in *one*
transaction, which never is split, so one epoch touches all tables. Rounds of a trickle come first (the first one warms
up and is told apart), then one with bursts on some of the tables. ``rows`` are changed rows at the source.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import tables
from bench.measure import Measurement, progress
from bench.processes import ProcessTree

TABLES = 500
#: Rows of each table, rows that a trickle changes in each, and the number of measurements.
ROWS_PER_TABLE = 200
TRICKLE_ROWS = 6
ROUNDS = 3
#: Tables with a burst, and the changed rows of all of them by default.
BURSTS = 10
BURST_ROWS = 200_000

_TIMEOUT_S = 900.0


class LiveRun:
    """A command that prints events as JSON lines, watched while it runs."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        self._errors = log.open("wb")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self.spawned = time.monotonic()
        self.tree = ProcessTree(self.process.pid)
        self._events: list[tuple[float, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.bytes_out = 0

    def wait(
        self, what: str, wanted: Callable[[dict[str, Any]], bool], *, after: float
    ) -> tuple[float, dict[str, Any]]:
        """Return the first event since `after` that is `wanted`, with its time."""
        deadline = time.monotonic() + _TIMEOUT_S
        seen = 0
        with self._changed:
            while True:
                for at, event in self._events[seen:]:
                    if at >= after and wanted(event):
                        return at, event
                seen = len(self._events)
                left = deadline - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    raise RuntimeError(f"{what} did not come:\n{self._log.read_text()[-3000:]}")
                self._changed.wait(min(left, 1.0))

    def commits(self, after: float) -> list[tuple[float, dict[str, Any]]]:
        """Return the commits with rows since `after`."""
        with self._changed:
            return [(t, e) for t, e in self._events if t >= after and e["event"] == "commit" and e["rows"]]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(_TIMEOUT_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            with self._changed:
                self.bytes_out += len(line)
                self._events.append((time.monotonic(), event))
                self._changed.notify_all()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the process within the block, and end it afterwards."""
        self._reader.start()
        try:
            with self.tree:
                yield
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(10)
            self._errors.close()


def make_tables(connection: Any, count: int, rows: int, *, first: int = 0) -> None:
    """Create tables ``bench.t000`` … of `rows` rows each, with the columns of the standard table, without the `first`
    ones.
    """
    with connection.cursor() as cursor:
        for number in range(first, count):
            cursor.execute(tables.STANDARD.replace("bench.standard", name_of(number)))
            cursor.execute(
                f"INSERT INTO {name_of(number)} SELECT {tables.STANDARD_VALUES} FROM bench.numbers WHERE n < {rows}"
            )


def name_of(number: int) -> str:
    return f"bench.t{number:03d}"


def trickle(connection: Any, count: int, around: int) -> int:
    """Make one transaction that updates, inserts and deletes a few rows of each table; return the number of changed
    rows.
    """
    updated = TRICKLE_ROWS - 2
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for number in range(count):
            table = name_of(number)
            cursor.execute(f"UPDATE {table} SET quantity = quantity + 1 WHERE id BETWEEN 1 AND {updated}")
            cursor.execute(
                f"INSERT INTO {table} SELECT {2_000_000 + around}, customer, name, price, ordered, note, changed, "
                f"status, score, quantity FROM {table} WHERE id = 1"
            )
            cursor.execute(f"DELETE FROM {table} WHERE id = {10 + around}")
        cursor.execute("COMMIT")
    return count * TRICKLE_ROWS


def burst(connection: Any, rows: int) -> int:
    """Insert `rows` rows in all, into a few of the tables."""
    each = rows // BURSTS
    for number in range(BURSTS):
        tables.fill(connection, name_of(number), tables.STANDARD_VALUES, 100_000 + each, first=100_000)
    return each * BURSTS


def measure(config: Path, connection: Any, log: Path, *, count: int, rows: int) -> Measurement:
    """Measure the job on `count` tables: its start, rounds of a trickle, and one with bursts of `rows` rows.

    The figures are those of the middle round of a trickle; the other rounds are listed, too.
    """
    progress(f"500_tables: measuring raycdc on {count} tables ...")
    run = LiveRun([sys.executable, "-m", "raycdc.cli", "run", str(config), "--json"], log)
    with run.watched():
        phases: dict[str, str] = {}

        def streaming(event: dict[str, Any]) -> bool:
            # With many tables, a line has only those that changed.
            found = event.get("tables", ()) if event["event"] == "progress" else ()
            phases.update((table["table"], table["phase"]) for table in found)
            return len(phases) >= count and set(phases.values()) == {"stream"}

        run.wait("the end of the snapshot", streaming, after=0.0)
        while sum(event["rows"] for _, event in run.commits(0.0)) < count * ROWS_PER_TABLE:
            run.wait("the snapshot's commit", lambda e: e["event"] == "commit", after=time.monotonic())
        first = run.commits(0.0)
        start = _figures(run, run.spawned, first[-1][0], first)
        progress(f"started in {start['wall_s']} s")
        warm_up, *rounds = (_round(run, connection, count, number=number, rows=0) for number in range(ROUNDS + 1))
        bursts = _round(run, connection, count, number=ROUNDS + 1, rows=rows)
        run.stop()
    middle = sorted(rounds, key=lambda figures: figures["wall_s"])[len(rounds) // 2]
    more = {"rounds": rounds, "bursts": bursts, "warm_up": warm_up, "start": start, "event_bytes": run.bytes_out}
    known = {name: middle[name] for name in ("rows", "wall_s", "cpu_s", "peak_rss_mb")}
    return Measurement(case="500_tables", system="raycdc", **known, more={"epoch_s": middle["epoch_s"], **more})


def _round(run: LiveRun, connection: Any, count: int, *, number: int, rows: int) -> dict[str, Any]:
    changed = trickle(connection, count, number)
    began = time.monotonic()
    if rows:
        changed += burst(connection, rows)
    at, event = run.wait(
        "the epoch of all tables", lambda e: e["event"] == "commit" and len(e["tables"]) >= count, after=began
    )
    while rows:  # Bursts are rows of some tables only, after the trickle.
        commits = run.commits(began)
        at = commits[-1][0]
        if sum(event["tables"].get(name_of(n), 0) for _, event in commits for n in range(BURSTS)) >= rows:
            break
        time.sleep(0.2)
    figures = {"rows": changed, **_figures(run, began, at, run.commits(began))}
    figures |= {"epoch_s": event["seconds"], "staging_s": event["staging_s"], "commit_s": event["commit_s"]}
    progress(f"{changed:,d} rows of {count} tables: {figures['wall_s']} s, the epoch {figures['epoch_s']} s")
    return figures


def _figures(run: LiveRun, began: float, at: float, commits: list[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    time.sleep(0.2)  # The process tree is sampled that often.
    before, after = run.tree.cpu_s(began), run.tree.cpu_s(at)
    by_role = {role: round(after[role] - before.get(role, 0.0), 2) for role in sorted(after)}
    return {
        "wall_s": round(at - began, 3),
        "cpu_s": round(sum(by_role.values()), 2),
        "peak_rss_mb": round(run.tree.peak_rss_mb, 1),
        "cpu_by_role_s": by_role,
        "epochs": len(commits),
        "tables_per_epoch": [len(event["tables"]) for _, event in commits],
        "driver_rss_mb": _rss_mb(run.process.pid),
        "load": round(os.getloadavg()[0], 2),
    }


def _rss_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return round(int(fields[0]) / 1024, 1)
