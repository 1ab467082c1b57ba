"""Each alert that is shipped fires and clears by a real fault, in a Prometheus that scrapes the run.

Its rules are those of examples/monitoring with shorter times: what they look at, and against what, is the same.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raycdc.sandbox.background import again_and_again
from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from raycdc.sandbox.servers.private import wait_until
from tests.support.forked_commands import completed
from tests.support.servers.prometheus import PrometheusServer, check_rules, try_rules

pytestmark = [pytest.mark.server, pytest.mark.long(suite="monitoring")]

RULES = Path(__file__).parents[2] / "examples" / "monitoring" / "alerts.yml"
#: Times of the rules, in tests: an alert needs no second of patience, and windows are a few scrapes.
SHORTER = (
    (r"for: \d+m", "for: 0s"),
    (r"\[10m\]", "[8s]"),
    (r"\[1h\]", "[15s]"),
    (r"> 120000", "> 3000"),
    (r"> 600000", "> 5000"),
    (r"\)\) > 3$", ")) > 0"),
)
CONFIG = """
pipeline = {{ name = "watched", state = "state", epoch_interval = "300ms", on_bad_record = "skip" }}
readers = {{ max = 1 }}
metrics = {{ address = "{address}" }}

[source]
type = "mysql"
host = "127.0.0.1"
port = {port}
user = "root"
password = "root"
tables = ["watched.plain", "watched.rekeyed"]

