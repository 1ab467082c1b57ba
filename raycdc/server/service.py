"""The HTTP services of one run: the control API, which opens after its processes are up, and the metrics.

`LogRetentionMonitor` asks the source how long it keeps the unread log. It asks only when a request needs the answer.
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

#: The seconds for which an answer is used. Each query opens a connection to the source.
GOOD_FOR_S = 30.0
#: The maximum number of seconds for which requests wait for the first answer.
TIMEOUT_S = 2.0


class LogRetentionMonitor:
    """Queries the log retention in a background thread. Thread-safe."""

    def __init__(self, ask: Callable[[], LogRetention | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._retention: LogRetention | None = None
        self._asked_s = float("-inf")
        self._asking = False

    def __repr__(self) -> str:
        return f"LogRetentionMonitor({self._retention!r})"

    def __call__(self) -> LogRetention | None:
        """Return the newest answer; None if there is none yet, or the source does not report its retention.

        Starts a new query if the answer is too old, and waits up to `TIMEOUT_S` seconds for it.
        """
        with self._lock:
            now_s = time.monotonic()
            # Even if the source never answers, only one thread queries it.
            due = not self._asking and now_s - self._asked_s >= GOOD_FOR_S
            if due:
                self._asked_s, self._asking = now_s, True
            timeout_s = self._asked_s + TIMEOUT_S - now_s
        if due:
            threading.Thread(target=self._poll, name="log retention", daemon=True).start()
        if timeout_s > 0:
            self._answered.wait(timeout_s)
        return self._retention

    def _poll(self) -> None:
        retention = None
        try:
            # An unavailable source is reported by the readers.
            with suppress(RaycdcError):
                retention = self._ask()
        finally:
            self._retention, self._asking = retention, False
            self._answered.set()


def retention_monitor(config: PipelineConfig, store: CheckpointStore) -> LogRetentionMonitor:
    """Return a monitor that asks the source for the retention after the newest sealed epoch."""

    def ask() -> LogRetention | None:
        last = store.last_manifest()
        if last is None:
            return None
        retention: LogRetention | None = (
            load_plugin(PluginGroup.SOURCES, config.source.type).create(config.source).log_retention(last)
        )
        return retention

    return LogRetentionMonitor(ask)


if TYPE_CHECKING:
    from starlette.types import ASGIApp


def _position_text(source: str, parked: Parked) -> str:
    """Return the position at which a table was parked, in the notation of its source; empty if it is unknown."""
    plugin = load_plugin(PluginGroup.SOURCES, source)
    return str(plugin.position_text()(parked.position)) if plugin.positions else ""


class ControlService:
    """The services of one run.

    `listen` receives the run's events after the `keeper` of its status. `take` is called before the first process
    starts. `show_page` is called with the address of the web UI, if a link is to be shown
    (`raycdc.server.control_server.ControlServerContext`).
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
        self._retention: LogRetentionMonitor | None = None
        position_text = partial(_position_text, config.source.type)
        self._documents = StatusDocuments(keeper, config.router().targets, self.log_retention, position_text)
        self._history = History(keeper)
        self._server: ControlServer | None = None
        self._opened = False
        self._scraped: HttpThread | None = None

    def __repr__(self) -> str:
        return f"ControlService({self._server!r})"

    def listen(self, event: RunEvent) -> None:
        """Handle an event of the run; called with one event at a time."""
        self._history.listen(event)
        if self._server is not None:
            self._server.notify(event)
            if isinstance(event, Started) and not self._opened:
                self._opened = True
                self._server.open()

    def take(self, leadership: Leadership, warn: Callable[[str], None]) -> None:
        """Create the control API of the state that this run has acquired. `warn` is called if the API does not work."""
        self._retention = retention_monitor(self._config, leadership.store)
        options = self._config.control
        if not options.enabled:
            leadership.announce(ControlEndpoint(problem="control.enabled is false in its configuration."))
            return
        context = ControlServerContext(
            options, leadership.store, leadership.announce, warn, self._show_page, self._config.file
        )
        self._server = ControlServer(context, self._documents, self._history, CommandQueue(leadership.store))

    def open(self, warn: Callable[[str], None]) -> None:
        """Serve metrics and probes, if they are configured.

        Called at the first step, because a waiting standby is probed, too. `warn` is called for problems.
        """
        if not self._config.metrics.address:
            return

        def prepare() -> tuple[socket.socket, ASGIApp]:
            from raycdc.server.scraping import prepare

            return prepare(self._config.metrics, self._documents)

        def failed(cause: Exception) -> None:
            again = "It is retried until it works." if isinstance(cause, ConfigError) else "The run goes on."
            warn(f"Metrics are not served: {cause} {again}")

        self._scraped = HttpThread("metrics", prepare, failed)
        self._scraped.open()

    def log_retention(self) -> LogRetention | None:
        """Return the source's retention of the unread log, at most half a minute old; None if it is unknown."""
        return None if self._retention is None else self._retention()

    def close(self) -> None:
        """Close all servers at the end of the run."""
        if self._scraped is not None:
            self._scraped.close()
        if self._server is not None:
            self._server.close()
