"""What the lines of ``raycdc run --json`` add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def known_tables(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The newest figures of each table by name: a line of progress has those of which there was news."""
    known: dict[str, dict[str, Any]] = {}
    for event in list(events):
        if event["event"] == "progress":
            known.update((table["table"], table) for table in event["tables"])
    return known
