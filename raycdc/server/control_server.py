"""The control API of a run: a thread that serves it, and publishes its address in the heartbeat.

It opens a while after the run has begun, because the first rows have priority. Its problems are warnings of the run,
and never end it.

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


#: Between two tries to listen at a port that is taken.
AGAIN_S = 1.0


class HttpThread:
    """A thread that serves HTTP from `open` on; `close` may come at any time.

    `prepare` is called in the thread, `after_s` seconds later, and returns the application and its socket; libraries
    are imported there, too. `failed` is called for each problem. If the address cannot be opened, this is reported once
    and retried until `close`.
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
        """Begin; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End, within a few seconds. Harmless where it was never opened."""
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
                # Another driver uses the port, whose standby this one may be, and will end at some time.
                if not is_reported:
                    self._failed(cause)
                pause_s, is_reported = AGAIN_S, True
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

    from raycdc.server.event_streams import EventHub
    from raycdc.server.ui.routes import WebUi

#: After this long the API's libraries are loaded: not before rows are on their way, and never by a run that has ended.
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
    #: Hears where the page is, if it is wanted: its address, and a code that lets a browser in.
    show_page: Callable[[str, str], None] | None = None
    #: The file of the configuration, if there is one.
    config: Path | None = None


class ControlServer:
    """Opens by itself after `open` was called; `close` may come at any time."""

    def __init__(
        self, threshold: ControlServerContext, documents: StatusDocuments, history: History, commands: CommandQueue
    ) -> None:
        self._threshold = threshold
        self._documents = documents
        self._history = history
        self._commands = commands
        self._events: EventHub | None = None
        self._thread = HttpThread("control API", self._prepare, self._failed, after_s=OPENS_AFTER_S)
        self._token_file: Path | None = None
        self._page: WebUi | None = None

    def __repr__(self) -> str:
        return f"ControlServer({self._threshold.options!r}, {self._thread!r})"

    def open(self) -> None:
        """Begin; returns at once."""
        self._thread.open()

    def notify(self, event: RunEvent) -> None:
        """Pass an event of the run on to those who follow; returns at once."""
        if self._events is not None:
            self._events.notify(event)

    def close(self) -> None:
        """End, within a few seconds. Harmless where it was never opened."""
        self._thread.close()
        if self._page is not None:
            self._page.close()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)

    def _failed(self, cause: Exception) -> None:
        again = "; it is tried again" if isinstance(cause, ConfigError) else ""
        text = f"The control API of this run does not work ({type(cause).__name__}: {cause}){again}; the run goes on."
        self._threshold.announce(ControlEndpoint(problem=text))
        self._threshold.warn(text)

    def _prepare(self) -> tuple[socket.socket, ASGIApp]:
        from raycdc.server.api import ApiBackend, Guarding, application
        from raycdc.server.authorization import ApiToken, BrowserSessions
        from raycdc.server.event_streams import EventHub
        from raycdc.server.ui.feed import Feed
        from raycdc.server.ui.routes import WebUi
        from raycdc.server.ui.schemas import Schemas
        from raycdc.server.ui.verifications import Verifications

        options = self._threshold.options
        listening = listen(options)
        host, port = listening.getsockname()[:2]
        token = options.token.reveal() or secrets.token_urlsafe(32)
        name = "" if options.token else self._write(token)
        self._events = EventHub()
        page = None
        config = self._threshold.config
        if options.ui is not UiAccess.OFF:
            sessions = BrowserSessions(token, reads_only=options.ui is UiAccess.READ_ONLY)
            verifications = None if config is None else Verifications.of(config)
            schemas = Schemas(self._threshold.store)
            page = WebUi(sessions, Feed(self._documents, self._history), schemas, verifications)
            self._page = page
        app = application(
            ApiBackend(self._documents.status, self._commands, self._events),
            Guarding(ApiToken(token), names_of(options, host, port)),
            page,
        )
        url = _url(options, host, port)
        self._threshold.announce(ControlEndpoint(url, name))
        if page is not None and self._threshold.show_page is not None:
            self._threshold.show_page(url, page.sessions.new_code())
        return listening, app

    def _write(self, token: str) -> str:
        path = private_file(self._threshold.store.path / "private", token)
        self._token_file = path
        return path.name


def names_of(options: ControlOptions, host: str, port: int) -> frozenset[str]:
    """Return the accepted values of ``Host``."""
    names = {options.host, host, "localhost", "127.0.0.1", "[::1]", *options.hosts}
    if not options.is_loopback:
        names |= {socket.gethostname(), socket.getfqdn()}
        with suppress(OSError):
            names |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    # A proxy is called by its own port, or without one.
    return frozenset({f"{_bracketed(str(name)).lower()}:{port}" for name in names} | {n.lower() for n in options.hosts})


def _url(options: ControlOptions, host: str, port: int) -> str:
    """Return the address for others: the unspecified address of a machine cannot be called."""
    if not ip_address(host).is_unspecified:
        return f"http://{_bracketed(host)}:{port}"
    text = next((name for name in options.hosts if ":" not in name), "")
    whole = socket.getfqdn()
    return f"http://{text or (socket.gethostname() if whole.startswith('localhost') else whole)}:{port}"


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name
