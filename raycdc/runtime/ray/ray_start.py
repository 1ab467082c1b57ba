"""Starts a private Ray, or joins a cluster.

A private Ray starts quickly, because it has only the parts that a pipeline's actors need. Besides GCS and raylet, a
head node starts an API server, an autoscaler monitor and a log monitor. A private Ray of one node without log viewers
and scaling does not need them; without them a start takes a third less CPU time (measured 12.5 CPU-seconds with three
actors, 4.4 of them by the actors) and does not wait for the API server.

Each raylet has two agents: one for metrics and the dashboard, and one that makes runtime environments. A pipeline's
actors need neither, but the raylet waits for both before it registers. `ray_stand_in` replaces the agents, which saves
another 1.3 CPU-seconds and a second or two.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray

from raycdc.errors import ClusterNotStartedError
from raycdc.runtime.ray import ray_private
from raycdc.runtime.ray.ray_head import RayHead, Raylet, answers

#: The size of Ray's object store: the smallest allowed, because it carries no rows here.
OBJECT_STORE_BYTES = 80 << 20
#: The number of attempts to start a private Ray.
START_ATTEMPTS = 4
#: Seconds to wait for the head of a cluster that is to be joined. It may be starting at the same time.
JOIN_S = 60.0

#: The processes that a head node starts besides GCS and raylet, as methods of Ray 2's private ``Node``. Missing methods
#: are ignored.
_DISPENSABLE = ("start_monitor", "start_log_monitor", "start_api_server")

#: The raylet's flags with the commands of its agents, and the ports that it waits for from each agent.
_ENVIRONMENTS = "--runtime_env_agent_command"
_AGENTS = {
    "--dashboard_agent_command": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    _ENVIRONMENTS: ("runtime_env_agent_port",),
}
#: Variables that give a job's actors a runtime environment.
_ENVIRONMENT_GIVEN = ("RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR")
#: The Ray version whose raylet waits for exactly these ports. Other versions keep their own agents.
_AGENTS_OF = "2.60."
_STAND_IN = Path(__file__).with_name("ray_stand_in.py")


def start_ray(address: str, *, workers: int) -> None:
    """Start or join Ray; a private one has `workers` processes ready for actors.

    On a busy machine a start may exceed Ray's own limit of 30 s, so it is retried.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != "local":
        _require_there(address)
        try:
            with own_sigterm():
                ray.init(address=address, **common)
        except (ConnectionError, RuntimeError) as cause:
            raise ClusterNotStartedError(
                f'No Ray cluster answers at ray.address = "{address}": {cause} Start the cluster, or correct the '
                "address; then start the run again, which goes on from what was sealed."
            ) from cause
        return
    folder = ray_private.folder()
    ray_private.sweep(folder)
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            with lean_nodes(), ray_private.on_loopback(), own_sigterm():
                # Ray starts a worker per CPU ahead of the first actor. Our actors request no CPU, so the number of CPUs
                # has no other effect. Without an address, this process would join a Ray that already runs on this
                # machine, for example that of another job.
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(folder),
                    **common,
                )
        except Exception as cause:
            ray.shutdown()
            if attempt == START_ATTEMPTS or "timed out" not in str(cause):
                raise ClusterNotStartedError(
                    f"Ray did not start: {cause} Its logs are below {folder}. See whether the machine has memory free "
                    "and is not overloaded; then start the run again, which goes on from what was sealed."
                ) from cause
        else:
            return


def _require_there(address: str) -> None:
    """Wait until a head listens at HOST:PORT; any other address is resolved by Ray.

    Ray itself would wait for a quarter of an hour, and during this time only SIGKILL would end the process.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    deadline = time.monotonic() + JOIN_S
    while not answers(host.strip("[]"), int(port)):
        if time.monotonic() >= deadline:
            raise ClusterNotStartedError(
                f'No Ray cluster answers at ray.address = "{address}". Start the cluster, or correct the address; then '
                "start the run again, which goes on from what was sealed."
            )
        time.sleep(1)


def head_of_ray(*, private: bool) -> RayHead:
    """Return a monitor of the Ray that this process is connected to.

    If `private` is True, Ray's processes are children of this process.
    """
    address = str(ray.get_runtime_context().gcs_address)
    from ray._private import worker

    node: Any = worker._global_node
    if not private:
        path = getattr(node, "raylet_socket_name", None)
        return RayHead(address, private=False, ended=Raylet(path).ended if path else lambda: "")
    started = node.all_processes

    def ended() -> str:
        alone = ((name, found) for name, processes in started.items() for found in processes)
        return next((f"{name} ({found.process.pid})" for name, found in alone if found.process.poll() is not None), "")

    return RayHead(address, private=True, ended=ended)


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Keep a Ray that is started or joined in the block from handling SIGTERM.

    Ray would end the process immediately, with an exit code that service managers take for a failure.
    """
    from ray._private import utils

    module: Any = utils
    kept = module.set_sigterm_handler
    module.set_sigterm_handler = _nothing
    try:
        yield
    finally:
        module.set_sigterm_handler = kept


@contextmanager
def lean_nodes() -> Iterator[None]:
    """Start nodes inside the block without the processes in `_DISPENSABLE`, and with stand-ins for agents."""
    from ray._private import services
    from ray._private.node import Node

    kept: dict[str, Callable[..., Any]] = {name: vars(Node)[name] for name in _DISPENSABLE if name in vars(Node)}
    for name in kept:
        setattr(Node, name, _nothing)
    starts: Callable[..., Any] = services.start_ray_process
    if ray.__version__.startswith(_AGENTS_OF):
        services.start_ray_process = partial(_with_stand_ins, starts)
    try:
        yield
    finally:
        services.start_ray_process = starts
        for name, method in kept.items():
            setattr(Node, name, method)


def _nothing(_node: Any, *_args: Any, **_options: Any) -> None:
    """Do nothing. This replaces a function of Ray that starts a process or handles a signal."""


def _with_stand_ins(start: Callable[..., Any], command: list[str], *args: Any, **options: Any) -> Any:
    """Start a process in place of `services.start_ray_process`.

    In the `command` of a raylet, the agents are replaced.
    """
    flags = dict(part.split("=", 1) for part in command if part.startswith("--") and "=" in part)
    reported = [flags.get("--session_dir", ""), flags.get("--node_id", "")]
    if all(reported) and flags.keys() >= _AGENTS.keys():
        for flag, ports in _AGENTS.items():
            if flag == _ENVIRONMENTS and _environment_may_come():
                continue
            agent = [sys.executable, "-I", "-S", str(_STAND_IN), *reported, *ports]
            command = [f"{flag}={subprocess.list2cmdline(agent)}" if p.startswith(f"{flag}=") else p for p in command]
    return start(command, *args, **options)


def _environment_may_come() -> bool:
    """Return True if Ray may give our actors a runtime environment.

    Under ``uv run``, Ray does so unless `ray_environment` was called before.
    """
    from ray._private import ray_constants

    uv = bool(getattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True))
    return uv or any(name in os.environ for name in _ENVIRONMENT_GIVEN)
