"""The few operations that a state needs of its storage, with typed outcomes.

A name is a path of plain characters below the store's location, such as ``epochs/0000000001.json``. An object is
complete or does not exist, and a read after an answered write returns what was written (S3, GCS and Azure guarantee
both; in a folder, rename and fsync do).

| operation | the object is | outcome |
|---|---|---|
| `put` | present or absent | `ObjectWritten` |
| `put_if_absent` | absent | `ObjectWritten` |
| | present | `PreconditionFailed`, with its content |
| `replace_if_match` | as it was read | `ObjectWritten` |
| | changed or deleted | `PreconditionFailed`, with its content |

The answer of a store does not show the outcome of a conditional write. If a reply is lost, the library repeats the
request, which then fails because its first try has changed the object (412). S3 may answer 409 to two concurrent
writers although it carried out neither write. After a time-out, the outcome is unknown. `resolve_write` therefore reads
the object:

| after any answer but success, the object has | then |
|---|---|
| our bytes | `ObjectWritten` |
| its earlier content | the request is repeated; after `TRIES`, `StoreError` |
| different content, or is missing | `PreconditionFailed` |

Therefore `data` must contain a value that no other writer writes (a nonce), unless equal bytes of two writers have the
same meaning. A request without an answer may still arrive later. This is harmless, because it has the same condition
and the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from raycdc.storage.url import Location


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an object's content that was read or written.

    S3 and Azure compare `e_tag`, GCS compares `number`, so both are kept.
    """

    e_tag: str = ""
    number: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object's content and version, as they were read."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class ObjectWritten:
    """The outcome of a write after which the object has our content, or had it until another writer replaced it."""

    version: Version


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """The outcome of a write that did nothing, because the object differs from the expected one.

    `current` is the object; None if it is missing.
    """

    current: Stored | None


class StoreError(Exception):
    """A store cannot carry out a request. The text gives the location, the reason and the solution, without secrets.

    If `lasting` is True, only a person can solve the problem (a wrong key, a missing bucket). Otherwise the store did
    not answer, or answered with errors, during all retries.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Store(Protocol):
    """A store of objects; see the module's docstring.

    Methods block, may be called by any thread, and raise `StoreError`.
    """

    @property
    def location(self) -> Location: ...

    def read(self, name: str) -> Stored | None:
        """Return the object `name`; None if there is none."""
        ...

    def put(self, name: str, data: bytes) -> ObjectWritten:
        """Write the object `name`, and replace an existing one."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> ObjectWritten | PreconditionFailed:
        """Write the object `name`, unless there is one."""
        ...

    def replace_if_match(self, name: str, data: bytes, version: Version) -> ObjectWritten | PreconditionFailed:
        """Write the object `name`, unless it changed since `version` was read."""
        ...

    def list(self, folder: str) -> list[str]:
        """Return the names of the objects below `folder` (empty: all), relative to it."""
        ...

    def delete(self, name: str) -> None:
        """Delete the object `name`, if there is one."""
        ...


#: The number of requests. The library itself repeats each for two minutes if the store does not answer.
TRIES = 4


@dataclass(frozen=True, slots=True)
class ConfirmedWrite:
    """The store said that it wrote the object."""

    version: Version


@dataclass(frozen=True, slots=True)
class UnconfirmedWrite:
    """The store said that the condition does not hold, or did not say whether it wrote the object."""

    error: StoreError


def resolve_write(
    attempt: Callable[[], ConfirmedWrite | UnconfirmedWrite],
    probe: Callable[[], Stored | None],
    data: bytes,
    *,
    before: Version | None,
) -> ObjectWritten | PreconditionFailed:
    """Write `data` by calling `attempt`, and determine the outcome as described in the module's second table.

    `probe` reads the object. `before` is the version that must exist; None if there must be none.
    """
    for left in reversed(range(TRIES)):
        outcome = attempt()
        if isinstance(outcome, ConfirmedWrite):
            return ObjectWritten(outcome.version)
        current = probe()
        if current is not None and current.data == data:
            return ObjectWritten(current.version)
        if (None if current is None else current.version) != before:
            return PreconditionFailed(current)
        if not left:
            raise outcome.error
    raise AssertionError("the last try returns or raises")
