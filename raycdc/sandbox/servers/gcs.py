"""A private Google Cloud Storage: fake-gcs-server, built from Go's modules, behind a proxy for the API that it lacks.

obstore and delta-rs use the XML API, of which fake-gcs-server only supports reads and deletes. The proxy translates
their requests to the JSON API, so the server itself decides if a generation matches. Concurrent writes of one key are
carried out one after the other, as Google does (`store_proxy` explains why servers for tests need that).

| request of the client (XML API) | request to the server (JSON API) |
|---|---|
| `PUT /B/K`, `x-goog-if-generation-match` | `POST /upload/…/o?uploadType=media`, `ifGenerationMatch` |
| `PUT /B/K`, `x-goog-copy-source` | `GET` of the source object, then as above |
| `POST /B/K?uploads`, `PUT …?partNumber=`, `POST …?uploadId=` | the proxy keeps the parts; then as above |
| `GET /B?list-type=2` | `GET /storage/v1/b/B/o` |
| `GET`, `HEAD`, `DELETE` of `/B/K` | the same, under the JSON API's paths |
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
import uuid
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NotRequired, TypedDict
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import PrivateServer, ServerError
from raycdc.storage.settings import StorageSettings

VERSION = "1.56.1"
_MODULE = f"github.com/fsouza/fake-gcs-server@v{VERSION}"
_START_TIMEOUT_S = 300.0
_TIMEOUT_S = 60.0
_MATCH = "x-goog-if-generation-match"
#: The fields of an object that a client gets.
_HEADERS = ("Content-Type", "Content-Range", "X-Goog-Generation", "Last-Modified", "ETag")


class GcsServer(PrivateServer):
    """``with GcsServer() as gcs: gcs.create_bucket("lake")``. It keeps everything in memory, and accepts any key."""

    flavor: ClassVar[str] = "gcs"
    taken: ClassVar[str] = "address already in use"

    def __init__(self, *, port: int | None = None) -> None:
        super().__init__(port=port)
        self._front: _Front | None = None

    @property
    def endpoint(self) -> str:
        """Return the address for clients."""
        assert self._front is not None, "not started"
        return f"http://{self.host}:{self._front.server_address[1]}"

    @property
    def settings(self) -> StorageSettings:
        """Return the settings of ``[storage]`` for this server."""
        return StorageSettings(endpoint=self.endpoint, service_account=str(self._account), allow_http=True)

    @property
    def section(self) -> str:
        """Return the settings of ``[storage]`` as TOML."""
        return f"""
