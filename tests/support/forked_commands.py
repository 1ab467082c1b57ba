"""Runs commands in processes that are forked from one that has imported everything, which saves a second of imports.

Most tests of the command line start many short runs, and more than half of the CPU time of such a run are imports. The
`Nursery` is one process per test process: it imports what ``raycdc run --local`` needs, and forks a child for each
command. The child is a process of its own, in a session of its own, with the arguments, environment, folder and streams
that it is given. It calls the same `main` as ``python -m raycdc.cli``, and may be killed like any other process.

The nursery never has Ray, Spark, or a connection to a server, and has a single Python thread.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

#: The maximum length of a request: the arguments and the environment of one command.
_REQUEST_BYTES = 1 << 20
#: The modules that the commands have imported when they are forked.
_IMPORTS = (
    "raycdc.cli.app",
    "raycdc.cli.planning.check",
    "raycdc.cli.run",
    "raycdc.cli.tables",
    "raycdc.cli.run",
    "raycdc.pipeline",
    "raycdc.server.api",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
    "raycdc.connectors.kafka.source",
    "raycdc.connectors.mongodb.source",
    "raycdc.connectors.mysql.source",
    "raycdc.sinks.delta.sink",
    "raycdc.sinks.files.sink",
    "raycdc.sinks.iceberg.sink",
    "raycdc.sinks.jdbc.sink",
    "raycdc.sinks.jdbc.postgres",
    "raycdc.sinks.kafka.sink",
    "raycdc.sinks.mongodb.sink",
    # These modules load compiled loops.
    "llvmlite.binding",
)


class ForkedCommand:
    """A command that the nursery forked, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, stdout: IO[bytes], status: int) -> None:
        """Create the object; `status` is the pipe with the end of the command."""
        self.pid = pid
        self.stdout: IO[bytes] = stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the command runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises `subprocess.TimeoutExpired` as `subprocess.Popen.wait` does."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("raycdc", timeout or 0.0)
            told = os.read(self._status, 8)
            os.close(self._status)
            # A nursery that has ended reports nothing; its children are killed with it.
            self.returncode = int(told) if told else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the command has ended."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The test process's side of the nursery: starts its process, and requests commands."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            # Threads of a numeric library would not exist in a child.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "RAYCDC_FAILPOINTS": ""}
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.support.forked_commands", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        # The nursery starts before checks for leftover processes look for the command's process.
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, stderr: IO[bytes]
    ) -> ForkedCommand:
        """Start ``raycdc ARGUMENTS`` in `folder`; its standard output is read from the command's `stdout`."""
        asked = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
        out, out_of_it = os.pipe()
        status, its_status = os.pipe()
        files = array.array("i", [out_of_it, stderr.fileno(), its_status])
        try:
            with self._lock:
                self._socket.sendmsg(
                    [json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files.tobytes())]
                )
                pid = int(self._socket.recv(64) or b"0")
        finally:
            os.close(out_of_it)
            os.close(its_status)
        if not pid:
            raise AssertionError("the process that commands are forked from has ended")
        return ForkedCommand(pid, os.fdopen(out, "rb"), status)

    def close(self) -> None:
        """End the nursery's process."""
        self._socket.close()
        self._process.wait()


_nurseries: dict[int, Nursery] = {}


def nursery() -> Nursery:
    """Return the nursery of the calling process, which is started at the first call."""
    mine = _nurseries.get(os.getpid())
    if mine is None or not mine.alive:
        mine = _nurseries[os.getpid()] = Nursery()
    return mine


def completed(
    arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, timeout_s: float = 900.0
) -> subprocess.CompletedProcess[str]:
    """Run ``raycdc ARGUMENTS`` to its end, as `subprocess.run` does with its output captured."""
    with tempfile.TemporaryFile() as errors:
        command = nursery().start(arguments, environment=environment, folder=folder, stderr=errors)
        code, said, complaints = ended(command, errors, timeout_s=timeout_s, kill=command.kill)
        return subprocess.CompletedProcess(["raycdc", *arguments], code, said, complaints)


def ended(
    command: ForkedCommand | subprocess.Popen[bytes],
    errors: IO[bytes],
    *,
    timeout_s: float,
    kill: Callable[[], object],
) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command at its end; `kill` is called if it takes too long."""
    timer = threading.Timer(timeout_s, kill)
    timer.start()
    try:
        assert command.stdout is not None
        with command.stdout as out:
            said = out.read()
        code = command.wait()
    finally:
        timer.cancel()
    errors.seek(0)
    return code, said.decode(errors="replace"), errors.read().decode(errors="replace")


def _serve(asking: socket.socket) -> int:
    """Fork a child for each request, until the test process closes the pipe."""
    import importlib

    for name in _IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    woken, wake = socket.socketpair()
    woken.settimeout(0)
    wake.settimeout(0)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    children: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(asking, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
        # A child may have ended before its signal was handled.
        _tell_ends(children)
        if asking not in ready:
            continue
        request, rights, _, _ = asking.recvmsg(_REQUEST_BYTES, socket.CMSG_SPACE(3 * 4))
        if not request:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            return 0
        files = array.array("i")
        files.frombytes(rights[0][2])
        out, err, status = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            selector.close()
            for unused in (asking, woken, wake):
                unused.close()
            for descriptor in (status, *children.values()):
                os.close(descriptor)
            _command(json.loads(request), out, err)
        asking.send(str(pid).encode())
        os.close(out)
        os.close(err)
        children[pid] = status


def _tell_ends(children: dict[int, int]) -> None:
    """Report the exit status of each child that has ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            told = children.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(told)


def _command(asked: dict[str, Any], out: int, err: int) -> NoReturn:
    """Run the command in the child, to its end."""
    os.setsid()
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["raycdc", *asked["arguments"]]
    # Like the interpreter; existing entries stay first.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[1:1] = paths
    gc.unfreeze()

    from raycdc.cli.entry import main
    from raycdc.core import failpoints

    failpoints.plan_again()
    _leave(main())


def _leave(code: int) -> NoReturn:
    """End like the interpreter, including threads and exit functions, but without freeing objects.

    All that was imported is shared with the nursery, and a page of it is copied when its first object is forgotten:
    that took more than twice the CPU time of a short run. Commands that are not forked test the complete end.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # Waits for threads, and for pools of them.
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = 120  # The text is that of the interpreter.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_end:
        code = _serve(its_end)
    sys.exit(code)
