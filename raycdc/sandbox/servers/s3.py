"""Private servers of the S3 API: their addresses for clients, and their buckets.

A private moto serves S3 and Glue in one Python process, small enough for every run of the tests. It keeps everything in
memory, so data does not survive ``kill``. Keys and secrets are not checked. If clients race for a conditional put,
several of them sometimes win. Tests of such puts use `store_proxy`. S3Mock, Adobe's server of the S3 API, runs in Java
and has the same weakness. Its objects are files in the server's folder, and its listings are sorted.
"""

from __future__ import annotations

import http.client
import sys
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import PrivateServer, ServerError, free_port
from raycdc.spark.artifacts import fetch, java_command
from raycdc.storage.settings import StorageSettings

_TIMEOUT_S = 20.0
#: Any key works, because none of the servers checks it.
ACCESS_KEY, SECRET_KEY, REGION = "test", "test", "us-east-1"


class S3Server:
    """A server of the S3 API at `host` and `port`, without TLS, that accepts every key."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """Return the address for clients."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables by which AWS's clients, obstore and delta-rs find this server."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def settings(self) -> StorageSettings:
        """Return the settings of ``[storage]`` for this server."""
        return StorageSettings(
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            allow_http=True,
        )

    @property
    def section(self) -> str:
        """Return the settings of ``[storage]`` as TOML."""
        return f"""
[storage]
endpoint = "{self.endpoint}"
region = "{REGION}"
access_key_id = "{ACCESS_KEY}"
secret_access_key = "{SECRET_KEY}"
allow_http = true
"""

    def create_bucket(self, name: str) -> str:
        """Make an empty bucket; returns its name."""
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)) as connection:
            connection.request("PUT", f"/{name}")
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 200:
            raise ServerError(f"{self!r} made no bucket {name!r}: {answer.status} {text.decode(errors='replace')}")
        return name


_START_TIMEOUT_S = 300.0


class MotoServer(PrivateServer, S3Server):
    """``with MotoServer() as moto: moto.create_bucket("lake")``. `endpoint` serves Glue, too."""

    flavor: ClassVar[str] = "moto"

    def prepare(self) -> None:
        """Do nothing, because the program is one of the locked development packages."""

    def _launch(self) -> None:
        log = self.folder / "out.log"
        command = [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
        self._run(command, self._listens, name="moto", logs=[log], timeout_s=_START_TIMEOUT_S)


S3MOCK_VERSION = "4.11.0"
_COORDINATES = (f"com.adobe.testing:s3mock:{S3MOCK_VERSION}",)
_MAIN = "com.adobe.testing.s3mock.S3MockApplication"
_S3MOCK_TIMEOUT_S = 300.0


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
        self._run(command, self._listens, name="S3Mock", logs=[log], timeout_s=_S3MOCK_TIMEOUT_S)

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._secure_port = self._secure_port or free_port()

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._secure_port = 0


def _home() -> Path:
    def unpack(folder: Path) -> None:
        fetch(folder, _COORDINATES, complete=True)

    return build_once(f"s3mock-{S3MOCK_VERSION}", unpack)
