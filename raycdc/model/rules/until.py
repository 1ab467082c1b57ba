"""Where a run ends that does not go on until it is stopped."""

from __future__ import annotations

from enum import StrEnum


class Until(StrEnum):
    """The end of a bounded run: its source's present end when it began, or the end of the snapshot."""

    CAUGHT_UP = "caught-up"
    SNAPSHOT = "snapshot"
