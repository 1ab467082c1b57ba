"""A table's schema document: stored under its fingerprint, and sent with splits and schema changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raycdc.model import TableSchema


@dataclass(frozen=True, slots=True)
class SchemaDocument:
    """Columns and primary key are for all code; the rest of the document is for its connector alone (`own`).

    Invariant: the JSON is kept as it was made or read, so the document is always written again unchanged.
    """

    _json: Mapping[str, Any]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SchemaDocument:
        """Raises `KeyError` where the data has no fingerprint, and so is no document."""
        data["fingerprint"]
        return cls(data)

    @classmethod
    def of(cls, schema: TableSchema) -> SchemaDocument:
        """Return the document of a connector without data of its own."""
        return cls({**schema.to_json(), "fingerprint": schema.fingerprint()})

    def to_json(self) -> dict[str, Any]:
        return dict(self._json)

    @property
    def fingerprint(self) -> str:
        """The name that the document has everywhere."""
        return str(self._json["fingerprint"])

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(self._json["primary_key"])

    @property
    def schema(self) -> TableSchema:
        """The table as its targets have it."""
        return TableSchema.from_json(self._json)

    def own(self, name: str) -> Any:
        """A value that the connector itself put into the document; None if it did not."""
        return self._json.get(name)
