"""Resume tokens of change streams: places behind an event, or behind a time, that the server gives out.

A token is kept and given back as it came. `raycdc.connectors.mongodb.stream.token` has the parts that raycdc reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import bson
from bson import json_util
from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.bson.documents import CANONICAL, PLAIN, RAW, Document
from raycdc.connectors.mongodb.stream.token import TokenParts, cluster_time_of, decode_token


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A token, as the BSON of its document."""

    raw: bytes

    @classmethod
    def of(cls, document: Document) -> ResumeToken:
        return cls(bson.encode(document))

    def document(self) -> Document:
        """The token as the driver takes it."""
        return bson.decode(self.raw, PLAIN)

    @property
    def cluster_time(self) -> int:
        """Raises `DataError` for a token that has none."""
        return cluster_time_of(self._data)

    def parts(self) -> TokenParts:
        return decode_token(self._data)

    @property
    def _data(self) -> str | bytes | None:
        return RawBSONDocument(self.raw, RAW).get("_data")

    def to_json(self) -> str:
        """The token as state has it: Extended JSON, because it may have more than text in it."""
        return json_util.dumps(self.document(), json_options=CANONICAL)

    @classmethod
    def from_json(cls, text: str) -> ResumeToken:
        """Inverse of `to_json`."""
        return cls.of(json_util.loads(text, json_options=CANONICAL))
