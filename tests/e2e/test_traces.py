"""Traces of epochs, as the real command sends them to a collector that is well, hangs, is away or refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers import MariaDbServer
from tests.collector import Collector, Received, collecting
from tests.support.forked_commands import completed
from tests.support.jobs import Job, Run, catch_up

pytestmark = pytest.mark.server

TABLES = ("good", "odd")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


def section(url: str, **keys: str) -> str:
    more = "\n".join(f"{key} = {value}" for key, value in keys.items())
    return f'[traces]\nendpoint = "{url}"\n{more}\n'


def job_of(mariadb: MariaDbServer, folder: Path, database: str, sections: str) -> Job:
    mariadb.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    mariadb.execute(
        "CREATE TABLE good (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE odd (id INT PRIMARY KEY, v INT)",
        "INSERT INTO good VALUES (1, 'planted-value'), (2, 'planted-value')",
        "INSERT INTO odd VALUES (1, 1)",
        database=database,
    )
    return Job(folder, mariadb, database, TABLES, local=True, sections=sections)


def warnings_of(run: Run) -> list[str]:
    texts = [event["text"] for event in run.events if event["event"] == "warning"]
    return [text for text in texts if text.startswith("traces: ")]


def names(spans: list[Received]) -> list[str]:
    return sorted(span.name for span in spans)


def check_trace(collector: Collector, root: Received, told: dict[str, Any]) -> None:
    """The trace of an epoch has what the run told of its commit, and parts whose times lie in each other."""
    about = root.attributes
    assert (root.name, about["raycdc.pipeline"], about["raycdc.committed"]) == ("epoch", "killed", True)
    assert root.sender["service.name"] == "raycdc"
    assert about["raycdc.rows"] == told["rows"]
    tables, counts = about["raycdc.tables"], about["raycdc.table_rows"]
    assert isinstance(tables, tuple)
    assert isinstance(counts, tuple)
    rows = dict(zip(tables, counts, strict=True))
    assert rows == told["tables"]
    below = collector.below(root)
    parts = names(below)
    assert (parts.count("seal"), parts.count("record")) == (1, 1), parts
    assert parts.count("commit") == len(rows)
    (seal,) = [span for span in below if span.name == "seal"]
    readers = collector.below(seal)
    assert names(readers) == ["reader"] * len(readers)
    assert readers
    # Milliseconds of one clock and nanoseconds of another: what comes first begins first.
    assert all(root.began_ns <= span.began_ns <= span.ended_ns <= root.ended_ns for span in below)
    assert all(seal.began_ns <= span.ended_ns <= seal.ended_ns for span in readers)
    commits = [span for span in below if span.name == "commit"]
    assert sum(int(str(span.attributes["raycdc.rows"])) for span in commits) == told["rows"]
    assert {span.attributes["raycdc.target"] for span in commits} == rows.keys()


@pytest.mark.parametrize(
    "local", [True, pytest.param(False, marks=[pytest.mark.spark, pytest.mark.long(suite="monitoring")])]
)
def test_each_epoch_has_a_trace_whose_rows_are_those_that_the_run_tells_of(
    mariadb: MariaDbServer, tmp_path: Path, collector: Collector, *, local: bool
) -> None:
    database = "traced"
    token = tmp_path / "token"
    token.write_text("Bearer first-geheim")
    headers = f'{{ authorization = "${{file:{token}}}" }}'
    sections = section(collector.url, headers=headers, end_wait='"60s"', timeout='"10m"')
    job = job_of(mariadb, tmp_path, database, sections)
    job.local = local
    # The first request finds a collector that is not well for a moment; the run goes on, and it gets the traces later.
    collector.answers = [503]
    run = job.start()
    run.wait_for(lambda: bool(collector.roots()))
    assert warnings_of(run) == []

    # A token that is changed is sent from the next request on.
    token.write_text("Bearer second-geheim")
    mariadb.execute(
        "ALTER TABLE good ADD note VARCHAR(20)", "INSERT INTO good VALUES (3, 'x', 'planted-value')", database=database
    )
    run.wait_for(lambda: any(name == "schema changed" for root in collector.roots() for name, _ in root.events))
    # A target with a row per key has no place for such rows.
    mariadb.execute(
        "ALTER TABLE odd DROP PRIMARY KEY",
        "INSERT INTO odd VALUES (1, 471147)",
        "INSERT INTO good VALUES (4, 'x', 'y')",
        database=database,
    )
    run.wait_for(lambda: any(root.failed for root in collector.roots()))
    assert run.interrupt() == 130, run.story()

    committed = {event["epoch"]: event for event in run.events if event["event"] == "commit"}
    roots = {root.attributes["raycdc.epoch"]: root for root in collector.roots()}
    assert roots.keys() == committed.keys()
    for epoch, root in roots.items():
        check_trace(collector, root, committed[epoch])
    assert sum(len(collector.below(span)) for span in collector.spans) + len(roots) == len(collector.spans)

    changed = [about for root in roots.values() for name, about in root.events if name == "schema changed"]
    assert changed == [
        {
            "raycdc.table": f"{database}.good",
            "raycdc.target": f"{database}.good",
            "raycdc.changes": ("add_column note",),
        }
    ]
    parked = [(root, about) for root in roots.values() for name, about in root.events if name == "parked"]
    assert [about for _, about in parked] == [{"raycdc.table": f"{database}.odd"}]
    assert [root.error for root in roots.values() if root.failed] == ["parked"]

    sent = [headers.get("authorization") for headers in collector.headers]
    assert (sent[0], sent[-1]) == ("Bearer first-geheim", "Bearer second-geheim")
    everything = b"".join(collector.bodies)
    for value in (b"planted-value", b"471147", b"geheim"):
        assert value not in everything
    assert "geheim" not in run.story() + json.dumps(run.events)


def test_a_run_that_fails_says_so_in_the_traces_of_epochs_that_it_did_not_commit(
    mariadb: MariaDbServer, tmp_path: Path, collector: Collector
) -> None:
    job = job_of(mariadb, tmp_path, "untraced", section(collector.url, end_wait='"60s"'))
    run = job.start("--until", "caught-up", failpoints="before_commit=raise@1")
    assert run.wait() not in (0, 130), run.story()
    (error,) = {event["error"] for event in run.events if event["event"] == "error"}
    # The next one may have been staged by then.
    first, *_ = roots = sorted(collector.roots(), key=lambda root: root.began_ns)
    for root in roots:
        assert (root.error, root.attributes["raycdc.committed"]) == (error, False)
    assert {"schema", "stage"} <= set(names(collector.below(first)))


def test_a_collector_that_hangs_or_is_away_holds_up_neither_rows_nor_the_end(
    mariadb: MariaDbServer, tmp_path: Path, collector: Collector
) -> None:
    job = job_of(mariadb, tmp_path, "untaken", section(collector.url, end_wait='"1ms"', timeout='"10m"'))
    collector.free.clear()
    catch_up(job)
    (warning,) = warnings_of(job.runs[-1])
    assert f"not sent to {collector.url} before the end of the run" in warning

    # Nobody listens there.
    job.sections = section("http://127.0.0.1:1", end_wait='"1ms"')
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": mariadb.cdc_user}
    checked = completed(("check", str(job.configuration()), "--local"), environment=environment, folder=job.folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Traces of epochs go to http://127.0.0.1:1" in checked.stdout
    mariadb.execute("INSERT INTO good VALUES (3, 'x')", database="untaken")
    catch_up(job)
    *before, last = warnings_of(job.runs[-1])
    assert "not sent to http://127.0.0.1:1 before the end of the run" in last
    # Whether it was tried before the end is chance.
    assert [text.partition(". ")[0] for text in before] in (
        [],
        ["traces: http://127.0.0.1:1 does not take them: there is no connection to it"],
    )
    assert job.runs[-1].events[-1]["event"] == "caught_up"
    # The library's own lines are kept from it.
    assert "export" not in job.runs[-1].log.read_text()
