"""The doors beside a run: requests that hang keep neither others nor the end of the process waiting."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Route

from raycdc.config import MetricsOptions
from raycdc.driver.command_queue import CommandQueue
from raycdc.observe.status import RunProcess, StatusKeeper
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.history import History
from raycdc.server import api, scraping
from raycdc.server.api import EventHub
from raycdc.server.authorization import ApiToken, BrowserSessions
from raycdc.server.blocking import CALLS_MAX
from raycdc.server.ui.feed import Feed
from raycdc.server.ui.routes import Schemas, WebUi
from raycdc.server.ui.verifications import Verifications
from raycdc.state.store import CheckpointStore

#: A door whose answers never come, and a process that has done its work.
HANGS = """
import json, os, socket, sys, threading, urllib.error, urllib.request
from raycdc.config import MetricsOptions
from raycdc.server import api, scraping
from raycdc.server.authorization import ApiToken
from raycdc.server.api import EventHub
from raycdc.server.control_server import HttpThread

count, came = int(sys.argv[1]), threading.Semaphore(0)

def hangs(chosen):
    came.release()
    threading.Event().wait()

listening = {name: socket.create_server(("127.0.0.1", 0)) for name in ("control", "metrics")}
ports = {name: each.getsockname()[1] for name, each in listening.items()}
told = scraping.MetricsSource("shop", hangs, lambda: "running", lambda: 0.0)
guarding = api.Guarding(ApiToken("t" * 20), frozenset({f"127.0.0.1:{ports['control']}"}))
applications = {
    "control": api.application(api.ApiBackend(hangs, None, EventHub()), guarding),
    "metrics": scraping.application(MetricsOptions(address="127.0.0.1:1"), told),
}

def prepared(name):
    return lambda: (listening[name], applications[name])

doors = [HttpThread(name, prepared(name), lambda cause: print("failed", cause)) for name in applications]
for door in doors:
    door.open()

def ask(name, path):
    request = urllib.request.Request(f"http://127.0.0.1:{ports[name]}{path}")
    request.add_header("Authorization", "Bearer " + "t" * 20)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer).get("text", "")
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["text"]
    except Exception as closed:
        return 0, str(closed)

closing = threading.Event()

def hang(name, path):
    answer = ask(name, path)
    if not closing.is_set():
        print(name, "answered", *answer, flush=True)
        os._exit(3)

for _ in range(count):
    threading.Thread(target=hang, args=("metrics", "/metrics"), daemon=True).start()
for _ in range(2):
    threading.Thread(target=hang, args=("control", "/v1/status"), daemon=True).start()
for _ in range(count + 2):
    came.acquire()
print(*ask("metrics", "/healthz"))
print(*ask("metrics", "/metrics"))
print(*ask("control", "/v1/openapi.json"))
closing.set()
for door in doors:
    door.close()
print("done", flush=True)
"""


def test_requests_that_hang_keep_neither_others_nor_the_end_of_the_process_waiting(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    ended = subprocess.run(
        [sys.executable, str(script), str(CALLS_MAX)], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines() == [
        "200 ok",
        f"503 {CALLS_MAX} requests are being answered already; try again later.",
        "200 ",
        "done",
    ]


def test_no_answer_is_made_in_a_thread_that_the_process_would_wait_for(tmp_path: Path) -> None:
    """Starlette calls what is no coroutine in a pool whose threads are no daemons."""
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    keeper = StatusKeeper(RunProcess.here("shop", "delta lake", local=True))
    documents = StatusDocuments(keeper, lambda table: (table,))
    feed = Feed(documents, History(keeper))
    page = WebUi(BrowserSessions("t", reads_only=False), feed, Schemas(store), Verifications(("true",)))
    answers = api.ApiBackend(documents.status, CommandQueue(store), EventHub())
    applications = (
        api.application(answers, api.Guarding(ApiToken("t"), frozenset()), page),
        scraping.application(MetricsOptions(), scraping.MetricsSource.by(documents)),
    )
    assert sum(map(_routes, applications)) > 15


def _routes(application: Starlette) -> int:
    for route in application.routes:
        assert isinstance(route, Route)
        assert inspect.iscoroutinefunction(route.endpoint), route
    return len(application.routes)
