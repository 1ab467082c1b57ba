"""How much of its log the source still has for us: it is asked while somebody wants to know, never by the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from raycdc.checkpoint.store import CheckpointStore
from raycdc.config import PipelineConfig
from raycdc.errors import RaycdcError
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.source.connector import LogRoom

#: An answer is good for so long: a question takes a connection of its own.
GOOD_FOR_S = 30.0
#: Whoever comes within so long after the source was asked first waits for its answer, to the end of that time.
PATIENCE_S = 2.0


class AskedRoom:
    """Asks in the background. Thread-safe."""

    def __init__(self, ask: Callable[[], LogRoom | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._room: LogRoom | None = None
        self._asked_s = float("-inf")
        self._asking = False

    def __repr__(self) -> str:
        return f"AskedRoom({self._room!r})"

    def __call__(self) -> LogRoom | None:
        """The newest answer; None while there is none, or where the source cannot say."""
        with self._lock:
            now_s = time.monotonic()
            # A source that does not answer at all is asked by one thread, however long it takes.
            due = not self._asking and now_s - self._asked_s >= GOOD_FOR_S
            if due:
                self._asked_s, self._asking = now_s, True
            patience_s = self._asked_s + PATIENCE_S - now_s
        if due:
            threading.Thread(target=self._look, name="log room", daemon=True).start()
        if patience_s > 0:
            self._answered.wait(patience_s)
        return self._room

    def _look(self) -> None:
        room = None
        try:
            # A source that is away is told of by those who need it.
            with suppress(RaycdcError):
                room = self._ask()
        finally:
            self._room, self._asking = room, False
            self._answered.set()


def room_of(config: PipelineConfig, store: CheckpointStore) -> AskedRoom:
    """Asks the source of a run behind the newest sealed epoch."""

    def ask() -> LogRoom | None:
        last = store.last_manifest()
        if last is None:
            return None
        room: LogRoom | None = load_plugin(PluginGroup.SOURCES, config.source.type).create(config.source).log_room(last)
        return room

    return AskedRoom(ask)
