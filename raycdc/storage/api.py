"""The few operations that a state needs of its storage, with outcomes that have types.

A name is a path of plain characters below the store's place, such as ``epochs/0000000001.json``. An object exists whole
or not at all, and whoever reads it after a write was answered gets what was written (S3, GCS and Azure promise both;
a folder does by rename and fsync).

| operation | the object is | outcome |
|---|---|---|
| `put` | anything | `ObjectWritten` |
| `put_if_absent` | absent | `ObjectWritten` |
| | there | `PreconditionFailed`, with what is there |
| `replace_if_match` | as it was read | `ObjectWritten` |
| | another, or gone | `PreconditionFailed`, with what is there |

A reply may be lost, and a store may answer 409 or 412 to a request that it carried out before. Both conditional
operations therefore look at the object before they say `PreconditionFailed`: it is ours where it has the bytes that we
wrote. So `data` must have something in it that nobody else writes (a nonce), unless equal bytes mean the same by
whomever.

What became of a conditional write: the one place that tells a lost race from a lost reply.

A store says too little. A request whose reply was lost is repeated by the library and meets its own first try (412), S3
answers 409 to two writers at once although neither may have won, and a time-out says nothing at all. `resolve_write`
looks at the object: it is ours where it has our bytes, it is another's where it has others, and where it is as it was
before, the request is made again.

| after a reply that is not plain success | the object has | then |
|---|---|---|
| any | our bytes | `ObjectWritten` |
| any | what it had when we began | once more; after `TRIES`, `StoreError` |
| any | something else, or is gone | `PreconditionFailed` |

A request that was given up may still arrive. It does no harm: it meets its own condition then, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from raycdc.storage.url import Location


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an object's content that was read or written.

    S3 and Azure compare the first, GCS the second: keep both.
    """

    e_tag: str = ""
    number: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class ObjectWritten:
    """The object has our content, or had it and was replaced since."""

    version: Version


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """Nothing was written, because the object differs from the expected one.

    `current` is its content; None if it is missing.
    """

    current: Stored | None


class StoreError(Exception):
    """The store cannot carry out a request; the text gives the location, the reason and the solution, without secrets.

    `lasting`: only a person can solve it (a wrong key, no such bucket). Otherwise the store did not answer, or only
    with errors, during all retries.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Store(Protocol):
    """See the module's docstring. Methods block, may be called by any thread, and raise `StoreError`."""

    @property
    def location(self) -> Location: ...

    def read(self, name: str) -> Stored | None:
        """The object `name`; None when there is none."""
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
        """Names of the objects whose names begin with `folder` and a slash (empty: all), without that beginning."""
        ...

    def delete(self, name: str) -> None:
        """Delete the object `name`, if there is one."""
        ...


#: Each try is one request that the library has already repeated for minutes, if there was no answer.
TRIES = 4


@dataclass(frozen=True, slots=True)
class ConfirmedWrite:
    """The store said that it wrote the object."""

    version: Version


@dataclass(frozen=True, slots=True)
class UnconfirmedWrite:
    """The store said that the condition does not hold, or did not say whether it wrote."""

    error: StoreError


def resolve_write(
    attempt: Callable[[], ConfirmedWrite | UnconfirmedWrite],
    probe: Callable[[], Stored | None],
    data: bytes,
    *,
    before: Version | None,
) -> ObjectWritten | PreconditionFailed:
    """Write `data` by `attempt`, as in the module's table. `before` is the expected content: None for no object."""
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
