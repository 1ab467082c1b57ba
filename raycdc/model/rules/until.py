"""The end of a bounded run."""

from __future__ import annotations

from enum import StrEnum


class Until(StrEnum):
    """The end of a bounded run: the source's end at the time when the run began, or the end of the snapshot."""

    CAUGHT_UP = "caught-up"
    SNAPSHOT = "snapshot"
