"""A standalone Spark: a master and workers as processes of their own, for tests of executors that are elsewhere.

Where this user is root, workers may be *apart*: each in a network namespace with an address of its own, and with
folders of this machine hidden, so that nothing reaches them but the network.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from raycdc.sandbox.servers.private import GuardedProcess, free_port, wait_until
from raycdc.spark.artifacts import java_command

_START_TIMEOUT_S = 300.0
_MEMORY = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Of the network between this machine and workers that are apart; the first address is this machine's.
_NETWORK = "10.213.77"
_BRIDGE = "raycdcbr"
_NAMESPACE = "raycdc"


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """`master` is its URL, `address` that of this machine, by which workers reach it; their logs are in `folder`."""

    master: str
    address: str
    folder: Path

    def executors_said(self) -> str:
        """Return the logs of the executors."""
        return "\n".join(path.read_text(errors="replace") for path in self.folder.rglob("stderr"))


@contextmanager
def standalone(*, workers: int = 1, hidden: Sequence[Path] | None = None) -> Iterator[SparkCluster]:
    """The cluster while the block runs. With `hidden` workers are apart, and see these folders empty: needs root."""
    with ExitStack() as stack:
        if hidden is not None:
            stack.enter_context(_network())
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
        # A distribution of Spark has a file that says so.
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
def _network() -> Iterator[None]:
    """A bridge with this machine, which has the first address. One cluster at a time has it, on the whole machine.

    The lock is gone with whoever held it, so whatever is there is what one that was killed has left: it is taken away.
    """
    with open(Path(tempfile.gettempdir()) / f"{_BRIDGE}.lock", "w") as lock:  # noqa: PTH123 - flock takes a file
        fcntl.flock(lock, fcntl.LOCK_EX)
        _take_away()
        try:
            _ip("link", "add", _BRIDGE, "type", "bridge")
            _ip("addr", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
            _ip("link", "set", _BRIDGE, "up")
            yield
        finally:
            _take_away()


def _take_away() -> None:
    """Remove the bridge and all namespaces on it, with the processes in them."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    names = [line.split()[0] for line in listed.splitlines() if re.match(rf"{_NAMESPACE}\d+( |$)", line)]
    for name in names:
        inside = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True).stdout
        for pid in inside.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), Signals.SIGKILL)
        _end(name)
    subprocess.run(["ip", "link", "del", _BRIDGE], check=False, capture_output=True)


def _outer(namespace: str) -> str:
    """Return the end of a namespace's wire that is on the bridge."""
    return namespace.replace(_NAMESPACE, f"{_NAMESPACE}v")


def _end(namespace: str) -> None:
    # The kernel takes the wire away some time after the namespace, and its name would be in the way meanwhile.
    subprocess.run(["ip", "link", "del", _outer(namespace)], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


@contextmanager
def _apart(number: int) -> Iterator[str]:
    """Create a network namespace on the bridge."""
    name, inner = f"{_NAMESPACE}{number}", "eth0"
    outer = _outer(name)
    try:
        _ip("netns", "add", name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        _ip("link", "set", outer, "master", _BRIDGE, "up")
        _ip("-n", name, "addr", "add", f"{_NETWORK}.{number + 2}/24", "dev", inner)
        _ip("-n", name, "link", "set", inner, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", f"{_NETWORK}.1")
        yield name
    finally:
        _end(name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
