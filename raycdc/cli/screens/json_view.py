"""Shows a run as JSON lines, for programs. It is apart from `progress`, whose imports a JSON view does not need."""

from __future__ import annotations

import sys
from typing import TextIO

from raycdc.core.terminal_text import printable_text
from raycdc.observe.events import Failed, RunEvent, Starting
from raycdc.observe.events.lines import line_of


class JsonView:
    """Prints each event as one line, and flushes it, so that a program can wait for it.

    The first event is ``started``.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        """Create the view; `out` is standard output unless given."""
        self._out = out
        #: The name of the pipeline, once it is known.
        self.pipeline: str | None = None
        #: True if an event was an error.
        self.reported_error = False

    def show(self, event: RunEvent) -> None:
        if isinstance(event, Starting):
            return
        self.reported_error = self.reported_error or isinstance(event, Failed)
        out = self._out or sys.stdout
        out.write(line_of(event, self.pipeline) + "\n")
        out.flush()

    def note(self, text: str) -> None:
        print(printable_text(text), file=sys.stderr)

    def announce(self, text: str) -> None:
        self.note(text)

    def close(self) -> None:
        """Do nothing: there is nothing to restore."""
