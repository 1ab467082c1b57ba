"""The checkpoint on durable storage: manifests, commit records, schemas, generation and lease of one pipeline.

Called by the coordinator (manifests, schemas) and by the driver (lease, generation, commits, recovery), which may be
different processes: nothing is cached, every answer comes from storage.

```
meta.json            {"version", "checkpoint" (uuid), "pipeline"}   written once, first of all
lease                flock of the driver, with its pid inside
gen                  {"generation"}: raised by each driver that starts
generations/         one file per generation, by the driver that claimed it: no two ever have the same
epochs/%010d.json    sealed manifests; "….json.dropped" when recovery dropped one (its number stays used)
commits/%010d.json   commit records: generation, what each target table holds and which tables go into it
requests.json        what the user asked of tables (new snapshots, pauses) while nothing ran
bad_rows.json        how many rows of each table were left out
schemas/<fp>.json    table schemas by fingerprint
spool/               segments of readers on this node
```

All kinds of files are in `raycdc.checkpoint.kinds`.

Invariant: a document exists whole or not at all (temporary file, fsync, rename, fsync of the folder), and its epoch's
number is never given to another. Writers whose generation is no longer the newest are refused (`FencedError`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NewType

from raycdc.checkpoint import codec
from raycdc.checkpoint.disk import DISK, Disk
from raycdc.checkpoint.folder import Lease, LocalFolder, sweep_private
from raycdc.checkpoint.kinds import kind_of
from raycdc.checkpoint.manifest import STATE_NODE, Manifest
from raycdc.checkpoint.parked import ParkedTarget
from raycdc.errors import FencedError, StateError
from raycdc.model import TableSchema
from raycdc.model.local_path import check_local_path

STORE_VERSION = 1

#: Upgrades of the documents other than manifests, as `codec.UPGRADES`.
UPGRADES: dict[int, Callable[[codec.Document], codec.Document]] = {}

#: Version of a commit record that has parked targets, and upgrades of older ones.
COMMIT_VERSION = 2
_COMMIT_UPGRADES: dict[int, Callable[[codec.Document], codec.Document]] = {1: lambda record: {**record, "version": 2}}

#: Committed epochs whose manifests and records are kept for people to look at; recovery needs only the last.
KEEP_COMMITTED = 10

#: A generation that a driver claimed for itself, and did not look up: what it writes must carry its own.
OwnGeneration = NewType("OwnGeneration", int)

_GENERATION_FILE = re.compile(r"(\d{10})\.json$")
_EPOCH_FILE = re.compile(r"(\d{10})\.json(\.dropped)?$")


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

    def to_json(self) -> dict[str, Any]:
        dropped = {"dropped": {name: list(columns) for name, columns in self.dropped.items()}} if self.dropped else {}
        transforms = {"transforms": dict(self.transforms)} if self.transforms else {}
        return {"sources": list(self.sources), "schema": self.schema, **dropped, **transforms}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoutedTarget:
        return cls(tuple(data["sources"]), data["schema"], data.get("dropped", {}), data.get("transforms", {}))


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

    def to_json(self) -> dict[str, Any]:
        return {
            # A raycdc that knows nothing of parked targets must not go on with rows that come behind a gap.
            "version": COMMIT_VERSION if self.parked else STORE_VERSION,
            "epoch": self.epoch,
            "generation": self.generation,
            "committed_ms": self.committed_ms,
            "tables": {name: list(vector) for name, vector in self.tables.items()},
            **({"routes": {name: target.to_json() for name, target in self.routes.items()}} if self.routes else {}),
            **({"known": {name: list(vector) for name, vector in self.known.items()}} if self.known else {}),
            **({"parked": {name: entry.to_json() for name, entry in self.parked.items()}} if self.parked else {}),
        }

    @property
    def merged(self) -> dict[str, str]:
        """Source tables that share a target with others, and that target."""
        shared = {name: target for name, target in self.routes.items() if len(target.sources) > 1}
        return {source: name for name, target in shared.items() for source in target.sources}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CommitRecord:
        tables = {name: (vector[0], vector[1]) for name, vector in data["tables"].items()}
        routes = {name: RoutedTarget.from_json(entry) for name, entry in data.get("routes", {}).items()}
        known = {name: (vector[0], vector[1]) for name, vector in data.get("known", {}).items()}
        parked = {name: ParkedTarget.from_json(entry) for name, entry in data.get("parked", {}).items()}
        return cls(data["epoch"], data["generation"], data["committed_ms"], tables, routes, known, parked)


class CheckpointStore:
    """See the module's docstring. Methods block on disk only; `StateError` names the file in trouble."""

    def __init__(self, path: Path | str, *, pipeline: str = "", create: bool = True, disk: Disk = DISK) -> None:
        """Open the store at `path`, creating it when nothing is there and `create` is set.

        A folder with epochs but without a readable ``meta.json`` is an error, never a first start. A `pipeline` name
        other than the one the state was created for is an error too. Its documents are on `disk`.
        """
        try:
            self.path = Path(check_local_path(str(path))).absolute()
        except ValueError as cause:
            raise StateError(f"The state cannot be there: {cause}.") from cause
        self._folder = LocalFolder(self.path, disk)
        self._driver: Callable[[], OwnGeneration] | None = None
        #: Documents that are not to be synced again.
        self._durable: set[str] = set()
        meta = self._read("meta.json")
        if meta is None:
            meta = self._create(pipeline, create=create)
        codec.upgrade(meta, origin=self._origin("meta.json"), current=STORE_VERSION, upgrades=UPGRADES)
        self.pipeline: str = meta["pipeline"]
        #: Identity of this checkpoint: part of every sink commit, so that deleted state never looks committed.
        self.checkpoint: str = meta["checkpoint"]
        if pipeline and self.pipeline and pipeline != self.pipeline:
            raise StateError(
                f"The state in {self.path} belongs to pipeline {self.pipeline!r}, not {pipeline!r}. "
                f"Give each pipeline its own pipeline.state."
            )

    @classmethod
    def there(cls, path: Path | str, *, pipeline: str = "") -> CheckpointStore | None:
        """The store at `path`, as a start would find it, with its errors; None where a start would make one."""
        folder = LocalFolder(Path(path).absolute())
        if folder.read("meta.json") is None:
            _require_identity(folder)
            return None
        return cls(path, pipeline=pipeline, create=False)

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self.path)!r}, pipeline={self.pipeline!r}, checkpoint={self.checkpoint!r})"

    @property
    def app_id(self) -> str:
        """Identity of this pipeline's commits in a sink."""
        return f"raycdc:{self.pipeline}:{self.checkpoint}"

    @property
    def spool(self) -> Path:
        """Folder for segments of readers on this node; exists after the store was created."""
        return self.path / "spool"

    def needed_segments(self) -> set[str]:
        """Names of the segments, on whatever node, that an uncommitted epoch refers to."""
        record = self.last_commit()
        uncommitted = self.manifests(record.epoch if record else -1)
        return {segment.name for manifest in uncommitted for segment in manifest.segments}

    def sweep_private(self) -> None:
        """Remove what earlier drivers kept for their tasks alone."""
        sweep_private(self.path / "private")

    def sweep_spool(self) -> int:
        """Delete segments here that no uncommitted epoch refers to: what readers had not sealed when they died.

        Returns how many. Only under the lease, after recovery and before any reader starts.
        """
        return sweep(self.spool, self.needed_segments())

    # -- one driver at a time ---------------------------------------------------------------------------------------

    def lease(self) -> Lease:
        """Take the state for this process until `Lease.release`. `StateError` names the process that has it."""
        return self._folder.lease("lease")

    def driver(self) -> str:
        """The pid of the process on this host that has the lease; empty where none has it."""
        return self._folder.holder("lease")

    def newest_generation(self) -> int:
        """The newest generation, whoever has it; 0 before the first start. Never to be written as one's own."""
        document = self._read("gen")
        written = 0 if document is None else int(document["generation"])
        return max([written, *self._claims()])

    def next_generation(self) -> OwnGeneration:
        """Claim a generation, durably, for a driver that starts; every writer with an older one is fenced from now on.

        Two that start at once get different ones, also where the lease binds processes of one machine only.
        """
        while True:
            generation = self.newest_generation() + 1
            if self._claim(generation):
                return OwnGeneration(generation)

    def raise_generation(self, own: OwnGeneration) -> OwnGeneration:
        """Claim the next generation for the driver that has `own`; `FencedError` when another one has a newer one."""
        self.require_newest(own, "the driver")
        if not self._claim(own + 1):
            raise FencedError(_fenced("the driver", own, own + 1, self.path))
        return OwnGeneration(own + 1)

    def require_newest(self, generation: int, what: str) -> None:
        """`FencedError` where `what` carries a generation that is not the newest: another driver took over."""
        newest = self.newest_generation()
        if generation != newest:
            raise FencedError(_fenced(what, generation, newest, self.path))

    def require_driver(self, driver: Callable[[], OwnGeneration], what: str) -> None:
        """`require_newest` for `what` the `driver` does now, whose number may just rise by its own act."""
        while True:
            own = driver()
            try:
                self.require_newest(own, what)
                return
            except FencedError:
                if driver() == own:
                    raise

    def write_as(self, driver: Callable[[], OwnGeneration] | None) -> None:
        """Have everything that a driver writes by this store refused once its generation is not the newest any more."""
        self._driver = driver

    def _claim(self, generation: int) -> bool:
        name = f"generations/{generation:010d}.json"
        claim = codec.encode({"version": STORE_VERSION, "driver": uuid.uuid4().hex})
        self._folder.create("generations")
        self._folder.create_once(name, claim)
        if self._folder.read(name) != claim:
            return False
        self._folder.write("gen", codec.encode({"version": STORE_VERSION, "generation": generation}))
        for older in self._claims():
            if older < generation:
                self._folder.delete(f"generations/{older:010d}.json")
        return True

    def _claims(self) -> list[int]:
        return [int(found[1]) for name in self._folder.list("generations") if (found := _GENERATION_FILE.match(name))]

    def _check_driver(self, what: str) -> None:
        if self._driver is not None:
            self.require_driver(self._driver, what)

    # -- manifests --------------------------------------------------------------------------------------------------

    def write_manifest(self, manifest: Manifest) -> None:
        """Make `manifest` the newest sealed epoch, atomically and durably. Repeating the same one is harmless.

        `FencedError` when its generation is not the newest, `StateError` when its number is used already.
        """
        self.require_newest(manifest.generation, f"epoch {manifest.epoch}")
        name = _epoch_name("epochs", manifest.epoch)
        data = codec.encode_manifest(manifest)
        if manifest.epoch >= self.next_epoch():
            # Of two writers that both got this far, the second finds the number taken.
            self._folder.create_once(name, data)
        if self._folder.read(name) != data:
            raise StateError(f"Epoch {manifest.epoch} in {self.path} exists already; epoch numbers are used once.")

    def manifest(self, epoch: int) -> Manifest:
        """The manifest of `epoch`; `StateError` when it is not there (never sealed, dropped or pruned).

        Segments in the state's spool are placed there; those of other nodes are the caller's to place.
        """
        name = _epoch_name("epochs", epoch)
        data = self._folder.read(name)
        if data is None:
            raise StateError(f"{self._origin(name)} does not exist: epoch {epoch} was not sealed, or was dropped.")
        manifest = codec.decode_manifest(data, origin=self._origin(name))
        here = (s.placed(self.spool) if s.node == STATE_NODE else s for s in manifest.segments)
        return replace(manifest, segments=tuple(here))

    def sealed_epochs(self, after: int = -1) -> list[int]:
        """Numbers of the sealed epochs greater than `after`, ascending."""
        return [e for e, dropped in self._numbers("epochs") if e > after and not dropped]

    def manifests(self, after: int = -1) -> Iterator[Manifest]:
        """The sealed epochs greater than `after`, ascending, read one at a time.

        Whoever sealed one may have died before it was durable, and from here on it may come to the sink.
        """
        epochs = self.sealed_epochs(after)
        if epochs:
            self._folder.sync("epochs")
        return (self.manifest(epoch) for epoch in epochs)

    def last_manifest(self) -> Manifest | None:
        """The newest sealed epoch, where reading goes on after recovery; None at a first start."""
        sealed = self.sealed_epochs()
        return self.manifest(sealed[-1]) if sealed else None

    def next_epoch(self) -> int:
        """The first number no epoch had yet, dropped ones included; 1 at a first start."""
        used = [e for folder in ("epochs", "commits") for e, _ in self._numbers(folder)]
        return max(used, default=0) + 1

    def drop_after(self, epoch: int) -> list[int]:
        """Rename all manifests greater than `epoch` away (newest first) and return their numbers."""
        self._check_driver("the end of later epochs")
        dropped = self.sealed_epochs(epoch)
        for number in reversed(dropped):
            name = _epoch_name("epochs", number)
            self._folder.rename(name, name + ".dropped")
        return dropped

    # -- commits ----------------------------------------------------------------------------------------------------

    def write_commit(self, record: CommitRecord) -> None:
        """Record that the sink holds `record.epoch`, then prune what is older than `KEEP_COMMITTED` epochs."""
        self.require_newest(record.generation, f"the commit of epoch {record.epoch}")
        self._folder.write(_epoch_name("commits", record.epoch), codec.encode(record.to_json()))
        self._prune()

    def last_commit(self) -> CommitRecord | None:
        """The newest commit record; None when no epoch was committed yet.

        Whoever wrote it may have died before it was durable: then whoever relies on it would be the only one to know.
        """
        numbers = [e for e, _ in self._numbers("commits")]
        if not numbers:
            return None
        self._folder.sync("commits")
        name = _epoch_name("commits", max(numbers))
        document = self._read(name)
        if document is None:
            raise StateError(f"{self._origin(name)} disappeared while it was read; is another process deleting it?")
        return CommitRecord.from_json(
            codec.upgrade(document, origin=self._origin(name), current=COMMIT_VERSION, upgrades=_COMMIT_UPGRADES)
        )

    # -- what the user asked for -----------------------------------------------------------------------------------

    def requests(self) -> dict[str, Any] | None:
        """What was asked of the tables while nothing ran (`raycdc.source.parking.Requests`); None: nothing ever."""
        document = self._read("requests.json")
        if document is None:
            return None
        return codec.upgrade(document, origin=self._origin("requests.json"), current=STORE_VERSION, upgrades=UPGRADES)

    def write_requests(self, requests: Mapping[str, Any]) -> None:
        """Replace what was asked for, durably. Only under the lease; the next start carries it out."""
        self._check_driver("requests.json")
        self._folder.write("requests.json", codec.encode({"version": STORE_VERSION, **requests}))

    def figures(self, name: str) -> dict[str, Any] | None:
        """The document `name` that `write_figures` wrote last; None when it never did."""
        document = self._read(name)
        if document is None:
            return None
        return codec.upgrade(document, origin=self._origin(name), current=STORE_VERSION, upgrades=UPGRADES)

    def write_figures(self, name: str, figures: Mapping[str, Any]) -> None:
        """Replace a document of the driver's own beside the others, durably (`raycdc.checkpoint.bad_rows`)."""
        assert kind_of(name), f"{name} is none of the kinds of files in raycdc.checkpoint.kinds"
        self._check_driver(name)
        self._folder.write(name, codec.encode({"version": STORE_VERSION, **figures}))

    # -- schemas ----------------------------------------------------------------------------------------------------

    def put_schema(self, schema: TableSchema) -> str:
        """Keep `schema` and return its fingerprint; known ones cost one look at the folder."""
        fingerprint = schema.fingerprint()
        self.put_document(fingerprint, schema.to_json())
        return fingerprint

    def put_document(self, fingerprint: str, document: dict[str, Any]) -> None:
        """Keep a schema document: ``TableSchema.to_json`` and whatever else its source wants back (`document`)."""
        name = f"schemas/{fingerprint}.json"
        if self._folder.read(name) is None:
            self._folder.write(name, codec.encode({"version": STORE_VERSION, **document}))
        elif name not in self._durable:
            # Whoever wrote it may have died before it was durable, and an epoch is about to refer to it.
            self._folder.sync("schemas")
        self._durable.add(name)

    def schema(self, fingerprint: str) -> TableSchema:
        """The schema called `fingerprint`; `StateError` when the state does not have it."""
        return TableSchema.from_json(self.document(fingerprint))

    def document(self, fingerprint: str) -> dict[str, Any]:
        """The document kept by `put_document`; `StateError` when the state does not have it."""
        name = f"schemas/{fingerprint}.json"
        document = self._read(name)
        if document is None:
            raise StateError(
                f"{self._origin(name)} is missing although an epoch refers to it: the state is incomplete."
            )
        return codec.upgrade(document, origin=self._origin(name), current=STORE_VERSION, upgrades=UPGRADES)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _create(self, pipeline: str, *, create: bool) -> dict[str, Any]:
        if not create:
            raise StateError(f"There is no raycdc state in {self.path}. Is pipeline.state right?")
        _require_identity(self._folder)
        self._folder.create("epochs", "commits", "schemas", "spool")
        meta = {"version": STORE_VERSION, "checkpoint": uuid.uuid4().hex, "pipeline": pipeline}
        self._folder.create_once("meta.json", codec.encode(meta))
        # Of two first starts at once, which the lease has not sorted out yet, both must go by the same identity.
        created = self._read("meta.json")
        assert created is not None
        return created

    def _prune(self) -> None:
        committed = sorted(e for e, _ in self._numbers("commits"))
        kept = committed[-KEEP_COMMITTED:]
        for folder in ("epochs", "commits"):
            for epoch, dropped in self._numbers(folder):
                if epoch < kept[0]:
                    self._folder.delete(_epoch_name(folder, epoch) + (".dropped" if dropped else ""))

    def _numbers(self, folder: str) -> list[tuple[int, bool]]:
        matches = (_EPOCH_FILE.match(name) for name in self._folder.list(folder))
        return sorted((int(m[1]), m[2] is not None) for m in matches if m)

    def _read(self, name: str) -> dict[str, Any] | None:
        data = self._folder.read(name)
        return None if data is None else codec.decode(data, origin=self._origin(name))

    def _origin(self, name: str) -> str:
        return str(self.path / name)


def _require_identity(folder: LocalFolder) -> None:
    """`StateError` where a folder without ``meta.json`` had a state. Another first start may make one meanwhile."""
    if (folder.list("epochs") or folder.list("commits")) and folder.read("meta.json") is None:
        raise StateError(
            f"{folder.path} has epochs but no meta.json, so its identity is lost. Restore meta.json, or start under "
            f"another pipeline.state with a new snapshot."
        )


def sweep(spool: Path, needed: Collection[str]) -> int:
    """Delete the files of `spool` that are not called as one of `needed`; returns how many. Folders are not ours."""
    orphans = [path for path in spool.iterdir() if path.name not in needed and not path.is_dir()]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)


def _fenced(what: str, generation: int, newest: int, path: Path) -> str:
    return (
        f"{what} carries generation {generation}, but {newest} is the newest in {path}: another driver took over. This "
        "one must stop; nothing of it was accepted."
    )


def _epoch_name(folder: str, epoch: int) -> str:
    return f"{folder}/{epoch:010d}.json"
