"""Commit records of many targets, written as differences from a base, which is a complete list of the targets' entries.

With 100,000 targets a whole record has 8 MB and costs its writer half a second of CPU, however few targets an epoch
has. A record with more than `ManifestCompaction.whole_below` targets therefore refers to a base and has only the
differences from it. A record is relative to its base, not to the previous record, so at most two documents are read for
one record.

```
commits/%010d.json                      {"version": 4, "base": {"epoch", "generation", "sha"}, "tables", "routes",
                                         "known" and "digests": the new and changed entries; "gone": names of
                                         entries of the base that the record lacks; and the other parts of a record}
bases/record-EPOCH-GENERATION-SHA.json  {"version": 2, "epoch", "generation", "tables", "routes", "known", "digests"}
```

| a base is written | because |
|---|---|
| with the first record of a process | a process must not rely on a document of an earlier process, which may still \
be writing |
| when a record has more than `Compaction.record_fraction_max` of the targets | the next records would be as long |

*What if the process dies here?* A base is durable before the record that refers to it, and is never overwritten,
because its name contains its checksum. If the process dies between the two writes, no record refers to the base, and it
is never read. `sweep` deletes a base `KEEP_COMMITTED` epochs later, if no kept record refers to it. A driver never
deletes a base of a newer driver, because that driver may not have written the record yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from raycdc.core.startup_tuning import without_collection
from raycdc.core.typed_codec import Json, JsonObject
from raycdc.errors import StateError
from raycdc.state import codec
from raycdc.state.commits.commit_record import (
    DESCRIBED_VERSION,
    CommitFiles,
    CommitRecord,
    RoutedTarget,
)
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.manifests.manifest_files import ManifestCompaction

#: The newest version of a commit record. A record with a base always has this version.
COMMIT_VERSION = DESCRIBED_VERSION
#: Records of older versions need no upgrade, because the meaning of their fields has not changed. Missing descriptions
#: are found by `raycdc.delivery.targets.described_targets`.
_UPGRADES: Mapping[int, codec.Upgrade] = {
    1: lambda record: {**record, "version": 2},
    2: lambda record: {**record, "version": 3},
    3: lambda record: {**record, "version": 4},
}
RECORD_BASE_VERSION = 2
_BASE_UPGRADES: Mapping[int, codec.Upgrade] = {1: lambda base: {**base, "version": 2}}

_FOLDER = "bases"
PREFIX = "record-"
_FILE = re.compile(PREFIX + r"(\d{10})-(\d{10})-([0-9a-f]{64})\.json")

#: The parts of a record that a base has.
_PARTS = ("tables", "routes", "known", "digests")

_Value = TypeVar("_Value")
#: Returns the documents of the records that are kept, and the first epoch of these.
KeptRecords = Callable[[], tuple[Iterable[codec.Document], int]]


@dataclass(frozen=True, slots=True)
class BaseReference(JsonObject):
    """The identity of a base: epoch and generation of the record with which it was written, and its checksum."""

    epoch: int
    generation: int
    sha: str

    @property
    def name(self) -> str:
        return f"{_FOLDER}/{PREFIX}{self.epoch:010d}-{self.generation:010d}-{self.sha}.json"


@dataclass(frozen=True, slots=True)
class Base:
    """A base: the entries for each target of one record. The mappings are never changed."""

    reference: BaseReference
    tables: Mapping[str, tuple[int, int]]
    routes: Mapping[str, RoutedTarget]
    known: Mapping[str, tuple[int, int]]
    digests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record's document, and the base that it names. If the base is new, `base_data` must be written first."""

    data: bytes
    base: Base | None = None
    base_data: bytes = field(default=b"", repr=False)


