"""A running pipeline is asked at its control door: by the command, and by whoever has its token; by nobody else."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raycdc.config import load_config
from raycdc.errors import ExitCode
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers.private import held_port, wait_until
from raycdc.server.control_server import HttpThread
from tests.support.forked_commands import completed

CONFIG = """
pipeline = { name = "asked", state = "state", epoch_interval = "200ms" }
source = { type = "datagen", tables = ["shop.orders", "shop.items"], rows = 500, per_second = 20 }
sink = { type = "jsonl", path = "out" }
"""


def raycdc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return completed(words, environment=os.environ, folder=folder)


def status(folder: Path) -> Any:
    said = raycdc(folder, "status", "pipeline.toml", "--json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the figures."""
    with held_port() as port:
        yield port


@pytest.fixture(scope="module")
def folder(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pipeline that runs, with all of both tables committed."""
    path = tmp_path_factory.mktemp("door")
    metrics = f'metrics = {{ address = "127.0.0.1:{port}" }}'
    (path / "pipeline.toml").write_text(CONFIG + metrics)
    command = [sys.executable, "-m", "raycdc.cli", "run", "pipeline.toml", "--local", "--json"]
    with (path / "run.log").open("w") as log:
        run = subprocess.Popen(command, cwd=path, stdout=log, stderr=log)
    try:
        commits = path / "state" / "commits"

        def told() -> bool:
            if run.poll() is not None:
                return True
            if not list(commits.glob("*.json")):
                return False
            tables = status(path)["tables"]
            return len(tables) == 2 and all(
                table["phase"] == "stream" and (table["rows"] or 0) >= 500 and table["last_commit"] is not None
                for table in tables
            )

        wait_until(told, timeout_s=600, what="both tables are committed")
        assert run.poll() is None, (path / "run.log").read_text()
        yield path
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=600)


@pytest.fixture(scope="module")
def door(folder: Path) -> tuple[str, str]:
    """The door's address, and its token."""
    status(folder)  # Waits for it.
    [pulse] = (folder / "state" / "generations").glob("*.pulse.json")
    said = json.loads(pulse.read_text())["holder"]["door"]
    file = folder / "state" / "private" / said["token"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return said["url"].removeprefix("http://"), file.read_text()


def ask(door: tuple[str, str], path: str, body: str | None = None, **headers: str) -> tuple[int, Any]:
    address, token = door
    with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} | headers
        connection.request("GET" if body is None else "POST", path, body, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_status_of_a_running_pipeline(folder: Path) -> None:
    said = status(folder)
    assert (said["version"], said["running"], said["pipeline"]) == (1, True, "asked")
    assert [table["table"] for table in said["tables"]] == ["shop.items", "shop.orders"]
    assert all(table["rows"] >= 500 and table["last_commit"]["epoch"] for table in said["tables"])
    assert all(table["lag_ms"] < 60_000 and table["targets"] == [table["table"]] for table in said["tables"])
    snapshots = [table["snapshot"] for table in said["tables"]]
    # Rows of chunks, whatever the log has brought since.
    assert all(each["percent"] == 100 and 450 <= each["rows_done"] <= 550 for each in snapshots)
    [reader] = said["job"]["readers"]
    assert (reader["reads_log"], reader["pid"]) == (True, said["run"]["pid"])


def test_only_who_has_the_token_and_calls_the_door_by_its_name_is_answered(door: tuple[str, str]) -> None:
    address, _ = door
    assert ask(door, "/v1/status")[0] == 200
    assert ask((address, "x" * 43), "/v1/status")[0] == 401
    assert ask(door, "/v1/status", Authorization="Basic eDp5")[0] == 401
    # A foreign page: under a name that was bound to this address, and from its own.
    assert ask(door, "/v1/status", Host="evil.example")[0] == 421
    assert ask(door, "/v1/status", Origin="http://evil.example")[0] == 403
    assert ask(door, "/v1/status", Origin=f"http://{address}")[0] == 200


def test_figures_for_prometheus_are_those_of_the_status(folder: Path) -> None:
    place = load_config(folder / "pipeline.toml").metrics.address

    def scraped() -> dict[tuple[str, str], float]:
        with closing(http.client.HTTPConnection(place, timeout=30)) as connection:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        families = text_string_to_metric_families(page)
        return {
            (sample.name, sample.labels.get("table", sample.labels.get("phase", ""))): sample.value
            for family in families
            for sample in family.samples
        }

    before, said, after = scraped(), status(folder), scraped()
    told = {
        ("raycdc_last_commit_epoch", ""): said["job"]["last_commit"]["epoch"],
        ("raycdc_rows_committed_total", ""): said["job"]["counts"]["rows_committed"],
        ("raycdc_tables", "stream"): 2,
        ("raycdc_running", ""): 1,
        **{("raycdc_table_rows", table["table"]): table["rows"] for table in said["tables"]},
    }
    # The run goes on between the three questions.
    assert all(before[figure] <= value <= after[figure] for figure, value in told.items())
    for path in ("/healthz", "/readyz"):
        with closing(http.client.HTTPConnection(place, timeout=30)) as connection:
            connection.request("GET", path)
            assert json.loads(connection.getresponse().read()) == {"pipeline": "asked", "text": "ok"}


def test_check_beside_a_run_takes_its_own_door_for_none_of_others(folder: Path, tmp_path: Path) -> None:
    assert raycdc(folder, "check", "pipeline.toml", "--local").returncode == 0
    config = (folder / "pipeline.toml").read_text()
    (tmp_path / "pipeline.toml").write_text(config)
    refused = raycdc(tmp_path, "check", "pipeline.toml", "--local")
    assert refused.returncode == ExitCode.CONFIG
    assert "metrics: nothing can listen on port" in refused.stdout + refused.stderr
    ran = raycdc(tmp_path, "run", "pipeline.toml", "--local")
    assert ran.returncode == ExitCode.CONFIG
    assert "Choose another metrics.address." in ran.stderr


def test_the_description_names_every_key_of_the_status(door: tuple[str, str]) -> None:
    code, described = ask(door, "/v1/openapi.json")
    parts = described["components"]["schemas"]
    _, said = ask(door, "/v1/status")
    assert code == 200
    assert said.keys() == parts["Status"]["properties"].keys()
    assert said["job"].keys() == parts["JobReport"]["properties"].keys()
    assert said["tables"][0].keys() == parts["TableReport"]["properties"].keys()


def test_tables_are_chosen_and_paged(door: tuple[str, str]) -> None:
    def names(query: str) -> list[str]:
        return [table["table"] for table in ask(door, f"/v1/tables?{query}")[1]["tables"]]

    assert names("table=shop.orders") == ["shop.orders"]
    assert names("limit=1") == ["shop.items"]
    assert names("after=shop.items") == ["shop.orders"]
    assert names("phase=parked") == []
    # The status is chosen in the same way, and is whole without any table.
    page = ask(door, "/v1/status?limit=1")[1]
    assert ([table["table"] for table in page["tables"]], page["next_after"]) == (["shop.items"], "shop.items")
    none = ask(door, "/v1/status?limit=0")[1]
    assert (none["tables"], none["job"].keys()) == ([], page["job"].keys())


def test_a_command_is_answered_with_an_id_that_can_be_asked_about(door: tuple[str, str]) -> None:
    command = json.dumps({"action": "pause", "table": "shop.items", "id": "pause0001"})
    assert ask(door, "/v1/commands", command, **{"Content-Type": "text/plain"})[0] == 415
    assert ask(door, "/v1/commands", '{"action": "drop", "table": "shop.items"}')[0] == 400
    assert ask(door, "/v1/commands", command) == ask(door, "/v1/commands", command) == (202, {"id": "pause0001"})

    def paused() -> bool:
        return bool(ask(door, "/v1/tables?table=shop.items")[1]["tables"][0]["phase"] == "paused")

    wait_until(paused, timeout_s=600, what="the table is paused")
    wait_until(
        lambda: ask(door, "/v1/commands/pause0001")[1]["state"] == "done", timeout_s=600, what="the command is done"
    )
    assert [each["id"] for each in ask(door, "/v1/commands")[1]["commands"]] == ["pause0001"]
    assert ask(door, "/v1/commands/unknown0")[0] == 404


def test_the_events_can_be_followed(door: tuple[str, str]) -> None:
    address, token = door
    with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        told = (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))
        assert any(event["event"] == "progress" and event["tables"] for event in told)


def test_a_run_does_not_take_its_own_figures_for_those_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = HttpThread.open

    def opened(thread: HttpThread) -> None:
        """As on a machine where libraries are loaded at once: whoever goes on finds the door open."""
        begin(thread)
        wait_until(lambda: "open=True" in repr(thread), timeout_s=300, what="the door for scrapers is open")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HttpThread, "open", opened)
    with held_port() as port:
        config = CONFIG.replace("per_second = 20", "events = 0") + f'metrics = {{ address = "127.0.0.1:{port}" }}'
        (tmp_path / "pipeline.toml").write_text(config)
        Pipeline.from_config(load_config("pipeline.toml")).run(until="caught-up", local=True)


