"""The partitions of a reader: each with its decoder, and the batch that waits to be emitted.

The requirements of a batch are decided once, when the batch is decoded. Events that arrive while the batch waits for
its schemas do not change these requirements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from raycdc.connectors.kafka.enumeration.schemas import merge
from raycdc.connectors.kafka.reading.messages import Fetched, PartitionRecords, PartitionStart
from raycdc.connectors.kafka.reading.statements import DdlMessages, Dropped, Emptied
from raycdc.connectors.kafka.split import PartitionState
from raycdc.formats.api import ChangeItem, Decoded, FormatDecoder, RowsItem
from raycdc.model import Column, RowKind, TableId, TableSchema
from raycdc.source.reader.fetcher_manager import FetcherManager
from raycdc.state.opaque import SealedSplit
from raycdc.transform.masks import Masking
from raycdc.transform.target_rules import TargetRules

#: The fetchers of one reader: each is a `KafkaPartitionReader` in its own thread, or a simulation of one.
PartitionFetchers = FetcherManager[PartitionStart, PartitionRecords]


@dataclass(frozen=True, slots=True)
class KafkaReaderSettings:
    """The parts of the configuration that concern a reader."""

    idle_after_s: float
    aligned: bool = False
    dead_letters: bool = False
    #: If masks hide values, messages that cannot be decoded must not be shown or stored.
    masking: Masking = field(default_factory=Masking)
    order_by: str | None = None
    #: The rules of targets, some of which need more of a deleted row than its key.
    rules: TargetRules = field(default_factory=TargetRules)
    #: The interpreter of DDL messages.
    statements: DdlMessages = field(default_factory=DdlMessages)

    @property
    def masks_values(self) -> bool:
        return bool(self.masking.masks)


@dataclass(slots=True)
class ActivePartition:
    """A partition that is being read. `state` includes all emitted messages; `until` is the end in this run."""

    state: PartitionState
    until: int | None
    decoder: FormatDecoder
    log_end: int | None = None

    @property
    def split_id(self) -> str:
        return self.state.split_id

    @property
    def ended(self) -> bool:
        return self.state.ended(self.until)

    def sealed(self) -> SealedSplit:
        return self.state.sealed()

    @property
    def end(self) -> int | None:
        return min((e for e in (self.state.stop, self.until) if e is not None), default=None)

    @property
    def pending(self) -> int | None:
        """Return the number of offsets still to be read, including offsets of markers; None if it is unknown."""
        if self.log_end is None:
            return None
        last = self.log_end if self.end is None else min(self.log_end, self.end)
        return max(0, last - self.state.offset)


@dataclass(frozen=True, slots=True)
class BatchRequirements:
    """The requirements and effects of a batch.

    `schemas` are in the order of the batch's items, because a table's schema may change within the batch. `emptied` has
    the events that remove all rows, by the number of their item. `defaults` are new columns whose default existing rows
    must have. `dropped` are the dropped columns that are remembered after the batch. `without` has, by the number of an
    item of rows, the columns that were dropped before it, which get no default.
    """

    schemas: tuple[tuple[TableId, TableSchema], ...] = ()
    emptied: Mapping[int, tuple[Emptied, ...]] = field(default_factory=dict)
    defaults: tuple[tuple[ChangeItem, TableId, Column], ...] = ()
    dropped: Dropped = field(default_factory=dict)
    without: Mapping[int, Collection[str]] = field(default_factory=dict)


def judge(
    decoded: Decoded,
    statements: DdlMessages,
    *,
    in_force: Mapping[TableId, TableSchema],
    dropped: Dropped,
    further: Sequence[tuple[TableId, TableSchema]] = (),
) -> BatchRequirements:
    """Return the requirements of a batch; `further` schemas are needed, too.

    Raises `SchemaError` for a change that cannot be followed.
    """
    schemas: list[tuple[TableId, TableSchema]] = []
    emptied: dict[int, tuple[Emptied, ...]] = {}
    defaults: list[tuple[ChangeItem, TableId, Column]] = []
    without: dict[int, Collection[str]] = {}
    grown: dict[TableId, TableSchema] = {}

    def known(table: TableId) -> TableSchema | None:
        return grown.get(table) or in_force.get(table)

    for number, item in enumerate(decoded.items):
        if isinstance(item, ChangeItem):
            followed = statements.followed(item, known, {*in_force, *grown}, dropped=dropped)
            dropped = followed.dropped
            emptied[number] = followed.emptied
            defaults += [(statements.shown(item), *entry) for entry in followed.defaults]
            asked = dict(followed.schemas)
        else:
            asked = {item.table: item.schema}
            without[number] = dropped.get(str(item.table), ())
        for table, schema in asked.items():
            schemas.append((table, schema))
            grown[table] = merge(table, known(table), schema)[0]
    return BatchRequirements((*schemas, *further), emptied, tuple(defaults), dropped, without)


@dataclass(frozen=True, slots=True)
class BufferedBatch:
    """A decoded batch that was not emitted yet."""

    split: ActivePartition
    fetched: Fetched
    decoded: Decoded | None
    judged: BatchRequirements = field(default_factory=BatchRequirements)

    def rows(self) -> list[RowsItem]:
        items = self.decoded.items if self.decoded is not None else ()
        return [item for item in items if isinstance(item, RowsItem)]

    def latest_event_ms(self) -> int | None:
        """Return the latest event time of the batch."""
        event_ms = self.fetched.event_ms
        for item in self.rows():
            event_ms = latest_event(item.batch, event_ms)
        return event_ms


def is_truncation(batch: pa.RecordBatch) -> bool:
    """Return True if the batch is the row that truncates its table."""
    return batch.num_rows == 1 and bool(batch.column("_op")[0].as_py() == RowKind.TRUNCATE)


def latest_event(batch: pa.RecordBatch, known: int | None) -> int | None:
    """Return the latest event time: from the rows if they have one, otherwise from the broker."""
    times = batch.column("_ts_ms")
    if times.null_count == len(times):
        return known
    latest = int(np.max(times.drop_null().to_numpy()))
    return latest if latest > 0 else known