[storage]
endpoint = "{self.endpoint}"
service_account = "{self._account}"
allow_http = true
"""

    @property
    def _account(self) -> Path:
        """Return the file of an account that needs no token."""
        return self.folder / "account.json"

    def prepare(self) -> None:
        """Build the server, once per machine. Takes minutes; later calls are free.

        Raises `ServerError` without Go.
        """
        _home()

    def _launch(self) -> None:
        command = [str(_home() / "fake-gcs-server"), "-scheme", "http", "-host", self.host]
        command += ["-port", str(self.port), "-backend", "memory", "-log-level", "error"]
        log = self.folder / "out.log"
        self._run(command, self._answers, name="fake-gcs-server", logs=[log], timeout_s=_START_TIMEOUT_S)
        self._front = _Front(self.host, self.port)
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        self._account.write_text(json.dumps({**account, "private_key_id": ""}), encoding="utf-8")
        threading.Thread(target=self._front.serve_forever, args=(0.02,), name="gcs-front", daemon=True).start()

    def close(self) -> None:
        """Close the server and the proxy; see `PrivateServer.close`."""
        if self._front is not None:
            self._front.shutdown()
            self._front.server_close()
            self._front = None
        super().close()

    def create_bucket(self, name: str) -> str:
        """Make an empty bucket; returns its name."""
        answer = _asked(self.host, self.port, "POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode())
        if answer.status not in (200, 409):
            raise ServerError(f"{self!r} made no bucket {name!r}: {answer.status} {answer.body.decode()}")
        return name

    def _answers(self) -> bool:
        try:
            return _asked(self.host, self.port, "GET", "/_internal/healthcheck").status == 200
        except OSError:
            return False


def _home() -> Path:
    return build_once(f"fake-gcs-server-{VERSION}", _build)


def _build(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise ServerError("fake-gcs-server needs Go 1.25 or newer. As root: apt-get install golang-go.")
    done = subprocess.run(
        [go, "install", _MODULE],
        env={**os.environ, "GOBIN": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )
    if done.returncode != 0:
        raise ServerError(f"fake-gcs-server {VERSION} could not be built:\n{(done.stdout + done.stderr)[-3000:]}")


class _Object(TypedDict):
    """The properties of an object in the JSON API that the proxy uses."""

    name: str
    size: str
    etag: str
    updated: str
    generation: str


class _Page(TypedDict):
    """A part of a listing."""

    prefixes: NotRequired[list[str]]
    items: NotRequired[list[_Object]]
    nextPageToken: NotRequired[str]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def _asked(
    host: str, port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> _Answer:
    with closing(http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)) as connection:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        return _Answer(answer.status, dict(answer.getheaders()), answer.read())


class _Front(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, behind: int) -> None:
        super().__init__((host, 0), _Translator)
        self.behind = behind
        self.turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.parts: dict[str, dict[int, bytes]] = {}

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Translator(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Front

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        target = urlsplit(self.path)
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        bucket, _, key = unquote(target.path).lstrip("/").partition("/")
        answer = self._listed(bucket, query) if not key else self._of_object(bucket, key, query, body)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name in _HEADERS:
                self.send_header(name, value)
        length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(answer.body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _of_object(self, bucket: str, key: str, query: Mapping[str, str], body: bytes) -> _Answer:
        parts = self.server.parts
        match self.command:
            case "GET" | "HEAD":
                return self._read(bucket, key)
            case "DELETE" if "uploadId" in query:
                parts.pop(query["uploadId"], None)
                return _Answer(204, {})
            case "DELETE":
                with self.server.turns[f"{bucket}/{key}"]:
                    return self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}")
            case "POST" if "uploads" in query:
                upload = uuid.uuid4().hex
                parts[upload] = {}
                named = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
                return _xml(f"<InitiateMultipartUploadResult>{named}</InitiateMultipartUploadResult>")
            case "PUT" if "uploadId" in query:
                parts[query["uploadId"]][int(query["partNumber"])] = body
                return _Answer(200, {"ETag": f'"{query["partNumber"]}"'})
            case "POST":
                whole = parts.pop(query["uploadId"])
                written = self._written(bucket, key, b"".join(whole[number] for number in sorted(whole)))
                named = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><ETag>{written.headers['ETag']}</ETag>"
                done = _xml(f"<CompleteMultipartUploadResult>{named}</CompleteMultipartUploadResult>")
                return _Answer(written.status, {**done.headers, **written.headers}, done.body)
            case _ if source := self.headers.get("x-goog-copy-source"):
                read = self._read(*unquote(source).lstrip("/").split("/", 1))
                return read if read.status != 200 else self._written(bucket, key, read.body)
            case _:
                return self._written(bucket, key, body)

    def _read(self, bucket: str, key: str) -> _Answer:
        ranged = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        method = "HEAD" if self.command == "HEAD" else "GET"
        return self._ask(method, f"/download/storage/v1/b/{bucket}/o/{quote(key, safe='')}", headers=ranged)

    def _written(self, bucket: str, key: str, data: bytes) -> _Answer:
        wanted = {"uploadType": "media", "name": key}
        if (generation := self.headers.get(_MATCH)) is not None:
            wanted["ifGenerationMatch"] = generation
        headers = {"Content-Type": self.headers.get("Content-Type", "application/octet-stream")}
        with self.server.turns[f"{bucket}/{key}"]:
            answer = self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?{urlencode(wanted)}", data, headers)
        if answer.status != 200:
            return answer
        made: _Object = json.loads(answer.body)
        return _Answer(200, {"ETag": f'"{made["etag"]}"', "X-Goog-Generation": made["generation"]})

    def _listed(self, bucket: str, query: Mapping[str, str]) -> _Answer:
        wanted = {"prefix": query.get("prefix", ""), "delimiter": query.get("delimiter", "")}
        after = query.get("start-after", "")
        names: list[str] = []
        objects: list[_Object] = []
        while True:
            answer = self._ask("GET", f"/storage/v1/b/{bucket}/o?{urlencode(wanted)}")
            if answer.status != 200:
                return answer
            page: _Page = json.loads(answer.body)
            names += page.get("prefixes", [])
            objects += page.get("items", [])
            if not page.get("nextPageToken"):
                break
            wanted["pageToken"] = page["nextPageToken"]
        found = "".join(
            f"<Contents><Key>{escape(one['name'])}</Key><Size>{one['size']}</Size><ETag>&quot;{one['etag']}&quot;</ETag>"
            f"<LastModified>{one['updated']}</LastModified></Contents>"
            for one in objects
            if one["name"] > after
        )
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in names)
        return _xml(f"<ListBucketResult>{found}{folders}</ListBucketResult>")

    def _ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> _Answer:
        answer = _asked(str(self.server.server_address[0]), self.server.behind, method, path, body, headers)
        # The headers are spelled as by Google, whatever the server's spelling.
        return _Answer(answer.status, {_spelt(name): value for name, value in answer.headers.items()}, answer.body)


def _spelt(name: str) -> str:
    return next((reported for reported in _HEADERS if reported.lower() == name.lower()), name)


def _xml(text: str) -> _Answer:
    return _Answer(200, {"Content-Type": "application/xml"}, f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode())
