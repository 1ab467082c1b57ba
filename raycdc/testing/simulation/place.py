"""Where the log of the simulated database stands: an ordinal, as the server that wrote it counts."""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.checkpoint.opaque import Position


@dataclass(frozen=True, slots=True)
class SimPlace:
    """The first `ordinal` transactions were read, of the log of `server`."""

    ordinal: int
    server: int = 0

    @classmethod
    def of(cls, position: Position) -> SimPlace:
        return cls(**position.to_json())

    def sealed(self) -> Position:
        return Position.from_json({"ordinal": self.ordinal, "server": self.server})
