"""The part of the REST catalog's protocol that a pipeline needs, as a server that keeps its tables in a warehouse, and
loses an answer where a test wants.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.sinks.iceberg.places import store_properties
from raycdc.stores.settings import LIKE_ANYBODY, StorageSettings


class Server:
    """See the module's docstring. `vends` is what it says of each table beside its metadata: keys, say."""

    def __init__(
        self, warehouse: Path | str, storage: StorageSettings = LIKE_ANYBODY, *, vends: dict[str, str] | None = None
    ) -> None:
        self.catalog = HadoopCatalog("server", warehouse, storage, **store_properties(str(warehouse), {}, storage))
        self._vends = vends or {}
        self.commits = 0
        #: The commit after which the answer is lost.
        self.silent_at = 0
        self.asked: set[str | None] = set()
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                own.asked.add(self.headers.get("Authorization"))
                status, told = own.answer([part for part in self.path.split("/") if part][1:], body)
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.uri = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: list[str], body: Any) -> tuple[int, Any]:
        try:
            return self._answered(path, body)
        except NoSuchTableError as error:
            return 404, told("NoSuchTableException", error, 404)
        except (CommitFailedException, TableAlreadyExistsError) as error:
            return 409, told(type(error).__name__, error, 409)

    def _answered(self, path: list[str], body: Any) -> tuple[int, Any]:
        match path, body:
            case ["config"], None:
                return 200, {"defaults": {}, "overrides": {}}
            case ["namespaces"], _:
                return 200, {"namespace": body["namespace"], "properties": {}}
            case ["namespaces", space, "tables"], _:
                name = (space, body["name"])
                schema = Schema.model_validate(body["schema"])
                self.catalog.create_table(name, schema, properties=body["properties"])
            case ["namespaces", space, "tables", table], None:
                name = (space, table)
            case ["namespaces", space, "tables", table], _:
                name = (space, table)
                request = CommitTableRequest.model_validate(body)
                self.catalog.commit_table(self.catalog.load_table(name), request.requirements, request.updates)
                self.commits += 1
                if self.commits == self.silent_at:
                    return 502, told("BadGateway", Exception("the answer is lost"), 502)
            case _:
                raise AssertionError(path)
        loaded = self.catalog.load_table(name)
        metadata = json.loads(loaded.metadata.model_dump_json(exclude_none=True))
        return 200, {"metadata-location": loaded.metadata_location, "metadata": metadata, "config": self._vends}


def told(kind: str, error: Exception, code: int) -> Any:
    return {"error": {"message": str(error), "type": kind, "code": code}}
