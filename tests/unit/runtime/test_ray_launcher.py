"""What a coordinator that did not begin is taken for, and what a private Ray starts."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._private import ray_constants, services
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

from raycdc.errors import ClusterNotStartedError, ExitCode, StateError
from raycdc.runtime.launcher import CoordinatorLostError
from raycdc.runtime.ray import ray_spools, ray_stand_in, ray_start
from raycdc.runtime.ray.ray_launcher import error_of_begin
from raycdc.runtime.ray.ray_nodes import RayNodes, ReaderNeeds
from raycdc.runtime.ray.ray_spools import SpoolSettings
from raycdc.runtime.ray.ray_start import lean_nodes
from raycdc.sandbox.servers.private import held_port, wait_until


@pytest.mark.parametrize("cause", [ActorDiedError(), ActorUnavailableError("no answer", b"\x01" * 16)])
def test_a_process_that_ends_while_it_begins_is_one_to_replace(cause: RayActorError) -> None:
    assert isinstance(error_of_begin(cause), CoordinatorLostError)


def test_a_coordinator_that_cannot_be_made_ends_the_run() -> None:
    failed = RayActorError(error_msg="in its creation\nNo module named 'x'", actor_init_failed=True)
    error = error_of_begin(failed)
    assert isinstance(error, StateError)
    assert "No module named 'x'" in str(error)


def test_a_spool_server_that_does_not_come_up_is_no_bug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray has no process for it, and says nothing."""
    monkeypatch.setattr(ray_spools.RaySpools, "poll", lambda _: None)
    here = SimpleNamespace(get_node_id=lambda: "4711")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    nodes = RayNodes(ReaderNeeds(), own="4711", network=False, warn=pytest.fail, nodes=list)
    with pytest.raises(ClusterNotStartedError, match=r"within 60 s \(Ray's node 4711\)\. See with `ray status`") as end:
        ray_spools.RaySpools(SpoolSettings(tmp_path, "c", "t"), nodes, warn=pytest.fail, poll=lambda: None)
    assert end.value.exit_code is ExitCode.CLUSTER


def test_a_ray_that_does_not_come_up_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise RuntimeError("The raylet has died.")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(ClusterNotStartedError, match=r"Ray did not start: The raylet has died\. Its logs are") as end:
        ray_start.start_ray("local", workers=1)
    assert end.value.exit_code is ExitCode.CLUSTER


@pytest.mark.parametrize("error", [ConnectionError, RuntimeError])
def test_a_cluster_that_is_not_there_is_no_bug(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise error("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", fails)
    told = r'No Ray cluster answers at ray\.address = "auto": Could not find any running Ray instance\. Start the'
    with pytest.raises(ClusterNotStartedError, match=told) as end:
        ray_start.start_ray("auto", workers=1)
    assert end.value.exit_code is ExitCode.CLUSTER


def test_a_head_that_does_not_answer_is_told_before_ray_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would wait for a quarter of an hour"))
    monkeypatch.setattr(ray_start, "JOIN_S", 0.0)
    with held_port() as port:
        told = rf'No Ray cluster answers at ray\.address = "127\.0\.0\.1:{port}"\. Start the cluster'
        with pytest.raises(ClusterNotStartedError, match=told):
            ray_start.start_ray(f"127.0.0.1:{port}", workers=1)


def test_a_head_that_answers_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[object] = []
    monkeypatch.setattr(ray, "init", lambda **words: joined.append(words["address"]))
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"

        def close() -> None:
            """As a server does that expects another protocol."""
            head.accept()[0].close()

        threading.Thread(target=close, daemon=True).start()
        ray_start.start_ray(address, workers=1)
    assert joined == [address]


RAYLET = [
    "raylet",
    "--session_dir=/tmp/a session",
    "--node_id=abc",
    "--dashboard_agent_command=python agent.py",
    "--runtime_env_agent_command=python main.py",
]


def commands_of_a_lean_node(monkeypatch: pytest.MonkeyPatch, *, uv: bool = False) -> list[str]:
    """What a raylet is started with inside of `lean_nodes`."""
    started: list[list[str]] = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_args, **_options: started.append(command))
    monkeypatch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", uv)
    monkeypatch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)
    with lean_nodes():
        services.start_ray_process(list(RAYLET), "raylet", fate_share=True)
        services.start_ray_process(["gcs_server", "--session_dir=x"], "gcs_server", fate_share=True)
    assert started[1] == ["gcs_server", "--session_dir=x"]
    return started[0]


def test_a_lean_raylet_has_stand_ins_for_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails with another Ray than the one that `ray_start` knows the agents of: look what its raylet waits for."""
    dashboard, environments = commands_of_a_lean_node(monkeypatch)[3:]
    ports = "abc metrics_agent_port metrics_export_port dashboard_agent_listen_port"
    assert dashboard.endswith(f'ray_stand_in.py "/tmp/a session" {ports}')
    assert environments.endswith('ray_stand_in.py "/tmp/a session" abc runtime_env_agent_port')
    assert services.start_ray_process.__module__ == __name__


def test_where_actors_may_get_an_environment_its_agent_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard, environments = commands_of_a_lean_node(monkeypatch, uv=True)[3:]
    assert "ray_stand_in.py" in dashboard
    assert environments == RAYLET[-1]


def test_a_stand_in_tells_its_ports_and_ends_with_the_raylet(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", ray_stand_in.__file__, str(tmp_path), "abc", "one_port", "two_port"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as agent:
        wait_until((tmp_path / "two_port_abc").exists, timeout_s=120, what="telling the ports")
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
            "one_port_abc": "-1",
            "two_port_abc": "-1",
        }
        assert agent.poll() is None
        assert agent.stdin is not None
        agent.stdin.close()
        assert agent.wait(120) == 0
