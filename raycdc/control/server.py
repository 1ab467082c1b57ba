"""The door beside a run: a thread that serves the API, and says in the signs of life where it is.

It opens a while after the run has begun, because the first rows come first. Whatever goes wrong with it is a warning of
the run, and never its end.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from raycdc.checkpoint.door import Door
from raycdc.checkpoint.folder import private_file
from raycdc.checkpoint.store import CheckpointStore
from raycdc.config.control import ControlOptions, PageAccess
from raycdc.control.collect import Collector
from raycdc.control.history import History
from raycdc.control.serving import HttpThread
from raycdc.driver.commands import CommandDesk
from raycdc.run_events import RunEvent
from raycdc.startup_checks import listen

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from raycdc.control.events import EventHub
    from raycdc.control.page.routes import Page

#: After this long the API's libraries are loaded: not before rows are on their way, and never by a run that has ended.
OPENS_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Threshold:
    """What a door needs of its run. `store` is the state, in whose private folder its token goes; `announce` tells
    others where it is.
    """

    options: ControlOptions
    store: CheckpointStore
    announce: Callable[[Door], None]
    warn: Callable[[str], None]
    #: Hears where the page is, if it is wanted: its address, and a code that lets a browser in.
    show_page: Callable[[str, str], None] | None = None
    #: The file of the configuration, if there is one.
    config: Path | None = None


class ControlDoor:
    """Opens by itself after `open` was called; `close` may come at any time."""

    def __init__(self, threshold: Threshold, collector: Collector, history: History, commands: CommandDesk) -> None:
        self._threshold = threshold
        self._collector = collector
        self._history = history
        self._commands = commands
        self._events: EventHub | None = None
        self._thread = HttpThread("control door", self._prepare, self._failed, after_s=OPENS_AFTER_S)
        self._token_file: Path | None = None
        self._page: Page | None = None

    def __repr__(self) -> str:
        return f"ControlDoor({self._threshold.options!r}, {self._thread!r})"

    def open(self) -> None:
        """Begin; returns at once."""
        self._thread.open()

    def tell(self, event: RunEvent) -> None:
        """Pass an event of the run on to those who follow; returns at once."""
        if self._events is not None:
            self._events.tell(event)

    def close(self) -> None:
        """End, within a few seconds. Harmless where it was never opened."""
        self._thread.close()
        if self._page is not None:
            self._page.close()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)

    def _failed(self, cause: Exception) -> None:
        text = f"The control door of this run does not work ({type(cause).__name__}: {cause}); the run goes on."
        self._threshold.announce(Door(problem=text))
        self._threshold.warn(text)

    def _prepare(self) -> tuple[socket.socket, ASGIApp]:
        from raycdc.control.api import Answers, Guarding, application
        from raycdc.control.door_token import DoorToken
        from raycdc.control.events import EventHub
        from raycdc.control.page.feed import Feed
        from raycdc.control.page.routes import Page
        from raycdc.control.page.schemas import Schemas
        from raycdc.control.page.sessions import Sessions
        from raycdc.control.page.verifications import Verifications

        options = self._threshold.options
        listening = listen(options)
        host, port = listening.getsockname()[:2]
        token = options.token.reveal() or secrets.token_urlsafe(32)
        name = "" if options.token else self._write(token)
        self._events = EventHub()
        page = None
        config = self._threshold.config
        if options.page is not PageAccess.OFF:
            sessions = Sessions(token, reads_only=options.page is PageAccess.READ_ONLY)
            verifications = None if config is None else Verifications.of(config)
            schemas = Schemas(self._threshold.store)
            page = Page(sessions, Feed(self._collector, self._history), schemas, verifications)
            self._page = page
        app = application(
            Answers(self._collector.status, self._commands, self._events),
            Guarding(DoorToken(token), names_of(options, host, port)),
            page,
        )
        url = _url(options, host, port)
        self._threshold.announce(Door(url, name))
        if page is not None and self._threshold.show_page is not None:
            self._threshold.show_page(url, page.sessions.new_code())
        return listening, app

    def _write(self, token: str) -> str:
        path = private_file(self._threshold.store.path / "private", token)
        self._token_file = path
        return path.name


def names_of(options: ControlOptions, host: str, port: int) -> frozenset[str]:
    """The values of ``Host`` that are ours."""
    names = {options.host, host, "localhost", "127.0.0.1", "[::1]", *options.hosts}
    if not options.is_loopback:
        names |= {socket.gethostname(), socket.getfqdn()}
        with suppress(OSError):
            names |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    # A proxy is called by its own port, or by none.
    return frozenset({f"{_bracketed(str(name)).lower()}:{port}" for name in names} | {n.lower() for n in options.hosts})


def _url(options: ControlOptions, host: str, port: int) -> str:
    """Where others find it: an address that stands for all of a machine's is none that they can call."""
    if not ip_address(host).is_unspecified:
        return f"http://{_bracketed(host)}:{port}"
    told = next((name for name in options.hosts if ":" not in name), "")
    whole = socket.getfqdn()
    return f"http://{told or (socket.gethostname() if whole.startswith('localhost') else whole)}:{port}"


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name
