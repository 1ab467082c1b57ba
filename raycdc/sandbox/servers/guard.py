"""A process that owns one server and ends it when its own parent has ended in any way.

Started as ``python -I -S guard.py FOLDER COMMAND…`` by `process.GuardedProcess` with a pipe as standard input that only
the parent holds open. *Theory*: the pipe ends when the parent ends, even by ``kill -9``. Unlike PR_SET_PDEATHSIG, this
does not depend on the parent's thread that started the process. If the guard itself is killed, the kernel sends SIGKILL
to the server.

Imports only the standard library, to start in 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run the command; print its pid; return its exit status.

    FOLDER is removed if the parent died ("-": no folder).
    """
    folder, *command = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # preexec_fn is safe here: this process has one thread.
    with subprocess.Popen(command, preexec_fn=_die_with_parent, stdin=subprocess.DEVNULL) as server:  # noqa: PLW1509
        print(server.pid, flush=True)
        ended = os.pidfd_open(server.pid)
        readable, _, _ = select.select([sys.stdin, ended], [], [])
        orphaned = ended not in readable
        if orphaned:
            server.kill()
        status = server.wait()
    if orphaned and folder != "-":
        shutil.rmtree(folder, ignore_errors=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
