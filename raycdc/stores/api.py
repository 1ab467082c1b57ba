"""The few operations that a state needs of its storage, with outcomes that have types.

A name is a path of plain characters below the store's place, such as ``epochs/0000000001.json``. An object exists whole
or not at all, and whoever reads it after a write was answered gets what was written (S3, GCS and Azure promise both;
a folder does by rename and fsync).

| operation | the object is | outcome |
|---|---|---|
| `put` | anything | `Written` |
| `put_if_absent` | absent | `Written` |
| | there | `Taken`, with what is there |
| `replace_if_match` | as it was read | `Written` |
| | another, or gone | `Taken`, with what is there |

A reply may be lost, and a store may answer 409 or 412 to a request that it carried out before. Both conditional
operations therefore look at the object before they say `Taken`: it is ours where it has the bytes that we wrote. So
`data` must have something in it that nobody else writes (a nonce), unless equal bytes mean the same by whomever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from raycdc.stores.url import Place


@dataclass(frozen=True, slots=True)
class Version:
    """Which content of an object was read or written. S3 and Azure compare the first, GCS the second: keep both."""

    e_tag: str = ""
    number: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Written:
    """The object has our content, or had it: somebody may have replaced it since."""

    version: Version


@dataclass(frozen=True, slots=True)
class Taken:
    """Nothing was written, because the object is not as it was to be. `current`: what is there; None where nothing."""

    current: Stored | None


class StoreError(Exception):
    """The store cannot do what was asked; the text says where and why, and what to do. Without secrets.

    `lasting`: nothing but a person changes it (a wrong key, no such bucket). Otherwise the store did not answer, or
    only with errors, for as long as was tried.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Store(Protocol):
    """See the module's docstring. Methods block, may be called by any thread, and raise `StoreError`."""

    @property
    def place(self) -> Place: ...

    def read(self, name: str) -> Stored | None:
        """The object `name`; None when there is none."""
        ...

    def put(self, name: str, data: bytes) -> Written:
        """Write the object `name`, whatever is there."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> Written | Taken:
        """Write the object `name`, unless there is one."""
        ...

    def replace_if_match(self, name: str, data: bytes, version: Version) -> Written | Taken:
        """Write the object `name`, unless it changed since `version` was read."""
        ...

    def list(self, folder: str) -> list[str]:
        """Names of the objects whose names begin with `folder` and a slash (empty: all), without that beginning."""
        ...

    def delete(self, name: str) -> None:
        """Delete the object `name`, if there is one."""
        ...
