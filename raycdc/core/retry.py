"""Retries after failures: one policy of pauses for all servers, disks and processes, and one way to report an outage.

Only this module retries. If a source, sink, disk or process fails, it is tried again after a pause. Pauses grow
exponentially to a limit, and each has a random extra, so that processes that failed at the same time do not retry at
the same time. (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.)
`raycdc.core.connection_attempts` limits the attempts at one server. Clock and randomness are those of
`raycdc.core.threads`, so a simulation controls them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from raycdc.core import activity
from raycdc.core.stopping import StopRequest
from raycdc.core.threads import THREADS, Threads
from raycdc.errors import RaycdcError

T = TypeVar("T")

#: The shortest time between two attempts at a server, so that a starting server is not kept busy, and logs stay
#: readable.
SPACING_S = 0.5


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The pauses between attempts in one series of failures.

    The fields are the first pause, the factor by which each pause is longer than the one before, and the longest pause.

    Each pause is longer by a random part of up to `jitter`, never shorter. `retry_s` is the longest time from the first
    failure of a series to its last retry. Its default is longer than a database takes to restart or to fail over.
    """

    first_s: float = SPACING_S
    factor: float = 2.0
    longest_s: float = 10.0
    jitter: float = 0.25
    retry_s: float = 300.0

    def __post_init__(self) -> None:
        assert self.first_s >= SPACING_S, "no server is tried more often"


#: The default policy of all retries.
POLICY = RetryPolicy()


class Backoff:
    """One series of failures, which ends with a success."""

    def __init__(self, policy: RetryPolicy, threads: Threads = THREADS) -> None:
        self._policy = policy
        self._threads = threads
        self._began_s: float | None = None
        self._pause_s = policy.first_s

    def __repr__(self) -> str:
        return f"Pauses(since {self._began_s}, next {self._pause_s:g} s)"

    @property
    def is_new(self) -> bool:
        """Return True if nothing has failed yet."""
        return self._began_s is None

    def failed(self, now_s: float) -> float | None:
        """Return the seconds to pause after a failure at `now_s`; None if the series has lasted too long."""
        policy = self._policy
        if self._began_s is None:
            self._began_s = now_s
        if now_s - self._began_s >= policy.retry_s:
            return None
        pause_s = self._pause_s * (1 + policy.jitter * self._threads.chance())
        self._pause_s = min(self._pause_s * policy.factor, policy.longest_s)
        return pause_s


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage that may end without a change by the user.

    `text` names the failed server and the failure, and `advice` the possible remedies. `kind` is the class of the error
    that is raised if the outage lasts too long.
    """

    text: str
    advice: str
    kind: type[RaycdcError]

    def message(self, policy: RetryPolicy = POLICY) -> str:
        """Return the message for people at the beginning of the outage."""
        return f"{self._sentence}. It is tried again for {policy.retry_s / 60:.0f} minutes; {self.advice}."

    def error(self) -> RaycdcError:
        """Return the error to raise when the outage has lasted too long."""
        return self.kind(
            f"{self._sentence}. {self.advice[0].upper()}{self.advice[1:]}, and start again; nothing is lost."
        )

    @property
    def _sentence(self) -> str:
        return self.text.rstrip(".")


class Retrier:
    """An object that calls functions, and retries them during an outage.

    When `stopping` is set, waiting ends, and a failure is not retried. `notify` is called once per outage.

    Thread-safe; each call has its own series of failures.
    """

    def __init__(
        self,
        *,
        notify: Callable[[str], None],
        stopping: StopRequest,
        threads: Threads = THREADS,
        policy: RetryPolicy = POLICY,
    ) -> None:
        self._notify = notify
        self._stopping = stopping
        self._threads = threads
        self._policy = policy

    def __call__(self, act: Callable[[], T], outage_of: Callable[[Exception], Outage | None]) -> T:
        """Return the result of `act`, which must be repeatable.

        `outage_of` returns the outage that explains an error. If it returns None, the error is raised. `Outage.error`
        is raised when the outage has lasted too long. The time is measured from the first failure, not from the start
        of the work. Raises `StoppedWaitingError` if a stop of the run is requested during an outage.
        """
        pauses = Backoff(self._policy, self._threads)
        try:
            return self._tried(act, outage_of, pauses)
        finally:
            if not pauses.is_new:
                activity.over()

    def _tried(self, act: Callable[[], T], outage_of: Callable[[Exception], Outage | None], pauses: Backoff) -> T:
        while True:
            try:
                return act()
            except (OSError, RaycdcError) as cause:
                outage = outage_of(cause)
                if outage is None:
                    raise
                self._stopping.require_going(cause)
                begins = pauses.is_new
                pause_s = None if self._stopping.is_set() else pauses.failed(self._threads.now_s())
                if pause_s is None:
                    raise outage.error() from cause
                if begins:
                    activity.failing(outage.text)
                    self._notify(outage.message(self._policy))
            self._stopping.pause(pause_s, self._threads)
