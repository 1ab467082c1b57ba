"""Notifications of the real command, by real faults, to a real HTTP server that is well, slow, away or out of order."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.clients.mysql import query
from raycdc.observe.events.lines import check_line
from raycdc.observe.notify.messages import check_body
from raycdc.observe.notify.outbox import FILE_NAME
from raycdc.sandbox.servers import MariaDbServer
from tests.e2e.test_bad_rows import ROUTES, fill
from tests.receiver import receiving
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

KEY = bytes(range(40))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
TABLES = ("good", "odd")


class Hook:
    """A receiver: `bodies` are those of the messages that it took, each once, whose signatures are right; `posted` are
    the ids of all.
    """

    def __init__(self) -> None:
        self.posted: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        #: Answers before the good ones.
        self.answers: list[int] = []
        #: While it is not set, requests hang.
        self.free = threading.Event()
        self.free.set()
        self.asked = threading.Event()
        self.url = ""

    def take(self, headers: dict[str, str], body: bytes) -> int:
        self.asked.set()
        self.free.wait()
        if self.answers:
            return self.answers.pop(0)
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        check_body(body)
        told = json.loads(body)
        assert told["id"] == headers["webhook-id"]
        # Whoever sends may have left before it heard that a message was taken.
        if told["id"] not in self.posted:
            self.bodies.append(told)
        self.posted.append(told["id"])
        return 204

    def types(self) -> list[str]:
        return [body["type"] for body in self.bodies]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [body["data"] for body in self.bodies if body["type"] == kind]


@contextmanager
def listening(hook: Hook) -> Iterator[None]:
    with receiving(lambda _, headers, body: (hook.take(headers, body), {})) as place:
        hook.url = f"{place}/hook-geheim"
        try:
            yield
        finally:
            hook.free.set()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    receiver = Hook()
    with listening(receiver):
        monkeypatch.setenv("HOOK_URL", receiver.url)
        monkeypatch.setenv("HOOK_SECRET", SECRET)
        yield receiver


def section(**keys: str) -> str:
    more = "\n".join(f"{key} = {value}" for key, value in keys.items())
    return f'[[notify]]\ntype = "webhook"\nurl = "${{env:HOOK_URL}}"\nsecret = "${{env:HOOK_SECRET}}"\n{more}\n'


def job_of(mariadb: MariaDbServer, folder: Path, database: str, sections: str) -> Job:
    mariadb.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    mariadb.execute(
        "CREATE TABLE good (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE odd (id INT PRIMARY KEY, v INT)",
        "INSERT INTO good VALUES (1, 1), (2, 2)",
        "INSERT INTO odd VALUES (1, 1)",
        database=database,
    )
    return Job(folder, mariadb, database, TABLES, local=True, sections=sections)


def has(hook: Hook, kind: str) -> Callable[[], bool]:
    return lambda: kind in hook.types()


def test_each_notification_by_its_own_fault(mariadb: MariaDbServer, tmp_path: Path, hook: Hook) -> None:
    database = "told"
    log = tmp_path / "run.log"
    logging = f'[logging]\nfile = "{log}"\n'
    job = job_of(mariadb, tmp_path, database, section(end_wait='"60s"') + logging)
    hook.answers = [500, 503]
    run = job.start()
    run.wait_for(has(hook, "snapshots_done"))
    done = {data["table"]: data["rows"] for data in hook.of("snapshot_done")}
    assert done == {f"{database}.good": 2, f"{database}.odd": 1}
    assert hook.of("snapshots_done") == [{"tables": 2}]

    mariadb.execute("ALTER TABLE good ADD note VARCHAR(20) DEFAULT 'planted-value'", database=database)
    run.wait_for(has(hook, "schema_changed"))
    (changed,) = hook.of("schema_changed")
    assert (changed["table"], changed["changes"]) == (f"{database}.good", ["add_column note"])

    # Not in the log: from here on its rows have a column that nobody told of.
    mariadb.execute("SET SESSION sql_log_bin = 0", "ALTER TABLE odd ADD extra INT", database=database)
    mariadb.execute("INSERT INTO odd VALUES (2, 4711, 4712)", database=database)
    run.wait_for(has(hook, "table_parked"))
    (parked,) = hook.of("table_parked")
    assert parked["table"] == f"{database}.odd"
    assert "raycdc tables resnapshot" in parked["reason"] + parked["remedy"]

    # What was taken is remembered a moment later.
    remembered = job.state / FILE_NAME
    (identity,) = [body["id"] for body in hook.bodies if body["type"] == "table_parked"]
    run.wait_for(lambda: identity in remembered.read_text())
    run.kill()
    before = len(hook.posted)
    run = job.start()
    run.wait_for(lambda: any(event["event"] == "recovered" for event in run.events))
    mariadb.execute("INSERT INTO good VALUES (3, 3, 'x')", database=database)
    run.wait_for(has(hook, "recovered"))
    assert [data["after"] for data in hook.of("recovered")] == ["killed"]
    # The table is still parked, which was told before.
    assert identity not in hook.posted[before:]
    told = completed(
        ("tables", "resnapshot", str(job.configuration()), f"{database}.odd"), environment=os.environ, folder=job.folder
    )
    assert told.returncode == 0, told.stderr
    run.wait_for(lambda: {"after": "parked", "table": f"{database}.odd"} in hook.of("recovered"))
    assert run.interrupt() == 130, run.story()

    # A run that fails tells of its error, also before it has read anything.
    failing = Job(tmp_path / "failing", mariadb, database, ("nowhere",), local=True, sections=job.sections)
    failed = failing.start("--until", "caught-up")
    code = failed.wait()
    assert code != 0, failed.story()
    assert hook.of("ended_with_error")[-1]["exit_code"] == code
    lines = log.read_text().splitlines()
    for line in lines:
        check_line(line)
    turns = {json.loads(line)["event"] for line in lines}
    assert turns >= {
        "started",
        "commit",
        "snapshot_done",
        "table_phase",
        "schema_changed",
        "parked",
        "recovered",
        "error",
    }
    assert "progress" not in turns
    sent = json.dumps(hook.bodies) + log.read_text()
    for value in ("planted-value", "4711", "geheim", SECRET):
        assert value not in sent
        assert value not in failed.story()


def test_a_snapshot_whose_run_was_killed_at_its_commit_is_told_by_the_next_one(
    mariadb: MariaDbServer, tmp_path: Path, hook: Hook
) -> None:
    job = job_of(mariadb, tmp_path, "cut", section(end_wait='"60s"'))
    job.tables = ("good",)
    # Where the epoch with the table's only chunk is sealed, and its target is made.
    killed = job.start("--until", "caught-up", failpoints="before_schema=kill@1")
    assert killed.wait() == -9, killed.story()
    assert hook.of("snapshot_done") == []
    catch_up(job)
    assert hook.of("snapshot_done") == [{"table": "cut.good", "rows": 2}]


def test_rows_left_out_and_a_log_that_is_soon_deleted(mariadb: MariaDbServer, tmp_path: Path, hook: Hook) -> None:
    fill(mariadb)
    job = Job(tmp_path, mariadb, "odd", ("texts", "raws"), local=True, sections=ROUTES + section(end_wait='"60s"'))
    job.pipeline = 'on_bad_record = "skip"'
    catch_up(job)
    # Every tenth of forty.
    assert hook.of("rows_left_out") == [{"table": "odd.raws", "rows": 4}]
    with mariadb.connect() as connection:
        ((_, before),) = query(connection, "SHOW GLOBAL VARIABLES LIKE 'binlog_expire_logs_seconds'")
    mariadb.execute("SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        run = job.start()
        run.wait_for(has(hook, "retention_at_risk"))
        assert run.interrupt() == 130, run.story()
    finally:
        mariadb.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before}")
    assert 0 < hook.of("retention_at_risk")[0]["headroom_seconds"] <= 3600
    # They are the same as before, so nobody hears of them again.
    assert len(hook.of("rows_left_out")) == 1


def test_a_receiver_that_hangs_or_is_away_holds_up_neither_rows_nor_the_end(
    mariadb: MariaDbServer, tmp_path: Path, hook: Hook
) -> None:
    away = '[[notify]]\ntype = "webhook"\nurl = "http://127.0.0.1:1/geheim"\nend_wait = "1ms"\n'
    gone = '[[notify]]\ntype = "command"\ncommand = ["/nowhere/page"]\nend_wait = "1ms"\n'
    job = job_of(mariadb, tmp_path, "hangs", section(end_wait='"1ms"') + away + gone)
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": mariadb.cdc_user}
    checked = completed(("check", str(job.configuration()), "--local"), environment=environment, folder=job.folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "/nowhere/page is no program" in checked.stdout
    assert hook.bodies == []
    hook.free.clear()
    catch_up(job)
    run = job.runs[-1]
    warnings = [event["text"] for event in run.events if event["event"] == "warning"]
    assert [text for text in warnings if f"{hook.url.removesuffix('/hook-geheim')} has not taken" in text]
    assert run.events[-1]["event"] == "caught_up"
    assert "geheim" not in run.story() + json.dumps(run.events)


def test_a_test_notification_is_sent_to_each_receiver_and_says_which_refuse(
    mariadb: MariaDbServer, tmp_path: Path, hook: Hook
) -> None:
    page = f'[[notify]]\ntype = "command"\ncommand = ["/bin/sh", "-c", "cat > {tmp_path}/page"]\n'
    job = job_of(mariadb, tmp_path, "tried", section() + page)
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": "x"}

    def tried() -> tuple[int, str]:
        done = completed(("notify", "test", str(job.configuration())), environment=environment, folder=job.folder)
        return done.returncode, done.stdout + done.stderr

    code, said = tried()
    assert (code, hook.types()) == (0, ["test"]), said
    check_body((tmp_path / "page").read_bytes())
    hook.answers = [404]
    code, said = tried()
    assert code == 2
    assert "it answers with 404" in said
    assert "geheim" not in said
