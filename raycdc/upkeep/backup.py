"""A copy of a state while a run goes on: as of one moment, although nobody holds still."""

from __future__ import annotations

import time
from dataclasses import dataclass

from raycdc.checkpoint.place import StatePlace
from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import StateError
from raycdc.upkeep.copying import Copied, Copy, Side, identity_there

#: A look copies only files that are new, so that it takes less than the one before; one between two steps of the run is
#: enough, and a look takes milliseconds.
STILL_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy in `place`. Its newest epoch that is known to be in the sink is `epoch`, since `committed_ms`."""

    place: str
    pipeline: str
    epoch: int | None
    committed_ms: int | None
    copied: Copied


def back_up(source: StatePlace, target: StatePlace) -> Backup:
    """Copy the state at `source` to `target`, an empty place. `StateError` where that is no place for it, or the state
    never holds still.
    """
    side = Side(source)
    identity = identity_there(side)
    if identity.barred:
        raise StateError(identity.bar(str(source)))
    with Copy(side, Side(target), segments=not target.on_store) as copy:
        copied = _copied(source, copy)
    record = CheckpointStore(target, create=False).last_commit()
    return Backup(
        str(target),
        identity.pipeline,
        None if record is None else record.epoch,
        None if record is None else record.committed_ms,
        copied,
    )


def _copied(source: StatePlace, copy: Copy) -> Copied:
    """`copy`, made to its end."""
    copy.begin()
    until = time.monotonic() + STILL_WITHIN_S
    while not copy.look():
        if time.monotonic() > until:
            raise StateError(
                f"The state in {source} changed faster than it could be copied, for {STILL_WITHIN_S:.0f} s. Stop the "
                f"pipeline, or raise pipeline.epoch_interval, and repeat the command."
            )
    copied = copy.write()
    copy.end()
    return copied
