"""The figures of a run as Prometheus reads them, and what probes of health are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raycdc.config import MetricsOptions, Secret, load_config
from raycdc.core import activity
from raycdc.core.activity import Stage
from raycdc.core.secrets import Renewed
from raycdc.core.threads import Threads
from raycdc.model import TableId
from raycdc.observe.events import (
    Committed,
    Failed,
    Lags,
    PartitionLags,
    RunProgress,
    StandbyWaiting,
    Started,
    Stopped,
    TableFigures,
    Warned,
)
from raycdc.observe.status import Bottleneck, CommitReport, RunProcess, StatusKeeper
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.model import Backlog, JobReport, LagReport, RunCounts, SnapshotReport, TableReport
from raycdc.observe.watch import watchdog as watchdog_module
from raycdc.observe.watch.watchdog import Watchdog
from raycdc.pipeline import Pipeline
from raycdc.server.scraping import PHASES, SILENT_MAX_S, MetricsSource, ScrapeLimits, application, exposition
from tests.support.jobs import RUN_TIMEOUT_S
from tests.unit.driver.state_admin.small_pipeline import configured

MONITORING = Path(__file__).parents[3] / "examples" / "monitoring"


@dataclass(frozen=True)
class Answer:
    """What the door answers."""

    code: int
    text: str


class Scene:
    """A run whose clock the test turns, and its door."""

    def __init__(self, options: MetricsOptions | None = None) -> None:
        self.now_s = 1.0
        self.asked = 0
        run = replace(RunProcess.here("shop", "delta s3://lake"), started_ms=1000)
        self.keeper = StatusKeeper(run, clock=lambda: self.now_s, wall_ms=lambda: int(self.now_s * 1000))
        self.documents = StatusDocuments(self.keeper, lambda table: (table,), self._log_room)
        options = options or MetricsOptions(address="127.0.0.1:9464")
        self.application = application(options, MetricsSource.by(self.documents))

    def _log_room(self) -> None:
        self.asked += 1

    def get(self, path: str, **headers: str) -> Answer:
        """Ask as a server of ASGI does; `headers` with underscores for hyphens."""
        sent: list[Any] = []
        given = {"host": "127.0.0.1:9464"} | {name.lower().replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "scheme": "http", "server": ("127.0.0.1", 9464),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: object) -> None:
            sent.append(message)

        asyncio.run(self.application(scope, receive, send))
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], body.decode())

    def progress(self, *tables: TableFigures, lags: Lags | PartitionLags | None = None, behind_ms: int = 40) -> None:
        self.keeper.listen(RunProgress(tables, lags or Lags(5, 6, 7), (), behind_ms=behind_ms))

    def figures(self) -> Mapping[tuple[str, str], float]:
        """Each sample by its name and the one label that is not the pipeline's."""
        answer = self.get("/metrics")
        assert answer.code == 200
        found: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(answer.text):
            assert family.documentation, family.name
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("pipeline") == "shop"
                if sample.name != "raycdc_info":
                    found[sample.name, "".join(labels.values())] = sample.value
        return found


def test_figures_bear_the_names_of_flink_and_debezium_where_these_have_one() -> None:
    scene = Scene()
    scene.keeper.listen(Started(1, 1, (1,)))
    scene.progress(lags=PartitionLags(Lags(5, 6, 7), 8, 9))
    figures = scene.figures()
    expected = {
        "currentFetchEventTimeLag": 5, "currentEmitEventTimeLag": 6, "sourceIdleTime": 7, "pendingRecords": 8,
        "watermarkLag": 9, "MilliSecondsBehindSource": 40,
    }  # fmt: skip
    assert {name: figures[f"raycdc_{name}", ""] for name in expected} == expected
    assert figures["raycdc_running", ""] == 1
    assert figures["raycdc_start_time_seconds", ""] == 1.0


