"""The control of one run: what it tells is collected, and its door opens once its processes are up."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from raycdc.checkpoint.door import Door
from raycdc.config import PipelineConfig
from raycdc.control.collect import About, Collector
from raycdc.control.history import History
from raycdc.control.room import AskedRoom, room_of
from raycdc.control.server import ControlDoor, Threshold
from raycdc.control.serving import HttpThread
from raycdc.driver.commands import CommandDesk
from raycdc.driver.succession import Tenure
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.run_events import Listener, RunEvent, Started
from raycdc.source.connector import LogRoom
from raycdc.source.protocol.job_status import JobStatus
from raycdc.source.table_life import Parked

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def _place_text(source: str, parked: Parked) -> str:
    """Where a table was parked, in its source's words; empty where it has none."""
    plugin = load_plugin(PluginGroup.SOURCES, source)
    return str(plugin.place_text()(parked.position)) if plugin.places else ""


class Control:
    """Hears a run's events and statuses on their way to `listener`. `take` comes before the first process, in order.

    `show_page` hears where the page is, if it is wanted (`raycdc.control.server.Threshold`).
    """

    def __init__(
        self,
        config: PipelineConfig,
        listener: Listener,
        *,
        local: bool,
        show_page: Callable[[str, str], None] | None = None,
    ) -> None:
        self._config = config
        self._listener = listener
        self._show_page = show_page
        self._room: AskedRoom | None = None
        router = config.router()
        place = config.sink.store or config.sink.folder
        sink = f"{config.sink.type} {place}".strip()
        place_text = partial(_place_text, config.source.type)
        about = About(config.pipeline.name, sink, local, router.targets, self.log_room, place_text)
        self._collector = Collector(about)
        self._history = History(self._collector.pace)
        self._door: ControlDoor | None = None
        self._opened = False
        self._scraped: HttpThread | None = None

    def __repr__(self) -> str:
        return f"Control({self._collector!r}, {self._door!r})"

    def listen(self, event: RunEvent) -> None:
        """An event of the run; one at a time."""
        self._collector.listen(event)
        self._history.listen(event)
        if self._door is not None:
            self._door.tell(event)
            if isinstance(event, Started) and not self._opened:
                self._opened = True
                self._door.open()
        self._listener(event)

    def heard(self, status: JobStatus | None) -> None:
        """A status of the source side."""
        self._collector.heard(status)

    def moved(self) -> None:
        """The driver's work goes on."""
        self._collector.moved()

    def take(self, tenure: Tenure, warn: Callable[[str], None]) -> None:
        """The state is this run's. `warn` hears of a door that does not work."""
        self._room = room_of(self._config, tenure.store)
        options = self._config.control
        if not options.enabled:
            tenure.announce(Door(problem="control.enabled is false in its configuration."))
            return
        threshold = Threshold(options, tenure.store, tenure.announce, warn, self._show_page, self._config.file)
        self._door = ControlDoor(threshold, self._collector, self._history, CommandDesk(tenure.store))

    def open(self, warn: Callable[[str], None]) -> None:
        """Serve figures and probes, where they are asked for: from the first step on, because a standby that waits is
        alive, too. `warn` hears of what does not work.
        """
        if not self._config.metrics.address:
            return

        def prepare() -> tuple[socket.socket, ASGIApp]:
            from raycdc.control.scraping import prepare

            return prepare(self._config.metrics, self._collector)

        def failed(cause: Exception) -> None:
            warn(f"There are no figures for Prometheus ({cause}); the run goes on.")

        self._scraped = HttpThread("metrics", prepare, failed)
        self._scraped.open()

    def log_room(self) -> LogRoom | None:
        """How much of its log the source still has for the run, as it said within the last half minute; None while
        nobody knows.
        """
        return None if self._room is None else self._room()

    def close(self) -> None:
        """The run ends."""
        if self._scraped is not None:
            self._scraped.close()
        if self._door is not None:
            self._door.close()
