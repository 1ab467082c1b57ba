"""The control API of a run: a thread that serves it, and publishes its address in the heartbeat.

It opens some seconds after the start of the run, because the first rows have priority. Its problems are warnings, and
never end the run.

`HttpThread` serves any ASGI application in the same way.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from raycdc.config.sections.observability import ControlOptions, UiAccess
from raycdc.driver.command_queue import CommandQueue
from raycdc.driver.startup_checks import CONNECTIONS_MAX, listen
from raycdc.errors import ConfigError
from raycdc.observe.events import RunEvent
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.history import History
from raycdc.state.drivers.holder import ControlEndpoint
from raycdc.state.files.folder import private_file
from raycdc.state.store import CheckpointStore

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp


#: Seconds between two attempts to listen at a port that is in use.
RETRY_S = 1.0


class HttpThread:
    """A thread that serves HTTP after `open`; `close` may be called at any time.

    The thread calls `prepare` `after_s` seconds after it starts. `prepare` imports the libraries, and returns the
    application and its socket. `failed` is called for each problem. If the address cannot be opened, the problem is
    reported once, and opening is retried until `close`.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[], tuple[socket.socket, ASGIApp]],
        failed: Callable[[Exception], None],
        *,
        after_s: float = 0.0,
    ) -> None:
        self._prepare = prepare
        self._failed = failed
        self._after_s = after_s
        self._closed = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"HttpThread({self._thread.name!r}, open={self._server is not None})"

    def open(self) -> None:
        """Start the thread; returns immediately."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving, within a few seconds. Does nothing if `open` was never called."""
        self._closed.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        pause_s, is_reported = self._after_s, False
        while not self._closed.wait(pause_s):
            try:
                self._serve()
            except ConfigError as cause:
                # Another driver may be using the port. If this run is the standby of that driver, it gets the port when
                # the driver ends.
                if not is_reported:
                    self._failed(cause)
                pause_s, is_reported = RETRY_S, True
            except Exception as cause:  # noqa: BLE001 - the run goes on, whatever a library has met
                self._failed(cause)
                return
            else:
                return

    def _serve(self) -> None:
        import asyncio

        import uvicorn

        listening, application = self._prepare()
        with listening:
            config = uvicorn.Config(
                application,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=1,
            )
            self._server = uvicorn.Server(config)
            if not self._closed.is_set():
                asyncio.run(self._server.serve(sockets=[listening]))


if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from raycdc.server.api import EventHub
    from raycdc.server.ui.routes import WebUi

#: The API's libraries are loaded this many seconds after the start: the first rows have priority, and a run that ends
#: earlier never loads them.
OPENS_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class ControlServerContext:
    """The inputs of a control server.

    `store` is the state, whose private folder gets its token; `announce` publishes its address.
    """

    options: ControlOptions
    store: CheckpointStore
    announce: Callable[[ControlEndpoint], None]
    warn: Callable[[str], None]
    #: Called with the address of the web UI and a login code, if a link is to be shown.
    show_page: Callable[[str, str], None] | None = None
    #: The file of the configuration, if there is one.
    config: Path | None = None


class ControlServer:
    """Serves the control API. It opens some seconds after `open` was called; `close` may come at any time."""

    def __init__(
        self, context: ControlServerContext, documents: StatusDocuments, history: History, commands: CommandQueue
    ) -> None:
        self._context = context
        self._documents = documents
        self._history = history
        self._commands = commands
        self._events: EventHub | None = None
        self._thread = HttpThread("control API", self._prepare, self._failed, after_s=OPENS_AFTER_S)
        self._token_file: Path | None = None
        self._page: WebUi | None = None

    def __repr__(self) -> str:
        return f"ControlServer({self._context.options!r}, {self._thread!r})"

    def open(self) -> None:
        """Start the server's thread; returns immediately."""
        self._thread.open()

    def notify(self, event: RunEvent) -> None:
        """Send an event of the run to all followers; returns immediately."""
        if self._events is not None:
            self._events.notify(event)

    def close(self) -> None:
        """Stop the server, within a few seconds. Does nothing if `open` was never called."""
        self._thread.close()
        if self._page is not None:
            self._page.close()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)

    def _failed(self, cause: Exception) -> None:
        again = "; it is retried" if isinstance(cause, ConfigError) else ""
        text = f"The control API of this run does not work ({type(cause).__name__}: {cause}){again}; the run goes on."
        self._context.announce(ControlEndpoint(problem=text))
        self._context.warn(text)

    def _prepare(self) -> tuple[socket.socket, ASGIApp]:
        from raycdc.server.api import ApiBackend, EventHub, Guarding, application
        from raycdc.server.authorization import ApiToken, BrowserSessions
        from raycdc.server.ui.feed import Feed
        from raycdc.server.ui.routes import Schemas, WebUi
        from raycdc.server.ui.verifications import Verifications

        options = self._context.options
        listening = listen(options)
        host, port = listening.getsockname()[:2]
        token = options.token.reveal() or secrets.token_urlsafe(32)
        name = "" if options.token else self._write(token)
        self._events = EventHub()
        page = None
        config = self._context.config
        if options.ui is not UiAccess.OFF:
            sessions = BrowserSessions(token, reads_only=options.ui is UiAccess.READ_ONLY)
            verifications = None if config is None else Verifications.of(config)
            schemas = Schemas(self._context.store)
            page = WebUi(sessions, Feed(self._documents, self._history), schemas, verifications)
            self._page = page
        app = application(
            ApiBackend(self._documents.status, self._commands, self._events),
            Guarding(ApiToken(token), names_of(options, host, port)),
            page,
        )
        url = _url(options, host, port)
        self._context.announce(ControlEndpoint(url, name))
        if page is not None and self._context.show_page is not None:
            self._context.show_page(url, page.sessions.new_code())
        return listening, app

    def _write(self, token: str) -> str:
        path = private_file(self._context.store.path / "private", token)
        self._token_file = path
        return path.name


def names_of(options: ControlOptions, host: str, port: int) -> frozenset[str]:
    """Return the accepted values of the header ``Host``."""
    names = {options.host, host, "localhost", "127.0.0.1", "[::1]", *options.hosts}
    if not options.is_loopback:
        names |= {socket.gethostname(), socket.getfqdn()}
        with suppress(OSError):
            names |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    # A request through a proxy has the port of the proxy, or no port.
    return frozenset({f"{_bracketed(str(name)).lower()}:{port}" for name in names} | {n.lower() for n in options.hosts})


def _url(options: ControlOptions, host: str, port: int) -> str:
    """Return the address to publish.

    If the server listens on all addresses, a name of this machine is used.
    """
    if not ip_address(host).is_unspecified:
        return f"http://{_bracketed(host)}:{port}"
    text = next((name for name in options.hosts if ":" not in name), "")
    whole = socket.getfqdn()
    return f"http://{text or (socket.gethostname() if whole.startswith('localhost') else whole)}:{port}"


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name