def test_what_nobody_knows_is_no_figure() -> None:
    figures = Scene().figures()
    names = {name for name, _ in figures}
    assert names.isdisjoint({"raycdc_MilliSecondsBehindSource", "raycdc_last_commit_timestamp_seconds"})
    # Of a standby: a 0 that becomes a number when it takes over would be rows left out.
    assert names.isdisjoint({"raycdc_rows_left_out", "raycdc_values_lost", "raycdc_tables"})
    assert figures["raycdc_running", ""] == 0
    assert figures["raycdc_commits_total", ""] == 0


def test_what_happens_is_counted_for_the_whole_run() -> None:
    scene = Scene()
    scene.keeper.listen(Started(1, 1, (1,)))
    scene.progress(TableFigures("shop.a", "snapshot", lost_values=2), TableFigures("shop.b", "stream", bad_rows=3))
    scene.progress(TableFigures("shop.a", "stream", lost_values=5))
    for epoch in (1, 2):
        scene.now_s += 10
        scene.keeper.listen(Committed(epoch, {"shop.a": 4}, 4, staging_s=0.1, commit_s=0.1))
    scene.keeper.listen(Warned("a"))
    scene.keeper.listen(Failed("SinkError", "b"))
    figures = scene.figures()
    assert {phase: figures["raycdc_tables", phase] for phase in PHASES} == dict.fromkeys(PHASES, 0) | {"stream": 2}
    expected = {
        "commits_total": 2, "rows_committed_total": 8, "warnings_total": 1, "rows_left_out": 3,
        "values_lost": 5, "last_commit_epoch": 2, "last_commit_timestamp_seconds": 21,
    }  # fmt: skip
    assert {name: figures[f"raycdc_{name}", ""] for name in expected} == expected
    assert figures["raycdc_table_last_commit_timestamp_seconds", "shop.a"] == 21


def test_of_so_many_tables_there_are_figures_and_first_of_those_that_are_parked() -> None:
    scene = Scene(MetricsOptions(address="127.0.0.1:9464", tables_max=2))
    scene.progress(*(TableFigures(f"shop.{name}", "parked" if name == "d" else "stream") for name in "abcd"))
    figures = scene.figures()
    assert {table: value for (name, table), value in figures.items() if name == "raycdc_table_parked"} == {
        "shop.a": 0,
        "shop.d": 1,
    }
    assert figures["raycdc_tables", "stream"] == 3, "all of them are counted"
    assert scene.asked == 1, "one status is made of a scrape"
    assert all("shop." not in label for _, label in Scene(MetricsOptions(address="[::1]:1", tables_max=0)).figures())


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "<script>", "ü"])
def test_a_table_may_have_any_name(name: str) -> None:
    scene = Scene()
    table = str(TableId("shop", name))
    scene.progress(TableFigures(table, "stream", rows=3))
    assert scene.figures()["raycdc_table_rows", table] == 3


def test_probes_tell_who_is_ready_and_who_hangs() -> None:
    scene = Scene()

    def answers() -> tuple[int, int]:
        return scene.get("/healthz").code, scene.get("/readyz").code

    assert answers() == (200, 503), "it starts"
    scene.keeper.listen(StandbyWaiting("another driver", "state"))
    scene.now_s += 10 * SILENT_MAX_S
    assert answers() == (200, 503), "a standby may wait for ever"
    scene.keeper.listen(Started(1, 1, (1,)))
    assert answers() == (200, 200)
    scene.now_s += SILENT_MAX_S + 1
    assert answers() == (503, 200)
    assert "has not checked its processes" in json.loads(scene.get("/healthz").text)["text"]
    scene.keeper.moved()
    assert answers() == (200, 200)
    scene.keeper.listen(Stopped())
    assert answers() == (200, 503)
    assert not scene.asked, "a probe asks nothing of the source"


