"""The checkpoint on durable storage: manifests, commit records, schemas, generation and lease of one pipeline.

Called by the coordinator (manifests, schemas) and by the driver (lease, generation, commits, recovery), which may be
different processes, so every answer comes from storage. The process keeps only two things in memory: the names of
schemas that are known to be durable, and the base of the last commit record.

```
meta.json            the state's identity, written first and once (`raycdc.state.identity`)
lease                flock of the driver, with its pid inside
gen                  {"generation"}: raised by each driver that starts
generations/         one file per generation, written by the driver that claimed it; and its heartbeat
                     (`raycdc.state.drivers.heartbeat`), and the epochs and documents that it took over
                     (`….manifests.epoch_files`, `….documents`)
epochs/%010d.json    sealed manifests, whole or as a difference from an earlier one
                     (`raycdc.state.manifests.manifest_files`); "….json.dropped" if recovery dropped it (its number
                     stays used)
bases/%010d.jsonl    complete states after some of them (`raycdc.state.manifests.manifest_files`); "record-….json"
                     are complete lists of what targets hold, for commit records (`raycdc.state.commits.record_bases`)
commits/%010d.json   commit records: generation, what each target table holds, its source tables and columns; a
                     replacement is "….json.GENERATION" (`raycdc.state.commits.commit_record`)
documents/           the driver's documents, by name and generation: requests about tables, counts of left-out rows,
                     and others (`raycdc.state.documents`)
schemas/<fp>.json    table schemas by fingerprint
spool/               segments of readers on this node
```

All kinds of files are in `raycdc.state.documents`.

Invariants: a document exists completely or not at all (temporary file, fsync, rename, fsync of the folder). The number
of an epoch is never used for another epoch. Writers whose generation is no longer the newest are refused
(`FencedError`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raycdc.errors import StateError
from raycdc.model import TableSchema
from raycdc.state import codec
from raycdc.state.commits.commit_record import CommitFiles, CommitRecord, RoutedTarget
from raycdc.state.commits.record_bases import RecordBases
from raycdc.state.documents import DriverDocuments
from raycdc.state.drivers.generations import Generations
from raycdc.state.drivers.heartbeat import require_vacant
from raycdc.state.files.folder import DISK, Disk, Lease, LocalFolder
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.identity import NAME, identity_of, require_identity
from raycdc.state.location import BRIEF_S, StateLocation, StateLock
from raycdc.state.manifests.epoch_files import epoch_name, numbers
from raycdc.state.manifests.manifest import STATE_NODE, Manifest
from raycdc.state.manifests.manifest_files import KnownManifest, ManifestCompaction, ManifestFiles

__all__ = ["KEEP_COMMITTED", "CheckpointStore", "CommitRecord", "RoutedTarget", "sweep"]

#: The number of committed epochs whose manifests and records are kept. People may inspect them; recovery needs only the
#: last epoch.
KEEP_COMMITTED = 10


@dataclass(frozen=True, slots=True)
class _Remembered:
    """The part of a checkpoint that a process keeps in memory.

    `bases` keeps the base of the commit records. `durable` has the names of schema documents that are known to be
    durable, which need not be synced again.
    """

    bases: RecordBases
    durable: set[str] = field(default_factory=set)


class CheckpointStore:
    """The checkpoint on durable storage; see the module's docstring.

    Methods block only on the disk or store; `StateError` names the file concerned.
    """

    def __init__(
        self,
        path: StateLocation | Path | str,
        *,
        pipeline: str = "",
        create: bool = True,
        disk: Disk = DISK,
        compaction: ManifestCompaction | None = None,
    ) -> None:
        """Open the store at `path`. If there is no state and `create` is set, create it.

        A folder with epochs but without a readable ``meta.json`` is an error, and never taken for a first start. A
        `pipeline` name other than the one for which the state was created is also an error. `disk` is the file system
        of the documents.
        """
        self.location = path if isinstance(path, StateLocation) else StateLocation.of(path)
        #: The local folder for segments and files of processes. It is the state's own folder if the state is in a
        #: folder.
        self.path = self.location.work
        self._folder = self.location.open(disk)
        #: The folder with segments of readers on this node. It exists as soon as the state was created.
        self.spool = self.path / "spool"
        self.generations = Generations(self._folder)
        self.manifest_files = ManifestFiles(self._folder, compaction)
        self._remembered = _Remembered(RecordBases(self._folder, compaction or ManifestCompaction()))
        #: A lock on this machine. Other machines use the same lock only if they share the folder.
        self.lock = StateLock(self.location)
        self.documents = DriverDocuments(self._folder, self.generations)
        identity = identity_of(self._folder, pipeline, create=create)
        if create and self.location.on_store:
            LocalFolder(self.path).create("spool")
        self.pipeline = identity.pipeline
        #: The identity of this checkpoint. It is part of every sink commit. Epochs of a deleted state, which have the
        #: same numbers, therefore never look committed.
        self.checkpoint = identity.checkpoint
        #: The identity of this pipeline's commits in a sink.
        self.app_id = f"raycdc:{self.pipeline}:{self.checkpoint}"
        if pipeline and self.pipeline and pipeline != self.pipeline:
            raise StateError(
                f"The state in {self.location} belongs to pipeline {self.pipeline!r}, not {pipeline!r}. "
                f"Give each pipeline its own pipeline.state."
            )

    @classmethod
    def there(cls, path: StateLocation | Path | str, *, pipeline: str = "") -> CheckpointStore | None:
        """Return the store at `path`; None if a start would create it. Raises the errors that a start would raise."""
        location = path if isinstance(path, StateLocation) else StateLocation.of(path)
        folder = location.open()
        if folder.read(NAME) is None:
            require_identity(folder)
            return None
        return cls(path, pipeline=pipeline, create=False)

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self.location)!r}, pipeline={self.pipeline!r}, checkpoint={self.checkpoint!r})"

    def needed_segments(self) -> set[str]:
        """Return the names of the segments, on any node, to which an uncommitted epoch refers."""
        record = self.last_commit()
        uncommitted = self.manifests(record.epoch if record else -1)
        return {segment.name for manifest in uncommitted for segment in manifest.segments}

    def sweep_spool(self) -> int:
        """Delete segments here to which no uncommitted epoch refers, because their readers died before sealing them.

        Returns the number of deleted segments. Call it only under the lease, after recovery and while there is no
        reader; epochs may be committed meanwhile.
        """
        return sweep(self.spool, self.needed_segments())

    def lease(self, wait: Callable[[str], None] | None = None) -> Lease:
        """Take the state for this process until `Lease.release`.

        Raises `StateError` that names the process that has it. The lock does not exclude a driver on another machine;
        the heartbeats of such a driver do. If it died without a last report, the call waits for
        `raycdc.state.drivers.heartbeat.SILENT_S` (`require_vacant` explains `wait`). Commands such as ``raycdc tables``
        have the state for a moment only, so the call waits up to `BRIEF_S` for a process that has the lock.
        """
        lock = self.lock.take(wait_s=BRIEF_S)
        try:
            require_vacant(self.generations, str(self.location), lock=self.lock.identity, wait=wait)
        except BaseException:
            lock.release()
            raise
        return lock

    def write_manifest(self, manifest: Manifest) -> None:
        """Make `manifest` the newest sealed epoch, atomically and durably. Writing the same manifest again is harmless.

        Raises `FencedError` if its generation is not the newest, `StateError` if its number is already used.
        """
        name = epoch_name("epochs", manifest.epoch)

        def act() -> KnownManifest | None:
            self.generations.require_newest(manifest.generation, f"epoch {manifest.epoch}")
            encoded = self.manifest_files.encoded(manifest)
            if manifest.epoch >= self.next_epoch():
                # If two writers get this far, the second one finds the number taken.
                self._folder.create_once(name, encoded.data)
            if self._folder.read(name) == encoded.data:
                return encoded.known
            # A second call may encode the same manifest differently, because it may be relative to a different earlier
            # manifest.
            there = self.manifest_files.read(manifest.epoch)
            if there is None or there.to_json() != manifest.to_json():
                raise StateError(
                    f"Epoch {manifest.epoch} in {self.location} exists already; epoch numbers are used once."
                )
            return None

        known = self._folder.atomically(act)
        if known is not None:
            self.manifest_files.written(known, generation=manifest.generation)

    def manifest(self, epoch: int) -> Manifest:
        """Return the manifest of `epoch`. Raises `StateError` if it does not exist (never sealed, dropped or pruned).

        Segments in the state's spool get their present path. The caller must locate segments of other nodes.
        """
        manifest = self._folder.atomically(lambda: self.manifest_files.read(epoch))
        if manifest is None:
            origin = self._folder.origin(epoch_name("epochs", epoch))
            raise StateError(f"{origin} does not exist: epoch {epoch} was not sealed, or was dropped.")
        here = (s.located(self.spool) if s.node == STATE_NODE else s for s in manifest.segments)
        return replace(manifest, segments=tuple(here))

    def sealed_epochs(self, after: int = -1) -> list[int]:
        """Return the numbers of the sealed epochs greater than `after`, ascending."""
        return self.manifest_files.epochs.sealed(after)

    def manifest_after(self, after: int) -> Manifest | None:
        """Return the first sealed epoch greater than `after`; None if there is none."""

        def act() -> Manifest | None:
            sealed = self.sealed_epochs(after)
            return self.manifest(sealed[0]) if sealed else None

        return self._folder.atomically(act)

    def manifests(self, after: int = -1) -> Iterator[Manifest]:
        """Yield the sealed epochs greater than `after`, ascending, read one at a time.

        Each is synced first: its writer may have died before it was durable, and the caller may write the epoch to the
        sink.
        """
        epochs = self.sealed_epochs(after)
        if epochs:
            self._folder.sync("epochs")
        return (self.manifest(epoch) for epoch in epochs)

    def last_manifest(self) -> Manifest | None:
        """Return the newest sealed epoch, from which reading continues after recovery; None at a first start."""

        def act() -> Manifest | None:
            sealed = self.sealed_epochs()
            return self.manifest(sealed[-1]) if sealed else None

        return self._folder.atomically(act)

    def next_epoch(self) -> int:
        """Return the first number that no epoch has used, including dropped ones; 1 at a first start."""
        return self.manifest_files.epochs.next()

    def drop_after(self, epoch: int) -> list[int]:
        """Make all manifests greater than `epoch` invalid, and return their numbers."""

        def act() -> list[int]:
            self.manifest_files.forget(after=epoch)
            return self.manifest_files.epochs.drop_after(epoch, self.generations.own())

        return self.documents.as_driver("the end of later epochs", act)

    def write_commit(self, record: CommitRecord) -> None:
        """Record that the sink holds `record.epoch`, then prune epochs older than the last `KEEP_COMMITTED`."""
        encoded = self._remembered.bases.encoded(record)

        def act() -> None:
            self.generations.require_newest(record.generation, f"the commit of epoch {record.epoch}")
            self._remembered.bases.put(encoded)
            commits = CommitFiles(self._folder)
            commits.write(record.epoch, record.generation, encoded.data)
            first = _prune(commits, self._folder, self.manifest_files)
            self._remembered.bases.sweep(record, lambda: (commits.all(), first), KEEP_COMMITTED)

        self._folder.atomically(act)
        self._remembered.bases.written(encoded)

    def last_commit(self) -> CommitRecord | None:
        """Return the newest commit record; None if no epoch was committed yet.

        The record is synced first: its writer may have died before it was durable, and the caller relies on it.
        """
        return self._folder.atomically(lambda: self._remembered.bases.newest(CommitFiles(self._folder)))

    def put_schema(self, schema: TableSchema) -> str:
        """Store `schema` and return its fingerprint. For a known schema, only the folder is read."""
        fingerprint = schema.fingerprint()
        self.put_documents({fingerprint: schema.to_json()})
        return fingerprint

    def put_documents(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Store schema documents by their fingerprints.

        A document has ``TableSchema.to_json`` and the source's own data (`document`).
        """
        named = {f"schemas/{fingerprint}.json": document for fingerprint, document in documents.items()}
        new = {
            name: codec.encode({"version": codec.DOCUMENT_VERSION, **document})
            for name, document in named.items()
            if self._folder.read(name) is None
        }
        self._folder.write_all(new)
        if named.keys() - new.keys() - self._remembered.durable:
            # Synced, because their writer may have died before they were durable, and an epoch is about to refer to
            # them.
            self._folder.sync("schemas")
        self._remembered.durable.update(named)

    def schema(self, fingerprint: str) -> TableSchema:
        """Return the schema called `fingerprint`. Raises `StateError` if the state does not have it."""
        return TableSchema.from_json(self.document(fingerprint))

    def document(self, fingerprint: str) -> dict[str, Any]:
        """Return the document that `put_documents` stored. Raises `StateError` if the state does not have it."""
        name = f"schemas/{fingerprint}.json"
        document = codec.read_current(self._folder, name)
        if document is None:
            origin = self._folder.origin(name)
            raise StateError(f"{origin} is missing although an epoch refers to it: the state is incomplete.")
        # A target's document has no data of a source, and a source without own data may later have the same document.
        document.setdefault("fingerprint", fingerprint)
        return document


def _prune(commits: CommitFiles, folder: StateFolder, manifests: ManifestFiles) -> int:
    """Delete the files of epochs older than the last `KEEP_COMMITTED` committed ones.

    Files needed to read the kept epochs stay. Returns the first kept epoch.
    """
    kept = commits.kept(KEEP_COMMITTED)
    first = manifests.kept_from(kept)
    for epoch, dropped in numbers(folder, "epochs"):
        if epoch < first:
            folder.delete(epoch_name("epochs", epoch) + (".dropped" if dropped else ""))
    manifests.prune(first)
    return kept


def sweep(spool: Path, needed: Collection[str]) -> int:
    """Delete the files of `spool` whose names are not in `needed`.

    Returns their number. Folders are not deleted.
    """
    orphans = [path for path in spool.iterdir() if path.name not in needed and not path.is_dir()]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)
