"""Isolates a private Ray: it listens on the loopback interface, requires a token, and has private files.

By default, Ray listens on every interface of the machine, keeps its token in a file that all users of the machine can
read, and its sockets and logs in a folder that all of them can write to. A user who can access the ports and read the
token can run code as the user of this process.

The module has settings that Ray reads from the environment when it is imported. Call `prepare` before anything imports
Ray.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: The token, in the environment of this process and of its children, which other users cannot read.
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - its name
#: The other place where Ray looks for one.
_TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - its name
#: The longest folder that leaves room for the names of Ray's sockets, whose whole path may have 107 bytes.
_FOLDER_BYTES_MAX = 42

#: The name of a session's folder. Ray makes it of the start time, and of the number of the process that began the
#: session.
_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_(\d+)")

_made: list[str] = []


def set_token() -> None:
    """Make a token for the private Rays of this process, unless the user has chosen one."""
    if TOKEN not in os.environ and _TOKEN_FILE not in os.environ:
        os.environ[TOKEN] = secrets.token_hex(32)
        _made.append(os.environ[TOKEN])


def forget_token() -> None:
    """Forget our own token, because a joined cluster has a token of its own."""
    if os.environ.get(TOKEN) in _made:
        del os.environ[TOKEN]


def folder() -> Path:
    """Return the folder for Ray's sockets and logs, inside one that only this user can enter.

    The outer folder is needed because Ray gives all users all rights to its own folder.
    """
    base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    name = f"raycdc-{os.geteuid()}"
    if len(os.fsencode(f"{base}/{name}/ray")) > _FOLDER_BYTES_MAX:
        base = "/tmp"  # noqa: S108 - the folder in it is looked at
    parent = Path(base, name)
    with suppress(FileExistsError):  # The file of that name may belong to another user, as below.
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        parent.chmod(0o700)
        return parent / "ray"
    # Another user owns that name.
    return Path(tempfile.mkdtemp(prefix="raycdc-", dir=base)) / "ray"


def sweep(sessions: Path) -> None:
    """Remove leftovers of this user's ended private Rays in `sessions`, except the newest, whose logs may be needed.

    A session has ended when its first process is gone (its name ends in the process's number) and no process listens at
    its raylet's socket. In case of doubt, a session is kept.
    """
    ended = [path for path in sessions.glob("session_*") if _is_ours(path) and _has_ended(path)]
    for path in sorted(ended, key=lambda one: one.name)[:-1]:
        shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    with suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _has_ended(path: Path) -> bool:
    name = _SESSION.fullmatch(path.name)
    if name is None or _runs(int(name[1])):
        return False
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(1)
        try:
            asked.connect(str(path / "sockets" / "raylet"))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False


def _runs(process: int) -> bool:
    """Return True if a process has this number, even another user's."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make a Ray that is started inside the block listen on the loopback interface only.

    Ray does so by itself on systems without cluster support. An address in ``ray.init`` is not enough: Ray replaces a
    loopback address by an address that other machines can reach.
    """
    from ray._private import ray_constants

    constants: Any = ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def machine_address() -> str:
    """Return the address by which other machines reach this one, as Ray finds it for its nodes."""
    from ray._private import services

    return str(vars(services)["node_ip_address_from_perspective"](None))


_SETTINGS = {
    # Workers run at niceness 15 by default; with Spark at 0, readers and their heartbeats would starve.
    "RAY_worker_niceness": "0",
    # The supervisor handles killed actors; Ray would also print their tracebacks.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # The command handles SIGTERM; otherwise Ray's C++ code would treat it as its own crash.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    # On a busy machine a worker may need longer than Ray's 60 s to begin. Ray would then end it, and a call that waits
    # for the worker would never return.
    "RAY_worker_register_timeout_seconds": "1800",
    # Otherwise the start of Ray would wait for its first workers while it holds Python's GIL, and a run in this process
    # would stall for seconds.
    "RAY_prestart_worker_first_driver": "0",
    # Seconds after which Ray's C++ code ends this process when the head is lost. `ray_head` detects and reports the
    # loss earlier.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "180",
}


def prepare(address: str) -> None:
    """Set Ray's environment variables, except those that the user has set. `address` is that of ``[ray]``."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address == "local":
        # Ray does this for a private cluster anyway, but warns at each start if it is not set explicitly.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        set_token()
        # Actors here are children of this process with its interpreter, so they need no runtime environment.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    else:
        forget_token()
