"""Retries a sink that is unreachable, locked by another client, or full. Waiting loses nothing.

This works for every sink: `SinkUnavailableError`, or an error of the operating system about a disk, means that a retry
may succeed. A call is repeated from the beginning of its transaction. If the outcome of a commit is unknown, the
target's record shows it.
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
    """Retries calls of a sink; see the module's docstring. `stopping` ends the waiting. Callable from any thread."""

    def __init__(self, waiting: SinkOutagePolicy, stopping: threading.Event, threads: Threads) -> None:
        self._location = waiting.location
        #: How long and how often the sink is retried.
        self.policy = waiting.policy or POLICY
        self._retrier = Retrier(notify=waiting.notify, stopping=stopping, threads=threads, policy=self.policy)

    def __call__(self, act: Callable[[], T]) -> T:
        """Call `act`, which must be repeatable, and return its result. Repeat it while the sink is unreachable or its
        disk full.

        Raises a `SinkError` that names the sink's location when the time is over.
        """
        return self._retrier(act, self._outage)

    def for_spark(self, act: Callable[[], T]) -> T:
        """Call `act`, which uses Spark outside of the sink, and return its result. Repeat it if Spark's JVM is gone."""
        return self._retrier(act, _lost_spark)

    def _outage(self, cause: Exception) -> Outage | None:
        """Return the outage that a retry may outlast; None for any other error."""
        if isinstance(cause, SinkUnavailableError):
            return sink_outage(cause)
        if isinstance(cause, StateError | TableRefusedError) or not is_absent(cause):
            return None
        at = f" ({self._location})" if self._location else ""
        return Outage(f"The sink's disk{at} takes no more: {cause}", "make room there, or bring it back", SinkError)


def sink_outage(cause: SinkUnavailableError) -> Outage:
    """Return the outage of a sink that does not answer, or whose work Spark did not finish."""
    if isinstance(cause, SparkLostError):
        return Outage(f"Spark is waited for: {cause}", "see in its log, and in the machine's, why it ended", SinkError)
    return Outage(f"The sink is waited for: {cause}", "see that it answers", SinkError)


def _lost_spark(cause: Exception) -> Outage | None:
    return sink_outage(cause) if isinstance(cause, SparkLostError) else None
