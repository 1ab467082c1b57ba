"""The documents of a state by their names: the interface of the storage below `CheckpointStore`.

`LocalFolder` is a folder of this machine, `RootedFolder` an object store. Names are at most one folder deep. A document
exists completely or not at all, and a write is durable when it has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class StateFolder(Protocol):
    """The storage of a state's documents; see the module's docstring. Errors of the storage are `StateError`."""

    @property
    def where(self) -> str:
        """Return the folder's path or the store's URL, for people."""
        ...

    def origin(self, name: str) -> str:
        """Return the name of the document `name` in errors."""
        ...

    def create(self, *folders: str) -> None:
        """Create the folders, if the storage has folders."""
        ...

    def require_usable(self) -> None:
        """Raise `StateError` if the storage is not suitable for a state. Leaves no files."""
        ...

    def has_remains(self) -> bool:
        """Return True if there are epochs or commits, even if the state's identity is lost."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of `name`; None if it does not exist."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace `name` by `data`."""
        ...

    def write_all(self, documents: Mapping[str, bytes]) -> None:
        """Write all `documents`, in any order. After a crash, some of them may exist, each complete."""
        ...

    def create_once(self, name: str, data: bytes) -> None:
        """Write `name` unless it exists; an existing document is not changed."""
        ...

    def list(self, folder: str) -> list[str]:
        """Return the names in `folder`; empty if there is no such folder."""
        ...

    def rename(self, name: str, to: str) -> None: ...

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable, including those of other processes."""
        ...

    def delete(self, name: str) -> None: ...

    def sweep(self, generation: int) -> None:
        """Delete unreadable files of older drivers, for the new driver of `generation`."""
        ...

    def atomically(self, act: Callable[[], _Result]) -> _Result:
        """Return the result of `act`, done in one step if the storage supports it.

        On an object store, everything that `act` reads is of one moment, and its writes take effect only if no other
        process has written since. If another process has, `act` is called again. In a folder, each document is written
        atomically, but several together are not; recovery handles that.
        """
        ...
