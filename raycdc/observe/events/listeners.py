"""The listeners of one run.

Each listener gets every event, one at a time, and an error in one does not affect the others. An error in a listener is
a bug of raycdc or of a user's listener. It is reported once, in two ways: by a warning with the listener's name, which
all listeners get, and on standard error, because the failed listener may be the one that shows warnings. The failed
listener still gets the next event.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from raycdc.core.terminal_text import printable_text
from raycdc.observe.events.run_events import Listener, RunEvent, Warned


class Listeners:
    """Calls the `listeners` of a run, in their order; the keys are their names for messages.

    Any thread may call `notify` and `guard`; a listener may call neither.
    """

    def __init__(self, listeners: Mapping[str, Listener]) -> None:
        self._lock = threading.Lock()
        self._listeners = dict(listeners)
        #: The names of the listeners whose error was reported.
        self._failed: set[str] = set()

    def __repr__(self) -> str:
        return f"Listeners({', '.join(self._listeners)})"

    def add(self, name: str, listener: Listener) -> None:
        """Add a listener after the existing ones; it gets the events from now on."""
        with self._lock:
            self._listeners[name] = listener

    def notify(self, event: RunEvent) -> None:
        """Call each listener with the event."""
        with self._lock:
            pending = deque([event])
            while pending:
                now = pending.popleft()
                for name, listener in self._listeners.items():
                    try:
                        listener(now)
                    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                        pending.extend(self._reported(name, listener, error))

    def guard(self, name: str, call: Callable[[], object]) -> None:
        """Call a function for the named listener. Its error is reported like an error of the listener."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            for warning in self._reported(name, call, error):
                self.notify(warning)

    def _reported(self, name: str, listener: object, error: Exception) -> list[Warned]:
        """Print the error on standard error, and return the warning about it.

        Returns nothing if the listener has failed before.
        """
        if name in self._failed:
            return []
        self._failed.add(name)
        from raycdc.runtime.unexpected import unexpected  # The import is here, because it loads Arrow.

        text = (
            f"The listener {name!r} of this run failed, and the run goes on without what it does with events: "
            f"{unexpected(error, listener)} Its further errors are not reported."
        )
        # Standard error may be closed.
        with suppress(OSError, ValueError):
            print(printable_text(text), file=sys.stderr)  # noqa: T201 - the listener may be the one that shows warnings
        return [Warned(text)]
