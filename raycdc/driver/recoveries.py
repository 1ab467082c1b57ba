"""Tells of each recovery of a run that began, or went on, where something had ended in the middle."""

from __future__ import annotations

from collections.abc import Callable

from raycdc.checkpoint.holder import Holder
from raycdc.epochs.outcomes import Recovery
from raycdc.errors import ExitCode
from raycdc.run_events import After, Recovered, TookOver
from raycdc.source.protocol.job_status import JobStatus

#: Ends that nobody has to recover from.
_IN_ORDER = (int(ExitCode.DONE), int(ExitCode.INTERRUPTED))


class Recoveries:
    """`began` and `went_on` are called when sink and record are equal again. That is told when there are processes that
    read, because the first line of a run names these. `before` is that of the run's `Tenure`.
    """

    def __init__(self, before: Holder | TookOver | None, tell: Callable[[Recovered], None]) -> None:
        self._cause = _cause(before)
        self._tell = tell
        self._waiting: list[Recovered] = []

    def __repr__(self) -> str:
        return f"Recoveries({self._cause}, {len(self._waiting)} to tell)"

    def began(self, recovery: Recovery) -> None:
        """The run's own start; told where the run before it did not end in order."""
        if self._cause is not None:
            after, why = self._cause
            self._waiting.append(_recovered(after, why, recovery))

    def went_on(self, after: After, why: str, recovery: Recovery) -> None:
        """The run goes on after a loss."""
        self._waiting.append(_recovered(after, why, recovery))

    def heard(self, status: JobStatus | None) -> None:
        """For the thread that looks at statuses."""
        if status is not None:
            while self._waiting:
                self._tell(self._waiting.pop(0))


def _recovered(after: After, why: str, recovery: Recovery) -> Recovered:
    return Recovered(after, recovery.epoch, recovery.replayed, recovery.dropped, why.strip().rstrip("."))


def _cause(before: Holder | TookOver | None) -> tuple[After, str] | None:
    """What there is to recover from, and its words; None where the run before ended in order, or nobody can tell."""
    match before:
        case None:
            return None
        case TookOver(reason):
            return "take_over", reason
        case Holder(ended=False):
            return "killed", f"{before}, which ran the pipeline last, did not say that it ended"
        case Holder(end=end):
            if end is None or end.exit_code in _IN_ORDER:
                return None
            return "error", f"the last run ended with exit code {end.exit_code} ({end.error})"
