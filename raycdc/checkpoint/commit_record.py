"""A commit record: what the targets of a state hold after an epoch. Large ones are written as what changed, by
`raycdc.checkpoint.record_bases`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from raycdc.checkpoint.parked import ParkedTarget, ParkedTargetJson

#: Version of a record that is whole and has parked targets; one without them is of version 1.
PARKED_VERSION = 2


class RoutedTargetJson(TypedDict):
    """`RoutedTarget` in a commit record."""

    sources: list[str]
    schema: str
    dropped: NotRequired[dict[str, list[str]]]
    transforms: NotRequired[dict[str, str]]


@dataclass(frozen=True, slots=True)
class RoutedTarget:
    """A target table of a pipeline with routes or transforms: the source tables that went into it so far, the
    fingerprint of its columns, those of them (in lower case) that each source dropped, and the identity of the
    transform of each source that has one.
    """

    sources: tuple[str, ...]
    schema: str
    dropped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    transforms: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> RoutedTargetJson:
        document = RoutedTargetJson(sources=list(self.sources), schema=self.schema)
        if self.dropped:
            document["dropped"] = {name: list(columns) for name, columns in self.dropped.items()}
        if self.transforms:
            document["transforms"] = dict(self.transforms)
        return document

    @classmethod
    def from_json(cls, data: RoutedTargetJson) -> RoutedTarget:
        return cls(tuple(data["sources"]), data["schema"], data.get("dropped", {}), data.get("transforms", {}))


class CommitRecordJson(TypedDict):
    """`CommitRecord` on disk."""

    version: int
    epoch: int
    generation: int
    committed_ms: int
    tables: dict[str, list[int]]
    routes: NotRequired[dict[str, RoutedTargetJson]]
    known: NotRequired[dict[str, list[int]]]
    parked: NotRequired[dict[str, ParkedTargetJson]]


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Epoch `epoch` is in the sink. `tables` maps each target ever written to its ``[epoch, step]`` after it.

    `routes` says where their rows came from; a target that it does not name has those of the table of its own name.
    `known` is `tables` for the known rows of source tables, where such are kept (`raycdc.epochs.known_rows`).
    `parked` are targets that got nothing of the epoch, nor of some before it.
    """

    epoch: int
    generation: int
    committed_ms: int
    tables: Mapping[str, tuple[int, int]]
    routes: Mapping[str, RoutedTarget] = field(default_factory=dict)
    known: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    parked: Mapping[str, ParkedTarget] = field(default_factory=dict)

    def to_json(self) -> CommitRecordJson:
        document: CommitRecordJson = {
            # A raycdc that knows nothing of parked targets must not go on with rows that come behind a gap.
            "version": PARKED_VERSION if self.parked else 1,
            "epoch": self.epoch,
            "generation": self.generation,
            "committed_ms": self.committed_ms,
            "tables": {name: list(vector) for name, vector in self.tables.items()},
        }
        if self.routes:
            document["routes"] = {name: target.to_json() for name, target in self.routes.items()}
        if self.known:
            document["known"] = {name: list(vector) for name, vector in self.known.items()}
        if self.parked:
            document["parked"] = {name: entry.to_json() for name, entry in self.parked.items()}
        return document

    @property
    def merged(self) -> dict[str, str]:
        """Source tables that share a target with others, and that target."""
        shared = {name: target for name, target in self.routes.items() if len(target.sources) > 1}
        return {source: name for name, target in shared.items() for source in target.sources}

    @classmethod
    def from_json(cls, data: CommitRecordJson) -> CommitRecord:
        tables = {name: (vector[0], vector[1]) for name, vector in data["tables"].items()}
        routes = {name: RoutedTarget.from_json(entry) for name, entry in data.get("routes", {}).items()}
        known = {name: (vector[0], vector[1]) for name, vector in data.get("known", {}).items()}
        parked = {name: ParkedTarget.from_json(entry) for name, entry in data.get("parked", {}).items()}
        return cls(data["epoch"], data["generation"], data["committed_ms"], tables, routes, known, parked)
