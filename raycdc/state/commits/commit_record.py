"""A commit record: what the targets of a state hold after an epoch. Large ones are written as what changed, by
`raycdc.state.commits.record_bases`.

The files of commit records, and which of them counts: no driver ever writes over the record of another.

A folder cannot make "is my generation still the newest?" and "put this record there" one step, so a driver that was
stopped between the two and wakes up behind its successor may still write. Therefore the first record of an epoch is
made by a link, which nobody can make twice, and whoever replaces it writes a file that has its own generation in its
name.

| of an epoch there are | counts |
|---|---|
| `N.json` alone | it, whoever wrote it: its targets hold the epoch |
| `N.json` and `N.json.GENERATION` of some | that of the newest generation; of one generation, the latter |

What a stale driver writes is thus the record of an epoch that nobody has recorded yet, which is then true, or one that
a newer driver's stands before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raycdc.core.typed_codec import LEFT_OUT, JsonObject, reader, stored
from raycdc.errors import StateError
from raycdc.model.json_value import Json
from raycdc.state import codec
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.manifests.epoch_files import epoch_name, numbers
from raycdc.state.parked import ParkedTarget

#: Version of a record that is whole and has parked targets; one without them is of version 1.
PARKED_VERSION = 2
#: Version of a record whose targets are described, whether or not they are routed: a raycdc that does not know of this
#: would keep their columns as they are now, and say so again when they are others.
DESCRIBED_VERSION = 4


@dataclass(frozen=True, slots=True)
class RoutedTarget(JsonObject):
    """A target table: the source tables that went into it so far, the fingerprint of its columns, those of them (in
    lower case) that each source dropped, and the identity of the transform of each source that has one.

    `refused` are the fingerprints of what it was to become in epochs that it refused: it may have columns of these, as
    far as it came. The `schema` is empty where it has not taken any epoch. `named` are columns that began with the
    values of another one (`raycdc.model.evolution.targets.TargetSchema`).
    """

    sources: tuple[str, ...]
    schema: str
    dropped: Mapping[str, Sequence[str]] = field(default_factory=dict, metadata=LEFT_OUT)
    transforms: Mapping[str, str] = field(default_factory=dict, metadata=LEFT_OUT)
    refused: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)
    named: Mapping[str, str] = field(default_factory=dict, metadata=LEFT_OUT)

    @property
    def schemas(self) -> tuple[str, ...]:
        """The fingerprints of all columns that it has or may have."""
        return (self.schema, *self.refused) if self.schema else self.refused

    def refusing(self, other: RoutedTarget) -> RoutedTarget:
        """The target after it refused an epoch that would have made it `other`."""
        return replace(self, refused=tuple(dict.fromkeys((*self.refused, *other.schemas))))


def _written_routes(routes: Mapping[str, RoutedTarget]) -> Mapping[str, Json]:
    """A target has no `sources` where it is the table of its own name alone."""
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
    """Epoch `epoch` is in the sink. `tables` maps each target ever written to its ``[epoch, step]`` after it.

    `routes` says where their rows came from, and what columns they have; a target that it does not name has those of
    the table of its own name, and was last written by a raycdc that wrote down no more.
    `known` is `tables` for the known rows of source tables, where such are kept (`raycdc.delivery.rows.row_store`).
    `parked` are targets that got nothing of the epoch, nor of some before it.
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

    written_first = ("version",)

    @property
    def version(self) -> int:
        """A raycdc that knows nothing of parked targets must not go on with rows that come behind a gap."""
        if self.routes:
            return DESCRIBED_VERSION
        return PARKED_VERSION if self.parked else 1

    @property
    def merged(self) -> dict[str, str]:
        """Source tables that share a target with others, and that target."""
        shared = {name: target for name, target in self.routes.items() if len(target.sources) > 1}
        return {source: name for name, target in shared.items() for source in target.sources}


_FOLDER = "commits"
_REPLACED = re.compile(r"(\d{10})\.json\.(\d{10})$")


class CommitFiles:
    """See the module's docstring. Every answer comes from storage."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"CommitFiles({self._folder.where!r})"

    def write(self, epoch: int, generation: int, data: bytes) -> None:
        """Make `data` the record of `epoch`, for the driver of `generation`."""
        name = epoch_name(_FOLDER, epoch)
        self._folder.create_once(name, data)
        if self._folder.read(name) == data:
            return
        self._folder.write(_own_name(epoch, generation), data)

    def newest(self) -> tuple[str, codec.Document] | None:
        """The record that counts of the newest epoch, of whatever version, and its file; None where there is none.

        Whoever wrote it may have died before it was durable: then whoever relies on it would be the only one to know.
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
        """Every record that is there, those that do not count among them."""
        for epoch, _ in numbers(self._folder, _FOLDER):
            yield self._read(epoch_name(_FOLDER, epoch))
        for epoch, generation in self._replaced():
            yield self._read(_own_name(epoch, generation))

    def kept(self, count: int) -> int:
        """Delete all but the records of the newest `count` epochs; the first number that is left."""
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
