"""Copies a server into a lake, end to end, by ``raycdc run`` on Ray and Spark with all their processes.

| case | what runs |
|---|---|
| ``backlog_to_changelog`` | a job that caught up before reads a backlog of multi-row inserts and single-row updates |
| ``snapshot_to_delta`` | the snapshot of the table into a Delta table, beside Spark's own partitioned JDBC read |

Wall and CPU time are those between the start of the first reader (for Spark: of the job) and the last commit;
``including_start`` has both from the start of the command to its end. CPU-seconds are of the whole process tree
(driver, JVM, Spark's workers, Ray, readers); the server's are apart, and it shares the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import tables
from bench.measure import Measurement, Options, progress
from bench.processes import ProcessTree, process_cpu_s

CASES = ("backlog_to_changelog", "snapshot_to_delta")

#: The default number of source rows. A snapshot has so many that the start of its second reader is a small part of the
#: time.
_BACKLOG_ROWS = 2_000_000
_SNAPSHOT_ROWS = 10_000_000
#: The number of inserted rows per single-row update.
_ROWS_PER_UPDATE = 20
_CONNECTOR = "com.mysql:mysql-connector-j:9.7.0"
#: The maximum delay of the ``started`` event, because raycdc checks its processes this often. It is counted against
#: raycdc.
_STARTED_LATE_S = 0.2
_TIMEOUT_S = 1800.0


def run(options: Options) -> Iterator[Measurement]:
    """Start a server, write its table, and run each system as a user would."""
    settings: dict[str, str | None] = {"innodb_buffer_pool_size": "1G", "binlog_row_metadata": "FULL"}
    with (
        tempfile.TemporaryDirectory(prefix="raycdc-bench-") as folder,
        tables.server_of(options.server, settings) as server,
    ):
        bench = Bench(Path(folder), server)
        connection = tables.connect(server.port)
        tables.prepare(connection)
        with connection.cursor() as cursor:
            cursor.execute(tables.STANDARD)
        if "backlog_to_changelog" in options.cases:
            yield bench.backlog(connection, options.rows or _BACKLOG_ROWS)
        if "snapshot_to_delta" in options.cases:
            with connection.cursor() as cursor:
                cursor.execute("SET sql_log_bin = 0")
            bench.fill(connection, options.rows or _SNAPSHOT_ROWS)
            yield bench.snapshot()
            yield bench.spark_jdbc()


@dataclass(slots=True)
class _Run:
    """One process tree that ran to its end, with the times of its events."""

    spawned: float
    ended: float
    tree: ProcessTree
    server_pid: int
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    server_cpu: dict[str, float] = field(default_factory=dict)

    def of(self, kind: str) -> list[tuple[float, dict[str, Any]]]:
        """Return the events of one kind with their times."""
        return [(at, event) for at, event in self.events if event["event"] == kind]


class Bench:
    """The common part of the cases: folders, the server, and watched commands."""

    def __init__(self, folder: Path, server: Any) -> None:
        self.folder = folder
        self.server = server
        self.rows = 0

    def fill(self, connection: Any, rows: int) -> None:
        """Write the table's rows up to `rows` in all, a line of progress per tenth."""
        step = max(rows // 10, 1)

        def done(written: int) -> None:
            if written % step < tables.ROWS_PER_STATEMENT:
                progress(f"{written:,d} of {rows:,d} rows written")

        tables.fill(connection, "bench.standard", tables.STANDARD_VALUES, rows, first=self.rows, done=done)
        self.rows = rows

    def backlog(self, connection: Any, rows: int) -> Measurement:
        """Catch up once on the empty table, write the log, and catch up again."""
        config = self._configuration("backlog", write="changelog")
        progress("backlog_to_changelog: first run, on the empty table ...")
        self.raycdc(config)
        self.fill(connection, rows)
        updates = max(self.rows // _ROWS_PER_UPDATE, 1)
        progress(f"backlog_to_changelog: writing {updates:,d} single-row updates ...")
        tables.update_single_rows(connection, self.rows, updates)
        progress("backlog_to_changelog: measuring raycdc ...")
        return raycdc_measurement("backlog_to_changelog", self.rows + updates, self.raycdc(config))

    def snapshot(self) -> Measurement:
        """Measure a first start on the full table."""
        progress("snapshot_to_delta: measuring raycdc ...")
        run = self.raycdc(self._configuration("snapshot", write="upsert"))
        return raycdc_measurement("snapshot_to_delta", self.rows, run)

    def spark_jdbc(self) -> Measurement:
        """Measure the peer on the same table."""
        from raycdc.sandbox.cache import build_once
        from raycdc.spark.artifacts import fetch
        from raycdc.spark.session import delta_jars

        def download(into: Path) -> None:
            fetch(into, [_CONNECTOR])

        connector = build_once("mysql-connector-j", download)
        progress("snapshot_to_delta: measuring spark-jdbc ...")
        given = {
            "port": self.server.port,
            "table": "standard",
            "rows": self.rows,
            "jars": [str(jar) for jar in (*delta_jars(), *sorted(connector.glob("*.jar")))],
            "lake": str(self.folder / "spark-lake"),
            "scratch": str(self.folder / "spark-scratch"),
        }
        run = self.watched([sys.executable, "-m", "bench.spark_jdbc", json.dumps(given)])
        (started, _), (done, _) = run.of("started")[0], run.of("done")[0]
        figures = figures_of(run, started, done)
        shutil.rmtree(given["lake"])
        return Measurement(case="snapshot_to_delta", system="spark-jdbc", rows=self.rows, **figures)

    def _configuration(self, name: str, *, write: str) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(
            f"""
[pipeline]
name = "{name}"
state = "{self.folder / name}"
engines = "always"

[source]
type = "mysql"
port = {self.server.port}
user = "{self.server.cdc_user}"
password = "{self.server.cdc_password}"
tables = ["bench.standard"]

[spark]
from_bytes = "4MiB"

[readers]
max = {readers_max()}

[sink]
type = "delta"
path = "{self.folder / name}-lake"
write = "{write}"
"""
        )
        return path

    def raycdc(self, config: Path) -> _Run:
        return self.watched([sys.executable, "-m", "raycdc.cli", "run", str(config), "--json", "--until", "caught-up"])

    def watched(self, command: Sequence[str]) -> _Run:
        """Run `command` to its end, reading its events; it must succeed."""
        log = self.folder / "stderr.log"
        spawned = time.monotonic()
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        with ProcessTree(process.pid) as tree, process:
            run = _Run(spawned, 0.0, tree, self.server.pid)
            run.server_cpu["spawned"] = process_cpu_s(run.server_pid)
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                run.events.append((time.monotonic(), event))
                run.server_cpu.setdefault(event["event"], process_cpu_s(run.server_pid))
            process.wait(_TIMEOUT_S)
            run.ended = time.monotonic()
        if process.returncode:
            raise RuntimeError(f"{command[2]} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        run.server_cpu["ended"] = process_cpu_s(run.server_pid)
        return run


def readers_max() -> int:
    return max(2, (os.cpu_count() or 1) // 2)


def raycdc_measurement(case: str, rows: int, run: _Run) -> Measurement:
    """Return the figures of a run of ``raycdc run --json``, with the parts of its time."""
    commits = [(at, event) for at, event in run.of("commit") if event["rows"]]
    up = next(at for at, event in run.of("started") if event["pids"]["readers"])
    started = max(run.spawned, up - _STARTED_LATE_S)
    figures = figures_of(run, started, commits[-1][0])
    figures["more"] |= {
        "changelog_rows": sum(event["rows"] for _, event in commits),
        "epochs": len(commits),
        "staging_s": round(sum(event["staging_s"] for _, event in commits), 3),
        "commit_s": round(sum(event["commit_s"] for _, event in commits), 3),
        "readers_s": _reader_seconds(run),
    }
    return Measurement(case=case, system="raycdc", rows=rows, **figures)


def _reader_seconds(run: _Run) -> dict[str, float]:
    """Return the last figures of each reader's threads, added up."""
    last: dict[int, dict[str, float]] = {}
    for _, event in run.of("progress"):
        for reader in event["readers"]:
            last[reader["pid"]] = reader.get("seconds", {})
    sums: dict[str, float] = {}
    for seconds in last.values():
        for name, value in seconds.items():
            sums[name] = round(sums.get(name, 0.0) + value, 3)
    return sums


def figures_of(run: _Run, started: float, done: float) -> dict[str, Any]:
    """Return the figures that every system has: between `started` and `done`, and from spawning to the end."""
    before, after = run.tree.cpu_s(started), run.tree.cpu_s(done)
    by_role = {role: round(after[role] - before.get(role, 0.0), 2) for role in sorted(after)}
    whole = sum(run.tree.cpu_s(run.ended).values())
    return {
        "wall_s": round(done - started, 3),
        "cpu_s": round(sum(by_role.values()), 2),
        "peak_rss_mb": round(run.tree.peak_rss_mb, 1),
        "more": {
            "cpu_by_role_s": by_role,
            "server_cpu_s": round(run.server_cpu["ended"] - run.server_cpu["spawned"], 2),
            "start_s": round(started - run.spawned, 2),
            "including_start": {"wall_s": round(run.ended - run.spawned, 2), "cpu_s": round(whole, 2)},
            "load": round(os.getloadavg()[0], 2),
        },
    }
