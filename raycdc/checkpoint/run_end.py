"""How a run ended, as it says itself with its last sign of life (`raycdc.checkpoint.holder`).

A run that was killed, or lost its machine, says nothing, and neither does one that ended before the state was its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypedDict

#: Of the text of an error: its first line, and no more than so many characters.
_TEXT_MAX = 500


class RunEndJson(TypedDict):
    """`RunEnd` on disk."""

    at_ms: int
    exit_code: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class RunEnd:
    """`exit_code` is the process's; `error` and `text` are empty where it was 0."""

    at_ms: int
    exit_code: int
    error: str = ""
    text: str = ""

    @classmethod
    def now(cls, exit_code: int, error: str = "", text: str = "") -> RunEnd:
        """The end of this moment; `text` may have any number of lines."""
        line = text.strip().partition("\n")[0]
        return cls(time.time_ns() // 1_000_000, exit_code, error, line[:_TEXT_MAX])

    def to_json(self) -> RunEndJson:
        return RunEndJson(at_ms=self.at_ms, exit_code=self.exit_code, error=self.error, text=self.text)

    @classmethod
    def from_json(cls, data: RunEndJson) -> RunEnd:
        return cls(data["at_ms"], data["exit_code"], data["error"], data["text"])
