"""What the private servers of the S3 API have in common: where clients find them, and their buckets.

A private moto: S3 and Glue as one process of Python, light enough for every run of the tests.

It keeps everything in memory, so that data does not survive ``kill``. Keys and secrets are not looked at. Under racing
clients it lets several win a conditional put now and then: tests of such puts go through `store_proxy`.
"""

from __future__ import annotations

import http.client
import sys
from contextlib import closing
from typing import ClassVar

from raycdc.sandbox.servers.private import PrivateServer, ServerError
from raycdc.storage.settings import StorageSettings

_TIMEOUT_S = 20.0
#: Any key will do, because none of the servers looks at it.
ACCESS_KEY, SECRET_KEY, REGION = "test", "test", "us-east-1"


class S3Server:
    """A server of the S3 API at `host` and `port`, without TLS, that believes every key."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which AWS's clients, obstore and delta-rs find this server."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def settings(self) -> StorageSettings:
        """``[storage]`` for this server."""
        return StorageSettings(
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            allow_http=True,
        )

    @property
    def section(self) -> str:
        """The same as TOML."""
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
