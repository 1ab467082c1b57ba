"""Named points in the code at which a test may stop a process by ``kill -9``, SIGSTOP or an exception, exactly once.

At a point before a step that can be left out (`left_out`), the action ``skip`` is possible, too.

Set ``RAYCDC_FAILPOINTS="after_seal=kill@3,before_commit=stop"`` and ``RAYCDC_FAILPOINT_DIR`` to a directory that all
processes of the job share. ``@n`` means the n-th time that one process reaches the point (default 1). The first process
that acts at a point writes ``<name>.hit`` with its pid into the directory; afterwards no process acts at this point
again. Without the variables, `reach` costs only a comparison and one access to a dictionary.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: The names of all points, grouped by the code that has them. A point of only some connectors or sinks is not reached
#: with others.
POINTS = (
    # The log reader of any source has opened a chunk.
    "after_open",
    # The log reader with a catch-up stream: it has passed on a unit of changes; the stream's tables have joined the
    # log; both streams are open again.
    "while_catching_up",
    "after_join",
    "after_open_anew",
    # The MySQL connector's reader of chunks.
    "before_select",
    "after_select",
    "after_high_watermark",
    # Any incremental source's reader of a chunk: it has reported to the log reader that the chunk was read.
    "after_close",
    # Any reader of any source.
    "before_seal",
    "after_seal",
    # The coordinator.
    "before_manifest",
    "after_manifest",
    # The driver's epoch loop, and lookups.
    "before_stage",
    "after_stage",
    "after_lookup",
    # The driver's writer of epochs.
    "before_schema",
    "after_schema",
    # The driver's writer of epochs, and the Kafka sink's own.
    "before_commit",
    # Every sink, immediately before its rows become visible.
    "in_commit",
    # Lakes: a commit names its files before their existence was checked.
    "before_look",
    # The Kafka sink's transactions.
    "after_parts",
    # Maintenance of a lake's tables.
    "before_optimize",
    "after_optimize",
    # The driver's writer of epochs.
    "before_park",
    "after_commit",
    "between_tables",
    "after_last_commit",
    "after_known",
    # The driver's record of commits.
    "before_park_reported",
    "after_record",
    # The driver that accepts a command about a table: before it ends the readers, and when its answer is durable.
    "before_command",
    "after_command",
    # Every file of a state that is written in several parts.
    "half_written",
    # A state on an object store: the objects of the new root are written before the root itself.
    "before_root",
    "after_root",
    # A state that is copied or moved: the new location is marked; everything is copied; the old location is barred.
    "after_marked",
    "after_copied",
    "after_barred",
    # The supervisor, before it ends a reader that the coordinator has given up.
    "end_fenced",
    # The promotion of a run from in-process engines: Ray and Spark are up; the driver's own readers have ended; the
    # actors may start.
    "before_hand_over",
    "in_hand_over",
    "after_hand_over",
    # Migrations of the MongoDB sink.
    "after_batch",
)


class FailpointError(RuntimeError):
    """The error that the action ``raise`` raises."""


def _parse(text: str) -> dict[str, tuple[str, int]]:
    plan: dict[str, tuple[str, int]] = {}
    for part in filter(None, text.split(",")):
        name, _, action = part.strip().partition("=")
        verb, _, count = action.partition("@")
        if name not in POINTS or verb not in {"kill", "stop", "raise", "skip"}:
            raise ValueError(f"RAYCDC_FAILPOINTS: {part!r} is not NAME=kill|stop|raise|skip[@n] with a known name")
        plan[name] = (verb, int(count or 1))
    return plan


_plan = _parse(os.environ.get("RAYCDC_FAILPOINTS", ""))
_listener: Callable[[str], None] | None = None
_reached: dict[str, int] = {}
#: Only one point acts at a time. Otherwise two threads at different points would leave two ``.hit`` files for one death
#: of the process.
_acting = threading.Lock()


def plan_again() -> None:
    """Read the plan from the environment again, as at the start of a process."""
    global _plan, _reached
    _plan, _reached = _parse(os.environ.get("RAYCDC_FAILPOINTS", "")), {}


def reach(name: str) -> None:
    """Report that the process has reached the point `name`; act if a test asked for it.

    Callable from any thread.
    """
    if _listener is not None:
        _listener(name)
    if name in _plan:
        with _acting:
            _act(name, *_plan[name])


def left_out(name: str) -> bool:
    """Report the point `name` like `reach`.

    Returns True if the caller must leave out its next step once (action ``skip``).
    """
    if name not in _plan:
        return False
    with _acting:
        return _act(name, *_plan[name])


@contextmanager
def heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Call `listener` wherever this process reaches a point within the block, on the thread that reaches it."""
    global _listener  # noqa: PLW0603
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextmanager
def planned(name: str, *, count: int, folder: Path) -> Iterator[None]:
    """Raise `FailpointError` once within the block, when this process reaches `name` for the `count`-th time.

    The mark of the point is written to `folder`.
    """
    global _plan, _reached
    before = _plan, _reached, os.environ.get("RAYCDC_FAILPOINT_DIR")
    os.environ["RAYCDC_FAILPOINT_DIR"] = str(folder)
    _plan, _reached = _parse(f"{name}=raise@{count}"), {}
    try:
        yield
    finally:
        _plan, _reached = before[:2]
        if before[2] is None:
            del os.environ["RAYCDC_FAILPOINT_DIR"]
        else:
            os.environ["RAYCDC_FAILPOINT_DIR"] = before[2]


def _act(name: str, verb: str, count: int) -> bool:
    """Act if it is time. Returns True if the action is ``skip``."""
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] < count:
        return False
    marker = Path(os.environ["RAYCDC_FAILPOINT_DIR"]) / f"{name}.hit"
    try:
        descriptor = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    if verb == "skip":
        return True
    action: Callable[[], None] = {"kill": _kill, "stop": _stop, "raise": _raise}[verb]
    action()
    return False


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    # A signal to the process may be delivered to a different thread. Until that thread is scheduled, this one would go
    # on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _raise() -> None:
    raise FailpointError("a fail point raised")