[sink]
type = "jdbc"
url = "{url}"
user = "postgres"
password = "postgres"
write = "upsert"
"""


class Watched:
    """A pipeline with its source, its target and a Prometheus that looks at it."""

    def __init__(
        self, folder: Path, source: MariaDbServer, target: PostgresServer, prometheus: PrometheusServer
    ) -> None:
        self.folder, self.source, self.target, self.prometheus = folder, source, target, prometheus
        self._run: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run, until `end` is called."""
        command = [sys.executable, "-m", "raycdc.cli", "run", "pipeline.toml", "--local", "--json"]
        with (self.folder / "run.log").open("ab") as log:
            self._run = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def end(self) -> None:
        if self._run is not None:
            self._run.send_signal(signal.SIGTERM)
            self._run.wait(timeout=300)
            self._run = None

    def command(self, *words: str) -> None:
        done = completed(words, environment=os.environ, folder=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def awaits(self, alert: str, *, fires: bool) -> None:
        """Wait until the alert fires, or does not."""

        def seen() -> bool:
            assert self._run is None or self._run.poll() is None, "the run has ended"
            return (alert in self.prometheus.firing()) == fires

        word = "fires" if fires else "has cleared"
        log = self.folder / "run.log"
        try:
            wait_until(seen, timeout_s=300, what=f"{alert} {word}")
        except Exception as late:
            raise AssertionError(f"{late}\n{log.read_text()[-5000:] if log.exists() else ''}") from late

    @contextmanager
    def fault(self, *alerts: str) -> Iterator[None]:
        """The alerts fire within the block, whose end is the fault's; afterwards they clear."""
        for alert in alerts:
            assert alert not in self.prometheus.firing()
        yield
        for alert in alerts:
            self.awaits(alert, fires=False)


@pytest.fixture
def watched(mariadb: MariaDbServer, tmp_path: Path) -> Iterator[Watched]:
    mariadb.execute("CREATE DATABASE watched")
    mariadb.execute(
        "CREATE TABLE plain (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE rekeyed (id INT PRIMARY KEY, v INT NOT NULL)",
        "INSERT INTO plain SELECT seq, seq FROM seq_1_to_100",
        "INSERT INTO rekeyed SELECT seq, seq FROM seq_1_to_100",
        database="watched",
    )
    rules = RULES.read_text()
    for pattern, shorter in SHORTER:
        rules, count = re.subn(pattern, shorter, rules, flags=re.MULTILINE)
        assert count, f"no rule has {pattern} any more"
    address = f"127.0.0.1:{port_nobody_connects_from()}"
    with PostgresServer() as target, PrometheusServer(address, rules) as prometheus:
        config = CONFIG.format(address=address, port=mariadb.port, url=target.url())
        (tmp_path / "pipeline.toml").write_text(config)
        world = Watched(tmp_path, mariadb, target, prometheus)
        try:
            yield world
        finally:
            world.end()
            mariadb.execute("DROP DATABASE watched")


def test_each_alert_fires_and_clears_by_a_real_fault(watched: Watched) -> None:
    names = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    played: set[str] = set()

    def play(fault: Callable[[], object], end: Callable[[], object], *alerts: str) -> None:
        with watched.fault(*alerts):
            fault()
            for alert in alerts:
                watched.awaits(alert, fires=True)
            end()
        played.update(alerts)

    # Nobody runs it; the start ends that.
    watched.awaits("RaycdcDown", fires=True)
    watched.start()
    watched.awaits("RaycdcDown", fires=False)
    played.add("RaycdcDown")

    def again() -> None:
        watched.end()
        watched.start()

    play(again, lambda: None, "RaycdcRestarts")
    watched.awaits("RaycdcDown", fires=False)

    with again_and_again(lambda: watched.source.execute("UPDATE watched.plain SET v = v + 1 WHERE id = 1")):
        pid = watched.target.pid
        play(
            lambda: stop_all_of(pid, signal.SIGSTOP),
            lambda: stop_all_of(pid, signal.SIGCONT),
            "RaycdcBehind",
            "RaycdcNoCommit",
        )

    # A row that PostgreSQL cannot hold: a text with the character NUL.
    play(
        lambda: watched.source.execute("INSERT INTO watched.plain VALUES (1000, 'a\\0b')"),
        lambda: None,  # Nothing more is left out, and the window passes.
        "RaycdcRowsLeftOut",
    )

    def mended() -> None:
        watched.source.execute("ALTER TABLE watched.rekeyed DROP PRIMARY KEY, ADD PRIMARY KEY (id)")
        watched.target.execute('DROP TABLE "watched"."rekeyed"')
        watched.command("tables", "resnapshot", "pipeline.toml", "watched.rekeyed")

    play(
        lambda: watched.source.execute("ALTER TABLE watched.rekeyed DROP PRIMARY KEY, ADD PRIMARY KEY (v)"),
        mended,
        "RaycdcTableParked",
    )

    with watched.source.connect() as locked, locked.cursor() as session:

        def lock() -> None:
            session.execute("LOCK TABLES watched.plain WRITE")
            watched.command("tables", "resnapshot", "pipeline.toml", "watched.plain")

        play(lock, lambda: session.execute("UNLOCK TABLES"), "RaycdcSnapshotStands")

    play(
        lambda: watched.source.execute("SET GLOBAL binlog_expire_logs_seconds = 60"),
        lambda: watched.source.execute("SET GLOBAL binlog_expire_logs_seconds = 2592000"),
        "RaycdcLogAtRisk",
    )
    assert played == names


def stop_all_of(pid: int, number: signal.Signals) -> None:
    """Send a signal to a server and to its processes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, number)


def test_promtool_takes_the_rules() -> None:
    assert "SUCCESS" in check_rules(RULES)


#: Two pipelines of which one dies; and one whose standby takes over. Minutes and values, as promtool writes them.
DOWN = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'raycdc_running{{pipeline="dies"}}', values: '1x10 stale'}}
      - {{series: 'raycdc_running{{pipeline="lives"}}', values: '1x60'}}
    promql_expr_test:
      - {{expr: 'ALERTS{{alertstate="firing"}}', eval_time: 5m}}
      - expr: 'count by (alertname, pipeline) (ALERTS{{alertstate="firing"}})'
        eval_time: 30m
        exp_samples: [{{labels: '{{alertname="RaycdcDown", pipeline="dies"}}', value: 1}}]
  - interval: 1m
    input_series:
      - {{series: 'raycdc_running{{pipeline="shop", instance="first"}}', values: '1x10 stale'}}
      - {{series: 'raycdc_running{{pipeline="shop", instance="standby"}}', values: '0x12 1x60'}}
    promql_expr_test:
      - {{expr: 'ALERTS{{alertstate="firing"}}', eval_time: 30m}}
"""


def test_a_pipeline_is_down_whatever_others_do_and_not_where_its_standby_runs(tmp_path: Path) -> None:
    tests = tmp_path / "down.yml"
    tests.write_text(DOWN.format(rules=RULES))
    assert "SUCCESS" in try_rules(tests)


def port_nobody_connects_from() -> int:
    """A free one below those that the kernel gives to clients: whoever asks such a port again and again while nobody
    listens is at last given it for its own end, and is connected to itself (ip(7), ip_local_port_range).
    """
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
