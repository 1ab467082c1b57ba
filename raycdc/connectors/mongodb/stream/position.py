"""Where a change stream was read to, as state has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raycdc.connectors.mongodb.stream.events import token_from_json, token_to_json
from raycdc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Behind `token` (None: none was seen yet); all up to `cluster_time` has been read. Of `replica_set` alone.

    The cluster time is the log's ordinal (`raycdc.connectors.mongodb.stream.token.ordinal_of`).
    """

    cluster_time: int
    token: Mapping[str, Any] | None = None
    replica_set: str = ""

    def to_json(self) -> dict[str, Any]:
        token = token_to_json(self.token)
        return {"cluster_time": self.cluster_time, "token": token, "replica_set": self.replica_set}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamPosition:
        """Inverse of `to_json`. Raises `ConfigError` for the place of a source that followed no log."""
        if is_bounded(data):
            raise ConfigError(
                'pipeline.state was begun with source.startup = "snapshot", which follows no changes. Put that back, '
                "or begin with another pipeline.state."
            )
        return cls(data["cluster_time"], token_from_json(data["token"]), data["replica_set"])


def is_bounded(data: Mapping[str, Any]) -> bool:
    """Whether a position is that of a snapshot alone."""
    return data.get("log") == "none"
