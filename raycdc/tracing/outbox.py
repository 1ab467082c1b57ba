"""Traces on their way to a collector: a thread hands them over, a few at once, and bears with a collector that is away.

Whoever puts a trace returns at once. While the collector is away the batch in hand is tried again after pauses, and the
newest traces wait; older ones are dropped. That is told once, and once more when the collector is back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from raycdc.tracing.trace import Span

#: Traces that wait: each has up to a few hundred spans, and at most one comes a second.
WAITING_MAX = 500
#: Of one request.
BATCH_MAX = 32
#: The pauses between tries double from the first to the last.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
#: How long the end of a run waits for a collector that is away.
AWAY_WAIT_S = 1.0
#: The name of the thread, by which its lines in libraries' logs are known.
THREAD = "raycdc traces"

MadeT = TypeVar("MadeT")


class NotTakenError(Exception):
    """A collector did not take a batch; the text says why, without secrets. Without `again` it never will."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(text)
        self.again = again


class Exporter(Protocol[MadeT]):
    """Speaks to a collector. Called by one thread, but for `close`."""

    def made(self, trace: Span) -> MadeT:
        """The trace as it is sent, however often that is tried."""

    def send(self, traces: Sequence[MadeT]) -> None:
        """Blocks until the collector has answered, or its time is over. `NotTakenError` where they were not taken."""

    def close(self) -> None:
        """Nothing more is sent; a `send` under way may be cut short. Called by another thread than `send`."""


class Outbox(Generic[MadeT]):
    """See the module's docstring. `place` is the collector for people; `warn` is called by the outbox's own thread, and
    by that of `end`.
    """

    def __init__(
        self,
        exporter: Exporter[MadeT],
        place: str,
        warn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exporter = exporter
        self._place = place
        self._warn = warn
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Span] = deque()
        self._in_hand = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._ending = self._over = False
        self._away = False

    def __repr__(self) -> str:
        return f"Outbox({self._place!r}, {len(self._waiting)} waiting)"

    def put(self, trace: Span) -> None:
        """Take a trace to send; returns at once."""
        with self._changed:
            if self._ending:
                return
            self._waiting.append(trace)
            if len(self._waiting) > WAITING_MAX:
                self._waiting.popleft()
                self._dropped += 1
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=THREAD, daemon=True)
                # Where there is no room for a thread the next trace tries again.
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread
            self._changed.notify_all()

    def end(self, wait_s: float) -> None:
        """No more traces come: what waits is tried at once, for so long at most, and once where the collector is away.
        Tells how many were dropped.
        """
        with self._changed:
            self._ending = True
            until_s = self._clock() + (min(wait_s, AWAY_WAIT_S) if self._away else wait_s)
            self._changed.notify_all()
            while (self._waiting or self._in_hand) and self._thread and (left_s := until_s - self._clock()) > 0:
                self._changed.wait(left_s)
            self._over = True
            lost = self._dropped + len(self._waiting) + self._in_hand
            self._waiting.clear()
            self._changed.notify_all()
        self._exporter.close()
        if lost:
            self._warn(f"traces: {_count(lost)} not sent to {self._place} before the end of the run.")

    def _work(self) -> None:
        while traces := self._next():
            self._deliver(traces)
            with self._changed:
                self._in_hand = 0
                self._changed.notify_all()

    def _next(self) -> list[Span]:
        """The oldest traces; none when no more come."""
        with self._changed:
            while not self._waiting:
                if self._ending:
                    return []
                self._changed.wait()
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            self._in_hand = len(batch)
            return batch

    def _deliver(self, traces: Sequence[Span]) -> None:
        """Send them until they were taken, or never will be, or the run is over."""
        pause_s, made = FIRST_PAUSE_S, None
        while True:
            try:
                made = made or [self._exporter.made(trace) for trace in traces]
                self._exporter.send(made)
            except NotTakenError as refused:
                why, again = str(refused), refused.again
            except Exception as wrong:  # noqa: BLE001 - of a library; its text may have anything
                why, again = type(wrong).__name__, False
            else:
                self._taken()
                return
            self._not_taken(why, dropped=0 if again else len(traces))
            # A batch that nobody wants is no reason to be quick with the next one.
            if not self._pause(pause_s) or not again:
                return
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try; False where the run is over. Its end cuts it short, once."""
        with self._changed:
            ending = self._ending
            until_s = self._clock() + (min(seconds, FIRST_PAUSE_S) if ending else seconds)
            while not self._over and self._ending == ending and (left_s := until_s - self._clock()) > 0:
                self._changed.wait(left_s)
            return not self._over

    def _not_taken(self, why: str, *, dropped: int) -> None:
        with self._changed:
            if self._over:
                return
            self._dropped += dropped
            # Counted already: whoever ends meanwhile would count them twice.
            self._in_hand -= dropped
            first, self._away = not self._away, True
        if first:
            self._warn(
                f"traces: {self._place} does not take them: {why}. The run goes on, and keeps the newest {WAITING_MAX}."
            )

    def _taken(self) -> None:
        with self._changed:
            if self._over or not self._away:
                return
            self._away = False
            lost, self._dropped = self._dropped, 0
        rest = f"; {_count(lost)} dropped meanwhile" if lost else ""
        self._warn(f"traces: {self._place} takes them again{rest}.")


def _count(traces: int) -> str:
    return "1 trace was" if traces == 1 else f"{traces} traces were"
