"""The state after a manifest, differences of JSON objects, and manifests written as differences from an earlier state.

A manifest is either whole or a difference (`ChangedManifest`). A difference names an earlier epoch by number and
checksum. Its states of splits and of the enumerator, and its counts of lost values, are patches of the states and
counts after that epoch. All other fields concern only the manifest's own epoch, and are always whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from raycdc.core.typed_codec import LEFT_OUT, Json, JsonObject, stored
from raycdc.model import TableId
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, SealedSplit


@dataclass(frozen=True, slots=True)
class Patch(JsonObject):
    """The difference of two objects: keys that are `put` (new or replaced), `removed` keys, and `inside`, the patches
    of objects that differ in some keys.

    No key is in two of the three parts. In a manifest or a message, an empty part is left out.
    """

    put: Mapping[str, Json] = field(default_factory=dict, metadata=LEFT_OUT)
    removed: tuple[str, ...] = field(default=(), metadata=stored("gone", left_out=True))
    inside: Mapping[str, Patch] = field(default_factory=dict, metadata=LEFT_OUT)

    def __bool__(self) -> bool:
        """Return True if there is any difference."""
        return bool(self.put or self.removed or self.inside)

    @property
    def entries(self) -> int:
        """Return the number of changed keys on all levels."""
        return len(self.put) + len(self.removed) + sum(patch.entries for patch in self.inside.values())

    @property
    def is_written(self) -> bool:
        """Return True if JSON keeps all keys of this level. JSON turns keys of other types into texts."""
        return all(isinstance(key, str) for key in (*self.put, *self.removed, *self.inside))

    @classmethod
    def between(cls, before: Mapping[str, Json], after: Mapping[str, Json], *, depth: int) -> Patch:
        """Return the difference. Objects are compared down to `depth` levels; below that they are replaced as a whole.

        Identical objects cost almost nothing.
        """
        put: dict[str, Json] = {}
        inside: dict[str, Patch] = {}
        for key, value in after.items():
            known = before.get(key, _NOTHING)
            if known is value:
                continue
            if depth and isinstance(value, Mapping) and isinstance(known, Mapping):
                patch = cls.between(known, value, depth=depth - 1)
                if not patch.is_written:
                    put[key] = value
                elif patch:
                    inside[key] = patch
            elif not _same(known, value):
                put[key] = value
        return cls(put, tuple(key for key in before if key not in after), inside)

    def onto(self, before: Mapping[str, Json]) -> dict[str, Json]:
        """Return the object that results from `before`, which is not changed.

        Raises `KeyError` or `TypeError` if the patch belongs to another object.
        """
        after = dict(before)
        for key in self.removed:
            del after[key]
        for key, patch in self.inside.items():
            inner = after[key]
            if not isinstance(inner, Mapping):
                raise TypeError(f"{key} is no object")
            after[key] = patch.onto(inner)
        after.update(self.put)
        return after


#: The value of a missing key, which differs from every value.
_NOTHING = object()


def _same(one: object, other: object) -> bool:
    """Return True if both are written identically. Python treats ``True``, ``1`` and ``1.0`` as equal."""
    if one is _NOTHING or one != other:
        return False
    same: bool = msgpack.packb(one) == msgpack.packb(other)
    return same


#: The version of a manifest that is a difference. A whole manifest has `MANIFEST_VERSION`, which older versions of
#: raycdc can read.
CHANGE_VERSION = 4

#: The depth down to which states of splits and enumerators are compared: their fields, and the tables in these.
_LEVELS = 1


@dataclass(frozen=True, slots=True)
class SealedState(JsonObject):
    """The state after an epoch: splits, enumerator, and the total number of lost values of each table."""

    splits: Mapping[str, SealedSplit]
    enumerator: EnumeratorState
    lost: Mapping[TableId, int]

    @classmethod
    def of(cls, manifest: Manifest) -> SealedState:
        return cls(manifest.to_splits, manifest.enumerator, manifest.lost)

    @classmethod
    def of_document(cls, data: Any) -> SealedState:
        """Return the state after a whole manifest, without decoding the rest, which may list very many tables."""
        return cls(
            _splits(data["to_splits"]), EnumeratorState.from_json(data["enumerator"]), _tables(data.get("lost", {}))
        )

    @property
    def entries(self) -> int:
        """Return the approximate number of entries that change separately: splits, and the tables of these and of the
        enumerator.
        """
        states = (*self.splits.values(), self.enumerator)
        return len(self.splits) + sum(_entries(state.to_json()) for state in states)


@dataclass(frozen=True, slots=True)
class ManifestReference:
    """The identity of a manifest: its number, and the checksum of its document."""

    epoch: int
    sha: str


@dataclass(frozen=True, slots=True)
class ChangedManifest:
    """A manifest as a difference from the state after another manifest, `after`.

    `from_splits` is a patch of the splits in that state. `to_splits` is a patch of the splits that result from
    `from_splits`. `base` is the epoch of a whole manifest or of a base file (`raycdc.state.manifests.manifest_files`);
    all files needed to read the manifest have numbers from `base` on.
    """

    own: Manifest
    after: ManifestReference
    base: int
    from_splits: Patch
    to_splits: Patch
    enumerator: Patch
    lost: Patch

    @classmethod
    def between(
        cls, before: SealedState, manifest: Manifest, *, after: ManifestReference, base: int
    ) -> ChangedManifest:
        """Return the difference of `manifest` from the state `before`, which is the state after the epoch `after`."""
        from_splits = _states(manifest.from_splits)
        enumerator = Patch.between(before.enumerator.to_json(), manifest.enumerator.to_json(), depth=_LEVELS)
        return cls(
            manifest,
            after,
            base,
            Patch.between(_states(before.splits), from_splits, depth=1 + _LEVELS),
            Patch.between(from_splits, _states(manifest.to_splits), depth=1 + _LEVELS),
            enumerator,
            Patch.between(_counts(before.lost), _counts(manifest.lost), depth=0),
        )

    @property
    def entries(self) -> int:
        """Return the number of changed entries of the state."""
        return self.from_splits.entries + self.to_splits.entries + self.enumerator.entries

    @property
    def is_written(self) -> bool:
        """Return True if JSON keeps all keys unchanged."""
        return all(patch.is_written for patch in (self.from_splits, self.to_splits, self.enumerator, self.lost))

    def onto(self, before: SealedState) -> Manifest:
        """Return the whole manifest. Raises `KeyError` or `TypeError` if the difference belongs to another state."""
        from_splits = self.from_splits.onto(_states(before.splits))
        lost: Any = self.lost.onto(_counts(before.lost))
        return replace(
            self.own,
            from_splits=_splits(from_splits),
            to_splits=_splits(self.to_splits.onto(from_splits)),
            enumerator=EnumeratorState.from_json(self.enumerator.onto(before.enumerator.to_json())),
            lost=_tables(lost),
        )

    def to_json(self) -> Mapping[str, Json]:
        own = self.own
        return {
            "version": CHANGE_VERSION,
            "epoch": own.epoch,
            "generation": own.generation,
            "created_ms": own.created_ms,
            "after": {"epoch": self.after.epoch, "sha": self.after.sha, "base": self.base},
            "changes": {
                "from_splits": self.from_splits.to_json(),
                "to_splits": self.to_splits.to_json(),
                "enumerator": self.enumerator.to_json(),
                "lost": self.lost.to_json(),
            },
            "segments": [segment.stored() for segment in own.segments],
            "tables": {str(table): epoch.to_json() for table, epoch in own.tables.items()},
            "watermark_ms": own.watermark_ms,
            "final": own.final,
        }

    @classmethod
    def from_json(cls, data: Any) -> ChangedManifest:
        """Return the inverse of `to_json`. `own` has empty states until `onto` fills them."""
        whole: Any = {**data, "from_splits": {}, "to_splits": {}, "enumerator": {}}
        own = Manifest.from_json(whole)
        after, changes = data["after"], data["changes"]
        return cls(
            own,
            ManifestReference(after["epoch"], after["sha"]),
            after["base"],
            Patch.from_json(changes["from_splits"]),
            Patch.from_json(changes["to_splits"]),
            Patch.from_json(changes["enumerator"]),
            Patch.from_json(changes["lost"]),
        )


def _states(splits: Mapping[str, SealedSplit]) -> dict[str, Json]:
    return {split: state.to_json() for split, state in splits.items()}


def _splits(states: Mapping[str, Json]) -> dict[str, SealedSplit]:
    return {split: SealedSplit.from_json(state) for split, state in states.items()}


def _tables(counts: Mapping[str, int]) -> dict[TableId, int]:
    return {TableId.parse(table): count for table, count in counts.items()}


def _counts(lost: Mapping[TableId, int]) -> dict[str, int]:
    return {str(table): count for table, count in lost.items()}


def _entries(state: Json) -> int:
    """Return the number of entries in the fields of a state."""
    if not isinstance(state, Mapping):
        return 1
    return sum(len(value) for value in state.values() if isinstance(value, Mapping))
