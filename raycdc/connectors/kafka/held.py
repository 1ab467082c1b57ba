"""What a reader of partitions holds: each partition with its decoder, and a batch that waits to be emitted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from raycdc.connectors.kafka.messages import Fetched
from raycdc.connectors.kafka.partition_reader import Fetch
from raycdc.connectors.kafka.split import PartitionState
from raycdc.formats.api import Decoded, FormatDecoder, RowsItem
from raycdc.model import RowKind


class Partitions(Protocol):
    """The fetcher's side: `KafkaPartitionReader` behind a `SplitFetcher`. No call blocks."""

    def add(self, topic: str, partition: int, offset: int, *, addition: int) -> None: ...

    def remove(self, split_id: str) -> None: ...

    def pause(self, split_ids: Iterable[str]) -> None: ...

    def resume(self, split_ids: Iterable[str]) -> None: ...

    def poll(self) -> Fetch | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """What of the configuration concerns a reader."""

    idle_after_s: float
    aligned: bool = False
    dead_letters: bool = False
    order_by: str | None = None


@dataclass(slots=True)
class ReadPartition:
    """A partition being read: `state` is what was emitted of it, `until` ends this run."""

    state: PartitionState
    until: int | None
    decoder: FormatDecoder
    ended: bool = False
    log_end: int | None = None

    @property
    def end(self) -> int | None:
        return min((e for e in (self.state.stop, self.until) if e is not None), default=None)

    @property
    def pending(self) -> int | None:
        """Messages still to be read, markers included; None while that is not known."""
        if self.log_end is None:
            return None
        last = self.log_end if self.end is None else min(self.log_end, self.end)
        return max(0, last - self.state.offset)


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A decoded batch that was not emitted yet."""

    split: ReadPartition
    fetched: Fetched
    decoded: Decoded | None

    def rows(self) -> list[RowsItem]:
        items = self.decoded.items if self.decoded is not None else ()
        return [item for item in items if isinstance(item, RowsItem)]


def is_truncation(batch: pa.RecordBatch) -> bool:
    """Whether the batch is the row that empties its table."""
    return batch.num_rows == 1 and bool(batch.column("_op")[0].as_py() == RowKind.TRUNCATE)


def latest_event(batch: pa.RecordBatch, known: int | None) -> int | None:
    """The latest event time: the rows' own where they have one, else the broker's."""
    times = batch.column("_ts_ms")
    if times.null_count == len(times):
        return known
    latest = int(np.max(times.drop_null().to_numpy()))
    return latest if latest > 0 else known
