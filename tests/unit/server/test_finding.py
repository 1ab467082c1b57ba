"""Finding a run by its state: what is wrong is said by name, and what to do."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest

from raycdc.cli.status import print_ui_link
from raycdc.config import ControlOptions
from raycdc.config.sections.observability import UiAccess
from raycdc.driver.command_queue import CommandQueue
from raycdc.errors import StateError
from raycdc.observe.status import RunProcess, StatusKeeper
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.history import History
from raycdc.server import client as control_client
from raycdc.server.client import NoRun, find
from raycdc.server.control_server import ControlServer, ControlServerContext, names_of
from raycdc.state.drivers.holder import VERSION, ControlEndpoint, Holder
from raycdc.state.store import CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state", pipeline="shop")


def taken(store: CheckpointStore, holder: Holder) -> None:
    store.generations.show(store.generations.next(), holder)


def test_nobody_runs_it(store: CheckpointStore) -> None:
    assert find(store) == NoRun("it was never run")
    taken(store, replace(Holder.myself(), beat=3, locked=True))
    assert find(store) == NoRun(f"{Holder.myself()} is gone")
    taken(store, replace(Holder.myself(), beat=3, ended=True))
    assert find(store) == NoRun(f"{Holder.myself()}, which ran it last, has ended")


def test_a_run_that_has_opened_no_door_yet(store: CheckpointStore) -> None:
    taken(store, ELSEWHERE)
    found = find(store, timeout_s=0.0)
    assert isinstance(found, NoRun)
    assert found.runs
    assert "process 7 on db9, which has the state, has not opened its control API yet" in found.why


def test_a_run_that_has_opened_no_door_has_no_web_ui_yet(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raycdc.cli.status.find_run", lambda config, store, wait: find(store, timeout_s=0.0))
    taken(store, ELSEWHERE)
    config = Path(store.path).parent / "shop.toml"
    config.write_text(f'[pipeline]\nname = "shop"\nstate = "{store.path}"\n')
    with pytest.raises(
        StateError, match=r"web UI is not up yet: process 7 on db9, .* not opened its control API yet .*Ask again"
    ):
        print_ui_link(config, reads_only=False)


ELSEWHERE = Holder("db9", "another kernel", 7, beat=3)


@pytest.mark.parametrize(
    ("holder", "says"),
    [
        (
            replace(ELSEWHERE, endpoint=ControlEndpoint("http://127.0.0.1:1", "t")),
            "open to its own machine only. Ask there, or set",
        ),
        (
            replace(ELSEWHERE, endpoint=ControlEndpoint(problem="the port is taken")),
            "cannot be asked: the port is taken",
        ),
        (replace(ELSEWHERE, endpoint=ControlEndpoint("http://db9:1", "t", VERSION + 1)), "runs a newer raycdc"),
        (replace(ELSEWHERE, endpoint=ControlEndpoint("http://db9:1", "")), "set the same control.token"),
        (replace(ELSEWHERE, endpoint=ControlEndpoint("http://db9:1", "../../etc/passwd")), "no run names a file so"),
        (
            replace(ELSEWHERE, endpoint=ControlEndpoint("http://db9:1", f"private-{'0' * 32}")),
            "is not here. Ask on the machine",
        ),
    ],
    ids=["loopback", "broken", "newer", "configured", "foreign file", "no file"],
)
def test_a_run_that_cannot_be_asked(holder: Holder, says: str, store: CheckpointStore) -> None:
    taken(store, holder)
    with pytest.raises(StateError, match=says):
        find(store, timeout_s=0.0)


def test_a_run_that_does_not_answer(store: CheckpointStore) -> None:
    taken(store, replace(Holder.myself(), beat=3, endpoint=ControlEndpoint("http://127.0.0.1:1", "t")))
    client = find(store, "a token of the configuration")
    assert not isinstance(client, NoRun)
    with pytest.raises(StateError, match=r"its control API at http://127.0.0.1:1 does not answer"):
        client.status()


def test_a_run_that_waits_for_its_token_is_told_from_one_that_is_gone(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "ANSWERS_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        taken(store, replace(Holder.myself(), beat=3, endpoint=ControlEndpoint(url, "t")))
        client = find(store, "a token of the configuration")
        assert not isinstance(client, NoRun)
        with pytest.raises(StateError, match=r"does not answer .* may be waiting for its control.token"):
            client.status()


def test_the_names_of_a_door() -> None:
    loopback = names_of(ControlOptions(hosts=("cdc.example.org",)), "127.0.0.1", 8087)
    assert loopback == {
        "127.0.0.1:8087",
        "localhost:8087",
        "[::1]:8087",
        "cdc.example.org:8087",
        "cdc.example.org",
    }
    everywhere = names_of(ControlOptions(host="0.0.0.0"), "0.0.0.0", 8087)
    assert f"{socket.gethostname().lower()}:8087" in everywhere


def test_a_run_without_a_web_ui_says_so(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raycdc.server.control_server.OPENS_AFTER_S", 0.0)
    told = Queue[ControlEndpoint]()
    keeper = StatusKeeper(RunProcess.here("shop", "jsonl out", local=True))
    documents = StatusDocuments(keeper, lambda table: (table,))
    threshold = ControlServerContext(ControlOptions(ui=UiAccess.OFF), store, told.put, warn=pytest.fail)
    door = ControlServer(threshold, documents, History(keeper), CommandQueue(store))
    door.open()
    try:
        announced = told.get(timeout=60)
        taken(store, replace(Holder.myself(), beat=3, endpoint=announced))
        run = find(store)
        assert not isinstance(run, NoRun)
        with pytest.raises(StateError, match=r'without a web UI: it was started with control\.ui = "off"\. Set it to'):
            run.page_link(reads_only=False)
    finally:
        door.close()
