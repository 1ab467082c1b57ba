"""Reads and writes the manifests of a state. Some are whole, and some are differences from an earlier manifest.

Called by `CheckpointStore` alone, which decides who may write and which epochs are valid.

| a manifest is | when |
|---|---|
| whole | the state has few entries, or much of it has changed, or this process knows no earlier manifest |
| a difference from the previous manifest | in all other cases; its size is then proportional to the changes |

A difference is read with all earlier differences, back to a whole manifest or a base. A *base* is the complete state
after a manifest, in a separate file from which readers can start. When the chain of differences has
`ManifestCompaction.chain_max` links, a base is due, and another thread writes it in the background (`take_due`). If the
base is still missing after twice as many links, the next manifest is whole, which bounds every chain.

Invariants: callers always get whole manifests with the same values. All files needed to read a manifest have numbers
from its `base` on, and are kept as long as the manifest (`kept_from`). The `base` of a later manifest is never a
smaller number. Nothing waits for a base file, so if a process dies while writing one, reading only takes longer.

A base has the checksum of its manifest's document, and is valid only for this document. Its lines are written and read
one by one: the process must answer other processes in time, so it cannot handle a large state in one piece.

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
from raycdc.core.typed_codec import Json
from raycdc.errors import StateError
from raycdc.state import codec
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.manifests.epoch_files import EpochFiles, epoch_name
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.manifests.sealed_state import CHANGE_VERSION, ChangedManifest, ManifestReference, SealedState

BASE_VERSION = 1

_FOLDER = "bases"
_FILE = re.compile(r"(\d{10})\.jsonl$")
#: The depth down to which parts of an object have lines of their own: splits, their fields, and the tables in these
#: fields.
_LEVELS = {"splits": 4, "enumerator": 3, "lost": 2}

_encode = json.JSONEncoder(ensure_ascii=False).encode


class Bases:
    """The bases of manifests; see the module's docstring.

    Errors of the storage, and damage of a base, are `StateError`.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"Bases({self._folder.where!r})"

    def there(self) -> set[int]:
        """Return the epochs that have a base."""
        return {int(found[1]) for name in self._folder.list(_FOLDER) if (found := _FILE.match(name))}

    def read(self, reference: ManifestReference) -> SealedState | None:
        """Return the state after an epoch; None if it has no base, or only that of another document."""
        name = _name(reference.epoch)
        data = self._folder.read(name)
        if data is None:
            return None
        # Synced, because this caller may be the first to rely on it, and older files are about to be deleted.
        self._folder.sync(_FOLDER)
        return _decoded(data, reference, origin=self._folder.origin(name))

    def write(self, reference: ManifestReference, state: SealedState) -> None:
        """Write the base of an epoch durably."""
        data = b"".join(_lines(reference, state))
        self._folder.create(_FOLDER)
        self._folder.write(_name(reference.epoch), data)

    def prune(self, before: int) -> None:
        """Delete the bases of epochs less than `before`."""
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
    """Yield the parts of the value, an object before its parts."""
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


#: The number of cached states. A driver needs the state after the last committed epoch while it reads later epochs. The
#: cached states share their equal parts.
_REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class ManifestCompaction:
    """The rules for writing a manifest or a commit record whole, and for writing a base.

    A state of less than `whole_below` entries has some hundred kilobytes at most, and is written in milliseconds. A
    difference with more than `fraction_max` of the entries would save little. `chain_max` limits the number of small
    files that a start reads after a base; there may be twice as many if the base is late. A commit record that differs
    from its base in more than `record_fraction_max` of its targets gets a new base, which is written while the sink
    waits. If each record changes a further 0.1 % of the targets, this happens once in 32 records.
    """

    whole_below: int = 1000
    fraction_max: float = 0.5
    chain_max: int = 32
    record_fraction_max: float = 1 / 32


@dataclass(frozen=True, slots=True)
class KnownManifest:
    """The parts of a manifest, read or written by this process, that the next difference needs.

    All files needed to read the manifest have numbers from `base` on, and `length` is the number of differences from
    there to the manifest.
    """

    reference: ManifestReference
    state: SealedState
    base: int
    length: int