def test_a_state_at_rest_says_how_its_last_run_ended(tmp_path: Path) -> None:
    def told() -> tuple[Any, str]:
        return status(tmp_path)["last_end"], raycdc(tmp_path, "status", "pipeline.toml").stdout

    bounded = CONFIG.replace("per_second = 20", "events = 0")
    (tmp_path / "pipeline.toml").write_text(bounded)
    assert raycdc(tmp_path, "run", "pipeline.toml", "--local").returncode == 0
    end, screen = told()
    assert (end["exit_code"], end["error"], end["text"]) == (0, None, None)
    assert "ago, in order." in screen
    # Another seed makes other rows, which the state was not made with.
    (tmp_path / "pipeline.toml").write_text(bounded.replace('type = "jsonl"', 'type = "parquet"'))
    refused = raycdc(tmp_path, "run", "pipeline.toml", "--local")
    assert refused.returncode != 0
    end, screen = told()
    assert (end["exit_code"], end["error"]) == (refused.returncode, "ConfigError")
    assert end["text"]
    assert end["text"].rstrip(".") in refused.stderr
    assert f"with exit code {refused.returncode}: {end['text'][:20]}" in screen
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "raycdc.cli", "run", "pipeline.toml", "--local"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: run.poll() is not None or status(tmp_path)["running"], timeout_s=300, what="the run")
        assert told()[0] is None, "it goes on"
    finally:
        run.kill()
        run.wait()
    end, screen = told()
    assert (end["at_ms"], end["exit_code"]) == (None, None)
    assert "did not say how it ended" in screen


