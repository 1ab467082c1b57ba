"""Decides how often, and after which pauses, a process is restarted before the job fails. Pure: times are parameters.

Each process has its own budget, because an outage of the source ends all readers repeatedly, and must not count more
with more readers. After the error of an unreachable server, restarts follow the general policy (`raycdc.core.retry`).
After an error that looks like a bug, there are `BUG_RESTARTS_MAX` restarts in a row, because some bugs appear only when
two threads coincide. After any other error there are `RESTARTS_MAX`. When a process has lived for `STABLE_S`, a new
series begins. Except after an outage, the first successor in a series starts immediately.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.core.retry import POLICY, Backoff, Outage
from raycdc.core.threads import THREADS, Threads
from raycdc.errors import RaycdcError, UnexpectedError, error_by_name

#: The maximum number of replacements in a row. After that, the job ends with the last reason.
RESTARTS_MAX = 20
BUG_RESTARTS_MAX = 2
#: A process that lived this long does not count as a failed start.
STABLE_S = 30.0


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process: the reason for people, and the class of its error if that was an error of raycdc.

    `lasting` and `trace` are those of an `UnexpectedError`.
    """

    text: str
    error: str = ""
    lasting: bool = False
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException, text: str = "") -> ProcessEnd:
        """Return the end caused by `error`; `text` replaces its own text."""
        name = type(error).__name__
        if isinstance(error, UnexpectedError):
            return cls(text or str(error), name, error.lasting, error.trace)
        return cls(text or f"{name}: {error}", name)

    @property
    def kind(self) -> type[RaycdcError]:
        return error_by_name(self.error)

    @property
    def is_unreachable(self) -> bool:
        """Return True if a server could not be reached, and there was no other problem."""
        return self.kind.retryable


def source_outage(cause: Exception) -> Outage | None:
    """Return the outage if `error` is that of a source that does not answer now; None for any other error."""
    if not isinstance(cause, RaycdcError) or not cause.retryable:
        return None
    return Outage(f"The source is waited for: {cause}", "see that it answers", type(cause))


class RestartBudget:
    """The restart budget of one process that is replaced by numbered successors; see the module's docstring."""

    def __init__(self, threads: Threads = THREADS) -> None:
        self._threads = threads
        self._started_s: float | None = None
        self._row_began_s = 0.0
        self._pauses = Backoff(POLICY, threads)
        self._restarts = 0
        self._failures = 0
        self._bugs = 0

    def __repr__(self) -> str:
        return f"RestartBudget(restarts={self._restarts}, failures={self._failures})"

    @property
    def is_new_row(self) -> bool:
        """Return True if the last end was the first one of a series, so that it is reported."""
        return self._restarts == 1

    def started(self, now_s: float) -> None:
        self._started_s = now_s

    def pause_after(self, end: ProcessEnd, now_s: float) -> float | None:
        """Return the seconds until the successor may start; None to give up."""
        lived_s = 0.0 if self._started_s is None else now_s - self._started_s
        if self._restarts == 0 or lived_s >= STABLE_S:
            self._row_began_s, self._restarts, self._failures, self._bugs = now_s, 0, 0, 0
            self._pauses = Backoff(POLICY, self._threads)
        self._restarts += 1
        self._failures += 0 if end.is_unreachable else 1
        self._bugs += 1 if end.lasting else 0
        if self._bugs > BUG_RESTARTS_MAX:
            return None
        if self._failures > RESTARTS_MAX:
            return None
        if self._restarts == 1 and not end.is_unreachable:
            return 0.0
        pause_s = self._pauses.failed(now_s)
        # Crashes in a series are bounded by their number, however long each process lived.
        return POLICY.longest_s if pause_s is None and not end.is_unreachable else pause_s

    def give_up(self, end: ProcessEnd, *, what: str, now_s: float) -> RaycdcError:
        """Return the error that ends the job, of the kind that ended the process. Its note has the traceback."""
        text = (
            f"{what} ended {self._restarts} times within {now_s - self._row_began_s:.0f} s; the last time: {end.text} "
            "The job stops; everything sealed is kept, and the next run goes on from there."
        )
        if not end.trace:
            return end.kind(text)
        error = UnexpectedError(text, lasting=end.lasting, trace=end.trace)
        error.add_note(end.trace)
        return error
