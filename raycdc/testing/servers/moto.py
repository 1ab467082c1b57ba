"""A private moto: S3 and Glue as one process of Python, light enough for every run of the tests.

It keeps everything in memory, so that data does not survive ``kill``. Keys and secrets are not looked at. Under racing
clients it lets several win a conditional put now and then: tests of such puts go through `store_proxy`.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Self

from raycdc.testing.servers.private import PrivateServer
from raycdc.testing.servers.process import free_port
from raycdc.testing.servers.s3 import S3Server

_START_TIMEOUT_S = 60.0


class MotoServer(PrivateServer, S3Server):
    """``with MotoServer() as moto: moto.create_bucket("lake")``. `endpoint` serves Glue, too."""

    flavor: ClassVar[str] = "moto"

    def prepare(self) -> None:
        """Nothing: it is among the locked packages of development."""

    def start(self) -> Self:
        """Start, empty; returns when the server answers."""
        if self.running:
            return self

        def launch() -> None:
            self.port = self.port or free_port()
            log = self.folder / "out.log"
            command = [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
            self._run(command, self.answers, name="moto", logs=[log], timeout_s=_START_TIMEOUT_S)

        def forget() -> None:
            self.port = 0

        self._on_free_ports(launch, forget, taken="Address already in use")
        return self
