"""The spool of a node of a job: its folder, its name, and its Flight server.

The spool of the state is called `STATE_NODE`, wherever the state is. Any other spool has a name of its own, which is
stored in the folder with the segments. The name therefore survives changes of the server, the Ray node and the host
name. Two Ray nodes on one machine have two names if each has its own folder. Runs without Ray;
`raycdc.runtime.ray.ray_spools` starts one per Ray node.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection
from pathlib import Path

from raycdc.errors import StateError
from raycdc.segments.access import SpoolAddress
from raycdc.segments.certificates import ServerIdentity
from raycdc.segments.flight import FlightServer
from raycdc.state.files.folder import LocalFolder
from raycdc.state.store import sweep

#: Folders next to the state's spool with segments that the driver writes (`raycdc.delivery.rows.segment_making`).
MADE = ("derived", "exact", "looked_up")
#: The file with the spool's name, which no sweep deletes.
NAME_FILE = "node"
#: The environment variable that overrides the folder of spools for the Ray node that was started with it.
FOLDER_VARIABLE = "RAYCDC_SPOOL"


def spool_folder(configured: str, checkpoint: str) -> Path:
    """Return the folder in which this node keeps segments of the state `checkpoint`. Two pipelines never share it."""
    base = os.environ.get(FOLDER_VARIABLE) or configured
    return Path(base or _default_base()) / checkpoint


def _default_base() -> Path:
    """Return a folder that only this user can enter, on a disk: the folder for temporary files may be in memory."""
    base = Path("/var/tmp", f"raycdc-{os.getuid()}")  # noqa: S108 - its owner is checked
    LocalFolder(base).create()
    if base.stat().st_uid != os.getuid():
        raise StateError(f"{base} belongs to another user. Name a folder for segments in ray.spool.")
    return base


def spool_name(folder: Path) -> str:
    """Return the name of the spool in `folder`. It is chosen at the first call, and never changes."""
    files = LocalFolder(folder)
    files.create()
    files.create_once(NAME_FILE, f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}\n".encode())
    name = files.read(NAME_FILE)
    assert name is not None
    return name.decode().strip()


class SpoolServer:
    """One node's spool with a Flight server. The readers of the node write to `address`."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str | None,
        token: str,
        host: str,
        port: int = 0,
        identity: ServerIdentity | None = None,
    ) -> None:
        """Start the server.

        `name` is given only for the state's spool; the server then also serves the driver's own segments. A `port` that
        is not 0 is that of an ended server, which this one replaces.
        """
        self.address = SpoolAddress(folder, name or spool_name(folder))
        more_folders = [] if name is None else [folder.parent / made for made in MADE]
        self._server = FlightServer(
            folder, token=token, host=host, port=port, more_folders=more_folders, identity=identity
        )
        self.address = SpoolAddress(folder, self.address.node, self._server.endpoint)

    def __repr__(self) -> str:
        return f"SpoolServer({self.address})"

    @property
    def port(self) -> int:
        return int(self._server.port)

    def sweep(self, needed: Collection[str]) -> int:
        """Delete segments that no epoch refers to. Called before any reader of the job starts."""
        return sweep(self.address.folder, {*needed, NAME_FILE})

    def close(self) -> None:
        self._server.shutdown()