class RecordBases:
    """The bases of commit records; see the module's docstring.

    One thread writes records, any thread may read them.
    """

    def __init__(self, folder: StateFolder, compaction: ManifestCompaction) -> None:
        self._folder = folder
        self._compaction = compaction
        #: The base of the record that this process wrote last.
        self._own: Base | None = None
        #: The base that was read last.
        self._read: Base | None = None
        #: The next search for unused bases takes place at this epoch. The first search follows the first record,
        #: because a process may end before it has written `KEEP_COMMITTED` epochs.
        self._sweep_at = 0

    def __repr__(self) -> str:
        return f"RecordBases({self._folder.where!r}, own={self._own and self._own.reference.epoch})"

    def newest(self, commits: CommitFiles) -> CommitRecord | None:
        """Return the newest record; None if there is none. Raises `StateError` if it cannot be used."""
        found = commits.newest()
        while found is not None:
            name, document = found
            try:
                return self.record_of(document, origin=self._folder.origin(name))
            except MissingBaseError:
                # The record may have been pruned meanwhile, if a run goes on.
                found = commits.newest()
                if found == (name, document):
                    raise
        return None

    def record_of(self, written: codec.Document, *, origin: str) -> CommitRecord:
        """Return the record of a document of any version. Raises `StateError` if it cannot be used.

        Raises `MissingBaseError` if its base does not exist or was deleted.
        """
        with without_collection():
            document: Any = codec.upgrade(written, origin=origin, current=COMMIT_VERSION, upgrades=_UPGRADES)
            with codec.malformed_as_damage(origin):
                record = CommitRecord.from_json(document)
                if (reference := reference_of(document)) is None:
                    return record
                gone = {part: frozenset(names) for part, names in document.get("gone", {}).items()}
            base = self._base(reference, origin)
            return CommitRecord(
                record.epoch,
                record.generation,
                record.committed_ms,
                _onto(base.tables, record.tables, gone.get("tables", ())),
                _onto(base.routes, record.routes, gone.get("routes", ())),
                _onto(base.known, record.known, gone.get("known", ())),
                record.parked,
                _onto(base.digests, record.digests, gone.get("digests", ())),
            )

    def _base(self, reference: BaseReference, origin: str) -> Base:
        read = self._read
        if read is not None and read.reference == reference:
            return read
        data = self._folder.read(reference.name)
        where = self._folder.origin(reference.name)
        if data is None:
            raise MissingBaseError(
                f"{where} is missing, and {origin} is written as a change of it: the state is incomplete. "
                f"{codec.RESTORE}"
            )
        written, sha = codec.decode_signed(data, origin=where)
        if sha != reference.sha:
            raise codec.damaged(where, "its content is not that which its name says")
        document: Any = codec.upgrade(written, origin=where, current=RECORD_BASE_VERSION, upgrades=_BASE_UPGRADES)
        with codec.malformed_as_damage(where):
            # The lists have the same form as in a record.
            lists: Any = {**document, "committed_ms": 0}
            record = CommitRecord.from_json(lists)
        base = self._read = Base(reference, record.tables, record.routes, record.known, record.digests)
        return base

    def encoded(self, record: CommitRecord) -> EncodedRecord:
        """Return the document of `record`, and that of its base if it has one. Nothing is written yet."""
        with without_collection():
            entries = len(record.tables) + len(record.routes) + len(record.known)
            if entries < self._compaction.whole_below:
                return EncodedRecord(codec.encode(record.to_json()))
            if self._own is not None:
                document, reported = _change(record, self._own)
                if reported <= entries * self._compaction.record_fraction_max:
                    return EncodedRecord(codec.encode(document), self._own)
            base, data = _base_of(record)
            return EncodedRecord(codec.encode(_change(record, base)[0]), base, data)

    def put(self, encoded: EncodedRecord) -> None:
        """Write the base of a record durably, if it is new. Afterwards the record that names it may be written."""
        if encoded.base is not None and encoded.base_data:
            self._folder.create(_FOLDER)
            self._folder.write(encoded.base.reference.name, encoded.base_data)

    def written(self, encoded: EncodedRecord) -> None:
        """Note that the record was written."""
        if encoded.base is not self._own and self._sweep_at == _NEVER:
            self._sweep_at = 0
        self._own = encoded.base

    def sweep(self, record: CommitRecord, kept: KeptRecords, keep: int) -> None:
        """Delete bases that none of the `kept` records names.

        `record` is the one just written; records of the last `keep` epochs are kept.
        """
        if record.epoch < self._sweep_at:
            return
        there = [found for name in self._folder.list(_FOLDER) if (found := _FILE.fullmatch(name))]
        if there:
            try:
                documents, first = kept()
                needed = {reference.name for each in documents if (reference := reference_of(each)) is not None}
            except (StateError, LookupError, TypeError, ValueError):
                # The base of a damaged record is unknown, so all bases are kept until the damaged record is old enough
                # to be deleted.
                self._sweep_at = record.epoch + keep
                return
            for found in list(there):
                is_ours_to_judge = int(found[1]) < first and int(found[2]) <= record.generation
                if is_ours_to_judge and f"{_FOLDER}/{found[0]}" not in needed:
                    self._folder.delete(f"{_FOLDER}/{found[0]}")
                    there.remove(found)
        # If one base is left, nothing can be deleted until another one is written.
        self._sweep_at = record.epoch + keep if len(there) > 1 else _NEVER


class MissingBaseError(StateError):
    """A commit record is incomplete: the earlier document that it builds on is missing."""

    cure = "See with `raycdc state check` what is missing, and bring it back from a copy of the state."


#: An epoch number that is never reached.
_NEVER = 1 << 62


def reference_of(document: codec.Document) -> BaseReference | None:
    """Return the base that a record's document names; None if the record is whole."""
    return BaseReference.from_json(document["base"]) if "base" in document else None


def _base_of(record: CommitRecord) -> tuple[Base, bytes]:
    whole = record.to_json()
    head = {"version": RECORD_BASE_VERSION, "epoch": record.epoch, "generation": record.generation}
    data, sha = codec.encode_signed({**head, **{name: part for name, part in whole.items() if name in _PARTS}})
    reference = BaseReference(record.epoch, record.generation, sha)
    base = Base(reference, dict(record.tables), dict(record.routes), dict(record.known), dict(record.digests))
    return base, data


def _change(record: CommitRecord, base: Base) -> tuple[Mapping[str, Json], int]:
    """Return the document of `record` as a difference from `base`, and the number of entries in it."""
    short = replace(
        record,
        tables=_changed_values(base.tables, record.tables),
        routes=_changed_values(base.routes, record.routes),
        known=_changed_values(base.known, record.known),
        digests=_changed_values(base.digests, record.digests),
    )
    gone = {
        "tables": _missing(base.tables, record.tables),
        "routes": _missing(base.routes, record.routes),
        "known": _missing(base.known, record.known),
        "digests": _missing(base.digests, record.digests),
    }
    whole = short.to_json()
    document = {**whole, "version": COMMIT_VERSION, "base": base.reference.to_json()}
    if any(gone.values()):
        document["gone"] = {part: names for part, names in gone.items() if names}
    reported = len(short.tables) + len(short.routes) + len(short.known)
    return document, reported + sum(map(len, gone.values()))


def _changed_values(before: Mapping[str, _Value], after: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the entries that `before` lacks or has differently. Most values are identical objects."""
    return {name: value for name, value in after.items() if (was := before.get(name)) is not value and was != value}


def _missing(before: Mapping[str, _Value], after: Mapping[str, _Value]) -> list[str]:
    return sorted(before.keys() - after.keys())


def _onto(before: Mapping[str, _Value], changed: Mapping[str, _Value], gone: Iterable[str]) -> dict[str, _Value]:
    after = {**before, **changed}
    for name in gone:
        del after[name]
    return after
