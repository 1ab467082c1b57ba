"""The part of the REST catalog's protocol that a pipeline needs, as a server that keeps its tables in a warehouse. It
loses an answer where a test wants, does a thing long after it was given up, goes and comes back, and lets in whom its
`Guard` knows: by a token, or by one that its OAuth server gives for a client's secret.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.sinks.iceberg.location import store_properties
from raycdc.storage.settings import LIKE_ANYBODY, StorageSettings


@dataclass(slots=True)
class Guard:
    """Who is let in: with a `token` who has it, with a client's `secret` who got a token for it that is still good, and
    otherwise everybody. All others hear `status`, whatever they ask. Nobody may do anything with `forbidden` tables,
    and can with `failing` ones.
    """

    token: str = ""
    secret: str = ""
    status: int = 401
    forbidden: set[str] = field(default_factory=set)
    #: For whose tables the server fails, whatever is asked of them.
    failing: set[str] = field(default_factory=set)
    #: The answer to everything while a gateway has nobody behind it; 0: there is somebody.
    away: int = 0
    #: How many requests heard that.
    turned_away: int = 0
    #: How many requests were not let in, those for a token among them.
    refused: int = 0
    _given: set[str] = field(default_factory=set)

    def give_token(self, form: str) -> tuple[int, Any]:
        """The answer of the OAuth server (RFC 6749, 4.4 and 5)."""
        asked = parse_qs(form)
        if asked.get("grant_type") != ["client_credentials"] or asked.get("client_secret") != [self.secret]:
            self.refused += 1
            return 401, {"error": "invalid_client", "error_description": "the client is not known by this secret"}
        token = secrets.token_hex()
        self._given.add(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600}

    def end_tokens(self) -> None:
        """Those that were given are good for nothing any more."""
        self._given.clear()

    def refusal(self, path: list[str], authorization: str | None) -> tuple[int, Any] | None:
        """The answer to a request that is not let in."""
        if self.away:
            self.turned_away += 1
            return self.away, told("ServiceUnavailable", Exception("nobody is here"), self.away)
        good = {self.token} if self.token else self._given
        if (self.token or self.secret) and authorization not in {f"Bearer {token}" for token in good}:
            self.refused += 1
            return self.status, told("NotAuthorizedException", Exception("the token is not good"), self.status)
        if path[2:3] == ["tables"] and ".".join([path[1], *path[3:4]]) in self.forbidden:
            return 403, told("ForbiddenException", Exception("a grant is missing"), 403)
        if path[2:3] == ["tables"] and ".".join([path[1], *path[3:4]]) in self.failing:
            return 500, told("InternalServerError", Exception("a metadata file is damaged"), 500)
        return None


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
        #: Likewise, by what is asked for.
        self.loses: Callable[[CommitTableRequest], bool] = lambda _: False
        #: The change (a table that is made, or a commit) that is given up by a gateway, and carried out when the same
        #: is asked for again: before that one, or behind it.
        self.late_at = 0
        self.late_first = True
        #: Whether it was carried out then.
        self.late_done: bool | None = None
        self._changes = 0
        self._late: tuple[str, Callable[[], object]] | None = None
        self._lock = threading.Lock()
        self.asked: set[str | None] = set()
        self.guard = Guard()
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, body: bytes) -> None:
                path = [part for part in self.path.partition("?")[0].split("/") if part][1:]
                if path == ["oauth", "tokens"]:
                    status, told = own.guard.give_token(body.decode())
                else:
                    own.asked.add(self.headers.get("Authorization"))
                    refusal = own.guard.refusal(path, self.headers.get("Authorization"))
                    status, told = refusal or own.answer(path, json.loads(body) if body else None)
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._handler = Handler
        self._http: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, where it listened before."""
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more. The tables stay."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def answer(self, path: list[str], body: Any) -> tuple[int, Any]:
        try:
            with self._lock:
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
                make = partial(self.catalog.create_table, name, schema, properties=body["properties"])
                if not self._done(f"make {name}", make):
                    return 504, told("GatewayTimeout", Exception("it takes long"), 504)
            case ["namespaces", space, "tables", table], None:
                name = (space, table)
            case ["namespaces", space, "tables", table], _:
                name = (space, table)
                request = CommitTableRequest.model_validate(body)
                if not self._done(f"commit to {name}", partial(self._commit, name, request)):
                    return 504, told("GatewayTimeout", Exception("it takes long"), 504)
                self.commits += 1
                if self.commits == self.silent_at or self.loses(request):
                    return 502, told("BadGateway", Exception("the answer is lost"), 502)
            case _:
                raise AssertionError(path)
        loaded = self.catalog.load_table(name)
        metadata = json.loads(loaded.metadata.model_dump_json(exclude_none=True))
        return 200, {"metadata-location": loaded.metadata_location, "metadata": metadata, "config": self._vends}

    def _commit(self, name: tuple[str, str], request: CommitTableRequest) -> None:
        self.catalog.commit_table(self.catalog.load_table(name), request.requirements, request.updates)

    def _done(self, what: str, act: Callable[[], object]) -> bool:
        """Do it, and what was put off before; False where it is put off."""
        self._changes += 1
        if self._changes == self.late_at:
            self._late = what, act
            return False
        waits = self._late if self._late is not None and self._late[0] == what else None
        if waits is not None:
            self._late = None
        try:
            if waits is not None and self.late_first:
                self._late_now(waits[1])
            act()
        finally:
            if waits is not None and not self.late_first:
                self._late_now(waits[1])
        return True

    def _late_now(self, act: Callable[[], object]) -> None:
        try:
            act()
            self.late_done = True
        except (CommitFailedException, TableAlreadyExistsError):
            self.late_done = False


def told(kind: str, error: Exception, code: int) -> Any:
    return {"error": {"message": str(error), "type": kind, "code": code}}
