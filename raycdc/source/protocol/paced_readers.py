"""The readers of a coordinator and their shares of the source's budget (`raycdc.source.protocol.pace`).

A source that may be read as fast as can be has no keeper, and nothing is told.
"""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.source.protocol.live_readers import LiveReader, LiveReaders
from raycdc.source.protocol.pace import LEASE_S, Grant, Holder, PaceDemand, PaceKeeper
from raycdc.source.protocol.source_event import PaceShares


class PacedReaders:
    """See the module's docstring. Owned by the coordinator."""

    def __init__(self, readers: LiveReaders, keeper: PaceKeeper | None) -> None:
        self._readers = readers
        self._keeper = keeper

    def joined(self, subtask_id: int) -> None:
        """The reader has registered."""
        if self._keeper is not None:
            holder = self._readers[subtask_id].holder(subtask_id)
            self._tell({holder: self._keeper.join(holder)})

    def heard(self, subtask_id: int, demand: PaceDemand | None) -> None:
        """Its heartbeat came."""
        if self._keeper is not None and demand is not None:
            self._keeper.heard(self._readers[subtask_id].holder(subtask_id), demand)

    def ended(self, subtask_id: int, reader: LiveReader) -> None:
        """The reader is fenced, and may live on."""
        if self._keeper is not None:
            self._keeper.lost(reader.holder(subtask_id), heard_s=reader.last_heard_s)

    def look(self, *, now_s: float) -> bool:
        """Tell what is to be told now; whether there was something."""
        return self._keeper is not None and self._tell(self._keeper.look(now_s=now_s))

    def _tell(self, grants: Mapping[Holder, Grant]) -> bool:
        for (subtask_id, _), grant in grants.items():
            self._readers[subtask_id].link.send(PaceShares(grant.number, grant.shares, LEASE_S))
        return bool(grants)
