"""Groups events of one cluster time into transactions, and decides which transactions are complete. Pure.

The events of a transaction have its commit's cluster time, and transactions of several shards may share one. The events
of the last time in an answer wait here, as bytes, until it is certain that no more of them come:

| next | the waiting transaction is complete |
|---|---|
| an event of a later time | always |
| a token of a later time after the answer | always |
| an answer without events | with a replica set, whose log has a transaction as a whole; never with a ``mongos``

|So at most one answer waits; a longer transaction is passed on in parts. The token after an answer without events \
(`postBatchResumeToken`) shows how far the stream is, so that the position of a quiet collection advances; with a \
``mongos`` it means that all events *before* its time were sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from raycdc.connectors.mongodb.stream.events import EventBatch
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken, StreamPosition
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.errors import DataError


@dataclass(frozen=True, slots=True)
class Whole:
    """Complete transactions, and the token after them.

    `rank` is the number of earlier events of the first event's time.
    """

    batch: EventBatch
    token: ResumeToken
    rank: int


@dataclass(frozen=True, slots=True)
class PartialTransaction:
    """Events of one transaction of which more are to come. `rank` is as in `Whole`."""

    batch: EventBatch
    rank: int


@dataclass(frozen=True, slots=True)
class ClusterTimeReached:
    """A notice that all events up to the cluster time came, and that the stream continues after `token`."""

    token: ResumeToken
    cluster_time: int


class MongoDbTransactionAssembler:
    """The assembler of transactions; see the module's docstring.

    `whole_when_idle`: an answer without events proves that all transactions before it are complete.
    """

    def __init__(self, *, whole_when_idle: bool) -> None:
        self.whole_when_idle = whole_when_idle
        self._waiting: Whole | None = None

    def read_to(self, passed_to: StreamPosition) -> StreamPosition:
        """Return the position after all events received so far.

        All events up to `passed_to` were passed on, except the waiting transaction.
        """
        waiting = self._waiting
        if waiting is None:
            return passed_to
        return replace(passed_to, token=waiting.token, cluster_time=int(waiting.batch.times[-1]))

    def take(
        self, batch: EventBatch, token: ResumeToken | None, *, after: int
    ) -> list[Whole | PartialTransaction | ClusterTimeReached]:
        """Return the events to pass on, in order, now that `batch` came; `token` is the one after it, if there is one.

        All events up to the cluster time `after` were passed on. Raises `DataError` if the stream goes back in time.
        """
        if not len(batch):
            return []
        times, end = batch.times, len(batch)
        first, last = int(times[0]), int(times[-1])
        waiting = self._waiting
        begun = after if waiting is None else int(waiting.batch.times[-1])
        if first < begun or (np.diff(times) < 0).any():
            raise DataError(
                f"The change stream goes back in time, from {seconds_of(max(begun, int(times.max())))} to "
                f"{seconds_of(int(times.min()))}: the server's log is not the one that was read before."
            )
        ready: list[Whole | PartialTransaction | ClusterTimeReached] = []
        rank = 0
        if waiting is not None and first == begun:
            rank = waiting.rank + len(waiting.batch)
            ready.append(PartialTransaction(waiting.batch, waiting.rank))
        elif waiting is not None:
            ready.append(waiting)
        behind = batch.token(end - 1) if token is None else token
        cut = end if behind.cluster_time > last else int(np.searchsorted(times, last))
        if cut:
            ready.append(Whole(batch.part(0, cut), batch.token(cut - 1), rank))
        if cut < end:
            self._waiting = Whole(batch.part(cut, end), batch.token(end - 1), rank if first == last else 0)
        else:
            self._waiting = None
            ready.append(ClusterTimeReached(behind, behind.cluster_time - 1))
        return ready

    def idle(self, token: ResumeToken, server_time: int) -> list[Whole | PartialTransaction | ClusterTimeReached]:
        """Return the events to pass on now that an answer without events came at `server_time`, with a token after
        it.
        """
        time = token.cluster_time
        ready: list[Whole | PartialTransaction | ClusterTimeReached] = []
        if self._waiting is not None:
            if not self.whole_when_idle and time <= self._waiting.batch.times[-1]:
                return []
            ready.append(self._waiting)
            self._waiting = None
        # The token's time is in the future, so no event of it has passed, and no read could wait for it.
        ready.append(ClusterTimeReached(token, time if self.whole_when_idle and time <= server_time else time - 1))
        return ready
