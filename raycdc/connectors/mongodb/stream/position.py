"""Where a source was read to, as state has it: a place in a change stream, or the place of a snapshot alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from raycdc.checkpoint.opaque import Position
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken
from raycdc.errors import ConfigError


class StreamPositionJson(TypedDict):
    """`StreamPosition` in a state."""

    cluster_time: int
    token: Any
    replica_set: str


class NoLogPositionJson(TypedDict):
    """`NoLogPosition` in a state."""

    log: Literal["none"]
    replica_set: str


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Behind `token` (None: none was seen yet); all up to `cluster_time` has been read. Of `replica_set` alone.

    The cluster time is the log's ordinal (`raycdc.connectors.mongodb.stream.token.ordinal_of`).
    """

    cluster_time: int
    token: ResumeToken | None = None
    replica_set: str = ""

    def to_json(self) -> StreamPositionJson:
        token = None if self.token is None else self.token.to_json()
        return {"cluster_time": self.cluster_time, "token": token, "replica_set": self.replica_set}

    def sealed(self) -> Position:
        """As states have it."""
        return Position.from_json(self.to_json())

    @classmethod
    def of(cls, sealed: Position) -> StreamPosition:
        """Inverse of `sealed`. Raises `ConfigError` for the place of a source that followed no log."""
        position = position_of(sealed)
        if isinstance(position, NoLogPosition):
            raise ConfigError(
                'pipeline.state was begun with source.startup = "snapshot", which follows no changes. Put that back, '
                "or begin with another pipeline.state."
            )
        return position


@dataclass(frozen=True, slots=True)
class NoLogPosition:
    """The place of a snapshot alone, which follows no log; of `replica_set`."""

    replica_set: str

    def to_json(self) -> NoLogPositionJson:
        return {"log": "none", "replica_set": self.replica_set}

    def sealed(self) -> Position:
        """As states have it."""
        return Position.from_json(self.to_json())


def position_of(position: Position) -> StreamPosition | NoLogPosition:
    """The position that a state has."""
    data = position.to_json()
    if data.get("log") == "none":
        return NoLogPosition(data["replica_set"])
    token = None if data["token"] is None else ResumeToken.from_json(data["token"])
    return StreamPosition(data["cluster_time"], token, data["replica_set"])
