"""The schema document of a table, which is stored under its fingerprint and sent with splits and schema changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raycdc.model import TableSchema


@dataclass(frozen=True, slots=True)
class SchemaDocument:
    """A table's columns and primary key, which all code may use, and data that only the connector may use (`own`).
    Invariant: the JSON is kept in the form in which it was made or read, so a document that was read is written
    unchanged.
    """

    _json: Mapping[str, Any]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SchemaDocument:
        """Return the document of this JSON. Raises `KeyError` if the data has no fingerprint, and so is no document."""
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
        """Return the name under which the document is stored and sent."""
        return str(self._json["fingerprint"])

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(self._json["primary_key"])

    @property
    def schema(self) -> TableSchema:
        """Return the table as its targets have it."""
        return TableSchema.from_json(self._json)

    def own(self, name: str) -> Any:
        """Return a value that the connector itself put into the document; None if it put none there."""
        return self._json.get(name)
