"""Machines on one: network, processes, ``/tmp/ray``, ``/var/tmp`` and ``/dev/shm`` of their own. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from raycdc.sandbox.servers.private import wait_until

_START_S = 120.0
#: Folders that no two machines share. The first one is made where it is missing.
_OWN = ("/tmp/ray", "/var/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True)
class Machine:
    """`init` is the process whose namespaces it is made of; its end is that of all others in it."""

    address: str
    init: int

    def start(self, script: str, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Begin a script of bash there, which writes into `log`."""
        words = ["nsenter", f"--target={self.init}", "--net", "--mount", "--pid", "bash", "-euc", script]
        with log.open("wb") as file:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=dict(environment)
            )

    def run(self, script: str, log: Path, environment: Mapping[str, str], *, timeout_s: float) -> str:
        """Run one to its end and return what it wrote. `AssertionError` where it fails."""
        code = self.start(script, log, environment).wait(timeout_s)
        assert code == 0, f"{script}: {code}\n{log.read_text()}"
        return log.read_text()


@contextmanager
def machines(network: str, count: int = 2) -> Iterator[list[Machine]]:
    """`count` of them on one wire, with the addresses ``NETWORK.1`` and so on, while the block runs.

    The wire is in a namespace of its own, so that nothing of this machine's network changes, and several may be there.
    """
    with ExitStack() as stack:
        wire = _begun(stack)
        _in(wire, "ip link add wire type bridge && ip link set wire up")
        found = [Machine(f"{network}.{number}", _begun(stack)) for number in range(1, count + 1)]
        for number, machine in enumerate(found):
            _in(wire, f"ip link add m{number} type veth peer name eth0 netns {machine.init}")
            _in(wire, f"ip link set m{number} master wire up")
            _in(machine.init, f"ip addr add {machine.address}/24 dev eth0 && ip link set eth0 up && ip link set lo up")
        yield found


def _begun(stack: ExitStack) -> int:
    """A process that waits in namespaces of its own, and is the first one there."""
    Path(_OWN[0]).mkdir(exist_ok=True, mode=0o1777)
    covers = " && ".join(f"mount -t tmpfs -o mode=1777 none {folder}" for folder in _OWN)
    script = f"{covers} && exec sleep infinity"
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
    outer = stack.enter_context(subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True))
    stack.callback(_end, outer.pid)
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")

    def ready() -> bool:
        assert outer.poll() is None, "unshare has failed; it needs root"
        pids = children.read_text().split()
        return bool(pids) and _says(int(pids[0])) == "sleep"

    wait_until(ready, timeout_s=_START_S, what="a machine is there")
    return int(children.read_text().split()[0])


def _says(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _end(outer: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(outer, signal.SIGKILL)


def _in(pid: int, script: str) -> None:
    words = ["nsenter", f"--target={pid}", "--net", "sh", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}: {done.stderr}"
