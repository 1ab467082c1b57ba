"""Retries a sink, and parks one target if it accepts no write while other targets of the sink answer.

`SinkRetry` is for a sink that is unreachable, locked by another client, or full. No data is lost while it waits. It
works for every sink: `SinkUnavailableError`, or an error of the operating system about a disk, means that a retry may
succeed. A call is repeated from the beginning of its transaction. If the outcome of a commit is unknown, the retry
reads it from the target's record.

`TargetRetry` is for one target; the epoch writer and recovery call it. If the whole sink is unreachable, the run ends.
If a single target is blocked (`TargetBlockedError`), it must not delay the other targets. When the retries are used up,
the following queries, in this order, distinguish the two cases:

| query | the target alone is blocked if |
|---|---|
| another target of the sink that is neither parked nor retried | it returns what it holds, and is not blocked |
| the target, if the error is a lock | the sink says who has it locked |
| the target, otherwise | it cannot return what it holds |
| the other one again | it still answers |

A recent commit of another target proves nothing: the sink may have failed right after it.

Reads of the targets' vectors, at a start and before the first epoch of an added table, are retried in the same way
(`raycdc.delivery.targets.target_records`). A target that cannot be read while others answer is parked, too.

A commit that seemed to fail may have succeeded. The target then holds an epoch in which it is parked. `parked_targets`
allows that, because the target is emptied before it gets rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from raycdc.core.retry import POLICY, Outage, Retrier
from raycdc.core.stopping import StopRequest
from raycdc.core.threads import Threads
from raycdc.delivery.record_keeper import CommitRecordWriter, table_of
from raycdc.delivery.targets.parked_targets import ParkedTargets, SinkOutagePolicy
from raycdc.errors import (
    SinkError,
    SinkLockedError,
    SinkUnavailableError,
    SparkLostError,
    StateError,
    TableRefusedError,
    TargetBlockedError,
)
from raycdc.model import TableId
from raycdc.sinks.api import Sink
from raycdc.sinks.lakes.unreachable import is_absent

T = TypeVar("T")

#: The most other targets that are queried, because each query may take as long as the sink's timeout.
UNAFFECTED_ASKED = 3


class SinkRetry:
    """Retries calls of a sink; see the module's docstring. `stopping` ends the waiting. Callable from any thread."""

    def __init__(self, waiting: SinkOutagePolicy, stopping: StopRequest, threads: Threads) -> None:
        self._location = waiting.location
        #: How long and how often the sink is retried.
        self.policy = waiting.policy or POLICY
        self._retrier = Retrier(notify=waiting.notify, stopping=stopping, threads=threads, policy=self.policy)

    def __call__(self, act: Callable[[], T]) -> T:
        """Call `act`, which must be repeatable, and return its result. Repeat the call while the sink is unreachable or
        its disk is full.

        Raises a `SinkError` that names the sink's location when the time is over.
        """
        return self._retrier(act, self._outage)

    def for_spark(self, act: Callable[[], T]) -> T:
        """Call `act`, which uses Spark for other work than the sink's, and return its result. Repeat the call if
        Spark's JVM has ended.
        """
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


class TargetRetry:
    """Retries writes to targets; see the module's docstring.

    Callable from any thread, because each set is changed atomically.
    """

    def __init__(
        self,
        sink: Sink,
        sink_retry: SinkRetry,
        parked: ParkedTargets,
        records: CommitRecordWriter,
        stopping: StopRequest,
    ) -> None:
        self._sink = sink
        self._sink_retry = sink_retry
        self._parked = parked
        self._records = records
        self._stopping = stopping
        #: The targets that accepted a call, the targets whose last call failed, and the targets that are known to be
        #: blocked while others answer.
        self._took: set[TableId] = set()
        self._troubled: set[TableId] = set()
        self._blocked: set[TableId] = set()

    def __repr__(self) -> str:
        return f"TargetRetry(troubled={sorted(map(str, self._troubled))})"

    def for_spark(self, act: Callable[[], T]) -> T:
        """Call `act` like `SinkRetry.for_spark`."""
        return self._sink_retry.for_spark(act)

    def __call__(self, targets: Sequence[TableId], act: Callable[[], T], *, siblings: Iterable[TableId] = ()) -> T:
        """Call `act`, which writes to `targets`, with the retries of `SinkRetry`, and return its result.

        Raises `TargetBlockedError` when the retries are used up and only one of the targets is blocked. If the call was
        for several targets, the caller then writes them one by one, and the blocked target is not retried again.
        `siblings` are targets that may be queried although nothing was written to them yet.
        """

        def tried() -> T:
            try:
                result = act()
            except SinkUnavailableError as cause:
                if len(targets) == 1:
                    self._troubled.add(targets[0])
                    if targets[0] in self._blocked and not isinstance(cause, SparkLostError):
                        # The mark is removed, because the next call for this target belongs to a resnapshot.
                        self._blocked.discard(targets[0])
                        raise self._error(targets[0], cause, "") from cause
                raise
            self._took.update(targets)
            self._troubled.difference_update(targets)
            self._blocked.difference_update(targets)
            return result

        try:
            return self._sink_retry(tried)
        except TableRefusedError:
            raise
        except SinkError as error:
            cause = error.__cause__
            if not isinstance(cause, SinkUnavailableError) or isinstance(cause, SparkLostError):
                raise
            alone = 0
            for target in targets:
                # A stop of the run may have ended the retries. Queries may take long, so give up after the queries for
                # two targets have found no other target that answers.
                if self._stopping.is_set() or alone > 1:
                    raise
                others = self._unaffected(target, siblings)
                other = next(filter(self._answers, others), None) if self._sink.durable else None
                if other is None:
                    alone += 1
                elif (words := self._words(target, cause)) is not None and self._answers(other):
                    if len(targets) > 1:
                        self._blocked.add(target)
                    raise self._error(target, cause, words) from cause
            raise

    def _error(self, target: TableId, cause: SinkUnavailableError, words: str) -> TargetBlockedError:
        minutes = self._sink_retry.policy.retry_s / 60
        text = f"{target} has taken nothing for {minutes:.0f} minutes, and other targets answer"
        return TargetBlockedError(f"{text}: {str(cause).rstrip('.')}. {words}".rstrip())

    def _words(self, target: TableId, cause: SinkUnavailableError) -> str | None:
        """Return a text about the client or condition that blocks `target` (empty if unknown); None if it is not
        certain that the target is blocked.
        """
        try:
            if isinstance(cause, SinkLockedError) and (words := self._sink.blocked(target)):
                return words
        except SinkError:
            return None
        try:
            self._sink.committed(target)
        except SinkUnavailableError:
            return ""
        except SinkError:
            return None
        return None

    def _unaffected(self, target: TableId, siblings: Iterable[TableId]) -> Iterator[TableId]:
        """Yield some other targets that are not known to have failed."""
        # The names are copied, because another thread may be recording an epoch.
        known = map(TableId.parse, list(self._records.vectors))
        names = dict.fromkeys([*known, *sorted(self._took, key=str), *siblings])
        others = [
            name
            for name in names
            if name != target
            and table_of(name) is None
            and name not in self._troubled
            and not self._parked.owes_nothing(name)
        ]
        return iter(others[:UNAFFECTED_ASKED])

    def _answers(self, target: TableId) -> bool:
        try:
            self._sink.committed(target)
            return not self._sink.blocked(target, wholly=True)
        except SinkError:
            return False
