"""A run as JSON lines, for programs. Apart from `progress`, which imports what screens need."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO


class JsonView:
    """Each event as one line, flushed, so that a program can wait for it. The first is ``started``."""

    def __init__(self, out: TextIO | None = None) -> None:
        """`out`: standard output unless given."""
        self._out = out
        #: Whether an event was an error.
        self.told_error = False

    def show(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "starting":
            return
        self.told_error = self.told_error or event.get("event") == "error"
        out = self._out or sys.stdout
        out.write(json.dumps(event, ensure_ascii=False, separators=(",", ":"), default=str) + "\n")
        out.flush()

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def close(self) -> None:
        """Nothing to put right."""
