"""The HTTP API of a running pipeline, under ``/v1``.

Every request needs the token, or a session of the web UI (`raycdc.server.ui`). A session allows everything that the
token allows, except to make links. No answer contains a secret or a value of a row.

| request | answer |
|---|---|
| ``GET /v1/status`` | `raycdc.observe.status.model.Status`; ``?table=DB.TABLE`` and ``?phase=…`` select its tables; |
| … | ``?limit=…&after=DB.TABLE`` page through them (``limit=0``: none); the cost grows with the chosen tables |
| ``GET /v1/tables`` | only the tables of the status, selected in the same way |
| ``POST /v1/commands`` | stores a command about a table (`raycdc.driver.command_queue`), and answers with its id |
| ``GET /v1/commands``, ``GET /v1/commands/ID`` | the states of the last commands, or of one |
| ``GET /v1/events`` | the events of `raycdc.observe.events`, as server-sent events |
| ``GET /v1/openapi.json`` | the description of this API for programs |

A page of another site cannot use the API through a user's browser. A request needs the token in its header
``Authorization``, which such a page cannot add. Its ``Host`` must be one of the API's names, which excludes names that
were rebound to this address (DNS rebinding). Its ``Origin``, if present, must be that of the API itself. Each follower
of events has its own limited queue (`EventHub`), so no follower delays the run.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from raycdc.core.terminal_text import printable_json
from raycdc.driver.command_queue import CommandQueue
from raycdc.errors import ConfigError, RaycdcError
from raycdc.observe.events import RunEvent, event_to_json
from raycdc.observe.status.model import Chosen, Status
from raycdc.server.authorization import AUTHORIZATION, ApiToken, Authorization, TokenWatch, authorization_of
from raycdc.server.blocking import (
    HEADERS,
    TooManyCallsError,
    error,
    has_token,
    in_thread,
    is_name,
    json_body,
    number_of,
    threaded,
    wants_token,
)
from raycdc.server.openapi import description
from raycdc.server.ui.routes import SESSION, WebUi
from raycdc.source.tables.table_commands import TableAction, TableCommand

#: The maximum number of concurrent followers.
FOLLOWERS_MAX = 16
#: The maximum number of waiting events of a follower. A follower with more is disconnected, and may connect again.
BACKLOG_MAX = 1000
#: Seconds between two comments that test the connection of a stream. The authorization is checked at the same interval.
KEEPALIVE_S = 5.0


class EventHub:
    """Sends events to followers.

    `notify` may be called by any thread and does not block; `follow` runs in the server's event loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[asyncio.Queue[bytes | None], asyncio.AbstractEventLoop] = {}

    def __repr__(self) -> str:
        return f"EventHub({len(self._followers)} followers)"

    def notify(self, event: RunEvent) -> None:
        """Send the event to all followers."""
        if not self._followers:
            return
        document = event_to_json(event)
        text = printable_json(json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str))
        line = f"event: {document['event']}\ndata: {text}\n\n".encode()
        with self._lock:
            followers = list(self._followers.items())
        for queue, loop in followers:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._put, queue, line)

    @property
    def full(self) -> bool:
        """Return True if no more followers can be added."""
        return len(self._followers) >= FOLLOWERS_MAX

    async def follow(self, authorization: Callable[[], bool] = lambda: True) -> AsyncIterator[bytes]:
        """Yield server-sent events, until the follower disconnects, is too slow, or `authorization` returns False."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        with self._lock:
            self._followers[queue] = asyncio.get_running_loop()
        try:
            yield b": raycdc\n\n"
            while True:
                try:
                    line = await asyncio.wait_for(queue.get(), KEEPALIVE_S)
                except TimeoutError:
                    line = b":\n\n"
                if line is None or not authorization():
                    return
                yield line
        finally:
            with self._lock:
                self._followers.pop(queue, None)

    def _put(self, queue: asyncio.Queue[bytes | None], line: bytes) -> None:
        if queue.qsize() >= BACKLOG_MAX:
            with self._lock:
                self._followers.pop(queue, None)
            queue.put_nowait(None)
        else:
            queue.put_nowait(line)


#: The methods of requests that change nothing.
READING = ("GET", "HEAD")
#: The maximum size of a command's body. A command consists of a few names, so its body is small.
BODY_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class ApiBackend:
    """The functions and objects that answer requests. `status` may be slow if many tables are chosen."""

    status: Callable[[Chosen], Status]
    commands: CommandQueue
    events: EventHub


@dataclass(frozen=True, slots=True)
class Guarding:
    """The access rules. `hosts` are the allowed names with ports of the API."""

    token: ApiToken
    hosts: frozenset[str]


def application(answers: ApiBackend, guarding: Guarding, page: WebUi | None = None) -> Starlette:
    """Return the ASGI application, with the web UI if `page` is given."""
    api = _Api(answers)
    routes = [
        Route("/v1/status", threaded(api.status)),
        Route("/v1/tables", threaded(api.tables)),
        Route("/v1/commands", threaded(api.commands)),
        Route("/v1/commands", api.submit, methods=["POST"]),
        Route("/v1/commands/{id}", threaded(api.command)),
        Route("/v1/events", api.events),
        Route("/v1/openapi.json", threaded(api.openapi)),
    ]
    routes += [] if page is None else page.routes()
    return Starlette(routes=routes, middleware=[Middleware(_Guard, guarding, page)])


class _Guard:
    """Accepts requests with the token, and refuses those that a foreign page may have sent through a browser."""

    def __init__(self, app: ASGIApp, guarding: Guarding, page: WebUi | None) -> None:
        self._app = app
        self._guarding = guarding
        self._page = page
        self._watch = TokenWatch(guarding.token, None if page is None else page.sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        token, request = self._guarding.token, Request(scope)
        # This check comes before the check of the token, because reading the token may run a command, which a foreign
        # page must not be able to cause.
        refused = self._foreign(request)
        if refused is None:
            try:
                known = await in_thread(token.now) if token.changes else token.now()
            except TooManyCallsError as busy:
                refused = error(503, str(busy))
            else:
                if self._page is not None:
                    self._page.sessions.have_token(known)
                refused = self._refusal(request, known)
        await (self._app if refused is None else refused)(scope, receive, send)

    def _foreign(self, request: Request) -> Response | None:
        """Return the refusal of a request that a foreign page may have sent through a browser; else None."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host.lower() not in self._guarding.hosts:
            return error(421, "The Host of the request is not a name of this server (control.hosts).")
        if origin is not None and origin.lower() not in {f"http://{host.lower()}", f"https://{host.lower()}"}:
            return error(403, "The Origin of the request is another site.")
        return None

    def _refusal(self, request: Request, token: str) -> Response | None:
        if has_token(request, token) or (self._page is not None and self._page.is_open(request)):
            request.scope[AUTHORIZATION] = Authorization(self._watch, token, None)
            return None
        session = None if self._page is None else self._page.sessions.of(request)
        if session is None:
            return wants_token(error(401, "The request lacks the token of this run (Authorization: Bearer …)."))
        if request.method not in READING and request.headers.get("origin") is None:
            return error(403, "A browser says where a request that acts comes from (Origin).")
        if request.method not in READING and session.reads_only and request.url.path != "/page/logout":
            return error(403, "This session may not act (control.ui, or a read-only link).")
        request.scope[SESSION], request.scope[AUTHORIZATION] = session, Authorization(self._watch, token, session)
        return None


