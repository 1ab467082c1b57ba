"""A private Ray is nobody else's: it listens on the loopback interface, asks for a token, and keeps its files apart.

Left alone, Ray listens on every interface of the machine, keeps its token in a file that all users of the machine can
read, and its sockets and logs in a folder that all of them can write to. Whoever reaches its ports and has the token
runs code as this user.

Settings that Ray reads from the environment when it is imported. Call `prepare` before anything imports Ray.
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

#: The token, in the environment of this process and of those that it starts: other users cannot read that.
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - its name
#: The other place where Ray looks for one.
_TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - its name
#: The longest folder that leaves room for the names of Ray's sockets, whose whole path may have 107 bytes.
_FOLDER_BYTES_MAX = 42

#: A session's folder, by Ray: the time of its start and the number of the process that began it.
_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_(\d+)")

_made: list[str] = []


def set_token() -> None:
    """Make a token for the private Rays of this process, unless the user has chosen one."""
    if TOKEN not in os.environ and _TOKEN_FILE not in os.environ:
        os.environ[TOKEN] = secrets.token_hex(32)
        _made.append(os.environ[TOKEN])


def forget_token() -> None:
    """Forget a token of ours: a cluster that is joined has its own."""
    if os.environ.get(TOKEN) in _made:
        del os.environ[TOKEN]


def folder() -> Path:
    """The folder for Ray's sockets and logs, below one that only this user can enter.

    Ray gives every user all rights to its own; that is why there are two.
    """
    base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    name = f"raycdc-{os.geteuid()}"
    if len(os.fsencode(f"{base}/{name}/ray")) > _FOLDER_BYTES_MAX:
        base = "/tmp"  # noqa: S108 - the folder in it is looked at
    parent = Path(base, name)
    with suppress(FileExistsError):  # a file of that name: somebody else's, as below
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        parent.chmod(0o700)
        return parent / "ray"
    # Somebody else has that name.
    return Path(tempfile.mkdtemp(prefix="raycdc-", dir=base)) / "ray"


def sweep(sessions: Path) -> None:
    """Remove what ended private Rays of this user left in `sessions`, but for the newest, whose logs may be wanted.

    A session has ended when the process that began it is gone (its name ends in that one's number) and nobody listens
    at its raylet's socket. Whatever is not known for one is left alone.
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
    """Whether a process has this number, be it another's."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started inside the block takes the loopback interface for its node's, and listens there alone.

    Ray does so on systems where its clusters are not supported. An address given to ``ray.init`` would not do: one of
    the loopback interface is replaced by another that other machines could reach.
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
    """The address by which other machines reach this one, as Ray finds it for its nodes."""
    from ray._private import services

    return str(vars(services)["node_ip_address_from_perspective"](None))


_SETTINGS = {
    # Workers run at niceness 15 by default; beside Spark at 0 the readers, and with them the heartbeats, would starve.
    "RAY_worker_niceness": "0",
    # An actor that was killed is our supervisor's business; Ray would print its traceback as well.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # SIGTERM is ours: Ray's C++ would take it for a crash of its own, from its start on.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    # On a busy machine a worker takes longer than Ray's 60 s to begin, and is then ended; whoever waits for it would do
    # so for ever.
    "RAY_worker_register_timeout_seconds": "1800",
    # Whoever starts Ray would wait for its first workers, also with Python's lock held: a run that has begun in process
    # would stand still for seconds.
    "RAY_prestart_worker_first_driver": "0",
    # Seconds after which Ray's C++ ends this process when the head is gone; `ray_head` sees it earlier, and says so.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "180",
}


def prepare(address: str) -> None:
    """Set what the user has not set. `address` is that of ``[ray]``."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address == "local":
        # Ray does this for a private cluster anyway; with the explicit setting it does not warn about it at each start.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        set_token()
        # Actors here are children of this process and have its interpreter: there is no environment to make for them.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    else:
        forget_token()
