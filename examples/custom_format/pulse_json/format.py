"""``pulse-json``, the format of an imaginary tool:

    {"what": "changed", "where": {"db": "shop", "table": "orders"}, "at": 1700000000000,
     "row": {"id": 1, "n": 2}, "was": {"n": 1}, "key": ["id"]}

``was`` has only the old values of changed columns. With this description raycdc decodes the format in its compiled
loops, a whole batch at a time, with every rule about types, schemas and bad messages that the built-in formats have.
"""

from __future__ import annotations

import json
from typing import ClassVar

from pulse_json.plugin import PulseOptions
from raycdc.formats.envelope import NUMBER, TEXT, Action, EnvelopeSpec, MetadataField, TimeUnit
from raycdc.formats.json.dialect import JsonDialect
from raycdc.formats.loops import code_loops as wires
from raycdc.model import LogicalType, TypeKind


class PulseJson(JsonDialect):
    """The format of Pulse's change messages."""

    identifier: ClassVar[str] = "pulse-json"
    options: PulseOptions
    spec = EnvelopeSpec(
        type="what",
        actions={
            "added": Action.INSERT,
            "changed": Action.UPDATE,
            "removed": Action.DELETE,
            "emptied": Action.TRUNCATE,
            "alive": Action.IGNORE,
        },
        after="row",
        before="was",
        patch=True,
        database="where.db",
        table="where.table",
        time="at",
        time_unit=TimeUnit.MILLIS,
        repeats=("key",),
        metadata={"at": MetadataField("at", NUMBER), "user": MetadataField("who.user", TEXT)},
    )

    def wire(self, logical: LogicalType) -> int:
        """Return how values of a type are spelled. Pulse has its own spelling only for bytes."""
        return wires.WIRE_HEX if logical.kind is TypeKind.BINARY and self.options.hex_bytes else wires.WIRE_PLAIN

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """Return the key columns. Called once per table, with its first message."""
        return tuple(json.loads(message).get("key", ()))

    def before_fix(self, message: bytes) -> str:
        """Return the remedy for a change without `was`, for people."""
        return "Run Pulse with --with-previous."
