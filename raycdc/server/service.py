"""The HTTP services of one run: the control API, which opens after its processes are up, and the metrics.

`LogRetentionMonitor` asks the source how long it keeps the unread log: only on request, never by the run itself.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from raycdc.config import PipelineConfig
from raycdc.driver.command_queue import CommandQueue
from raycdc.driver.leadership import Leadership
from raycdc.errors import ConfigError, RaycdcError
from raycdc.observe.events import RunEvent, Started
from raycdc.observe.status import StatusKeeper
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.history import History
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.server.control_server import ControlServer, ControlServerContext, HttpThread
from raycdc.source.connector import LogRetention
from raycdc.source.tables.table_life import Parked
from raycdc.state.drivers.holder import ControlEndpoint
from raycdc.state.store import CheckpointStore

#: An answer is used for this long, because a query takes its own connection.
GOOD_FOR_S = 30.0
#: Requests within this time after the first query wait for its answer, until the time is over.
TIMEOUT_S = 2.0


class LogRetentionMonitor:
    """Asks in the background. Thread-safe."""

    def __init__(self, ask: Callable[[], LogRetention | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._room: LogRetention | None = None
        self._asked_s = float("-inf")
        self._asking = False

    def __repr__(self) -> str:
        return f"LogRetentionMonitor({self._room!r})"

    def __call__(self) -> LogRetention | None:
        """The newest answer; None while there is none, or where the source cannot say."""
        with self._lock:
            now_s = time.monotonic()
            # Even if a source does not answer at all, only one thread queries it.
            due = not self._asking and now_s - self._asked_s >= GOOD_FOR_S
            if due:
                self._asked_s, self._asking = now_s, True
            timeout_s = self._asked_s + TIMEOUT_S - now_s
        if due:
            threading.Thread(target=self._poll, name="log room", daemon=True).start()
        if timeout_s > 0:
            self._answered.wait(timeout_s)
        return self._room

    def _poll(self) -> None:
        room = None
        try:
            # Others report an unavailable source.
            with suppress(RaycdcError):
                room = self._ask()
        finally:
            self._room, self._asking = room, False
            self._answered.set()


def retention_monitor(config: PipelineConfig, store: CheckpointStore) -> LogRetentionMonitor:
    """Return a monitor that asks the source for the retention after the newest sealed epoch."""

    def ask() -> LogRetention | None:
        last = store.last_manifest()
        if last is None:
            return None
        room: LogRetention | None = (
            load_plugin(PluginGroup.SOURCES, config.source.type).create(config.source).log_retention(last)
        )
        return room

    return LogRetentionMonitor(ask)


if TYPE_CHECKING:
    from starlette.types import ASGIApp


def _position_text(source: str, parked: Parked) -> str:
    """Return where a table was parked, in its source's notation; empty if it is unknown."""
    plugin = load_plugin(PluginGroup.SOURCES, source)
    return str(plugin.position_text()(parked.position)) if plugin.positions else ""


class ControlService:
    """Hears a run's events after the `keeper` of its status. `take` comes before the first process, in order.

    `show_page` hears where the page is, if it is wanted (`raycdc.server.control_server.ControlServerContext`).
    """

    def __init__(
        self,
        config: PipelineConfig,
        keeper: StatusKeeper,
        *,
        show_page: Callable[[str, str], None] | None = None,
    ) -> None:
        self._config = config
        self._show_page = show_page
        self._room: LogRetentionMonitor | None = None
        position_text = partial(_position_text, config.source.type)
        self._documents = StatusDocuments(keeper, config.router().targets, self.log_retention, position_text)
        self._history = History(keeper)
        self._server: ControlServer | None = None
        self._opened = False
        self._scraped: HttpThread | None = None

    def __repr__(self) -> str:
        return f"Control({self._server!r})"

    def listen(self, event: RunEvent) -> None:
        """An event of the run; one at a time."""
        self._history.listen(event)
        if self._server is not None:
            self._server.notify(event)
            if isinstance(event, Started) and not self._opened:
                self._opened = True
                self._server.open()

    def take(self, leadership: Leadership, warn: Callable[[str], None]) -> None:
        """The state is this run's. `warn` hears of a door that does not work."""
        self._room = retention_monitor(self._config, leadership.store)
        options = self._config.control
        if not options.enabled:
            leadership.announce(ControlEndpoint(problem="control.enabled is false in its configuration."))
            return
        threshold = ControlServerContext(
            options, leadership.store, leadership.announce, warn, self._show_page, self._config.file
        )
        self._server = ControlServer(threshold, self._documents, self._history, CommandQueue(leadership.store))

    def open(self, warn: Callable[[str], None]) -> None:
        """Serve metrics and probes, if they are configured, from the first step on: a waiting standby is alive, too.

        `warn` is called for problems.
        """
        if not self._config.metrics.address:
            return

        def prepare() -> tuple[socket.socket, ASGIApp]:
            from raycdc.server.scraping import prepare

            return prepare(self._config.metrics, self._documents)

        def failed(cause: Exception) -> None:
            again = "It is tried again until it works." if isinstance(cause, ConfigError) else "The run goes on."
            warn(f"There are no figures for Prometheus: {cause} {again}")

        self._scraped = HttpThread("metrics", prepare, failed)
        self._scraped.open()

    def log_retention(self) -> LogRetention | None:
        """Return the source's retention of the unread log, at most half a minute old; None if it is unknown."""
        return None if self._room is None else self._room()

    def close(self) -> None:
        """The run ends."""
        if self._scraped is not None:
            self._scraped.close()
        if self._server is not None:
            self._server.close()
