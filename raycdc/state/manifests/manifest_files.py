"""The manifests of a state, read and written: the one place that knows which of them are whole and which are changes.

Called by `CheckpointStore` alone, which says who may write and which epochs count.

| a manifest is | when |
|---|---|
| whole | the state has few entries; or much of it is another one; or nothing that it could follow is known here |
| the change of the one before | else: it takes as much as changed, not as there is |

A change is read with all that it follows, back to a whole manifest or a base.
When that way has become `ManifestCompaction.chain_max` long a base is due, which somebody writes beside all else
(`take_due`). Where nobody does, a manifest is whole again after twice as many, so that the way has an end whoever dies.

Invariants: a manifest is read as if it were whole, by everybody, and to the same values. Whatever it takes to read one
has a number from its `base` on, and is kept as long as it is (`kept_from`); a later manifest's `base` is never less.

Whole states beside the manifests, so that the way to the state of an epoch is short.

A manifest may hold only the change since the one before it. To know the state
of such an epoch, a reader goes back to the last whole one and applies all changes since. A *base* is the state after a
manifest, written whole and beside it: readers begin there. Nothing waits for a base, so a process that dies while it
writes one only leaves them a longer way.

A base names its manifest's document by the checksum, and is believed only for that one. Its lines are written and read
one by one, because a process that must answer others in time may not be busy for as long as a large state takes at
once.

```
bases/%010d.jsonl    {"version", "epoch", "of": checksum of the manifest's document}
                     then a line for each part: [path, value], a path being names of objects inside each other
                     {"sha": SHA-256 of all lines before}
```
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from raycdc.core.startup_tuning import without_collection
from raycdc.errors import StateError
from raycdc.model.json_value import Json
from raycdc.state import codec
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.manifests.epoch_files import EpochFiles, epoch_name
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.manifests.sealed_state import CHANGE_VERSION, ChangedManifest, ManifestReference, SealedState

BASE_VERSION = 1

_FOLDER = "bases"
_FILE = re.compile(r"(\d{10})\.jsonl$")
#: How far down an object has a line for each of its parts: splits, their fields, and the tables in these.
_LEVELS = {"splits": 4, "enumerator": 3, "lost": 2}

_encode = json.JSONEncoder(ensure_ascii=False).encode


class Bases:
    """See the module's docstring. Errors of the storage, and damage of a base, are `StateError`."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"Bases({self._folder.where!r})"

    def there(self) -> set[int]:
        """The epochs that have one."""
        return {int(found[1]) for name in self._folder.list(_FOLDER) if (found := _FILE.match(name))}

    def read(self, reference: ManifestReference) -> SealedState | None:
        """The state behind an epoch; None where it has no base, or that of another document."""
        name = _name(reference.epoch)
        data = self._folder.read(name)
        if data is None:
            return None
        # Whoever goes on from it may be the only one to know of it, and others are about to be deleted for it.
        self._folder.sync(_FOLDER)
        return _decoded(data, reference, origin=self._folder.origin(name))

    def write(self, reference: ManifestReference, state: SealedState) -> None:
        """Put the base of an epoch there, durably."""
        data = b"".join(_lines(reference, state))
        self._folder.create(_FOLDER)
        self._folder.write(_name(reference.epoch), data)

    def prune(self, before: int) -> None:
        """Delete those of epochs less than `before`."""
        for epoch in sorted(self.there()):
            if epoch < before:
                self._folder.delete(_name(epoch))


def _name(epoch: int) -> str:
    return f"{_FOLDER}/{epoch:010d}.jsonl"


def _lines(reference: ManifestReference, state: SealedState) -> Iterator[bytes]:
    hashed = hashlib.sha256()
    head = {"version": BASE_VERSION, "epoch": reference.epoch, "of": reference.sha}
    for value in chain([head], map(list, _parts((), state.to_json()))):
        line = _line(value)
        hashed.update(line)
        yield line
    yield _line({"sha": hashed.hexdigest()})


def _parts(path: tuple[str, ...], value: Json) -> Iterator[tuple[tuple[str, ...], Json]]:
    """The value in parts, an object before what is in it."""
    whole = bool(path) and len(path) >= _LEVELS[path[0]]
    if whole or not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        yield path, value
        return
    yield path, {}
    for key, inner in value.items():
        yield from _parts((*path, key), inner)


def _line(value: object) -> bytes:
    return (_encode(value) + "\n").encode()


def _decoded(data: bytes, reference: ManifestReference, *, origin: str) -> SealedState | None:
    *lines, last = data.splitlines(keepends=True) or [b""]
    if not lines:
        raise codec.damaged(origin, "it ends before its checksum")
    hashed = hashlib.sha256()
    for line in lines:
        hashed.update(line)
    with codec.malformed_as_damage(origin):
        if json.loads(last) != {"sha": hashed.hexdigest()}:
            raise codec.damaged(origin, "its checksum does not match its content")
        head: Any = codec.upgrade(json.loads(lines[0]), origin=origin, current=BASE_VERSION, upgrades={})
        if head["epoch"] != reference.epoch or head["of"] != reference.sha:
            return None
        root: Any = {}
        for line in lines[1:]:
            path, value = json.loads(line)
            if not path:
                root = value
                continue
            inner = root
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
        return SealedState.from_json(root)


