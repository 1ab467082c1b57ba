"""Retries one target, and parks it if it accepts no write while other targets of the sink answer.

Called by the epoch writer and by recovery in place of `SinkRetry`. A sink that is unreachable as a whole ends the run;
a target that is blocked alone (`TargetBlockedError`) must not hold up others. When the retries are used up, these
queries in order decide which case it is:

| query | a target alone is blocked when |
|---|---|
| another target of the sink that is neither parked nor retried | it returns what it holds, and is not blocked |
| the target, if a lock is waited for | the sink says who has it locked |
| the target otherwise | it cannot return what it holds |
| the other one again | it still answers |

A recent commit of another target proves nothing: the sink may have failed right after it.

A start reads what each target holds, and so does the first epoch of an added table, with the same retries
(`raycdc.delivery.targets.target_records`): a target that alone cannot be read is parked, too.

*What if a commit that seemed to fail has succeeded?* The target then holds an epoch in which it is parked, which
`parked_targets` allows for; its next rows empty it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from raycdc.delivery.record_keeper import CommitRecordWriter, table_of
from raycdc.delivery.targets.parked_targets import ParkedTargets
from raycdc.delivery.targets.sink_retry import SinkRetry
from raycdc.errors import (
    SinkError,
    SinkLockedError,
    SinkUnavailableError,
    SparkLostError,
    TableRefusedError,
    TargetBlockedError,
)
from raycdc.model import TableId
from raycdc.sinks.api import Sink

T = TypeVar("T")

#: At most this many other targets are queried: each may take as long as the sink's timeout.
UNAFFECTED_ASKED = 3


class TargetRetry:
    """See the module's docstring. For any thread: each set is changed by single steps."""

    def __init__(
        self,
        sink: Sink,
        sink_retry: SinkRetry,
        parked: ParkedTargets,
        records: CommitRecordWriter,
        stopping: threading.Event,
    ) -> None:
        self._sink = sink
        self._sink_retry = sink_retry
        self._parked = parked
        self._records = records
        self._stopping = stopping
        #: Targets that took something from us, those whose last verb failed, and the ones known to be blocked alone.
        self._took: set[TableId] = set()
        self._troubled: set[TableId] = set()
        self._blocked: set[TableId] = set()

    def __repr__(self) -> str:
        return f"TargetRetry(troubled={sorted(map(str, self._troubled))})"

    def for_spark(self, act: Callable[[], T]) -> T:
        """`SinkRetry.for_spark`."""
        return self._sink_retry.for_spark(act)

    def __call__(self, targets: Sequence[TableId], act: Callable[[], T], *, siblings: Iterable[TableId] = ()) -> T:
        """Return the result of `act`, which writes to `targets`, retried like `SinkRetry`.

        Raises `TargetBlockedError` when it took too long and one of them is blocked alone. If there are several
        targets, which are then written one by one, the blocked one is not retried again. `siblings` are targets that
        may be queried although they were not written to yet.
        """

        def tried() -> T:
            try:
                result = act()
            except SinkUnavailableError as cause:
                if len(targets) == 1:
                    self._troubled.add(targets[0])
                    if targets[0] in self._blocked and not isinstance(cause, SparkLostError):
                        # Cleared for this call only: the next call belongs to a resnapshot.
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
                # A stop ends the waiting, too. Each query may take its time; if two targets find no other target that
                # answers, the rest will not either.
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
        """Words about who or what blocks `target` (may be empty), if others answer; None if that is not certain."""
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
        """Some targets that go on if this one does not hold them up."""
        # Another thread may be recording an epoch.
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
