"""The catch-up stream's reader (`raycdc.source.snapshot.rereading.catch_up`), and how its failures are handled.

| the stream | effect |
|---|---|
| is lost, or temporarily cannot be opened | it alone is closed, and opened at its position after a pause \
(`raycdc.core.retry`) |
| is lost inside a transaction of which the open epoch has a part | the reader starts again from the last cut, as when \
the log itself is lost |
| had no unit for too long because of that, or is refused by the source | its tables are parked, and can be resumed by \
command |
| cannot continue from its position, because the log is purged | its tables are resnapshotted automatically, or parked |
| finds its tables captured in another way, or a log that cannot be read | its tables are parked |
"""

from __future__ import annotations

from collections.abc import Callable

from raycdc.core.retry import Backoff, RetryPolicy
from raycdc.errors import LogLostError, RaycdcError, SourceError
from raycdc.source.protocol.metrics import CatchUpOutage
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.snapshot.log.log_reader import LogReader
from raycdc.source.snapshot.log.log_unit import LogSource
from raycdc.source.snapshot.rereading.catch_up import CatchUpFallback
from raycdc.source.split import StreamSplit

#: Opens the stream. Raises `ConfigError` or `SourceError` if that is impossible.
OpenCatchUpLog = Callable[[StreamSplit], LogSource]


class CatchUpStream:
    """The reader of the catch-up stream; see the module's docstring.

    Owned by the reader's thread.

    `resnapshots_lost`: tables whose log is purged are resnapshotted.
    """

    def __init__(
        self,
        log: LogReader,
        open_catch_up: OpenCatchUpLog,
        context: ReaderContext,
        *,
        policy: RetryPolicy,
        resnapshots_lost: bool,
    ) -> None:
        self._log, self._open_catch_up, self._context = log, open_catch_up, context
        self._policy, self._resnapshots_lost = policy, resnapshots_lost
        self._source: LogSource | None = None
        self._pauses = Backoff(policy)
        #: The time at which the stream is opened again. None: it is open, or there is nothing to read.
        self._due_s: float | None = None
        #: The number of failures since its last unit, the last error, and the time of the next attempt.
        self._outage: tuple[int, str, float] | None = None

    def __repr__(self) -> str:
        return f"CatchUpStream({self._log.catch_up!r}, open={self._source is not None}, due_s={self._due_s})"

    @property
    def outage(self) -> CatchUpOutage | None:
        """Return the present outage of the stream, which will be opened again; None if there is none."""
        if self._outage is None:
            return None
        tries, text, until_s = self._outage
        return CatchUpOutage(tries, text, max(0, round(until_s - self._context.now_s())))

    def close(self) -> None:
        """Close the stream."""
        if self._source is not None:
            self._source.close()
        self._source = self._due_s = None

    def open(self, split: StreamSplit | None) -> None:
        """Open the stream at the position of `split`; None: there is nothing to read. No stream may be open."""
        self._pauses, self._outage = Backoff(self._policy), None
        if split is not None:
            self._open(split)

    def step(self) -> bool:
        """Pass one unit, if the log is between two transactions and no unit waits.

        Returns True if anything was done.
        """
        log, now_s = self._log, self._context.now_s()
        if not log.at_boundary:
            return False
        log.catch_up.meet(now_s=now_s)
        if not log.catch_up.ready or not self._is_open(now_s):
            return False
        assert self._source is not None, "it is open"
        try:
            unit = self._source.poll()
        except RaycdcError as error:
            self._act_on(error)
            return True
        if unit is None:
            return False
        self._pauses, self._outage = Backoff(self._policy), None
        log.on_catch_up_unit(unit, now_s=now_s)
        return True

    def _is_open(self, now_s: float) -> bool:
        """Return True if the stream is open. Opens it again if the pause after a failure is over."""
        if self._due_s is None:
            return self._source is not None
        if now_s < self._due_s:
            self._context.availability.at(self._due_s)
            return False
        self._due_s = None
        _, split = self._log.catch_up.splits(self._log.state())
        assert split is not None, "its tables were parked, and it is still to be opened"
        self._open(split)
        return self._source is not None

    def _open(self, split: StreamSplit) -> None:
        try:
            self._source = self._open_catch_up(split)
        except RaycdcError as error:
            self._act_on(error)

    def _act_on(self, error: RaycdcError) -> None:
        """Handle an error of the stream: retry later, or give up."""
        catch_up, now_s = self._log.catch_up, self._context.now_s()
        reason = _first_sentence(error)
        if error.retryable:
            if catch_up.in_transaction:
                raise error
            pause_s = self._pauses.failed(now_s)
            if pause_s is not None:
                tries, _, until_s = self._outage or (0, "", now_s + self._policy.retry_s)
                self._outage = tries + 1, reason, until_s
                self.close()
                catch_up.read_again()
                self._due_s = now_s + pause_s
                self._context.availability.at(self._due_s)
                return
            reason = f"its log could not be read for {self._policy.retry_s / 60:.0f} minutes: {reason}"
        self._outage = None
        way_out = CatchUpFallback.RESNAPSHOT
        if isinstance(error, LogLostError):
            way_out = CatchUpFallback.BY_ITSELF if self._resnapshots_lost else way_out
        elif isinstance(error, SourceError):
            way_out = CatchUpFallback.RESUME
        catch_up.give_up(reason, way_out, now_s=now_s)


def _first_sentence(error: RaycdcError) -> str:
    """Return the first sentence of the error. The rest is advice for the case that every table is affected."""
    return str(error).partition(". ")[0].rstrip(".") + "."
