"""Retries a sink that is unreachable, locked by another client, or full. Waiting loses nothing.

This works for every sink: it reports with `SinkUnavailableError`, or with the system's error of a disk, that a retry
may succeed. Its calls are repeated from the beginning of their transaction; a commit with an unknown outcome is found
in the target's record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from raycdc.core.retry import POLICY, Outage, Retrier
from raycdc.core.threads import Threads
from raycdc.delivery.targets.parked_targets import SinkOutagePolicy
from raycdc.errors import SinkError, SinkUnavailableError, SparkLostError, StateError, TableRefusedError
from raycdc.sinks.lakes.unreachable import is_absent

T = TypeVar("T")


class SinkRetry:
    """See the module's docstring. `stopping` ends the waiting. For any thread."""

    def __init__(self, waiting: SinkOutagePolicy, stopping: threading.Event, threads: Threads) -> None:
        self._location = waiting.location
        #: How long the sink is retried, and how often.
        self.policy = waiting.policy or POLICY
        self._retrier = Retrier(notify=waiting.notify, stopping=stopping, threads=threads, policy=self.policy)

    def __call__(self, act: Callable[[], T]) -> T:
        """The result of `act`, which can be done again: it is tried again while the sink is away or its disk full.
        `SinkError` with its place when that takes too long.
        """
        return self._retrier(act, self._outage)

    def for_spark(self, act: Callable[[], T]) -> T:
        """Call `act` like `__call__`, for work of Spark outside the sink: it is repeated if Spark's JVM is gone."""
        return self._retrier(act, _lost_spark)

    def _outage(self, cause: Exception) -> Outage | None:
        """Return the outage that waiting may end; None for any other error."""
        if isinstance(cause, SinkUnavailableError):
            return sink_outage(cause)
        if isinstance(cause, StateError | TableRefusedError) or not is_absent(cause):
            return None
        at = f" ({self._location})" if self._location else ""
        return Outage(f"The sink's disk{at} takes no more: {cause}", "make room there, or bring it back", SinkError)


def sink_outage(cause: SinkUnavailableError) -> Outage:
    """The trouble of a sink that does not answer, or whose work Spark did not finish."""
    if isinstance(cause, SparkLostError):
        return Outage(f"Spark is waited for: {cause}", "see in its log, and in the machine's, why it ended", SinkError)
    return Outage(f"The sink is waited for: {cause}", "see that it answers", SinkError)


def _lost_spark(cause: Exception) -> Outage | None:
    return sink_outage(cause) if isinstance(cause, SparkLostError) else None
