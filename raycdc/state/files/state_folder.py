"""The documents of a state by their names, on whatever storage: the storage below `CheckpointStore`.

`LocalFolder` is a folder of this machine, `RootedFolder` an object store. Names are at most one folder deep. A document
exists whole or not at all, and a write that returned is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class StateFolder(Protocol):
    """See the module's docstring. Errors of the storage are `StateError`."""

    @property
    def where(self) -> str:
        """The folder's path or the store's URL, for people."""
        ...

    def origin(self, name: str) -> str:
        """The document `name` as errors call it."""
        ...

    def create(self, *folders: str) -> None:
        """Make the folders, where there are such."""
        ...

    def require_usable(self) -> None:
        """Raise `StateError` if the storage is not suitable for a state. Leaves no files."""
        ...

    def has_remains(self) -> bool:
        """Return True if there are epochs or commits, even if the state's identity is lost."""
        ...

    def read(self, name: str) -> bytes | None:
        """Content of `name`, None when it does not exist."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace `name` by `data`."""
        ...

    def write_all(self, documents: Mapping[str, bytes]) -> None:
        """`write` for each of `documents`, in any order: after a crash some may be there, each whole."""
        ...

    def create_once(self, name: str, data: bytes) -> None:
        """`write`, unless `name` exists: then its content stays."""
        ...

    def list(self, folder: str) -> list[str]:
        """Names in `folder`; empty when there is no such folder."""
        ...

    def rename(self, name: str, to: str) -> None: ...

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable, including those of other processes."""
        ...

    def delete(self, name: str) -> None: ...

    def sweep(self, generation: int) -> None:
        """Delete unreadable remains of older drivers, for the new driver of `generation`."""
        ...

    def atomically(self, act: Callable[[], _Result]) -> _Result:
        """Return the result of `act`, done in one step if the storage can.

        Then everything it reads is of one moment, and its writes take effect only if no other process wrote since; it
        may be called several times for that. In a folder, single documents are atomic and several are not; recovery
        handles that.
        """
        ...
