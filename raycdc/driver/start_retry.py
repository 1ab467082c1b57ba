"""Retries the start if source or sink is unreachable, but only if the pipeline has a state already.

At a first start a person watches, so an unreachable server, perhaps a wrong host name, is reported immediately. A
pipeline that has sealed an epoch has reached its servers before; its machine may have been restarted together with
them. The start of such a pipeline therefore waits as long as a run does (`raycdc.core.retry`), and reports that it
waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from raycdc.core.retry import Outage, Retrier
from raycdc.core.stopping import StopRequest
from raycdc.delivery.targets.target_retry import sink_outage
from raycdc.driver.leadership import Leadership
from raycdc.errors import SinkUnavailableError
from raycdc.runtime.restarts import source_outage

T = TypeVar("T")


class StartRetry:
    """An object that retries a start; see the module's docstring.

    `notify` is called once per wait, and once per distinct warning of `act`. The wait ends when `stopping` is set, or
    when another driver takes over the state (`leadership`).
    """

    def __init__(self, leadership: Leadership, notify: Callable[[str], None], stopping: StopRequest) -> None:
        self._waits = leadership.store.last_manifest() is not None
        self._leadership = leadership
        #: The request to stop the run, for waits that begin after the start.
        self.stopping = stopping
        self._notify = notify
        self._reported: set[str] = set()
        self._retrier = Retrier(notify=notify, stopping=stopping)

    def __call__(self, act: Callable[[], T]) -> T:
        """Return the result of `act`. Raises `StoppedWaitingError` if the run was stopped during the wait."""
        return self._retrier(act, self._outage) if self._waits else act()

    def warning(self, text: str) -> None:
        """Report a warning of `act`, once."""
        if text not in self._reported:
            self._reported.add(text)
            self._notify(text)

    def _outage(self, cause: Exception) -> Outage | None:
        outage = sink_outage(cause) if isinstance(cause, SinkUnavailableError) else source_outage(cause)
        if outage is not None:
            self._leadership.require_held()
        return outage
