"""Private servers of the S3 API: their addresses for clients, and their buckets.

A private moto serves S3 and Glue in one Python process, small enough for every run of the tests. It keeps everything in
memory, so data does not survive ``kill``. Keys and secrets are not checked. With racing clients, several sometimes win
a conditional put: tests of such puts use `store_proxy`.
"""

from __future__ import annotations

import http.client
import sys
from contextlib import closing
from typing import ClassVar

from raycdc.sandbox.servers.private import PrivateServer, ServerError
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
        """Do nothing: the program is among the locked development packages."""

    def _launch(self) -> None:
        log = self.folder / "out.log"
        command = [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
        self._run(command, self._listens, name="moto", logs=[log], timeout_s=_START_TIMEOUT_S)
