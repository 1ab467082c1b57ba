"""The location of a state: a folder, or an object store together with a folder for files that stay on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from raycdc.config.model import PipelineConfig
from raycdc.config.sections.pipeline import PipelineOptions
from raycdc.config.sections.storage import StorageOptions
from raycdc.errors import StateError
from raycdc.state.drivers.holder import LockFile, lock_of
from raycdc.state.files.folder import DISK, Disk, Lease, LocalFolder
from raycdc.state.files.rooted import RootedFolder
from raycdc.state.files.state_folder import StateFolder
from raycdc.storage.api import StoreError
from raycdc.storage.object_store import TRIES_FOR_S, ObjectStore
from raycdc.storage.settings import StorageSettings
from raycdc.storage.url import FolderLocation, Location, ObjectLocation, parse_location


@dataclass(frozen=True, slots=True)
class StateLocation:
    """The location of a state's documents, and the folder `work` on this machine for segments and files of processes.

    `work` is the state's own folder if the state is in a folder. Picklable, for the processes of a run; `settings`
    contain secrets.
    """

    location: Location
    work: Path
    settings: StorageSettings = field(default_factory=StorageSettings)

    def __str__(self) -> str:
        return str(self.location)

    @classmethod
    def of(cls, where: Path | str) -> StateLocation:
        """Return the location of a state in a folder. Raises `StateError` for anything else."""
        try:
            location = parse_location(str(where))
        except ValueError as cause:
            raise StateError(f"The state cannot be there: {cause}.") from cause
        if isinstance(location, ObjectLocation):
            raise StateError(f"{location} is on an object store: name the configuration, which says how it is reached.")
        folder = Path(location.path).absolute()
        return cls(FolderLocation(str(folder)), folder)

    def below(self, name: str) -> Location:
        """Return the location `name` below that of the documents."""
        return self.location.below(name)

    @property
    def on_store(self) -> bool:
        return isinstance(self.location, ObjectLocation)

    def open(self, disk: Disk = DISK, *, tries_for_s: float = TRIES_FOR_S) -> StateFolder:
        """Return the folder of the documents.

        Raises `StateError` if a store cannot be opened as configured. An unreachable store is retried for
        `tries_for_s`.
        """
        match self.location:
            case FolderLocation(path):
                return LocalFolder(Path(path), disk)
            case ObjectLocation():
                try:
                    return RootedFolder(ObjectStore(self.location, self.settings, tries_for_s=tries_for_s))
                except StoreError as cause:
                    raise StateError(str(cause)) from cause


#: How long a start waits for a command that has the state for a moment, and how often it asks.
BRIEF_S = 5.0
_BRIEF_POLL_S = 0.1


class StateLock:
    """The flock of a state, which excludes other processes of this machine as long as its process lives."""

    def __init__(self, location: StateLocation) -> None:
        self._location = location

    def __repr__(self) -> str:
        return f"StateLock({str(self._location.work)!r}, holder={self.holder()!r})"

    def take(self, *, wait_s: float = 0.0) -> Lease:
        """Take the lock. Raises `StateError` that names the process that has it, if it keeps it for `wait_s`."""
        folder = LocalFolder(self._location.work)
        if self._location.on_store:
            # A machine on which the pipeline never ran has no work folder.
            folder.create()
        until_s = time.monotonic() + wait_s
        while True:
            try:
                return folder.lease("lease")
            except StateError:
                if time.monotonic() >= until_s:
                    raise
            time.sleep(_BRIEF_POLL_S)

    def holder(self) -> str:
        """Return the pid of the process on this host that has the lock; empty if none has it."""
        return LocalFolder(self._location.work).holder("lease")

    @property
    def identity(self) -> str:
        """Return the identity of the locked file as in `raycdc.state.drivers.heartbeat.Holder.lock`; empty if it is in
        the state's own folder, where all machines use the same file.
        """
        return "" if self.file is None else self.file.identity

    @property
    def file(self) -> LockFile | None:
        """Return the locked file; None if it is in the state's own folder."""
        path = self._location.work / "lease"
        return LockFile(lock_of(path), str(path)) if self._location.on_store else None


def state_location(options: PipelineOptions, storage: StorageOptions) -> StateLocation:
    """Return the location of a configured state."""
    location = parse_location(options.state)
    if isinstance(location, FolderLocation):
        return StateLocation.of(location.path)
    return StateLocation(
        location, Path(options.work_dir or f"./state/{options.name}.work").absolute(), storage.settings()
    )


def state_of(config: PipelineConfig) -> StateLocation:
    """Return the location of the state of a whole configuration."""
    return state_location(config.pipeline, config.storage)
