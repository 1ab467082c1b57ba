"""A YARN cluster of one node: Hadoop's own ResourceManager and NodeManager, from the jars of its project's own tests.

Containers are processes of this machine, which YARN starts in folders of their own, with what was sent to them and what
they were told of the environment. Nothing separates them from this machine, so a test with it shows that settings and
archives arrive and that executors run, and nothing of networks. The file system of the cluster is this machine's.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from xml.sax.saxutils import escape

from raycdc.sandbox.cache import build_once, fetch_exactly
from raycdc.sandbox.servers.private import GuardedProcess, free_port, log_tail, wait_until
from raycdc.spark.artifacts import java_command

#: The version of Hadoop whose client Spark's package contains.
VERSION = "3.4.2"
COORDINATES = (
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}",
    # Dependencies that the jars name but do not contain.
    *(f"org.bouncycastle:{name}-jdk18on:1.78.1" for name in ("bcprov", "bcpkix", "bcutil")),
    "javax.xml.bind:jaxb-api:2.3.1",
)
_START_TIMEOUT_S = 300.0
_SERVER = "org.apache.hadoop.yarn.server"
_MEMORY = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class YarnCluster:
    """`configuration` is what a driver's ``HADOOP_CONF_DIR`` names; containers and their logs are in `folder`."""

    configuration: Path
    folder: Path

    def said(self) -> str:
        """Return the ends of the logs of servers and containers."""
        logs = [*self.folder.glob("*.log"), *self.folder.rglob("stderr")]
        return "\n".join(f"{path.name}: {log_tail(path)}" for path in logs)


@contextmanager
def yarn() -> Iterator[YarnCluster]:
    """Run the cluster while the block runs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raycdc-yarn-")))
        configuration = folder / "conf"
        configuration.mkdir()
        ports = [free_port() for _ in range(5)]
        _write(configuration / "yarn-site.xml", _settings(folder, ports))
        # There is no other file system; what is sent lies in a folder of its own.
        _write(configuration / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
        managers = [
            _started(stack, configuration, folder / f"{name.rpartition('.')[2]}.log", name)
            for name in ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
        ]

        def ready() -> bool:
            return not all(manager.running for manager in managers) or _nodes(ports[-1]) == 1

        cluster = YarnCluster(configuration, folder)
        wait_until(ready, timeout_s=_START_TIMEOUT_S, what="YARN has a node")
        assert all(manager.running for manager in managers), cluster.said()
        yield cluster


def _settings(folder: Path, ports: list[int]) -> Mapping[str, str]:
    manager = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    node = ("address", "localizer.address", "webapp.address")
    return {
        **{f"yarn.resourcemanager.{name}": f"{_HOST}:{port}" for name, port in zip(manager, ports, strict=True)},
        **{f"yarn.nodemanager.{name}": f"{_HOST}:0" for name in node},
        "yarn.nodemanager.hostname": _HOST,
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        # As said, not as there is: nothing else runs there.
        "yarn.nodemanager.resource.memory-mb": "4096",
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.scheduler.minimum-allocation-mb": "256",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        # A disk that is rather full is no reason to refuse containers here.
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
    }


def _write(path: Path, settings: Mapping[str, str]) -> None:
    properties = [f"<property><name>{n}</name><value>{escape(v)}</value></property>" for n, v in settings.items()]
    path.write_text("\n".join(["<configuration>", *properties, "</configuration>"]))


def _started(stack: ExitStack, configuration: Path, log: Path, name: str) -> GuardedProcess:
    import pyspark

    jars = Path(pyspark.__file__).with_name("jars")
    command = [java_command(), *_MEMORY, "-cp", f"{configuration}:{_home()}/*:{jars}/*", f"{_SERVER}.{name}"]
    # Containers get a part of its environment.
    process = GuardedProcess(command, log=log, folder=None, environment={"PYTHONPATH": ""})
    stack.callback(process.end, Signals.SIGTERM)
    return process


def _nodes(port: int) -> int:
    """Return the number of nodes of the ResourceManager; -1 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{_HOST}:{port}/ws/v1/cluster/metrics", timeout=10) as answer:
            # Hadoop's own distribution, which has more parts, puts it into one of this name.
            told = json.load(answer)
            return int(told.get("clusterMetrics", told)["activeNodes"])
    except OSError:
        return -1


def _home() -> Path:
    def fetch(folder: Path) -> None:
        fetch_exactly(folder, COORDINATES)

    return build_once(f"yarn-{VERSION}-1", fetch)
