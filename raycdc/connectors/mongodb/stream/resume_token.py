"""Positions in change streams: resume tokens, which the server returns for an event or a time.

A token is stored and returned unchanged. `raycdc.connectors.mongodb.stream.token` parses the parts that raycdc needs.

`StreamPosition` is a position in a change stream; `NoLogPosition` is the position of a snapshot without a change
stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import bson
from bson import json_util
from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.bson.documents import CANONICAL, PLAIN, RAW, Document
from raycdc.connectors.mongodb.stream.token import TokenParts, cluster_time_of, decode_token
from raycdc.core.typed_codec import JsonObject
from raycdc.errors import ConfigError
from raycdc.state.codec import NEW_STATE
from raycdc.state.opaque import Position


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A resume token as the BSON of its document."""

    raw: bytes

    @classmethod
    def of(cls, document: Document) -> ResumeToken:
        return cls(bson.encode(document))

    def document(self) -> Document:
        """Return the token as the driver expects it."""
        return bson.decode(self.raw, PLAIN)

    @property
    def cluster_time(self) -> int:
        """Return the cluster time of the token. Raises `DataError` for a token without one."""
        return cluster_time_of(self._data)

    def parts(self) -> TokenParts:
        return decode_token(self._data)

    @property
    def _data(self) -> str | bytes | None:
        return RawBSONDocument(self.raw, RAW).get("_data")

    def to_json(self) -> str:
        """Return the token for states: as Extended JSON, because it may have values other than text."""
        return json_util.dumps(self.document(), json_options=CANONICAL)

    @classmethod
    def from_json(cls, text: str) -> ResumeToken:
        """Return the inverse of `to_json`."""
        return cls.of(json_util.loads(text, json_options=CANONICAL))


@dataclass(frozen=True, slots=True)
class StreamPosition(JsonObject):
    """A position after `token` (None: no token was received yet). All events up to `cluster_time` have been read.

    It is valid for `replica_set` only. The cluster time is the log's ordinal
    (`raycdc.connectors.mongodb.stream.token.ordinal_of`).
    """

    cluster_time: int
    token: ResumeToken | None = None
    replica_set: str = ""

    def sealed(self) -> Position:
        """Return the position for states."""
        return Position.from_json(self.to_json())

    @classmethod
    def of(cls, sealed: Position) -> StreamPosition:
        """Return the inverse of `sealed`. Raises `ConfigError` for the position of a source without a log."""
        position = position_of(sealed)
        if isinstance(position, NoLogPosition):
            raise ConfigError(
                'pipeline.state was begun with source.startup = "snapshot", which follows no changes. Put that back, '
                f"or {NEW_STATE}."
            )
        return position


@dataclass(frozen=True, slots=True)
class NoLogPosition(JsonObject):
    """The position of a snapshot without a change stream, of `replica_set`."""

    replica_set: str

    log = "none"
    written_first = ("log",)

    def sealed(self) -> Position:
        """Return the position for states."""
        return Position.from_json(self.to_json())


def position_of(position: Position) -> StreamPosition | NoLogPosition:
    """Return the typed form of a state's position."""
    data = position.to_json()
    if data.get("log") == "none":
        return NoLogPosition.from_json(data)
    return StreamPosition.from_json(data)
