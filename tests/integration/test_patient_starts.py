"""A start whose source or target is away: the first one ends at once by name, one with a state waits and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, PostgresServer
from tests.support.jobs import Job, JobRun
from tests.support.servers.gate import Gate, GateMode

pytestmark = pytest.mark.server


@dataclass(frozen=True)
class Behind:
    """A server as it is found behind a gate."""

    host: str
    port: int
    cdc_user: str


def told(run: JobRun) -> list[str]:
    return [event["text"] for event in run.events if event["event"] == "warning"]


@pytest.fixture
def gate(mariadb: MariaDbServer) -> Iterator[Gate]:
    with Gate(mariadb.host, mariadb.port) as gate:
        yield gate


@contextmanager
def job_at(kind: str, gate: Gate, request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Job, Gate]]:
    """A job, and the gate in front of its source or of its target."""
    server: MariaDbServer = request.getfixturevalue("mariadb")
    database: str = request.getfixturevalue("mariadb_database")
    server.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database=database)
    source = cast("DatabaseServer", Behind(gate.host, gate.port, server.cdc_user))
    job = Job(folder, source, database, ["t"], sink="jsonl", write="changelog", local=True)
    if kind == "source":
        yield job, gate
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.fresh_database() as name, Gate(postgres.host, postgres.port) as before_target:
        job.sink, job.write = "jdbc", "upsert"
        url = f"jdbc:postgresql://{before_target.host}:{before_target.port}/{name}"
        job.sink_keys = f'url = "{url}"\nuser = "{postgres.user}"\npassword = "{postgres.password}"'
        yield job, before_target


@pytest.mark.parametrize(("kind", "code"), [("source", 3), ("target", 5)])
def test_a_first_start_says_at_once_who_is_away_and_a_later_one_waits(
    request: pytest.FixtureRequest, gate: Gate, tmp_path: Path, kind: str, code: int
) -> None:
    with job_at(kind, gate, request, tmp_path) as (job, shut):
        with shut.being(GateMode.SHUT):
            first = job.start("--until", "caught-up")
            assert first.wait() == code, first.story()
        error = first.events[-1]
        assert error["event"] == "error"
        assert f"{shut.host}:{shut.port}" in error["text"]
        assert not told(first)
        first = job.start("--until", "caught-up")
        assert first.wait() == 0, first.story()
        with shut.being(GateMode.SHUT):
            second = job.start("--until", "caught-up")
            second.wait_for(lambda: bool(told(second)))
        assert second.wait() == 0, second.story()
        assert f"{shut.host}:{shut.port}" in told(second)[0], json.dumps(told(second))
        assert told(second)[0].endswith("It is tried again for 5 minutes; see that it answers.")


def test_a_start_that_waits_can_be_stopped(request: pytest.FixtureRequest, gate: Gate, tmp_path: Path) -> None:
    with job_at("source", gate, request, tmp_path) as (job, shut):
        assert job.start("--until", "caught-up").wait() == 0
        with shut.being(GateMode.SHUT):
            waits = job.start()
            waits.wait_for(lambda: bool(told(waits)))
            assert waits.interrupt() in (0, 130), waits.story()
        assert "error" not in {event["event"] for event in waits.events}
