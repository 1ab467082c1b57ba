"""The state of the enumerator of topics, as manifests have it, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raycdc.checkpoint.opaque import EnumeratorState
from raycdc.connectors.kafka.homes import SealedHomes
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import StateError
from raycdc.model import TableId

#: Version of this state.
STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class SealedTopics:
    """The state after an epoch. `found_once`: some look at the cluster has found partitions.

    `waiting` are the partitions that no reader reported, `tables` the fingerprints of the schemas in force.
    """

    found_once: bool
    waiting: tuple[PartitionState, ...]
    tables: Mapping[TableId, str]
    homes: SealedHomes = field(default_factory=SealedHomes)

    def sealed(self) -> EnumeratorState:
        """As a manifest has it."""
        return EnumeratorState.from_json(
            {
                "kind": "kafka",
                "version": STATE_VERSION,
                "found_once": self.found_once,
                "waiting": [state.to_json() for state in self.waiting],
                "tables": {str(table): fingerprint for table, fingerprint in self.tables.items()},
                "homes": {table: list(splits) for table, splits in self.homes.homes.items()},
                "emptied": dict(self.homes.emptied),
            }
        )

    @classmethod
    def of(cls, state: EnumeratorState) -> SealedTopics:
        """Inverse of `sealed`. Raises `StateError` for the state of another source or a newer version."""
        data = state.to_json()
        if data.get("kind") != "kafka" or data["version"] > STATE_VERSION:
            raise StateError(
                "The state was written by another kind of source or a newer raycdc. "
                "Use another pipeline.name, or that version."
            )
        return cls(
            data["found_once"],
            tuple(map(PartitionState.from_json, data["waiting"])),
            {TableId.parse(table): fingerprint for table, fingerprint in data["tables"].items()},
            SealedHomes(data.get("homes", {}), data.get("emptied", {})),
        )
