"""How long a change takes until a reader of the target sees it: from just before its COMMIT at a MySQL server, through
``raycdc run``, to the commit of the target.

| case | target, and when a row of it is seen |
|---|---|
| ``delta`` | a Delta table of two million rows: the file of the version of its log that has the row |
| ``delta_grouped`` | the same with ``pipeline.epochs_per_hour = 0``: only the interval of two seconds |
| ``delta_1s`` | the same with an interval of one second: as 3,600 epochs an hour are when changes never pause |
| ``delta_100ms`` | the same with ``pipeline.epoch_interval = "100ms"`` |
| ``iceberg`` | an Iceberg table of two million rows: the metadata that name the snapshot with the row's file |
| ``postgres`` | PostgreSQL: the commit time of the row's transaction, as the server has it |
| ``kafka`` | a topic of Debezium's messages: when a consumer that reads only committed ones is given the row's |
| ``jsonl`` | JSON Lines, a changelog: the row's file |

Each case is played at 20, 200 and 2,000 transactions a second, half of them updates of a random row, half inserts. A
row has its own time, `at` in microseconds, from the clock that all processes here share. Figures are milliseconds; rows
of the first seconds do not count. `bench.seen` has who looks at a target. With ``--local`` in its name a system runs in
one process, else on Ray and Spark.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench import tables
from bench.measure import Failure, Measurement, Options, progress
from bench.seen import InDelta, InIceberg, InKafka, InLines, InPostgres, Row, Watch

if TYPE_CHECKING:
    from raycdc.sandbox.servers import KafkaServer, PostgresServer

CASES = ("delta", "delta_grouped", "delta_1s", "delta_100ms", "iceberg", "postgres", "kafka", "jsonl")
RATES = (20, 200, 2000)

_ROWS = 2_000_000
#: The seconds of each rate, and the first seconds that are not counted.
_SECONDS = 30.0
_WARM_S = 5.0
_TIMEOUT_S = 900.0
_WRITERS = 4
_SETTINGS = {
    "delta_grouped": "epochs_per_hour = 0",
    "delta_1s": 'epoch_interval = "1s"',
    "delta_100ms": 'epoch_interval = "100ms"',
}


@dataclass(frozen=True, slots=True)
class Servers:
    """The source's port, and the targets that the requested cases need."""

    source: int
    postgres: PostgresServer | None
    kafka: KafkaServer | None