#: States that are remembered: a driver asks for the last committed epoch while it reads those behind it. They share all
#: that is the same in them.
_REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class ManifestCompaction:
    """When a manifest or a commit record is written whole, and when a base is due.

    A state of less than `whole_below` entries has some hundred kilobytes at most, and is written in milliseconds. A
    change that tells more than `fraction_max` of the entries would save little. `chain_max` bounds the small files that
    a start reads beside a base: twice as many, if the base is late. A record tells of at most `record_fraction_max` of
    its targets: a base, written while the sink waits, is then once in 32 records where each has 0.1 % of them, all
    others.
    """

    whole_below: int = 1000
    fraction_max: float = 0.5
    chain_max: int = 32
    record_fraction_max: float = 1 / 32


@dataclass(frozen=True, slots=True)
class KnownManifest:
    """A manifest that this process has read or written: as much of it as one that follows it needs.

    Everything that it takes to read it has a number from `base` on, and `length` are the changes from there to it.
    """

    reference: ManifestReference
    state: SealedState
    base: int
    length: int


@dataclass(frozen=True, slots=True)
class EncodedManifest:
    """A manifest's document, and the manifest once that is written."""

    data: bytes
    known: KnownManifest


class ManifestFiles:
    """See the module's docstring. One thread writes; others may read and prune meanwhile."""

    def __init__(self, folder: StateFolder, compaction: ManifestCompaction | None = None) -> None:
        self._folder = folder
        #: Which of them count.
        self.epochs = EpochFiles(folder)
        self.compaction = compaction or ManifestCompaction()
        self._bases = Bases(folder)
        self._known: dict[int, KnownManifest] = {}
        #: The numbers that reading each manifest takes, from this on.
        self._kept_from: dict[int, int] = {}
        #: The last base that was written here.
        self._based: KnownManifest | None = None
        self._due_from = 0

    def __repr__(self) -> str:
        return f"ManifestFiles({self._folder.where!r}, known={sorted(self._known)})"

    # -- reading

    def read(self, epoch: int) -> Manifest | None:
        """The manifest of `epoch`, whole; None where there is none. `StateError` names the file that is of no use."""
        with without_collection():
            return self._read(epoch)

    def _read(self, epoch: int) -> Manifest | None:
        found = self._document(epoch)
        if found is None:
            return None
        document, sha = found
        if _is_whole(document):
            manifest = codec.manifest_of(document, origin=self._origin(epoch))
            known = KnownManifest(ManifestReference(epoch, sha), SealedState.of(manifest), epoch, 0)
            kept_from = epoch
        else:
            change = self._change_of(document, epoch)
            before = self._state(change.after)
            with codec.malformed_as_damage(self._origin(epoch)):
                manifest = change.onto(before.state)
            known = KnownManifest(
                ManifestReference(epoch, sha), SealedState.of(manifest), before.base, before.length + 1
            )
            # Not where the way began here, which may be before a base that the writer knew of.
            kept_from = change.base
        self._remember(known, kept_from, generation=manifest.generation)
        return manifest

    def kept_from(self, epoch: int) -> int:
        """The least number that reading the manifest of `epoch` takes; that of one that is not there is its own.

        One that is damaged does not tell, so all there is is kept until it is too old itself.
        """
        known = self._kept_from.get(epoch)
        if known is None:
            try:
                document = self._document(epoch)
            except StateError:
                return 0
            whole = document is None or _is_whole(document[0])
            known = self._kept_from[epoch] = epoch if document is None or whole else int(document[0]["after"]["base"])
        return known

    def _state(self, reference: ManifestReference) -> KnownManifest:
        """The state behind a manifest that another one follows."""
        changes: list[tuple[ManifestReference, ChangedManifest]] = []
        there = self._bases.there() if self._known.get(reference.epoch) is None else set()
        while (known := self._start(reference, based=reference.epoch in there)) is None:
            found = self._document(reference.epoch)
            if found is None or found[1] != reference.sha:
                what = "is missing" if found is None else "is another one"
                raise StateError(
                    f"{self._origin(reference.epoch)} {what}, and later epochs are written as changes of it: the state "
                    "is incomplete. Restore the state folder from a copy, or start under another pipeline.state with a "
                    "new snapshot."
                )
            document, origin = found[0], self._origin(reference.epoch)
            if _is_whole(document):
                whole = codec.whole_manifest(document, origin=origin)
                with codec.malformed_as_damage(origin):
                    known = KnownManifest(reference, SealedState.of_document(whole), reference.epoch, 0)
                # A start reads the newest epoch, and then those before it that the sink does not hold.
                self._keep(known)
                break
            change = self._change_of(document, reference.epoch)
            changes.append((reference, change))
            reference = change.after
        for after, change in reversed(changes):
            with codec.malformed_as_damage(self._origin(after.epoch)):
                state = SealedState.of(change.onto(known.state))
            known = KnownManifest(after, state, known.base, known.length + 1)
            self._keep(known)
        return known

    def _start(self, reference: ManifestReference, *, based: bool) -> KnownManifest | None:
        """The state behind a manifest, where it need not be put together."""
        known = self._known.get(reference.epoch)
        if known is not None and known.reference == reference:
            return known
        state = self._bases.read(reference) if based else None
        return None if state is None else KnownManifest(reference, state, reference.epoch, 0)

    def _document(self, epoch: int) -> tuple[codec.Document, str] | None:
        data = self.epochs.read(epoch)
        return None if data is None else codec.decode_signed(data, origin=self._origin(epoch))

    def _change_of(self, document: codec.Document, epoch: int) -> ChangedManifest:
        written: Any = document
        with codec.malformed_as_damage(self._origin(epoch)):
            return ChangedManifest.from_json(written)

    def _origin(self, epoch: int) -> str:
        return self._folder.origin(epoch_name("epochs", epoch))

    # -- writing

    def encoded(self, manifest: Manifest) -> EncodedManifest:
        """The document of `manifest`, which is not written yet."""
        state = SealedState.of(manifest)
        before = self._followed(manifest.epoch, state)
        if before is not None:
            base, length = self._way_to(before)
            change = ChangedManifest.between(before.state, manifest, after=before.reference, base=base)
            if change.is_written and change.entries <= state.entries * self.compaction.fraction_max:
                data, sha = codec.encode_signed(change.to_json())
                return EncodedManifest(
                    data, KnownManifest(ManifestReference(manifest.epoch, sha), state, base, length + 1)
                )
        data, sha = codec.encode_signed(manifest.to_json())
        return EncodedManifest(data, KnownManifest(ManifestReference(manifest.epoch, sha), state, manifest.epoch, 0))

    def written(self, known: KnownManifest, *, generation: int) -> None:
        """The document of `encoded` is there, durably."""
        self._remember(known, known.base, generation=generation)

    def _followed(self, epoch: int, state: SealedState) -> KnownManifest | None:
        """The manifest that the next one, of `epoch`, may be a change of."""
        remembered = self._known
        before = max((number for number in remembered if number < epoch), default=None)
        if before is None or state.entries < self.compaction.whole_below:
            return None
        known = remembered[before]
        if self._way_to(known)[1] >= 2 * self.compaction.chain_max:
            return None
        # One that was dropped meanwhile leads nowhere.
        return known if before in self.epochs.sealed(before - 1) else None

    def _way_to(self, known: KnownManifest) -> tuple[int, int]:
        """`base` and `length` of a manifest, now that there may be a later base."""
        based = self._based
        if based is not None and known.base < based.reference.epoch <= known.reference.epoch:
            return based.reference.epoch, known.length - based.length
        return known.base, known.length

    # -- bases

    def take_due(self) -> Callable[[], None] | None:
        """What writes a base, once it is due; for any thread. `StateError` where that cannot be written."""
        newest = self._known.get(max(self._known, default=0))
        if newest is None or newest.reference.epoch < self._due_from:
            return None
        if self._way_to(newest)[1] < self.compaction.chain_max:
            return None
        self._due_from = newest.reference.epoch + self.compaction.chain_max
        return partial(self._write_base, newest)

    def _write_base(self, known: KnownManifest) -> None:
        self._bases.write(known.reference, known.state)
        self._based = known

    def prune(self, before: int) -> None:
        """No base of an epoch less than `before` is needed any more."""
        self._bases.prune(before)
        # A commit prunes while the next epoch is read by another thread: numbers come meanwhile.
        for epoch in list(self._kept_from):
            if epoch < before:
                self._kept_from.pop(epoch, None)

    # -- memory

    def forget(self, after: int) -> None:
        """Epochs greater than `after` do not count any more."""
        self._known = {epoch: known for epoch, known in self._known.items() if epoch <= after}

    def _remember(self, known: KnownManifest, kept_from: int, *, generation: int) -> None:
        epoch = known.reference.epoch
        self.epochs.note(epoch, generation)
        self._kept_from[epoch] = kept_from
        self._keep(known)

    def _keep(self, known: KnownManifest) -> None:
        there = {**self._known, known.reference.epoch: known}
        self._known = {number: there[number] for number in sorted(there)[-_REMEMBERED:]}


def _is_whole(document: codec.Document) -> bool:
    return document.get("version") != CHANGE_VERSION
