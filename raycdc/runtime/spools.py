"""Spools of the nodes of a job: folder, name and Flight server of one of them.

The spool of the state is called `STATE_NODE`, wherever the state is. Any other has a name of its own, stored in the
folder with the segments, so the name survives changes of the server, the Ray node and the machine's host name, and two
Ray nodes on one machine with a folder each have two. Runs without Ray; `raycdc.runtime.ray.ray_spools` starts one per
Ray node.
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

#: Folders next to the state's spool with segments made by the driver (`raycdc.delivery.rows.segment_making`).
MADE = ("derived", "exact", "looked_up")
#: Holds the spool's name; a file that no sweep takes.
NAME_FILE = "node"
#: Overrides the folder of spools for the Ray node that was started with it.
FOLDER_VARIABLE = "RAYCDC_SPOOL"


def spool_folder(configured: str, checkpoint: str) -> Path:
    """Return where this node keeps the segments of the state `checkpoint`: never shared by two pipelines."""
    base = os.environ.get(FOLDER_VARIABLE) or configured
    return Path(base or _default_base()) / checkpoint


def _default_base() -> Path:
    """A folder of this user's alone, on a disk: the one for temporary files may be memory."""
    base = Path("/var/tmp", f"raycdc-{os.getuid()}")  # noqa: S108 - its owner is checked
    LocalFolder(base).create()
    if base.stat().st_uid != os.getuid():
        raise StateError(f"{base} belongs to somebody else. Name a folder for segments in ray.spool.")
    return base


def spool_name(folder: Path) -> str:
    """The name of the spool in `folder`, given at the first look and never changed."""
    files = LocalFolder(folder)
    files.create()
    files.create_once(NAME_FILE, f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}\n".encode())
    name = files.read(NAME_FILE)
    assert name is not None
    return name.decode().strip()


class SpoolServer:
    """One node's spool with a Flight server. `address` is what the readers of the node write to."""

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
        """`name` is given for the state's spool only; the driver's own segments are then served, too.

        A `port` other than 0 replaces a server that ended.
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
        """Delete segments that nothing refers to; only before any reader of the job starts."""
        return sweep(self.address.folder, {*needed, NAME_FILE})

    def close(self) -> None:
        self._server.shutdown()