def test_a_recovery_is_alive_as_long_as_it_moves() -> None:
    """Nobody looks at processes then, because there are none, however long its epochs take."""
    scene = Scene()

    class Clock(Threads):
        def now_s(self) -> float:
            return scene.now_s

    watchdog = Watchdog(10 * SILENT_MAX_S, lambda _: None, scene.keeper.moved, threads=Clock())

    def healthy(after_s: float) -> bool:
        scene.now_s += after_s
        watchdog.poll()
        return scene.get("/healthz").code == 200

    scene.keeper.listen(Started(1, 1, (1,)))
    with watchdog.tracker.doing(Stage.STAGE, "writes an epoch's rows", table="shop.a"):
        assert healthy(SILENT_MAX_S - 1)
        activity.moved()
        assert healthy(2)
        assert healthy(SILENT_MAX_S - 1)
        assert not healthy(2), "nothing moved"
        watchdog.tracker.around = lambda: "Spark: 3 of 4 tasks of 1 stages are done"
        assert healthy(0), "Spark's jobs are its work"
        assert not healthy(SILENT_MAX_S + 1)
    assert healthy(0), "a work that ended moved"


def test_a_run_tells_its_probes_that_its_work_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = threading.Event()
    monkeypatch.setattr(StatusKeeper, "moved", lambda _: moved.set())
    monkeypatch.setattr(watchdog_module, "POLL_S", 0.01)
    pipeline = Pipeline.from_config(load_config(configured(tmp_path, events=None)))
    runs = threading.Thread(target=lambda: pipeline.run(local=True))
    runs.start()
    assert moved.wait(RUN_TIMEOUT_S)
    pipeline.stop()
    runs.join()


def test_figures_may_want_a_token_and_probes_need_none() -> None:
    token = "long enough to be one"
    scene = Scene(MetricsOptions(address="127.0.0.1:9464", token=Secret(token)))
    assert scene.get("/metrics").code == 401
    assert scene.get("/metrics", authorization="Bearer another").code == 401
    assert scene.get("/metrics", authorization=f"Basic {token}").code == 401
    assert scene.get("/metrics", authorization=f"Bearer {token}").code == 200
    assert scene.get("/healthz").code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_a_name_that_was_bound_to_this_machine_is_not_answered(host: str, path: str) -> None:
    assert Scene().get(path, host=host).code == 421
    elsewhere = Scene(MetricsOptions(address="0.0.0.0:9464"))
    assert elsewhere.get(path, host=host).code != 421, "a service has any name"


@pytest.mark.parametrize("host", ["127.0.0.1:9464", "localhost", "[::1]:9464", "[::1]"])
def test_addresses_and_localhost_are_its_names(host: str) -> None:
    assert Scene().get("/metrics", host=host).code == 200


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json", "../../raycdc/manual/metrics.md"])
def test_figures_that_are_shown_elsewhere_exist(name: str) -> None:
    scene = Scene()
    backlog = Backlog(1, seconds=2.0, retention_headroom_seconds=3.0)
    bottleneck = Bottleneck("spark", 0.5, "", {"spark": 0.5})
    table = TableReport("shop.a", "snapshot", snapshot=SnapshotReport(1, 2, percent=50.0, eta_seconds=3.0))
    page, _ = exposition(
        lambda chosen: dataclasses.replace(
            scene.documents.status(chosen),
            job=JobReport(
                lag=LagReport(),
                counts=RunCounts(tables={"stream": 1}),
                backlog=backlog,
                bottleneck=bottleneck,
                last_commit=CommitReport(1, 2),
                nodes={"state": 1},
            ),
            tables=(table,),
        ),
        ScrapeLimits(10),
        "",
        version="1",
    )
    known = set(re.findall(r"^# TYPE (\w+)", page.decode(), re.MULTILINE))
    shown = set(re.findall(r"raycdc_\w+", (MONITORING / name).read_text()))
    assert len(shown) > 5
    assert shown - known == set()


def test_a_token_for_figures_is_read_again(tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text("the-token-of-yesterday")
    secret = Secret(Renewed("the-token-of-yesterday", f"${{file:{file}}}"))
    scene = Scene(MetricsOptions(address="127.0.0.1:9464", token=secret))
    assert scene.get("/metrics", authorization="Bearer the-token-of-yesterday").code == 200
    file.write_text("the-token-of-today")
    assert scene.get("/metrics", authorization="Bearer the-token-of-yesterday").code == 401
    assert scene.get("/metrics", authorization="Bearer the-token-of-today").code == 200
