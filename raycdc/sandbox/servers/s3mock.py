"""A private S3Mock, Adobe's server of the S3 API, from Maven's jars: a second opinion on moto, and in Java.

Its objects are files in the server's folder, where a listing sees them in order. Under racing clients it lets several
win most conditional puts: tests of such puts go through `store_proxy`.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import PrivateServer, free_port
from raycdc.sandbox.servers.s3 import S3Server
from raycdc.spark.artifacts import fetch, java_command

VERSION = "4.11.0"
_COORDINATES = (f"com.adobe.testing:s3mock:{VERSION}",)
_MAIN = "com.adobe.testing.s3mock.S3MockApplication"
_START_TIMEOUT_S = 300.0


class S3MockServer(PrivateServer, S3Server):
    """``with S3MockServer() as s3: s3.create_bucket("lake")``."""

    flavor: ClassVar[str] = "s3mock"
    taken: ClassVar[str] = "already in use"

    def __init__(self, *, port: int | None = None) -> None:
        super().__init__(port=port)
        self._secure_port = 0

    def prepare(self) -> None:
        """Download the jars, once per machine. May take a minute; later calls are free."""
        _home()

    def _launch(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        memory = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options = {
            "server.address": self.host,
            "server.port": self._secure_port,
            "com.adobe.testing.s3mock.httpPort": self.port,
            "com.adobe.testing.s3mock.store.root": self.folder / "data",
            "com.adobe.testing.s3mock.store.retainFilesOnExit": "true",
            "logging.level.root": "WARN",
        }
        command = [java_command(), *memory, f"-Djava.io.tmpdir={self.folder}", "-cp", f"{_home()}/*", _MAIN]
        command += [f"--{name}={value}" for name, value in options.items()]
        log = self.folder / "out.log"
        self._run(command, self._listens, name="S3Mock", logs=[log], timeout_s=_START_TIMEOUT_S)

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._secure_port = self._secure_port or free_port()

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._secure_port = 0


def _home() -> Path:
    def unpack(folder: Path) -> None:
        fetch(folder, _COORDINATES, complete=True)

    return build_once(f"s3mock-{VERSION}", unpack)
