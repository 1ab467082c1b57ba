"""Patience with one target: when it is over, one that takes nothing while others answer is parked, and they go on.

Called by the epoch writer and by recovery in place of `SinkRetry`, which waits. A sink that is away for all ends
the run, as nobody can go on; a target that is blocked alone (`TargetBlockedError`) holds up no other. When the patience
is over, the sink is asked which of the two it is, in this order; an answer counts only if those around it agree:

| asked | a target alone is blocked when |
|---|---|
| another target of the sink, which is not parked and not waited for | it says what it holds, and nobody blocks it |
| the target, where a lock is waited for | the sink says who has it locked |
| the target otherwise | it cannot say what it holds |
| the other one again | it still answers |

A commit that another target took meanwhile proves nothing: the sink may have gone right behind it.

A start asks each target what it holds, and so does the first epoch of a table that is added: with the same patience
(`raycdc.delivery.targets.target_records`), because one that alone cannot say it is parked as one that alone takes
nothing.

*What if a commit that seemed to fail has landed?* The target then holds an epoch in which it is parked, as one that
refused behind its commit does (`parked_targets`); its next rows empty it.
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

#: So many other targets are asked whether they answer: each may take as long as the sink waits for anything.
OTHERS_ASKED = 3


class TargetRetry:
    """See the module's docstring. For any thread: each set is changed by single steps."""

    def __init__(
        self,
        sink: Sink,
        patience: SinkRetry,
        parked: ParkedTargets,
        records: CommitRecordWriter,
        stopping: threading.Event,
    ) -> None:
        self._sink = sink
        self._patience = patience
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
        return self._patience.for_spark(act)

    def __call__(self, targets: Sequence[TableId], act: Callable[[], T], *, beside: Iterable[TableId] = ()) -> T:
        """The result of `act`, which writes to `targets`, as of `SinkRetry`; `TargetBlockedError` when it took too
        long and one of them is blocked alone. Of several, which are then to be written one by one, the blocked one is
        not waited for again. `beside` are targets that may be asked although nobody wrote to them yet.
        """

        def tried() -> T:
            try:
                result = act()
            except SinkUnavailableError as cause:
                if len(targets) == 1:
                    self._troubled.add(targets[0])
                    if targets[0] in self._blocked and not isinstance(cause, SparkLostError):
                        # For this once: what comes next to it comes of a new beginning.
                        self._blocked.discard(targets[0])
                        raise self._error(targets[0], cause, "") from cause
                raise
            self._took.update(targets)
            self._troubled.difference_update(targets)
            self._blocked.difference_update(targets)
            return result

        try:
            return self._patience(tried)
        except TableRefusedError:
            raise
        except SinkError as error:
            cause = error.__cause__
            if not isinstance(cause, SinkUnavailableError) or isinstance(cause, SparkLostError):
                raise
            alone = 0
            for target in targets:
                # A stop ends the waiting, too. Each that is asked may take its time; where nobody is there for two of
                # the targets, nobody is for the rest.
                if self._stopping.is_set() or alone > 1:
                    raise
                others = self._others(target, beside)
                other = next(filter(self._answers, others), None) if self._sink.durable else None
                if other is None:
                    alone += 1
                elif (words := self._words(target, cause)) is not None and self._answers(other):
                    if len(targets) > 1:
                        self._blocked.add(target)
                    raise self._error(target, cause, words) from cause
            raise

    def _error(self, target: TableId, cause: SinkUnavailableError, words: str) -> TargetBlockedError:
        minutes = self._patience.policy.patience_s / 60
        text = f"{target} has taken nothing for {minutes:.0f} minutes, and other targets answer"
        return TargetBlockedError(f"{text}: {str(cause).rstrip('.')}. {words}".rstrip())

    def _words(self, target: TableId, cause: SinkUnavailableError) -> str | None:
        """Words about who or what blocks `target` (may be empty), if others answer; None where that is not certain."""
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

    def _others(self, target: TableId, beside: Iterable[TableId]) -> Iterator[TableId]:
        """Some targets that go on if this one does not hold them up."""
        # Another thread may be recording an epoch.
        known = map(TableId.parse, list(self._records.vectors))
        names = dict.fromkeys([*known, *sorted(self._took, key=str), *beside])
        others = [
            name
            for name in names
            if name != target
            and table_of(name) is None
            and name not in self._troubled
            and not self._parked.owes_nothing(name)
        ]
        return iter(others[:OTHERS_ASKED])

    def _answers(self, target: TableId) -> bool:
        try:
            self._sink.committed(target)
            return not self._sink.blocked(target, wholly=True)
        except SinkError:
            return False
