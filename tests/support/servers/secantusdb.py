"""A private SecantusDB: somebody else's server of MongoDB's protocol, as a second opinion on our own emulation.

It stores in WiredTiger as MongoDB does, and its isolation, conflicts, sessions and change streams were written by
people who do not know raycdc. Its resume tokens have another form, so clients reach it through `token_bridge`.
Installed from PyPI into the cache by the first who starts one; it is run as a program, never imported.

The server of MongoDB's protocol that tests run on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import ClassVar

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.mongodb import ExternalMongoDb, MongoDb, MongoDbServer
from raycdc.sandbox.servers.private import GuardedProcess, PrivateServer, ServerError, free_port

VERSION = "0.7.0b3"
_PACKAGES = (
    f"SecantusDB=={VERSION}",
    "dnspython==2.9.2",
    "future==1.0.0",
    "numpy==2.4.6",
    "pymongo==4.20.0",
    "python-dateutil==4.0.0",
    "s2sphere==0.2.5",
    "shapely==2.2.0",
    "tzdata==2026.6",
)
_START_TIMEOUT_S = 300.0


class SecantusDb(PrivateServer, MongoDb):
    """``with SecantusDb() as mongodb:``. It fails on nobody's demand, so to tests it is as any user's server."""

    flavor: ClassVar[str] = "secantusdb"
    private = False
    far_dates = False

    def __init__(self, *, port: int | None = None) -> None:
        super().__init__(port=port)
        self._behind = 0
        self._bridge: GuardedProcess | None = None

    @property
    def uri(self) -> str:  # type: ignore[override]
        """Return the address for clients: that of the bridge."""
        return f"mongodb://{self.host}:{self.port}/?replicaSet=secantus"

    def prepare(self) -> None:
        """Install it, once per machine. May take a minute; later calls are free."""
        _home()

    def _launch(self) -> None:
        bridge = [sys.executable, "-P", str(Path(__file__).with_name("token_bridge.py"))]
        log = self.folder / "bridge.log"
        self._bridge = GuardedProcess([*bridge, str(self.port), str(self._behind)], log=log, folder=None)
        command = [sys.executable, "-m", "secantus", "--host", self.host, "--port", str(self._behind)]
        command += ["--storage-path", str(self.folder / "data"), "--cache-size", "256M"]
        # Otherwise a stream of a quiet collection does not advance.
        command += ["--noop-heartbeat-seconds", "1"]
        self._run(
            command,
            self.answers,
            name="SecantusDB",
            logs=[log, self.folder / "out.log"],
            timeout_s=_START_TIMEOUT_S,
            environment={"PYTHONPATH": str(_home())},
        )

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._behind = self._behind or free_port()

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._behind = 0

    def _end(self, number: Signals) -> None:
        super()._end(number)
        if self._bridge is not None:
            self._bridge.end(number)
            self._bridge = None


def _home() -> Path:
    return build_once(f"secantusdb-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}", _install)


def _install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--target", str(folder), *_PACKAGES],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise ServerError(f"SecantusDB {VERSION} could not be installed:\n{(done.stdout + done.stderr)[-3000:]}")


#: The environment variable with the URI of a real replica set for the tests.
URI_VARIABLE = "RAYCDC_TEST_MONGODB_URI"
#: The value that stands for another project's server, which the tests start.
SECOND_OPINION = "secantusdb"


@contextmanager
def mongodb_for_tests(version: str = "7.0") -> Iterator[MongoDb]:
    """Return the replica set of ``RAYCDC_TEST_MONGODB_URI``, else a private one of `version`.

    The value `SECOND_OPINION` starts SecantusDB.
    """
    uri = os.environ.get(URI_VARIABLE)
    if uri == SECOND_OPINION:
        with SecantusDb() as second:
            yield second
        return
    if uri:
        yield ExternalMongoDb(uri)
        return
    with MongoDbServer(version=version) as server:
        yield server
