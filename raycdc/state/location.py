"""Where a state is: a folder, or a place on an object store with a folder beside it for what stays on this machine."""

from __future__ import annotations

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
from raycdc.storage.url import FolderLocation, Location, ObjectLocation, place_of


@dataclass(frozen=True, slots=True)
class StateLocation:
    """Where the documents are, and the folder `work` of this machine for segments, files of processes and the like.

    `work` is the state's own folder where it has one. Picklable; `settings` have secrets, for processes of the run.
    """

    place: Location
    work: Path
    settings: StorageSettings = field(default_factory=StorageSettings)

    def __str__(self) -> str:
        return str(self.place)

    @classmethod
    def of(cls, where: Path | str) -> StateLocation:
        """The state in a folder. `StateError` for what is none."""
        try:
            place = place_of(str(where))
        except ValueError as cause:
            raise StateError(f"The state cannot be there: {cause}.") from cause
        if isinstance(place, ObjectLocation):
            raise StateError(f"{place} is on an object store: name the configuration, which says how it is reached.")
        folder = Path(place.path).absolute()
        return cls(FolderLocation(str(folder)), folder)

    def below(self, name: str) -> Location:
        """The place called `name` below that of the documents."""
        return self.place.below(name)

    @property
    def on_store(self) -> bool:
        return isinstance(self.place, ObjectLocation)

    def open(self, disk: Disk = DISK, *, tries_for_s: float = TRIES_FOR_S) -> StateFolder:
        """The documents. `StateError` where a store cannot be opened as it is set up; one that does not answer is asked
        again for `tries_for_s`.
        """
        match self.place:
            case FolderLocation(path):
                return LocalFolder(Path(path), disk)
            case ObjectLocation():
                try:
                    return RootedFolder(ObjectStore(self.place, self.settings, tries_for_s=tries_for_s))
                except StoreError as cause:
                    raise StateError(str(cause)) from cause


class StateLock:
    """The flock beside a state, which keeps out other processes of this machine as long as its own lives."""

    def __init__(self, place: StateLocation) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"StateLock({str(self._place.work)!r}, holder={self.holder()!r})"

    def take(self) -> Lease:
        """`StateError` names the process that has it."""
        folder = LocalFolder(self._place.work)
        if self._place.on_store:
            # A machine on which the pipeline never ran has none.
            folder.create()
        return folder.lease("lease")

    def holder(self) -> str:
        """The pid of the process on this host that has the lock; empty where none has it."""
        return LocalFolder(self._place.work).holder("lease")

    @property
    def identity(self) -> str:
        """The locked file as `raycdc.state.drivers.heartbeat.Holder.lock`; empty where it is in the state's own folder,
        where everybody meets it.
        """
        return "" if self.file is None else self.file.identity

    @property
    def file(self) -> LockFile | None:
        """The locked file; None where it is in the state's own folder."""
        path = self._place.work / "lease"
        return LockFile(lock_of(path), str(path)) if self._place.on_store else None


def state_place(options: PipelineOptions, storage: StorageOptions) -> StateLocation:
    """Where the state of a configuration is."""
    place = place_of(options.state)
    if isinstance(place, FolderLocation):
        return StateLocation.of(place.path)
    return StateLocation(place, Path(options.work or f"./state/{options.name}.work").absolute(), storage.settings())


def state_of(config: PipelineConfig) -> StateLocation:
    """Where the state of a whole configuration is."""
    return state_place(config.pipeline, config.storage)
