"""Ray clusters on one machine: one node that many jobs join, or several nodes, for tests of readers on other nodes.

Each node has a raylet of its own, as on machines of their own. Of several nodes each has a spool folder of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raycdc.runtime.ray.ray_private import prepare
from raycdc.runtime.spools import FOLDER_VARIABLE
from raycdc.sandbox.servers import ServerError

#: The minimum of Ray: rows never pass through its object store here.
OBJECT_STORE_BYTES = 80 << 20
#: The number of attempts to start the nodes.
START_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Further:
    """The resources and labels of a node besides its CPUs."""

    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """A head node and another one. Readers on either keep segments in `spool`, unless it is the driver's."""

    address: str
    spool: Path
    _cluster: Any
    _other: Any
    _silent: list[int] = field(default_factory=list)

    @property
    def section(self) -> str:
        """Return the sections of a pipeline that runs on the nodes, as TOML."""
        return f'[ray]\naddress = "{self.address}"\n[spark]\nmaster = "local[2]"'

    def segments(self) -> list[Path]:
        """Segments in spools other than the state's."""
        return sorted(self.spool.rglob("*.arrow"))

    def silence_other(self) -> None:
        """Stop the processes of the node that is not the head, as if it were cut off. It never continues."""
        raylets = [found.process.pid for found in self._other.all_processes["raylet"]]
        self._silent.extend(with_children(raylets))
        self._signal(signal.SIGSTOP)

    def end_silent(self) -> None:
        """Kill the stopped processes, which cannot notice that their raylet ends."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._silent:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_other(self) -> None:
        """Kill the node that is not the head, as by a power cut."""
        self._cluster.remove_node(self._other, allow_graceful=False)


@contextmanager
def two_nodes(
    folder: Path,
    *,
    labels: dict[str, str] | None = None,
    resources: dict[str, float] | None = None,
    given_up: bool = True,
) -> Iterator[TwoNodes]:
    """Start both nodes, and end them with all their processes.

    The other node has these labels and further resources; unless it is `given_up`, Ray waits for it without an end when
    it is silent.
    """
    spool, further = folder / "other-spool", Further(labels or {}, resources or {})
    patient = {} if given_up else {"RAY_health_check_failure_threshold": "1000000"}
    with (
        _environment({FOLDER_VARIABLE: str(spool), **patient}),
        _cluster(others=1, further=further) as (cluster, [other]),
    ):
        nodes = TwoNodes(cluster.address, spool, cluster, other)
        try:
            yield nodes
        finally:
            nodes.end_silent()


def with_children(pids: list[int]) -> list[int]:
    """Return the processes, and all that they have started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = list(pids)
    for pid in found:  # The list grows during the loop.
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@dataclass(frozen=True, slots=True)
class ScalingNodes:
    """A head node, and other nodes of one CPU each, which Ray's autoscaler starts and ends."""

    address: str
    log: Path

    def alive(self) -> list[str]:
        """Return the last digits of the live nodes, the head's first, without joining the cluster."""
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        nodes = GcsClient(address=self.address).get_all_node_info()
        return sorted(info.node_id.hex()[-5:] for info in nodes.values() if info.state == 0)


@dataclass(frozen=True, slots=True)
class GrowingCluster:
    """A head node of one CPU, to which nodes of the same size are added manually."""

    address: str
    _cluster: Any

    @property
    def section(self) -> str:
        """The sections of a pipeline that runs on them, as TOML."""
        return f'[ray]\naddress = "{self.address}"\n[spark]\nmaster = "local[1]"\n'

    @contextmanager
    def another(self) -> Iterator[None]:
        """Add a node while the block runs."""
        from raycdc.runtime.ray.ray_start import lean_nodes

        with lean_nodes():
            node = self._cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
        try:
            yield
        finally:
            self._cluster.remove_node(node)


@contextmanager
def growing_cluster(folder: Path) -> Iterator[GrowingCluster]:
    """Start the head, and end it with all nodes that joined it."""
    environment = {FOLDER_VARIABLE: str(folder / "other-spool")}
    with _environment(environment), _cluster(others=0, head_cpus=1) as (cluster, _):
        yield GrowingCluster(str(cluster.address), cluster)


