"""A standalone Spark: a master and workers as processes of their own, for tests of executors that are elsewhere.

Where this user is root, workers may be *apart*: each in a network namespace with an address of its own, and with
folders of this machine hidden, so that nothing reaches them but the network.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from raycdc.spark.artifacts import java_command
from raycdc.testing.servers.process import GuardedProcess, free_port, wait_until

_START_TIMEOUT_S = 300.0
_MEMORY = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Of the network between this machine and workers that are apart; the first address is this machine's.
_NETWORK = "10.213.77"


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """`master` is its URL, `address` that of this machine, by which workers reach it; their logs are in `folder`."""

    master: str
    address: str
    folder: Path

    def executors_said(self) -> str:
        """What executors wrote to their logs."""
        return "\n".join(path.read_text(errors="replace") for path in self.folder.rglob("stderr"))


@contextmanager
def standalone(*, workers: int = 1, hidden: Sequence[Path] | None = None) -> Iterator[SparkCluster]:
    """The cluster while the block runs. With `hidden` workers are apart, and see these folders empty: needs root."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raycdc-spark-")))
        places = [stack.enter_context(_apart(number)) for number in range(workers)] if hidden is not None else []
        address = f"{_NETWORK}.1" if places else "127.0.0.1"
        port = free_port()
        master = f"spark://{address}:{port}"
        settings = ["--host", address, "--port", str(port), "--webui-port", "0"]
        _started(stack, folder / "master.log", _java("org.apache.spark.deploy.master.Master", *settings), "started")
        for number in range(workers):
            own = f"{_NETWORK}.{number + 2}" if places else "127.0.0.1"
            work = folder / f"worker-{number}"
            work.mkdir()
            command = _java(
                "org.apache.spark.deploy.worker.Worker",
                *("--host", own, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(work), master),
            )
            if places:
                covers = "; ".join(f"mount -t tmpfs none {shlex.quote(str(path))}" for path in hidden or ())
                inside = f"{covers}; exec {shlex.join(command)}" if covers else f"exec {shlex.join(command)}"
                command = ["ip", "netns", "exec", places[number], "unshare", "-m", "sh", "-c", inside]
            _started(stack, folder / f"worker-{number}.log", command, "Successfully registered")
        yield SparkCluster(master, address, folder)


def _started(stack: ExitStack, log: Path, command: list[str], sign: str) -> None:
    import pyspark

    # Workers hand their environment to executors: these must find raycdc by themselves.
    environment = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        # A distribution has a file that says so.
        "SPARK_SCALA_VERSION": "2.13",
        "PYTHONPATH": "",
        "PATH": os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]]),
    }
    process = GuardedProcess(command, log=log, folder=None, environment=environment)
    stack.callback(process.end, Signals.SIGTERM)

    def ready() -> bool:
        return not process.running or (log.exists() and sign in log.read_text(errors="replace"))

    wait_until(ready, timeout_s=_START_TIMEOUT_S, what=f"{log.name}: {sign}")
    assert process.running, log.read_text(errors="replace")


def _java(main: str, *arguments: str) -> list[str]:
    import pyspark

    jars = Path(pyspark.__file__).with_name("jars")
    return [java_command(), *_MEMORY, "-cp", f"{jars}/*", main, *arguments]


@contextmanager
def _apart(number: int) -> Iterator[str]:
    """A network namespace on a bridge with this machine, which has the first address."""
    name, bridge = f"raycdc{number}", "raycdcbr"
    outer, inner = f"raycdcv{number}", "eth0"
    try:
        if number == 0:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{_NETWORK}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
        _ip("netns", "add", name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        _ip("link", "set", outer, "master", bridge, "up")
        _ip("-n", name, "addr", "add", f"{_NETWORK}.{number + 2}/24", "dev", inner)
        _ip("-n", name, "link", "set", inner, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", f"{_NETWORK}.1")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        if number == 0:
            subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
