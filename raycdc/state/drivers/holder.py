"""A driver's description of itself in the state, as a value and as JSON.

It includes the address of the run's control API and the file with its token. The description never has the token
itself, because users who may read a state may have no right to command the run. It names a file in the run's private
folder on the driver's machine.

A run reports how it ended with its last heartbeat.

A run reports nothing if it was killed, lost its machine, or ended before it had the state.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from raycdc.core.typed_codec import LEFT_OUT, JsonObject, stored
from raycdc.errors import StateError
from raycdc.state.files.folder import is_free

#: The version of the control API.
VERSION = 1
_FILE = re.compile(r"private-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ControlEndpoint(JsonObject):
    """The address of a run's control API.

    `token` is the name of the private file with the token; empty if the configuration has the token. `problem` is the
    reason why the run serves no control API; empty if it does.
    """

    url: str = ""
    token: str = ""
    version: int = VERSION
    problem: str = ""

    def token_path(self, private: Path) -> Path:
        """Return the file of the token in the folder of private files.

        Raises `StateError` if the record names no such file.
        """
        if not self.token:
            raise StateError(f"The run at {self.url} has its token from its configuration: set the same control.token.")
        if not _FILE.fullmatch(self.token):
            raise StateError(
                f"The state names {self.token!r} as the file of its run's token, but no run names a file so."
            )
        return private / self.token


#: The maximum length of an error's text, of which only the first line is kept.
_TEXT_MAX = 500


@dataclass(frozen=True, slots=True)
class RunEnd(JsonObject):
    """The end of a run. `exit_code` is that of the process; `error` and `text` are empty if it was 0."""

    at_ms: int
    exit_code: int
    error: str = ""
    text: str = ""

    @classmethod
    def now(cls, exit_code: int, error: str = "", text: str = "") -> RunEnd:
        """Return the end of a run that ends now. `text` may have any number of lines."""
        line = text.strip().partition("\n")[0]
        return cls(time.time_ns() // 1_000_000, exit_code, error, line[:_TEXT_MAX])


@dataclass(frozen=True, slots=True)
class Holder(JsonObject):
    """A driver's report: its machine, number of heartbeats, lock, and end.

    `end` is the end of its run; None for an older raycdc. `machine` is the same for all processes of one kernel since
    its boot. `lock` identifies the locked file if it is not in the state's own folder, and `lock_file` is its path.
    """

    host: str
    machine: str
    pid: int
    beat: int = 0
    locked: bool = False
    ended: bool = False
    lock: str = field(default="", metadata=LEFT_OUT)
    endpoint: ControlEndpoint | None = field(default=None, metadata=stored("door", left_out=True))
    lock_file: str = field(default="", metadata=stored(left_out=True, before="endpoint"))
    end: RunEnd | None = field(default=None, metadata=LEFT_OUT)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def meets_lock(self, lock: str) -> bool:
        """Return True if the driver and this process would lock the same file (`lock`, as `Holder.lock`)."""
        if self.lock or lock:
            return self.lock == lock
        return self.host == socket.gethostname() or bool(self.machine and self.machine == machine_identity())

    def has_let_go(self) -> bool:
        """Return True if the driver's lock, which is not ours, is on this machine at its path and is free.

        In another container the path may name a different file; the identity `lock` shows that.
        """
        path = Path(self.lock_file)
        return bool(self.lock and self.lock_file) and lock_of(path) == self.lock and is_free(path)

    @property
    def is_here(self) -> bool:
        """Return True if the driver runs, or ran, on this machine and in this container."""
        return self.host == socket.gethostname() and self.machine in ("", machine_identity())

    @classmethod
    def myself(cls) -> Holder:
        """Return a description of this process."""
        return cls(socket.gethostname(), machine_identity(), os.getpid())


@dataclass(frozen=True, slots=True)
class LockFile:
    """A locked file, with its unique identity (`lock_of`) and its path on this machine."""

    identity: str
    path: str


def lock_of(file: Path) -> str:
    """Return an identity of the file that is unique among all machines and boots; empty if it does not exist."""
    with suppress(OSError):
        found = file.stat()
        return f"{machine_identity()} {found.st_dev}:{found.st_ino}"
    return ""


@cache
def machine_identity() -> str:
    """Return an identity of the running kernel, the same for all processes since its start; empty if there is none."""
    with suppress(OSError):
        if sys.platform == "darwin":
            asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
