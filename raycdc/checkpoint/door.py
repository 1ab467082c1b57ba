"""The address of a running pipeline's control door, as its driver's signs of life have it, and the file of its token.

The token is no part of that record, because many may read a state who must not command the run: the record names a file
of the driver's user in the run's private folder. A state on an object store never has the token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from raycdc.errors import StateError

#: Of the API that is behind the door.
VERSION = 1
_FILE = re.compile(r"private-[0-9a-f]{32}")


class DoorJson(TypedDict):
    """`Door` on disk."""

    url: str
    token: str
    version: int
    problem: str


@dataclass(frozen=True, slots=True)
class Door:
    """`token` is the name of a private file, empty where the configuration has the token. `problem` says why there is
    no door.
    """

    url: str = ""
    token: str = ""
    version: int = VERSION
    problem: str = ""

    def to_json(self) -> DoorJson:
        return DoorJson(url=self.url, token=self.token, version=self.version, problem=self.problem)

    @classmethod
    def from_json(cls, data: DoorJson) -> Door:
        return cls(data["url"], data["token"], data["version"], data["problem"])

    def token_path(self, private: Path) -> Path:
        """The file of the token in the folder of private files. `StateError` where the record names no such file."""
        if not self.token:
            raise StateError(f"The run at {self.url} has its token from its configuration: set the same control.token.")
        if not _FILE.fullmatch(self.token):
            raise StateError(
                f"The state names {self.token!r} as the file of its run's token, but no run names a file so."
            )
        return private / self.token
