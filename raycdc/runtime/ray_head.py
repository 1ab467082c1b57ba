"""Whether Ray's head is still there. Ray itself says nothing for 60 s, then ends the process from within.

Called by `ray_launcher` between its calls to Ray, from the supervisor's thread. A private Ray's processes are our
children, so that their end is seen at once; a joined cluster's head is asked for a connection now and then.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from raycdc.errors import ClusterLostError

#: How often a joined cluster's head is asked, and how long it may be away: Ray starts no head again by itself.
ASK_EVERY_S = 1.0
AWAY_MAX_S = 8.0
_CONNECT_S = 1.0


class RayHead:
    """One per launcher. `ended` names a process of a private Ray that is gone, and is None for a cluster joined."""

    def __init__(
        self, address: str, *, ended: Callable[[], str] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        #: Once it is gone it stays gone: what comes back under its address knows nothing of our actors.
        self.lost = False
        self._ended = ended
        self._clock = clock
        self._asked_s = self._seen_s = clock()

    def look(self) -> None:
        """Raise `ClusterLostError` where the head is gone. Blocks for a second at most, and seldom."""
        if self.lost:
            raise self._error("it does not answer")
        if self._ended is not None:
            if gone := self._ended():
                raise self._error(f"its process {gone} ended")
            return
        now_s = self._clock()
        if now_s - self._asked_s < ASK_EVERY_S:
            return
        self._asked_s = now_s
        if self._answers():
            self._seen_s = now_s
        elif now_s - self._seen_s >= AWAY_MAX_S:
            raise self._error(f"it has not answered for {AWAY_MAX_S:g} s")

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return True
        except OSError:
            return False

    def _error(self, what: str) -> ClusterLostError:
        self.lost = True
        first = "" if self._ended is not None else 'Start the cluster again ("ray start --head" on its first node). '
        return ClusterLostError(
            f"Ray's head at {self.address} is gone: {what}. {first}Nothing that was sealed is lost: run the pipeline "
            "again, and it goes on from there."
        )
