"""What became of a conditional write: the one place that tells a lost race from a lost reply.

A store says too little. A request whose reply was lost is repeated by the library and meets its own first try (412), S3
answers 409 to two writers at once although neither may have won, and a time-out says nothing at all. `settle` looks at
the object: it is ours where it has our bytes, it is another's where it has others, and where it is as it was before,
the request is made again.

| after a reply that is not plain success | the object has | then |
|---|---|---|
| any | our bytes | `Written` |
| any | what it had when we began | once more; after `TRIES`, `StoreError` |
| any | something else, or is gone | `Taken` |

A request that was given up may still arrive. It does no harm: it meets its own condition then, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raycdc.stores.api import Stored, StoreError, Taken, Version, Written

#: Each try is one request that the library has repeated already, for its own minutes, where nothing was answered.
TRIES = 4


@dataclass(frozen=True, slots=True)
class Answered:
    """The store said that it wrote the object."""

    version: Version


@dataclass(frozen=True, slots=True)
class Unsure:
    """The store said that the condition does not hold, or did not say whether it wrote."""

    error: StoreError


def settle(
    attempt: Callable[[], Answered | Unsure],
    look: Callable[[], Stored | None],
    data: bytes,
    *,
    before: Version | None,
) -> Written | Taken:
    """Write `data` by `attempt`, as the module's table says. `before` is what must be there: None for nothing."""
    for left in reversed(range(TRIES)):
        outcome = attempt()
        if isinstance(outcome, Answered):
            return Written(outcome.version)
        current = look()
        if current is not None and current.data == data:
            return Written(current.version)
        if (None if current is None else current.version) != before:
            return Taken(current)
        if not left:
            raise outcome.error
    raise AssertionError("the last try returns or raises")
