"""A state that goes to another place, and leaves a bar behind, so that it goes on from one of the two alone.

| step | the old place | the new place |
|---|---|---|
| repeated behind a bar that a driver outran: no bar, before there is a lease | goes on | refused: not whole |
| the move has the lease and a generation of its own | goes on, if this ends here | – |
| mark, files, documents (`raycdc.upkeep.copying`) | goes on, if this ends here | refused: not whole |
| bar | refused: the state was moved | refused: not whole |
| commands that were given meanwhile | refused | refused: not whole |
| identity | refused | goes on |

*What if the process dies here?* Before the bar the pipeline goes on from the old place, and the move may be made again;
behind it the same command finishes it, and every other one says so.

The bar is written under the move's own generation. A folder that several machines see cannot make that one step with
the look at the generations: so the move looks once more, and takes the bar away where a driver was faster. A driver
looks for a bar before and behind its claim, so one that the move's second look does not find is refused by the bar.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from raycdc.checkpoint.folder import Lease
from raycdc.checkpoint.generations import Generations
from raycdc.checkpoint.identity import NAME, Identity, read_identity
from raycdc.checkpoint.place import StatePlace
from raycdc.checkpoint.pulse import Pulse
from raycdc.checkpoint.store import CheckpointStore
from raycdc.checkpoint.term import DriverTerm
from raycdc.errors import FencedError, StateError
from raycdc.failpoints import reach
from raycdc.upkeep.copying import Copied, Copy, Side, identity_there


@dataclass(frozen=True, slots=True)
class Moved:
    """A state that is in `place` now. `copied` is None where an earlier command had copied it."""

    pipeline: str
    before: str
    place: str
    copied: Copied | None


def move(source: StatePlace, target: StatePlace) -> Moved:
    """Take the state from `source` to `target`, an empty place, and bar `source`. Repeating it finishes it.

    `StateError` where somebody has the state, or `target` is no place for it.
    """
    old = Side(source)
    identity = identity_there(old)
    if identity.copied_from or identity.moved_to not in ("", str(target)):
        raise StateError(identity.bar(str(source)))
    new = Side(target)
    if identity.moved_to:
        if _is_finished(old, new, identity):
            return Moved(identity.pipeline, str(source), str(target), None)
        # A driver was faster than the bar, and went on.
        old.folder.write(NAME, replace(identity, moved_to="", at_ms=0).encoded())
    with ExitStack() as stack:
        store = CheckpointStore(source, create=False)
        lease = store.lease()
        stack.callback(lease.release)
        term = DriverTerm(store)
        pulse = _pulse(store, term, lease)
        stack.callback(pulse.close)
        copy = stack.enter_context(Copy(old, new, segments=True))
        copy.begin()
        copy.look()  # Nobody writes there, so one is enough.
        copied = copy.write()
        reach("after_copied")
        _bar(store, term, old, target)
        reach("after_barred")
        copy.follow_commands()
        copy.end()
        return Moved(identity.pipeline, str(source), str(target), copied)


def _is_finished(old: Side, new: Side, identity: Identity) -> bool:
    """Whether a move that was barred is finished, by now at the latest; False where the copy is not the newest any
    more.
    """
    there = read_identity(new.folder)
    if there is None or there.checkpoint != identity.checkpoint:
        raise StateError(
            f"{identity.bar(str(old.place))} But the state is not in {new.place}: bring that place back. The "
            f"copy in {old.place} is as it was when the state left it."
        )
    if not there.barred:
        return True
    if there.copied_from != str(old.place):
        raise StateError(there.bar(str(new.place)))
    if Generations(old.folder).newest() != Generations(new.folder).newest():
        return False
    copy = Copy(old, new, segments=True)
    copy.follow_commands()
    copy.end()
    return True


def _bar(store: CheckpointStore, term: DriverTerm, old: Side, target: StatePlace) -> None:
    """Nobody goes on from the old place. `FencedError` where a driver took over meanwhile: then it goes on there."""
    identity = identity_there(old)
    barred = replace(identity, moved_to=str(target), at_ms=time.time_ns() // 1_000_000)
    store.documents.as_driver("the move", lambda: old.folder.write(NAME, barred.encoded()))
    try:
        store.generations.require_newest(term.generation(), "the move")
    except FencedError:
        old.folder.write(NAME, identity.encoded())
        raise


def _pulse(store: CheckpointStore, term: DriverTerm, lease: Lease) -> Pulse:
    """Signs of life, so that a driver that waits on another machine goes on waiting while files are copied."""
    return Pulse(store.generations, term.generation, lease=lambda: lease, on_lost=lambda _: None, lock=store.lock.file)
