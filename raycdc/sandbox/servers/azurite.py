"""A private Azurite, Microsoft's emulator of Azure Blob Storage, from npm: it needs Node.js.

It keeps its blobs in memory, or in its folder if they must survive a change of the key. It serializes conditional puts
as Azure does, so it needs no proxy.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import http.client
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import PrivateServer, ServerError
from raycdc.storage.settings import StorageSettings

VERSION = "3.37.0"
#: The only account of the server. Its key is set at each start, in base64.
ACCOUNT = "cdcstore"
KEY = base64.b64encode(b"cdc").decode()
_API_VERSION = "2021-12-02"
_START_TIMEOUT_S = 300.0
_TIMEOUT_S = 20.0


class AzuriteServer(PrivateServer):
    """``with AzuriteServer() as azurite: azurite.create_container("lake")``."""

    flavor: ClassVar[str] = "azurite"
    taken: ClassVar[str] = "EADDRINUSE"
    account = ACCOUNT

    def __init__(self, *, keeps: bool = False, port: int | None = None) -> None:
        super().__init__(port=port)
        self.key = KEY
        self._keeps = keeps

    @property
    def endpoint(self) -> str:
        """Return the address for clients; the account is a part of the path."""
        return f"http://{self.host}:{self.port}/{ACCOUNT}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables by which obstore and delta-rs find this server."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_ENDPOINT": self.endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }

    @property
    def settings(self) -> StorageSettings:
        """Return the settings of ``[storage]`` for this server."""
        return StorageSettings(endpoint=self.endpoint, account=ACCOUNT, account_key=self.key, allow_http=True)

    def prepare(self) -> None:
        """Install the server, once per machine. May take a minute; later calls are free.

        Raises `ServerError` without npm.
        """
        _home()

    def _launch(self) -> None:
        main = _home() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        command = ["node", str(main), "--blobHost", self.host, "--blobPort", str(self.port)]
        command += ["--location", str(self.folder / "blobs")] if self._keeps else ["--inMemoryPersistence"]
        command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        log = self.folder / "out.log"
        self._run(
            command,
            self._listens,
            name="Azurite",
            logs=[log],
            timeout_s=_START_TIMEOUT_S,
            environment={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{self.key}"},
        )

    def change_key(self, key: str) -> None:
        """Set the only key, in base64.

        The server is started again for that, so it must have been created with `keeps`.
        """
        assert self._keeps
        self.stop()
        self.key = key
        self.start()

    def create_container(self, name: str) -> str:
        """Make an empty container; returns its name."""
        now = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        own = {"x-ms-date": now, "x-ms-version": _API_VERSION}
        # "Authorize with Shared Key": between the verb and the server's own headers are eleven lines for headers that
        # this request lacks.
        signed = "\n".join(["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in own.items())])
        # The account occurs twice: by itself, and at the beginning of the path.
        signed += f"\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        code = base64.b64encode(hmac.digest(base64.b64decode(self.key), signed.encode(), hashlib.sha256)).decode()
        headers = {**own, "Authorization": f"SharedKey {ACCOUNT}:{code}", "Content-Length": "0"}
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)) as connection:
            connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 201:
            raise ServerError(f"{self!r} made no container {name!r}: {answer.status} {text.decode(errors='replace')}")
        return name


def _home() -> Path:
    return build_once(f"azurite-{VERSION}", _install)


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise ServerError("Azurite needs Node.js 20 or newer with npm. As root: apt-get install nodejs npm.")
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), f"azurite@{VERSION}"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )
    if done.returncode != 0:
        raise ServerError(f"Azurite {VERSION} could not be installed:\n{(done.stdout + done.stderr)[-3000:]}")