def run(options: Options) -> Iterator[Measurement | Failure]:
    """Start the servers, fill the table, and play each case, locally first."""
    from raycdc.sandbox.servers import MySqlServer

    rows = options.rows or _ROWS
    settings: dict[str, str | None] = {
        "innodb_buffer_pool_size": "1G",
        "binlog_row_metadata": "FULL",
        "innodb_flush_log_at_trx_commit": "2",
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raycdc-bench-")))
        source = stack.enter_context(MySqlServer(version="8.0", options=settings))
        servers = Servers(source.port, _postgres(stack, options), _kafka(stack, options))
        for case in options.cases:
            for local in (True, False):
                world = World(folder / f"{case}-{local}", case, local, servers)
                try:
                    yield from world.play(rows)
                except Exception as cause:  # noqa: BLE001 - the other cases are played
                    yield Failure(case, f"{type(cause).__name__}: {cause}")


def _postgres(stack: ExitStack, options: Options) -> PostgresServer | None:
    """Start a server that notes the times of commits, if a case writes to it."""
    from raycdc.sandbox.servers import PostgresServer

    if "postgres" not in options.cases:
        return None
    server = stack.enter_context(PostgresServer())
    server.execute("ALTER SYSTEM SET track_commit_timestamp = on")
    server.stop()
    server.start()
    return server


def _kafka(stack: ExitStack, options: Options) -> KafkaServer | None:
    from raycdc.sandbox.servers import KafkaServer

    return stack.enter_context(KafkaServer()) if "kafka" in options.cases else None


class World:
    """One pipeline, its source's table filled again, and the observer of its target."""

    def __init__(self, folder: Path, case: str, local: bool, servers: Servers) -> None:
        self.folder, self.case, self.local, self.servers = folder, case, local, servers
        self.port = servers.source
        self.kind = case.partition("_")[0]
        self.database = f"{case}_{'local' if local else 'cluster'}"
        folder.mkdir(parents=True)

    def play(self, rows: int) -> Iterator[Measurement]:
        system = f"raycdc{' --local' if self.local else ''}"
        progress(f"{self.case}: {system}: filling {rows:,d} rows ...")
        self._fill(rows)
        config = self.folder / "job.toml"
        config.write_text(self._configuration())
        log = self.folder / "run.log"
        watch = self._watch()
        command = [sys.executable, "-m", "raycdc.cli", "run", str(config), "--json", *(["--local"] * self.local)]
        with log.open("w") as out:
            process = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=out)
        try:
            self._await(process, log, rows)
            watch.begin()
            for rate in RATES:
                progress(f"{self.case}: {system}: {rate:,d} transactions a second for {_SECONDS:g} s ...")
                begun_us = time.time_ns() // 1000
                done, wrote_s = self._write(rows, rate)
                written_to_us = time.time_ns() // 1000
                seen = self._await_seen(process, watch, begun_us, done)
                known = seen[(seen[:, 0] >= begun_us + _WARM_S * 1e6) & (seen[:, 0] <= written_to_us)]
                yield self._measurement(system, rate, known, done, wrote_s)
        finally:
            watch.close()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _measurement(self, system: str, rate: int, seen: NDArray[np.int64], done: int, wrote_s: float) -> Measurement:
        latency_ms = (seen[:, 1] - seen[:, 0]) / 1000
        p50, p95, p99 = (round(float(np.percentile(latency_ms, q))) for q in (50, 95, 99))
        figures = {"per_s": rate, "really_per_s": round(done / wrote_s), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
        progress(f"{self.case}: {system}: {rate:,d}/s: p50 {p50:,d} ms, p95 {p95:,d} ms, p99 {p99:,d} ms")
        return Measurement(f"{self.case}_{rate}", system, len(seen), wrote_s, 0.0, 0.0, figures)

    def _configuration(self) -> str:
        postgres, kafka = self.servers.postgres, self.servers.kafka
        sink = {
            "delta": 'type = "delta"\npath = "./lake"',
            "iceberg": 'type = "iceberg"\npath = "./lake"',
            "jsonl": 'type = "jsonl"\npath = "./lake"\nwrite = "changelog"',
            "postgres": f'type = "jdbc"\nurl = "{postgres.url() if postgres else ""}"\n'
            'user = "postgres"\npassword = "postgres"',
            "kafka": f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers if kafka else ""}"\n'
            'format = "debezium-json"',
        }[self.kind]
        return (
            f'[pipeline]\nname = "{self.database}"\n{_SETTINGS.get(self.case, "")}\n'
            f'[source]\ntype = "mysql"\nhost = "127.0.0.1"\nport = {self.port}\nuser = "root"\npassword = "root"\n'
            f'tables = ["{self.database}.t"]\n[sink]\n{sink}\n'
        )

    def _fill(self, rows: int) -> None:
        connection = tables.connect(self.port)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(f"CREATE DATABASE {self.database}")
            cursor.execute(
                f"CREATE TABLE {self.database}.t (id BIGINT PRIMARY KEY, v INT, note VARCHAR(40), at BIGINT)"
            )
            cursor.execute("SET SESSION cte_max_recursion_depth = 100000000")
            for first in range(0, rows, 500_000):
                last = min(first + 500_000, rows)
                cursor.execute(
                    f"INSERT INTO {self.database}.t WITH RECURSIVE n AS (SELECT {first} AS i UNION ALL SELECT i + 1 "
                    f"FROM n WHERE i + 1 < {last}) SELECT i, i % 1000, CONCAT('note ', i % 77), 0 FROM n"
                )
                connection.commit()
        connection.close()

    def _await(self, process: subprocess.Popen[bytes], log: Path, rows: int) -> None:
        """Wait until the snapshot is in the target."""
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            committed = 0
            for line in log.read_text().splitlines():
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("event") == "commit":
                    committed += event["rows"]
            if committed >= rows:
                time.sleep(3)
                return
            if process.poll() is not None:
                break
            time.sleep(0.5)
        raise RuntimeError(f"the snapshot did not end:\n{log.read_text()[-2000:]}")

    def _write(self, rows: int, rate: int) -> tuple[int, float]:
        """Make this many transactions a second over some connections; return their number, and the seconds."""
        done, lock = [0], threading.Lock()
        begun = time.monotonic()
        first = rows + time.time_ns() // 1000

        def work(number: int) -> None:
            connection = tables.connect(self.port)
            chance = random.Random(number)
            count = 0
            with connection.cursor() as cursor:
                while (now := time.monotonic()) < begun + _SECONDS:
                    due = begun + (count * _WRITERS + number) / rate
                    if due > now:
                        time.sleep(due - now)
                    at = time.time_ns() // 1000
                    if count % 2:
                        key = chance.randrange(rows)
                        cursor.execute(f"UPDATE {self.database}.t SET v = v + 1, at = {at} WHERE id = {key}")
                    else:
                        key = first + count * _WRITERS + number
                        cursor.execute(f"INSERT INTO {self.database}.t VALUES ({key}, 1, 'new', {at})")
                    connection.commit()
                    count += 1
            connection.close()
            with lock:
                done[0] += count

        threads = [threading.Thread(target=work, args=(number,)) for number in range(_WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done[0], time.monotonic() - begun

    def _await_seen(
        self, process: subprocess.Popen[bytes], watch: Watch, begun_us: int, done: int
    ) -> NDArray[np.int64]:
        """Wait until every row is in the target, except rows that were updated again within one epoch.

        Returns pairs: each row's own time, and the time when it was first seen, in microseconds.
        """
        deadline, before = time.monotonic() + _TIMEOUT_S, -1
        while time.monotonic() < deadline:
            seen = watch.seen(begun_us)
            count = len(seen)
            if count >= done or (count == before and count > 0.5 * done):
                return _pairs(seen)
            before = count
            if process.poll() is not None:
                raise RuntimeError("the run has ended")
            time.sleep(5)
        raise RuntimeError(f"of {done:,d} transactions {before:,d} were seen")

    def _watch(self) -> Watch:
        """Return the observer of the target."""
        lake, servers = self.folder / "lake", self.servers
        if servers.postgres is not None and self.kind == "postgres":
            return InPostgres(servers.postgres, f'"{self.database}"."t"')
        if servers.kafka is not None and self.kind == "kafka":
            return InKafka(servers.kafka, f"{self.database}.t")
        if self.kind == "iceberg":
            return InIceberg(lake / self.database / "t", self.folder / "kept")
        return InDelta(lake / self.database / "t") if self.kind == "delta" else InLines(lake)


def _pairs(seen: Mapping[Row, int]) -> NDArray[np.int64]:
    return np.array([(at, seen_us) for (_, at), seen_us in seen.items()], dtype=np.int64).reshape(-1, 2)


def report(measurements: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    """Return a line for each case, system and rate, for people."""
    figures = ("really_per_s", "p50_ms", "p95_ms", "p99_ms")
    lines = [[m.case, m.system, *(f"{m.more[name]:,d}" for name in figures)] for m in measurements]
    return ["case", "system", "per s", "p50 ms", "p95 ms", "p99 ms"], lines