class _Api:
    def __init__(self, answers: ApiBackend) -> None:
        self._answers = answers

    def status(self, request: Request) -> Response:
        return _json(self._answers.status(_chosen(request)).to_json())

    def tables(self, request: Request) -> Response:
        found = self._answers.status(_chosen(request))
        return _json(to_json({"tables": found.tables, "next_after": found.next_after}))

    async def submit(self, request: Request) -> Response:
        asked = await json_body(request, what="A command", bytes_max=BODY_MAX)
        if isinstance(asked, Response):
            return asked
        try:
            command = _command(asked)
        except (ValueError, TypeError) as wrong:
            return error(400, f"The request is no command: {wrong}")
        try:
            command_id = await in_thread(lambda: self._answers.commands.submit(command))
        except ConfigError as wrong:
            return error(400, str(wrong))
        except (RaycdcError, TooManyCallsError) as failed:
            return error(503, str(failed))
        return JSONResponse({"id": command_id}, 202, headers=HEADERS)

    def command(self, request: Request) -> Response:
        status = self._answers.commands.state(request.path_params["id"])
        if status is None:
            return error(404, "There is no command with that id, or many commands came after it was done.")
        return JSONResponse(asdict(status), headers=HEADERS)

    def commands(self, _: Request) -> Response:
        return JSONResponse({"commands": [asdict(status) for status in self._answers.commands.all()]}, headers=HEADERS)

    async def events(self, request: Request) -> Response:
        if self._answers.events.full:
            return error(503, "As many follow the events as may; try again later.")
        headers = HEADERS | {"X-Accel-Buffering": "no"}
        lines = self._answers.events.follow(authorization_of(request))
        return StreamingResponse(lines, media_type="text/event-stream", headers=headers)

    def openapi(self, _: Request) -> Response:
        return JSONResponse(description(), headers=HEADERS)


def _json(document: bytes) -> Response:
    return Response(document, media_type="application/json", headers=HEADERS)


def _chosen(request: Request) -> Chosen:
    asked = request.query_params
    limit = number_of(asked.get("limit", ""))
    return Chosen(asked.get("table", ""), asked.get("phase", ""), asked.get("after", ""), limit)


def _command(data: object) -> TableCommand:
    """Return the command in the JSON value `data`. Raises ValueError or TypeError for anything else."""
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise TypeError("it must be an object of texts")
    if data.keys() - {"action", "table", "id", "where"} or not data.get("table") or "action" not in data:
        raise ValueError("it has action and table, and may have an id, and a where")
    if not all(map(is_name, data.values())):
        raise ValueError("it has a character that no name has")
    action, table, where = TableAction(data["action"]), data["table"], data.get("where", "")
    return (
        TableCommand(data["id"], action, table, where) if "id" in data else TableCommand.new(action, table, where=where)
    )
