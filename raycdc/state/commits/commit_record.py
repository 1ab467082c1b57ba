"""Commit records: the epochs that a state's targets hold, and the choice of the valid one among several records.

`raycdc.state.commits.record_bases` writes large records as differences.

A folder cannot check the newest generation and write a record in one step, so a driver that was suspended between the
two may write after its successor has written. The first record of an epoch is therefore created by a hard link, which
can be made only once, and a replacement is a new file with the writer's generation in its name.

| files of an epoch | the valid one |
|---|---|
| `N.json` alone | this record, whichever driver wrote it: the targets hold the epoch |
| `N.json` and some `N.json.GENERATION` | the record of the newest generation; `N.json.GENERATION` if both are of one \
generation |

A stale driver can therefore do no harm. If it writes the first record of an epoch, the record is true. Any other record
that it writes is overridden by that of the newer driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raycdc.core.typed_codec import LEFT_OUT, Json, JsonObject, reader, stored
from raycdc.errors import StateError
from raycdc.state import codec
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.manifests.epoch_files import epoch_name, numbers
from raycdc.state.parked import ParkedTarget

#: The version of a record with parked targets. A record without parked targets has version 1.
PARKED_VERSION = 2
#: The version of a record that describes its targets, even if they are not routed. Earlier versions of raycdc do not
#: update these descriptions, so they must not write the next record.
DESCRIBED_VERSION = 4


@dataclass(frozen=True, slots=True)
class RoutedTarget(JsonObject):
    """A target table: its source tables, the fingerprint of its columns, dropped columns, and transforms.

    `dropped` are the columns, in lower case, that each source dropped; `transforms` are the identities of the sources'
    transforms. `refused` are the fingerprints of schemas in epochs that the target refused: the target may have some of
    their columns. The `schema` is empty if the target has taken no epoch yet. `named` maps columns to the ones whose
    values they began with (`raycdc.model.evolution.targets.TargetSchema`).
    """

    sources: tuple[str, ...]
    schema: str
    dropped: Mapping[str, Sequence[str]] = field(default_factory=dict, metadata=LEFT_OUT)
    transforms: Mapping[str, str] = field(default_factory=dict, metadata=LEFT_OUT)
    refused: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)
    named: Mapping[str, str] = field(default_factory=dict, metadata=LEFT_OUT)

    @property
    def schemas(self) -> tuple[str, ...]:
        """Return the fingerprints of all schemas that the target has or may have."""
        return (self.schema, *self.refused) if self.schema else self.refused

    def refusing(self, other: RoutedTarget) -> RoutedTarget:
        """Return the target after it refused an epoch in which it would have become `other`."""
        return replace(self, refused=tuple(dict.fromkeys((*self.refused, *other.schemas))))


def _written_routes(routes: Mapping[str, RoutedTarget]) -> Mapping[str, Json]:
    """Return the written form of routes.

    A target has no `sources` if they are only the table of the target's own name.
    """
    documents = {name: target.to_json() for name, target in routes.items()}
    for name, target in routes.items():
        if target.sources == (name,):
            del documents[name]["sources"]
    return documents


def _read_routes(documents: Mapping[str, Any]) -> Mapping[str, RoutedTarget]:
    read = reader(RoutedTarget)
    return {name: read({"sources": [name], **document}) for name, document in documents.items()}


@dataclass(frozen=True, slots=True)
class CommitRecord(JsonObject):
    """The record that `epoch` is in the sink.

    `tables` maps each target that was ever written to its ``[epoch, step]`` after the epoch.

    `routes` has the source tables and columns of each target; a target without an entry was last written by an older
    raycdc, and has the columns of the table of its own name. `known` is like `tables`, for row stores of source tables
    (`raycdc.delivery.rows.row_store`). `parked` are targets that got nothing of this epoch and some earlier ones.
    `digests` has the digest of the newest epoch of targets and row stores
    (`raycdc.state.manifests.manifest.target_digest`), except those last written by an older raycdc.
    """

    epoch: int
    generation: int
    committed_ms: int
    tables: Mapping[str, tuple[int, int]]
    routes: Mapping[str, RoutedTarget] = field(
        default_factory=dict, metadata=stored(left_out=True, write=_written_routes, read=_read_routes)
    )
    known: Mapping[str, tuple[int, int]] = field(default_factory=dict, metadata=LEFT_OUT)
    parked: Mapping[str, ParkedTarget] = field(default_factory=dict, metadata=LEFT_OUT)
    digests: Mapping[str, int] = field(default_factory=dict, metadata=LEFT_OUT)

    written_first = ("version",)

    @property
    def version(self) -> int:
        """Return the version of the record.

        Older versions must not read a record with parked targets, because the rows of these have a gap.
        """
        if self.routes:
            return DESCRIBED_VERSION
        return PARKED_VERSION if self.parked else 1

    @property
    def merged(self) -> dict[str, str]:
        """Return the source tables that share a target with others, each with that target."""
        shared = {name: target for name, target in self.routes.items() if len(target.sources) > 1}
        return {source: name for name, target in shared.items() for source in target.sources}


_FOLDER = "commits"
_REPLACED = re.compile(r"(\d{10})\.json\.(\d{10})$")


class CommitFiles:
    """The files of commit records; see the module's docstring. Every answer comes from storage."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"CommitFiles({self._folder.where!r})"

    def write(self, epoch: int, generation: int, data: bytes) -> None:
        """Write `data` as the record of `epoch`, for the driver of `generation`."""
        name = epoch_name(_FOLDER, epoch)
        self._folder.create_once(name, data)
        if self._folder.read(name) == data:
            return
        self._folder.write(_own_name(epoch, generation), data)

    def newest(self) -> tuple[str, codec.Document] | None:
        """Return the valid record of the newest epoch, of any version, and its file; None if there is none.

        The record is synced first: its writer may have died before it was durable, and the caller relies on it.
        """
        committed = [epoch for epoch, _ in numbers(self._folder, _FOLDER)]
        if not committed:
            return None
        self._folder.sync(_FOLDER)
        epoch = max(committed)
        name = epoch_name(_FOLDER, epoch)
        first = self._read(name)
        others = [generation for number, generation in self._replaced() if number == epoch]
        if not others or max(others) < int(first["generation"]):
            return name, first
        name = _own_name(epoch, max(others))
        return name, self._read(name)

    def all(self) -> Iterator[codec.Document]:
        """Yield every existing record, including invalid ones."""
        for epoch, _ in numbers(self._folder, _FOLDER):
            yield self._read(epoch_name(_FOLDER, epoch))
        for epoch, generation in self._replaced():
            yield self._read(_own_name(epoch, generation))

    def kept(self, count: int) -> int:
        """Delete all records except those of the newest `count` epochs. Returns the first number that is kept."""
        committed = sorted(epoch for epoch, _ in numbers(self._folder, _FOLDER))
        first = committed[-count:][0]
        for epoch, generation in self._replaced():
            if epoch < first:
                self._folder.delete(_own_name(epoch, generation))
        for epoch in committed:
            if epoch < first:
                self._folder.delete(epoch_name(_FOLDER, epoch))
        return first

    def _read(self, name: str) -> codec.Document:
        document = codec.read(self._folder, name)
        if document is None:
            origin = self._folder.origin(name)
            raise StateError(f"{origin} disappeared while it was read; is another process deleting it?")
        return document

    def _replaced(self) -> list[tuple[int, int]]:
        matches = (_REPLACED.match(entry) for entry in self._folder.list(_FOLDER))
        return [(int(found[1]), int(found[2])) for found in matches if found]


def _own_name(epoch: int, generation: int) -> str:
    return f"{epoch_name(_FOLDER, epoch)}.{generation:010d}"
