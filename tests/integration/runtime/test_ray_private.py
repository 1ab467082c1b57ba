"""A private Ray is reached from its own machine alone, by its own processes alone, and leaves nothing for others."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raycdc.runtime.ray import ray_private

#: Start a private Ray with an actor, and tell about its processes; then let a stranger try to join.
PRIVATE = """
import json, os, subprocess, sys
from pathlib import Path
from raycdc.runtime.ray.ray_private import prepare
prepare("local")
import psutil, ray
from raycdc.runtime.ray.ray_private import TOKEN
from raycdc.segments.certificates import JobAuthority
from raycdc.runtime.ray.ray_nodes import RayNodes, ReaderNeeds
from raycdc.runtime.ray.ray_spools import RaySpools, SpoolSettings
from raycdc.runtime.ray.ray_start import start_ray

start_ray("local", workers=1)

@ray.remote(num_cpus=0)
class Actor:
    def token(self):
        return os.environ[TOKEN]

actor = Actor.remote()
tokens = {ray.get(actor.token.remote()), os.environ[TOKEN]}
me = psutil.Process()
processes = [me, *me.children(recursive=True)]
listening = {c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
settings = SpoolSettings(Path(sys.argv[1]), "c", "t", str(Path(sys.argv[1], "s")), JobAuthority.new())
nodes = RayNodes(ReaderNeeds(), own=ray.get_runtime_context().get_node_id(), network=True, warn=print)
spools = RaySpools(settings, nodes, warn=print, poll=lambda: None)
stranger = "import ray; ray.init(address=%r, log_to_driver=False)" % ray.get_runtime_context().gcs_address
environment = {name: value for name, value in os.environ.items() if name != TOKEN}
joined = subprocess.run([sys.executable, "-c", stranger], env=environment, capture_output=True, timeout=900)
print(json.dumps({
    "programs": sorted({p.name() for p in processes}),
    "listening": sorted(listening),
    "tokens": len(tokens),
    "patience": [p.environ().get("RAY_worker_register_timeout_seconds") for p in processes if p.name() == "raylet"],
    "token": tokens.pop(),
    "shown": [p.name() for p in processes if os.environ[TOKEN] in " ".join(p.cmdline())],
    "session": ray._private.worker._global_node.get_session_dir_path(),
    "flight": list(spools.flights().values()),
    "joined": joined.returncode == 0,
}))
ray.shutdown()
"""


@pytest.fixture(name="told", scope="module")
def _told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", PRIVATE, str(tmp_path_factory.mktemp("state"))]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**environment, "HOME": str(home)}, timeout=900
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return {**told, "home": sorted(path.name for path in home.iterdir())}


def test_it_listens_on_loopback_alone(told: dict[str, Any]) -> None:
    assert {"gcs_server", "raylet"} <= set(told["programs"])
    assert [ip.removeprefix("::ffff:") for ip in told["listening"]] == ["127.0.0.1"]


def test_its_token_is_in_the_memory_of_its_processes_alone(told: dict[str, Any]) -> None:
    assert told["tokens"] == 1
    assert told["shown"] == []
    assert told["home"] == []
    session = Path(told["session"])
    files = [path for path in session.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    assert [path for path in files if told["token"].encode() in path.read_bytes()] == []


def test_it_ends_no_worker_that_begins_late_because_whoever_starts_it_would_wait_for_ever(told: dict[str, Any]) -> None:
    assert [int(seconds) for seconds in told["patience"] if seconds] == [1800]


def test_a_process_without_the_token_does_not_join(told: dict[str, Any]) -> None:
    assert not told["joined"]


def test_nobody_else_enters_the_folder_of_its_sockets(told: dict[str, Any]) -> None:
    parent = Path(told["session"]).parent.parent
    assert (parent.name, stat.S_IMODE(parent.stat().st_mode)) == (f"raycdc-{os.geteuid()}", 0o700)


def test_flight_listens_to_the_network_where_it_is_told_to(told: dict[str, Any]) -> None:
    (flight,) = told["flight"]
    assert flight.startswith(f"grpc+tls://{ray_private.machine_address()}:")


def test_a_folder_that_somebody_else_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_private, "_FOLDER_BYTES_MAX", 1000)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    ours = tmp_path / f"raycdc-{os.geteuid()}"
    assert ray_private.folder() == ours / "ray"
    ours.chmod(0o777)
    assert ray_private.folder() == ours / "ray"
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    ours.rename(tmp_path / "moved")
    ours.symlink_to(tmp_path / "moved")
    other = ray_private.folder().parent
    assert other != ours
    assert stat.S_IMODE(other.stat().st_mode) == 0o700


def test_a_token_of_ours_is_not_shown_to_a_cluster_that_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ray_private.TOKEN, raising=False)
    ray_private.set_token()
    ray_private.forget_token()
    assert ray_private.TOKEN not in os.environ
    monkeypatch.setenv(ray_private.TOKEN, "the user's own")
    ray_private.set_token()
    ray_private.forget_token()
    assert os.environ[ray_private.TOKEN] == "the user's own"
