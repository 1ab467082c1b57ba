"""The door for scrapers and probes: ``/metrics``, ``/healthz``, ``/readyz``. It only tells, and is open from a run's
first step on, also while a standby waits.

| request | answer |
|---|---|
| ``GET /metrics`` | the figures (`raycdc.control.metrics`); with ``metrics.token`` to those alone who have it |
| ``GET /healthz`` | 200 as long as the run moves: 503 says why a supervisor should start it anew |
| ``GET /readyz`` | 200 while rows are read and written, else 503 with what it does instead |

On this machine's own address a request must call it by an address or as localhost: a page of a browser, whose own name
was bound anew to 127.0.0.1, finds nothing here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from raycdc.config import MetricsOptions
from raycdc.control.calls import beside
from raycdc.control.collect import Collector
from raycdc.control.door_token import DoorToken
from raycdc.control.metrics import Bounds, exposition
from raycdc.control.model import Chosen, Status
from raycdc.control.requests import HEADERS, has_token, wants_token
from raycdc.startup_checks import listen_for_scrapers

#: A run that reads and writes looks at its processes five times a second; in a recovery there are none, and its work
#: moves instead. One that did neither for so long hangs.
SILENT_MAX_S = 300.0


@dataclass(frozen=True, slots=True)
class Told:
    """Where answers come from. `step` is that of the run, and `silent_s` for how long it has said nothing while it
    should have: both are at hand, where `status` may ask the source.
    """

    pipeline: str
    status: Callable[[Chosen], Status]
    step: Callable[[], str]
    silent_s: Callable[[], float]

    @classmethod
    def by(cls, collector: Collector) -> Told:
        """As a run's collector knows it."""
        return cls(collector.pipeline, collector.status, lambda: collector.step, collector.silent_s)


def prepare(options: MetricsOptions, collector: Collector) -> tuple[socket.socket, ASGIApp]:
    """The socket and what is served there. `ConfigError` where nothing can listen."""
    return listen_for_scrapers(options), application(options, Told.by(collector))


def application(options: MetricsOptions, told: Told) -> Starlette:
    """The ASGI application."""
    door = _Door(options, told)
    paths = {"/metrics": beside(door.metrics), "/healthz": door.healthz, "/readyz": door.readyz}
    return Starlette(routes=[Route(path, answer) for path, answer in paths.items()])


class _Door:
    def __init__(self, options: MetricsOptions, told: Told) -> None:
        self._options = options
        self._told = told
        self._version = version("raycdc")
        self._token = DoorToken(options.token.reveal())

    def metrics(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        token = self._token.now()
        if token and not has_token(request, token):
            text = "The request has not metrics.token (Authorization: Bearer …).\n"
            return wants_token(PlainTextResponse(text, 401))
        accept = request.headers.get("accept", "")
        page, media_type = exposition(
            self._told.status, Bounds(self._options.tables_max), accept, version=self._version
        )
        return Response(page, headers=HEADERS | {"Content-Type": media_type})

    async def healthz(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        silent_s = self._told.silent_s()
        if silent_s > SILENT_MAX_S:
            text = f"The run has not looked at its processes for {silent_s:.0f} seconds, and none of its work moved."
            return self._said(503, text)
        return self._said(200, "ok")

    async def readyz(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        step = self._told.step()
        return self._said(200, "ok") if step == "running" else self._said(503, step)

    def _refusal(self, request: Request) -> Response | None:
        if not self._options.is_loopback or _is_address(request.headers.get("host", "")):
            return None
        return PlainTextResponse("Call this door by its address, or as localhost.\n", 421)

    def _said(self, code: int, text: str) -> Response:
        return JSONResponse({"pipeline": self._told.pipeline, "text": text}, code, headers=HEADERS)


def _is_address(host: str) -> bool:
    """Whether a ``Host`` is an IP address or localhost, with a port or without."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