@dataclass(frozen=True, slots=True)
class EncodedManifest:
    """A manifest's document, and the `KnownManifest` that is in force once the document is written."""

    data: bytes
    known: KnownManifest


class ManifestFiles:
    """The files of a state's manifests; see the module's docstring.

    One thread writes; others may read and prune meanwhile.
    """

    def __init__(self, folder: StateFolder, compaction: ManifestCompaction | None = None) -> None:
        self._folder = folder
        #: Decides which epochs are valid.
        self.epochs = EpochFiles(folder)
        self.compaction = compaction or ManifestCompaction()
        self._bases = Bases(folder)
        self._known: dict[int, KnownManifest] = {}
        #: For each epoch the smallest number of a file that is needed to read the epoch's manifest.
        self._kept_from: dict[int, int] = {}
        #: The last base that this process wrote.
        self._based: KnownManifest | None = None
        self._due_from = 0

    def __repr__(self) -> str:
        return f"ManifestFiles({self._folder.where!r}, known={sorted(self._known)})"

    def read(self, epoch: int) -> Manifest | None:
        """Return the whole manifest of `epoch`; None if there is none.

        Raises `StateError` that names an unusable file.
        """
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
            # This is the base that the manifest names. The base from which this process started to read may be older.
            kept_from = change.base
        self._remember(known, kept_from, generation=manifest.generation)
        return manifest

    def kept_from(self, epoch: int) -> int:
        """Return the smallest number of a file needed to read the manifest of `epoch`; its own if it does not exist.

        If the manifest is damaged, the number is unknown, so all files are kept until the manifest is old enough to be
        deleted.
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
        """Return the state after the manifest of `reference`."""
        changes: list[tuple[ManifestReference, ChangedManifest]] = []
        there = self._bases.there() if self._known.get(reference.epoch) is None else set()
        while (known := self._start(reference, based=reference.epoch in there)) is None:
            found = self._document(reference.epoch)
            if found is None or found[1] != reference.sha:
                what = "is missing" if found is None else "is another one"
                raise StateError(
                    f"{self._origin(reference.epoch)} {what}, and later epochs are written as changes of it: the state "
                    f"is incomplete. {codec.RESTORE}"
                )
            document, origin = found[0], self._origin(reference.epoch)
            if _is_whole(document):
                whole = codec.whole_manifest(document, origin=origin)
                with codec.malformed_as_damage(origin):
                    known = KnownManifest(reference, SealedState.of_document(whole), reference.epoch, 0)
                # Kept, because a start reads the newest epoch, and then the earlier ones that the sink does not hold.
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
        """Return the state after a manifest if it is cached or has a base."""
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

    def encoded(self, manifest: Manifest) -> EncodedManifest:
        """Return the document of `manifest`, which is not written yet."""
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
        """Note that the document of `known` was written durably."""
        self._remember(known, known.base, generation=generation)

    def _followed(self, epoch: int, state: SealedState) -> KnownManifest | None:
        """Return the manifest on which the manifest of `epoch` may be based; None if it must be complete."""
        remembered = self._known
        before = max((number for number in remembered if number < epoch), default=None)
        if before is None or state.entries < self.compaction.whole_below:
            return None
        known = remembered[before]
        if self._way_to(known)[1] >= 2 * self.compaction.chain_max:
            return None
        # An epoch that was dropped meanwhile cannot be built on.
        return known if before in self.epochs.sealed(before - 1) else None

    def _way_to(self, known: KnownManifest) -> tuple[int, int]:
        """Return `base` and `length` of a manifest, considering a base that was written later."""
        based = self._based
        if based is not None and known.base < based.reference.epoch <= known.reference.epoch:
            return based.reference.epoch, known.length - based.length
        return known.base, known.length

    def take_due(self) -> Callable[[], None] | None:
        """Return a function that writes a base, if one is due, for any thread; else None.

        The function raises `StateError` if it cannot write.
        """
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
        """Delete the bases of epochs less than `before`."""
        self._bases.prune(before)
        # Copied, because another thread may add epochs while a commit prunes.
        for epoch in list(self._kept_from):
            if epoch < before:
                self._kept_from.pop(epoch, None)

    def forget(self, after: int) -> None:
        """Forget epochs greater than `after`, which were dropped."""
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