def test_after_the_run_the_state_answers(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(CONFIG.replace("per_second = 20", "events = 0"))
    assert raycdc(tmp_path, "run", "pipeline.toml", "--local").returncode == 0
    said = status(tmp_path)
    assert (said["running"], said["run"], said["job"]["readers"]) == (False, None, [])
    assert "which ran it last, has ended" in said["said"]
    assert [table["phase"] for table in said["tables"]] == ["stream", "stream"]
    assert [table["snapshot"]["rows_done"] for table in said["tables"]] == [500, 500]
    commits = [table["last_commit"] for table in said["tables"]]
    newest = said["job"]["last_commit"]
    assert max(commit["epoch"] for commit in commits) <= newest["epoch"]
    # The time of an epoch before the newest one is forgotten.
    assert [commit["at_ms"] for commit in commits] == [
        newest["at_ms"] if commit["epoch"] == newest["epoch"] else None for commit in commits
    ]
    screen = raycdc(tmp_path, "status", "pipeline.toml").stdout.splitlines()
    assert screen[0].startswith("asked: not running: process ")
    assert screen[1].startswith("its last run ended ")
    assert screen[2].startswith("last commit ")
    assert screen[4].split()[:2] == ["shop.items", "stream"]


def test_a_port_that_is_taken_is_refused_before_anything_starts(
    door: tuple[str, str], folder: Path, tmp_path: Path
) -> None:
    port = door[0].rpartition(":")[2]
    (tmp_path / "pipeline.toml").write_text(CONFIG + f"control = {{ port = {port} }}\n")
    run = raycdc(tmp_path, "run", "pipeline.toml", "--local")
    assert run.returncode == 2
    assert f"control: nothing can listen on port {port} of 127.0.0.1" in run.stderr
    checked = raycdc(tmp_path, "check", "pipeline.toml", "--local")
    assert f"control: nothing can listen on port {port} of 127.0.0.1" in checked.stdout
