"""A private moto: S3 and Glue as one process of Python, light enough for every run of the tests.

It keeps everything in memory, so that data does not survive ``kill``. Keys and secrets are not looked at. Under racing
clients it lets several win a conditional put now and then: tests of such puts go through `store_proxy`.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from raycdc.testing.servers.private import PrivateServer
from raycdc.testing.servers.s3 import S3Server

_START_TIMEOUT_S = 300.0


class MotoServer(PrivateServer, S3Server):
    """``with MotoServer() as moto: moto.create_bucket("lake")``. `endpoint` serves Glue, too."""

    flavor: ClassVar[str] = "moto"

    def prepare(self) -> None:
        """Nothing: it is among the locked packages of development."""

    def _launch(self) -> None:
        log = self.folder / "out.log"
        command = [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
        self._run(command, self._listens, name="moto", logs=[log], timeout_s=_START_TIMEOUT_S)