#: Each node of a cluster that scales has an id that its autoscaler knows in advance; this is the head's.
HEAD_ID = "f" * 51 + "00000"


@contextmanager
def scaling_nodes(
    folder: Path, *, others: int, idle_s: float = 6.0, head_cpus: int = 1, version: Literal["v1", "v2"] = "v2"
) -> Iterator[ScalingNodes]:
    """Let up to `others` nodes come while actors wait for CPUs, and end nodes that were unused for `idle_s`.

    `version` is that of Ray's autoscaler.
    """
    spools, config = folder / "spools", folder / "scaler.json"
    logs = folder / "scaler"
    logs.mkdir(parents=True)
    environment = {
        FOLDER_VARIABLE: str(spools / "head"),
        "RAY_enable_autoscaler_v2": str(int(version == "v2")),
        "RAY_FAKE_CLUSTER": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "RAY_NODE_TYPE_NAME": "ray.head.default",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    with _environment(environment), _cluster(others=0, head_cpus=head_cpus) as (cluster, _):
        config.write_text(_scaler(str(cluster.address), others=others, idle_s=idle_s, cpus=head_cpus))
        command = [sys.executable, "-m", "tests.support.ray_scaler", version, cluster.address, config, logs, spools]
        with (logs / "out.txt").open("wb") as out:
            scaler = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out)
        try:
            yield ScalingNodes(str(cluster.address), logs / "out.txt")
        finally:
            scaler.terminate()
            scaler.wait(60)


def _scaler(address: str, *, others: int, idle_s: float, cpus: int) -> str:
    """Return the autoscaler's configuration, as JSON."""
    small = {"object_store_memory": OBJECT_STORE_BYTES}
    config = {
        "cluster_name": "raycdc",
        "max_workers": others,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 10.0,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
            "gcs_address": address,
            # For v1: the nodes of one machine have the same address, and there are no logins.
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "auth": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": cpus, **small}, "node_config": {}, "max_workers": 0},
            "reader": {
                "resources": {"CPU": 1, **small},
                "node_config": {},
                "min_workers": 0,
                "max_workers": others,
            },
        },
        **{name: {} for name in ("file_mounts", "head_node", "worker_nodes", "docker")},
        **{
            name: []
            for name in (
                "cluster_synced_files",
                "initialization_commands",
                "setup_commands",
                "head_setup_commands",
                "worker_setup_commands",
                "head_start_ray_commands",
                "worker_start_ray_commands",
                "rsync_exclude",
                "rsync_filter",
            )
        },
        "file_mounts_sync_continuously": False,
    }
    return json.dumps(config)


@contextmanager
def one_node() -> Iterator[str]:
    """Provide the address of a Ray that jobs join one after the other, so that none of them has to start its own."""
    with _cluster(others=0) as (cluster, _):
        yield str(cluster.address)


@contextmanager
def _cluster(*, others: int, head_cpus: int = 2, further: Further | None = None) -> Iterator[tuple[Any, list[Any]]]:
    """Start a head node and `others`, whose resources and labels are `further`."""
    prepare("auto")
    # Without tokens, because a process that imported Ray before would not know them.
    with _environment({"RAY_AUTH_MODE": "disabled"}):
        from ray.cluster_utils import Cluster

        from raycdc.runtime.ray.ray_start import lean_nodes

        options = {"num_cpus": head_cpus, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        with lean_nodes():
            cluster, nodes = _start(Cluster, options, [further or Further()] * others)
        try:
            yield cluster, nodes
        finally:
            cluster.shutdown()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(kind: Any, options: dict[str, Any], others: list[Further]) -> tuple[Any, list[Any]]:
    """Start a node, with retries, because a busy machine may exceed Ray's own time limit of a start."""
    for attempt in range(1, START_ATTEMPTS + 1):
        cluster = kind()
        try:
            cluster.add_node(**options)
            small = {"num_cpus": 2, "object_store_memory": OBJECT_STORE_BYTES}
            nodes = [cluster.add_node(**small, labels=node.labels, resources=node.resources) for node in others]
            cluster.wait_for_nodes()
        except Exception as cause:
            cluster.shutdown()
            if attempt == START_ATTEMPTS:
                raise ServerError(f"Ray's nodes did not start: {cause}") from cause
        else:
            return cluster, nodes
    raise AssertionError("the last attempt raised")
