"""Examines a whole state for damage, for ``raycdc state check``.

Each document is read separately, so that a damaged one does not hide others. There are three kinds of findings:

| finding | a start |
|---|---|
| `STOPS` | is refused |
| `COSTS` | goes on, and reads rows again |
| `UNUSED` | does not read it |

Nothing is changed, and no lease is taken, so a run may go on meanwhile. A run deletes files that it no longer needs.
Therefore a finding in the state of a running pipeline counts only if several passes find it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from raycdc.driver.state_admin.copying import DEAD_LETTERS_FOLDER, LOOKED_UP, documents_of, require_readable
from raycdc.errors import StateError
from raycdc.segments.reading import verify_segments
from raycdc.state import codec
from raycdc.state.commits import record_bases
from raycdc.state.drivers.heartbeat import DriverWatch, Vacancy
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.identity import BARRED_VERSION, NAME, StateIdentity, read_identity
from raycdc.state.location import StateLocation
from raycdc.state.manifests import epoch_files
from raycdc.state.manifests.manifest import MANIFEST_VERSION, STATE_NODE, Manifest
from raycdc.state.manifests.manifest_files import BASE_VERSION, ManifestFiles
from raycdc.state.manifests.sealed_state import CHANGE_VERSION
from raycdc.state.store import CheckpointStore, CommitRecord

#: If a run is going on, a finding must appear in this many passes to count.
ATTEMPTS = 3

#: For all other findings the remedy is a new start; see `raycdc.state.recovery`.
_RESTORE = (
    "Put a copy of the whole state in its place, one that is as new as the targets (raycdc state backup makes them); "
    f"or {codec.NEW_STATE}."
)
_FIXES: Mapping[str, str] = {
    NAME: "Restore this file from any copy of this state: it is the same in all of them.",
    "schemas": "Restore this file from any copy of this state: files of this name are the same in all of them.",
    "commands": "It is a command about a table: remove this file, and give the command again.",
}
_SEGMENTS = (
    "Nothing needs to be done: the next start reads their rows again, and a table whose target has a part of such an "
    "epoch is resnapshotted. If the files can be restored, restore them first; copies in pipeline.spool suffice."
)
_ELSEWHERE = "They were looked for in {}; on another machine that ran the pipeline they may be there."

#: The newest version of each kind of document; older versions are read, too.
_VERSIONS: Mapping[str, tuple[int, ...]] = {
    "epochs": (MANIFEST_VERSION, CHANGE_VERSION),
    # A complete record has an older version's number, so that older versions of raycdc can read it.
    "commits": (1, record_bases.COMMIT_VERSION),
    "bases": (record_bases.RECORD_BASE_VERSION,),
    "generations/epochs": (epoch_files.VERSION,),
    "documents": (codec.DOCUMENT_VERSION, codec.EXTENDED_VERSION),
    "commands": (codec.DOCUMENT_VERSION, codec.EXTENDED_VERSION),
    NAME: (codec.DOCUMENT_VERSION, BARRED_VERSION),
}

_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_CLAIM = re.compile(r"generations/(\d{10})\.json")
#: The keys of a state below which fingerprints are listed by the names of tables.
_NAMED = ("tables", "dropped")


class StartEffect(StrEnum):
    """The effect of a finding on a start; see the table in the module's docstring."""

    STOPS = "a start is refused"
    COSTS = "a start reads rows again"
    UNUSED = "no start reads it"


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged or missing document.

    `name` is its name below the state, `what` describes the damage as a clause, and `fix` is the remedy in sentences.
    """

    name: str
    what: str
    effect: StartEffect
    fix: str


@dataclass(slots=True)
class EpochInventory:
    """The epochs of a state.

    `waiting` is the number of epochs that are sealed, but not known to be in the sink. `segments` is the number of
    segments of these epochs.
    """

    sealed: list[int] = field(default_factory=list)
    committed: int | None = None
    waiting: list[int] = field(default_factory=list)
    segments: int = 0
    segment_bytes: int = 0


@dataclass(slots=True)
class Examination:
    """The result of an examination.

    `driver` is the driver that has the state, or empty; `older` are documents that an older version wrote.
    """

    location: str
    driver: str = ""
    identity: StateIdentity | None = None
    generation: int = 0
    documents: int = 0
    document_bytes: int = 0
    older: int = 0
    epochs: EpochInventory = field(default_factory=EpochInventory)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return all(finding.effect is StartEffect.UNUSED for finding in self.findings)


def examine(location: StateLocation) -> Examination:
    """Read the state at `location`. Raises `StateError` if there is none, or its storage does not answer."""
    examination = _Inspection(location).run()
    for _ in range(ATTEMPTS - 1):
        if not (examination.driver and examination.findings):
            break
        names = {finding.name for finding in examination.findings}
        examination = _Inspection(location).run()
        examination.findings = [finding for finding in examination.findings if finding.name in names]
    return examination


class _Inspection:
    """One pass over the state; see the module's docstring."""

    def __init__(self, location: StateLocation) -> None:
        self._location = location
        self._folder: StateFolder = require_readable(location)
        self._documents: Mapping[str, bytes] = documents_of(location, self._folder)
        self._found = Examination(str(location))

    def run(self) -> Examination:
        examination = self._found
        examination.documents = len(self._documents)
        examination.document_bytes = sum(map(len, self._documents.values()))
        with self._finding(NAME):
            examination.identity = read_identity(self._folder)
            if examination.identity is None:
                self._add(NAME, "it is missing", StartEffect.STOPS)
        if examination.identity is not None and examination.identity.barred:
            # A barred state is not used, so its other documents do not matter.
            fix = examination.identity.bar(self._folder.where)
            examination.findings = [Finding(NAME, "nobody may go on from here", StartEffect.STOPS, fix)]
            return examination
        newest_commit = self._newest_commit()
        for name, data in sorted(self._documents.items()):
            counts = self._counts(name) or name == newest_commit
            with self._finding(name, StartEffect.STOPS if counts else StartEffect.UNUSED):
                self._read(name, data)
        if examination.identity is not None:
            self._ask(CheckpointStore(self._location, create=False))
        return examination

    def _read(self, name: str, data: bytes) -> None:
        """Check that the document can be read by itself. Raises `StateError` otherwise."""
        folder, _, file = name.partition("/")
        if folder in (DEAD_LETTERS_FOLDER, LOOKED_UP):
            return
        if folder == "bases" and not file.startswith(record_bases.PREFIX):
            self._version(name, json.loads(data.split(b"\n", 1)[0]), (BASE_VERSION,))
            return
        document = codec.decode(data, origin=name)
        kind = "generations/epochs" if name.endswith(".epochs.json") else folder
        self._version(name, document, _VERSIONS.get(kind, (codec.DOCUMENT_VERSION,)))
        if folder == "schemas" and document.get("fingerprint", file[:-5]) != file[:-5]:
            raise codec.damaged(name, "it is the document of another fingerprint")

    def _counts(self, name: str) -> bool:
        """Return True if a start reads the document. Documents of epochs are checked together."""
        claim = _CLAIM.fullmatch(name)
        # The claim of a generation is not read any more after its driver has sent heartbeats.
        silent = claim is None or self._folder.read(f"generations/{claim[1]}.pulse.json") is None
        return silent and not name.startswith(("commits/", "epochs/"))

    def _version(self, name: str, document: Any, known: Sequence[int]) -> None:
        version = document.get("version")
        if not isinstance(version, int) or version < 1:
            raise codec.damaged(name, f"its version is {version!r}")
        if version > max(known):
            raise codec.damaged(name, f"a newer raycdc wrote it (format version {version}), which must be used here")
        self._found.older += version < min(known)

    def _newest_commit(self) -> str:
        """Return the name of the newest commit record, which is the valid one."""
        names = [name for name in self._documents if name.startswith("commits/")]
        return max(names, key=lambda name: (name[:18], name), default="")

    def _ask(self, store: CheckpointStore) -> None:
        """Check the driver, the list of epochs, and that everything they name exists."""
        examination, epochs = self._found, self._found.epochs
        record: CommitRecord | None = None
        with self._finding("generations"):
            examination.generation = store.generations.newest()
            driver = DriverWatch(store.generations, store.lock.holder, lock=store.lock.identity).poll()
            examination.driver = "" if isinstance(driver, Vacancy) else driver
            epochs.sealed = store.sealed_epochs()
        pulse = f"generations/{examination.generation:010d}.pulse.json"
        # A damaged heartbeat stops no start, because the start can read the driver from the generation's claim.
        with self._finding(pulse, StartEffect.UNUSED):
            if (data := self._folder.read(pulse)) is not None:
                self._read(pulse, data)
        with self._finding("commits"):
            record = store.last_commit()
        committed = epochs.committed = None if record is None else record.epoch
        epochs.waiting = [number for number in epochs.sealed if committed is None or number > committed]
        read = self._manifests()
        if committed is not None and committed not in epochs.sealed:
            self._add(epoch_files.epoch_name("epochs", committed), "it is missing", StartEffect.STOPS)
        needed = [manifest for number, manifest in read.items() if committed is None or number >= committed]
        names = set() if record is None else {name for target in record.routes.values() for name in target.schemas}
        for manifest in needed:
            names |= fingerprints(manifest)
        for name in sorted(f"schemas/{name}.json" for name in names):
            if name not in self._documents:
                self._add(name, "it is missing", StartEffect.STOPS)
        for number in epochs.waiting:
            if number in read:
                self._segments(store, read[number])

    def _manifests(self) -> dict[int, Manifest]:
        """Return the readable manifests that a start needs."""
        files, read, epochs = ManifestFiles(self._folder), dict[int, Manifest](), self._found.epochs
        for number in epochs.sealed:
            needed = epochs.committed is None or number >= epochs.committed
            with self._finding(
                epoch_files.epoch_name("epochs", number), StartEffect.STOPS if needed else StartEffect.UNUSED
            ):
                manifest = self._folder.atomically(partial(files.read, number))
                if manifest is not None:
                    read[number] = manifest
        return read

    def _segments(self, store: CheckpointStore, manifest: Manifest) -> None:
        """Check the rows of an epoch that is not known to be in the sink. Segments on other nodes are skipped."""
        epochs = self._found.epochs
        epochs.segments += len(manifest.segments)
        epochs.segment_bytes += sum(segment.bytes for segment in manifest.segments)
        own = [segment.located(store.spool) for segment in manifest.segments if segment.node == STATE_NODE]
        lost = [segment for segment in own if not verify_segments([segment], checksum=True)]
        if not lost:
            return
        what = f"{len(lost)} of {len(own)} segments of epoch {manifest.epoch} are missing or damaged"
        tables = ", ".join(sorted({str(segment.table) for segment in lost}))
        where = f" {_ELSEWHERE.format(self._location.work)}" if self._location.on_store else ""
        self._found.findings.append(
            Finding("spool", f"{what} (tables {tables})", StartEffect.COSTS, f"{_SEGMENTS}{where}")
        )

    @contextmanager
    def _finding(self, name: str, effect: StartEffect = StartEffect.STOPS) -> Iterator[None]:
        """Record a `StateError` of the block, or a malformed document, as a finding."""
        try:
            with codec.malformed_as_damage(name):
                yield
        except StateError as error:
            if isinstance(error.__cause__, OSError):
                raise
            # The damage of a delta-encoded epoch may be in the epoch that it builds on.
            origin, why = codec.damage_of(error) or (name, str(error))
            self._add(origin, why, effect)

    def _add(self, name: str, what: str, effect: StartEffect) -> None:
        """Add a finding. Each document has at most one, the more severe one."""
        name = name.removeprefix(f"{self._folder.where}/")
        others = [finding for finding in self._found.findings if finding.name != name]
        same = [finding for finding in self._found.findings if finding.name == name]
        if any(finding.effect is StartEffect.STOPS for finding in same):
            return
        kind = name.partition("/")[0]
        fix = "" if effect is StartEffect.UNUSED else _FIXES.get(kind, _RESTORE)
        self._found.findings = [*others, Finding(name, what, effect, fix)]


def fingerprints(manifest: Manifest) -> set[str]:
    """Return the schemas that are needed to continue from the epoch, or to write it."""
    document: Any = manifest.to_json()
    parts = [document[part] for part in ("to_splits", "enumerator", "segments", "tables")]
    return {fingerprint for part in parts for fingerprint in _fingerprints(part, "")}


def _fingerprints(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            is_named = key in _NAMED and isinstance(inner, str)
            yield from _fingerprints(inner, "schema" if is_named else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _fingerprints(inner, key)
    elif key == "schema" and isinstance(value, str) and _FINGERPRINT.fullmatch(value):
        yield value
