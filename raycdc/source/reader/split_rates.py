"""How many bytes the splits of a reader bring, for the balance between readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raycdc.source.protocol.metrics import SplitLoad

#: Rates are those of the last window that has ended.
WINDOW_S = 5.0


@dataclass(slots=True)
class _Count:
    bytes: int = 0
    records: int = 0
    #: Of the window before.
    bytes_per_s: float = 0.0
    bytes_per_record: float = 0.0


class SplitRates:
    """Counts what was fetched of each split. Owned by the reader's thread."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._counts: dict[str, _Count] = {}
        #: The splits whose loads were told last.
        self._told: set[str] | None = None

    def fetched(self, split_id: str, *, size: int, records: int) -> None:
        """So many bytes more came."""
        count = self._counts.setdefault(split_id, _Count())
        count.bytes += size
        count.records += records

    def forget(self, split_id: str) -> None:
        """The split is somebody else's."""
        self._counts.pop(split_id, None)

    def loads(self, pending: Mapping[str, int | None]) -> dict[str, SplitLoad] | None:
        """Of each of these splits, with the records that it has still to bring (None: nobody knows); None while they
        are those of the call before, in the same window.
        """
        passed_s = self._now_s() - self._began_s
        if passed_s >= WINDOW_S:
            self._began_s += passed_s
            for count in self._counts.values():
                count.bytes_per_s = count.bytes / passed_s
                if count.records:
                    count.bytes_per_record = count.bytes / count.records
                count.bytes = count.records = 0
        elif set(pending) == self._told:
            return None
        self._told = set(pending)
        loads = {}
        for split_id, records in pending.items():
            count = self._counts.get(split_id, _Count())
            loads[split_id] = SplitLoad(round(count.bytes_per_s, 1), round((records or 0) * count.bytes_per_record, 1))
        return loads
