"""The split enumerator for topics.

Finds partitions, fixes their ends, and assigns them evenly to readers.

A partition's first and last offsets are decided when it is found and never change. The assignment to readers is in
`raycdc.source.partitions.assigner`; a partition that was sealed at its end is not assigned again.

The enumerator's state, in every manifest, has the schemas of tables, and the partitions that no reader has reported
yet. The latter include partitions that began at their end, because they are never assigned. The manifest itself has the
positions of all other partitions.

`TablePartitions` records which partitions have rows of a table, and which partition has a truncation of it, because a
truncation has no order relative to rows in other partitions. It does no I/O. Readers report these facts before they
report a seal, so an unordered truncation ends the job before its epoch has a manifest. The state has at most two
partitions of each table.

`SealedTopics` is the enumerator's state in manifests, with its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from raycdc.connectors.kafka.cluster.discovery import ClusterQuestions, Discovery, KnownPartitions, discover
from raycdc.connectors.kafka.enumeration.keys import KeyOwners
from raycdc.connectors.kafka.enumeration.schemas import SchemaRegistry, Update
from raycdc.connectors.kafka.events import (
    AlignWatermarks,
    CheckKeys,
    EnumeratorEvent,
    KeysRead,
    ReaderEvent,
    SchemaChangeRequest,
    TableEmptied,
    TablePartition,
    WatermarksReached,
)
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.kafka.watermark import Alignment
from raycdc.errors import DataError, ProtocolError, SourceUnavailableError, StateError
from raycdc.model import TableId
from raycdc.model.evolution import SchemaChangeEvent
from raycdc.model.rules.rate_limit import Until
from raycdc.source.partitions.assigner import PartitionAssigner
from raycdc.source.protocol.api import EnumeratorPart, EnumeratorStatistics, SplitEnumeratorContext, Streamed
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import PartitionSplit, SourceSplit
from raycdc.source.tables.parking import Refusal
from raycdc.state.manifests.manifest import Manifest, TableEpoch
from raycdc.state.opaque import EnumeratorState, SealedSplit

#: Two partitions are enough to know that a table has several.
REMEMBERED = 2


@dataclass(frozen=True, slots=True)
class _Reported:
    table: TableId
    split_id: str
    offset: int
    change: SchemaChangeEvent


@dataclass(frozen=True, slots=True)
class SealedTablePartitions:
    """The partitions with rows of each table, at most `REMEMBERED`, and the one that truncated it, as sealed."""

    homes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    emptied: Mapping[str, str] = field(default_factory=dict)


class TablePartitions:
    """The partitions of each table; see the module's docstring. They continue from the `sealed` state."""

    def __init__(self, sealed: SealedTablePartitions | None = None) -> None:
        before = sealed or SealedTablePartitions()
        self._homes = {table: list(splits) for table, splits in before.homes.items()}
        self._emptied = dict(before.emptied)
        self._open: list[_Reported] = []

    def read(self, table: TableId, split_id: str) -> None:
        """Record that `table` has rows in a partition. Raises `DataError` if another partition truncated the table."""
        homes = self._homes.setdefault(str(table), [])
        if split_id not in homes and len(homes) < REMEMBERED:
            homes.append(split_id)
        self._check(str(table))

    def emptied(self, table: TableId, split_id: str, *, offset: int, change: SchemaChangeEvent) -> None:
        """Record that a message emptied `table`. Raises `DataError` if other partitions have rows of it."""
        self.read(table, split_id)
        self._emptied[str(table)] = split_id
        self._open.append(_Reported(table, split_id, offset, change))
        self._check(str(table))

    def take(self, splits: Mapping[str, SealedSplit]) -> dict[TableId, list[SchemaChangeEvent]]:
        """Return the changes of the epoch that ends at `splits`, without those that a lost reader reported."""
        ends = {reported.split_id: PartitionState.of(splits[reported.split_id]).offset for reported in self._open}
        changes: dict[TableId, list[SchemaChangeEvent]] = {}
        for reported in self._open:
            if reported.offset < ends[reported.split_id]:
                changes.setdefault(reported.table, []).append(reported.change)
        self._open.clear()
        return changes

    def sealed(self) -> SealedTablePartitions:
        """Return the state after the epoch that is being sealed."""
        return SealedTablePartitions(
            {table: tuple(splits) for table, splits in self._homes.items()}, dict(self._emptied)
        )

    def _check(self, table: str) -> None:
        others = [split_id for split_id in self._homes[table] if split_id != self._emptied.get(table)]
        if table in self._emptied and others:
            raise DataError(
                f"A message in partition {self._emptied[table]} removes all rows of {table}, and partition {others[0]} "
                "has rows of it: their order is unknown. Produce the table's messages to one "
                'partition, or ignore DDL messages with source.format.ddl = "ignore".'
            )


#: Version of this state.
STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class SealedTopics:
    """The state after an epoch. `found_once` is True if any discovery has found partitions.

    `waiting` are the partitions that no reader reported, `tables` the fingerprints of the schemas in force.
    """

    found_once: bool
    waiting: tuple[PartitionState, ...]
    tables: Mapping[TableId, str]
    homes: SealedTablePartitions = field(default_factory=SealedTablePartitions)

    def sealed(self) -> EnumeratorState:
        """Return the state for manifests."""
        return EnumeratorState.from_json(
            {
                "kind": "kafka",
                "version": STATE_VERSION,
                "found_once": self.found_once,
                "waiting": [state.to_json() for state in self.waiting],
                "tables": {str(table): fingerprint for table, fingerprint in self.tables.items()},
                "homes": {table: list(splits) for table, splits in self.homes.homes.items()},
                "emptied": dict(self.homes.emptied),
            }
        )

    @classmethod
    def of(cls, state: EnumeratorState) -> SealedTopics:
        """Return the inverse of `sealed`. Raises `StateError` for the state of another source or a newer version."""
        data = state.to_json()
        if data.get("kind") != "kafka" or data["version"] > STATE_VERSION:
            raise StateError(
                "The state was written by another kind of source or a newer raycdc. "
                "Use another pipeline.name, or that version."
            )
        return cls(
            data["found_once"],
            tuple(map(PartitionState.from_json, data["waiting"])),
            {TableId.parse(table): fingerprint for table, fingerprint in data["tables"].items()},
            SealedTablePartitions(data.get("homes", {}), data.get("emptied", {})),
        )


class KafkaEnumerator:
    """The enumerator of a Kafka source's partitions; see the module's docstring.

    `until` is as in `IncrementalSnapshotEnumerator`; any value but None bounds the run.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext,
        config: KafkaSourceConfig,
        *,
        cluster: Callable[[], ClusterQuestions],
        until: Until | None,
    ) -> None:
        self._context = context
        self._config = config
        self._bounded = until is not None or config.stops
        self._probe: Callable[[KnownPartitions], Discovery] = lambda known: discover(
            cluster(), config, known, bounded=until is not None
        )
        self._partitions = KnownPartitions(config)
        self._assigner = PartitionAssigner(context, self._partitions.split)
        self._finished = False
        self._schemas = SchemaRegistry({}, open_epoch=lambda: context.open_epoch)
        drift = config.alignment.max_drift
        self._alignment = Alignment(max_drift_ms=round(drift.total_seconds() * 1000)) if drift else None
        self._keys = KeyOwners()
        self._homes = TablePartitions()
        #: True if the cluster was unavailable at the last discovery.
        self._is_unreachable = False

    def __repr__(self) -> str:
        return f"KafkaEnumerator(known={len(self._partitions)}, {self._assigner!r})"

    def restore(self, last: Manifest, *, document: Callable[[str], SchemaDocument]) -> None:
        """Continue from the manifest `last`. Called once, before `start`."""
        state = SealedTopics.of(last.enumerator)
        known = [*map(PartitionState.of, last.to_splits.values()), *state.waiting]
        self._partitions.restore(known, found_once=state.found_once)
        tables = {table: document(fingerprint).schema for table, fingerprint in state.tables.items()}
        self._schemas = SchemaRegistry(tables, open_epoch=lambda: self._context.open_epoch)
        # If DDL messages are skipped from now on, earlier truncations do not matter any more.
        follows = self._config.format.get("ddl", "follow") == "follow"
        self._homes = TablePartitions(state.homes if follows else replace(state.homes, emptied={}))

    def start(self) -> None:
        """Begin the first discovery of the cluster. No partition is assigned before it ends."""
        self._context.call_async(self._discover, self._on_discovered)

    def _discover(self) -> Discovery | None:
        """Run one discovery, off the coordinator's thread.

        Returns None if the cluster was unavailable; the next discovery will find the partitions.
        """
        try:
            return self._probe(self._partitions)
        except SourceUnavailableError:
            if not self._partitions.discovered:
                raise
            return None

    def _on_discovered(self, discovery: Discovery | None) -> None:
        self._is_unreachable = discovery is None
        if discovery is not None:
            self._take(discovery)
        again = self._config.discovery_interval
        if again is None or self._bounded:
            for reader in self._context.registered_readers():
                self._context.signal_no_more_splits(reader)
            return
        self._context.call_async(self._discover, self._on_discovered, after_s=again.total_seconds())

    def _take(self, discovery: Discovery) -> None:
        self._partitions.check(discovery.topics)
        self._partitions.take(discovery.states, discovery.ends, discovery.stops)
        several = len(self._partitions.selected()) > 1
        if not self._keys.asked and _keys_may_meet(self._config, several=several, bounded=self._bounded):
            self._keys.asked = True
            self._notify_all(CheckKeys())
        self._assigner.add(self._partitions.to_read())

    def add_reader(self, subtask_id: int) -> None:
        for update in self._schemas.updates():
            if update.schemas:
                self._context.send_event(subtask_id, update.to_event())
        if self._keys.asked:
            self._context.send_event(subtask_id, CheckKeys())
        if self._alignment is not None and self._alignment.reported_ms is not None:
            self._context.send_event(subtask_id, AlignWatermarks(self._alignment.reported_ms))
        self._assigner.give()
        self._assigner.balance()
        if self._partitions.discovered and (self._bounded or self._config.discovery_interval is None):
            self._context.signal_no_more_splits(subtask_id)

    def handle_split_request(self, subtask_id: int) -> None:
        """Do nothing: the enumerator assigns partitions without being asked."""

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        """Do nothing: there are no bounded splits, and the end of a partition is in its state."""

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        """Take back partitions that a reader released, or a lost reader had, in the state last sealed."""
        dropped = subtask_id not in self._context.registered_readers()
        if dropped and self._alignment is not None:
            self._alignment.forget(subtask_id)
        for split in splits:
            if not isinstance(split, PartitionSplit):
                raise ProtocolError(f"{split.split_id} is none of this enumerator's splits")
            self._partitions.keep(PartitionState.of(split.state))
        ended = [split.split_id for split in splits if self._partitions.ended(split.split_id)]
        self._assigner.forget(ended)
        self._assigner.back(split.split_id for split in splits if split.split_id not in ended)

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        if not isinstance(event, EnumeratorEvent):
            raise ProtocolError(f"The Kafka enumerator does not know the event {type(event).__name__}")
        match event:
            case SchemaChangeRequest(table, schema):
                update = self._schemas.request(table, schema)
                if update is not None:
                    self._notify_all(update.to_event())
            case TablePartition(table, split_id):
                self._homes.read(table, split_id)
            case TableEmptied(table, split_id, offset, change):
                self._homes.emptied(table, split_id, offset=offset, change=change)
            case KeysRead(name, split_id, hashes, all_reported):
                self._keys.add(name, split_id, hashes, all_reported=all_reported)
            case WatermarksReached(splits):
                self._align(subtask_id, splits)
            case _:
                assert_never(event)

    def _align(self, subtask_id: int, splits: Mapping[str, int]) -> None:
        if self._alignment is None:
            raise ProtocolError("A reader sent watermarks that were not requested")
        self._alignment.report(subtask_id, splits)
        if self._alignment.limit_ms != self._alignment.reported_ms:
            self._alignment.reported_ms = self._alignment.limit_ms
            self._notify_all(AlignWatermarks(self._alignment.reported_ms))

    def _notify_all(self, event: ReaderEvent) -> None:
        for reader in self._context.registered_readers():
            self._context.send_event(reader, event)

    def epoch_sealed(self, epoch: int, splits: Mapping[str, SealedSplit]) -> EnumeratorPart:
        """Return the epoch's part of the manifest: schemas that begin with it, and if everything was read.

        Then assigns the partitions evenly again.
        """
        ended = self._partitions.seal(splits)
        emptied = self._homes.take(splits)
        tables, documents = _tables(self._schemas, self._schemas.sealed(epoch), emptied)
        self._assigner.forget(ended)
        self._finished = self._bounded and self._partitions.discovered and not self._partitions.to_read()
        self._assigner.balance()
        return EnumeratorPart(tables, documents, final=self._finished)

    def snapshot_state(self, checkpoint_id: int) -> EnumeratorState:
        return SealedTopics(
            self._partitions.found_once,
            tuple(self._partitions.unreported(self._assigner.waiting)),
            self._schemas.fingerprints(),
            self._homes.sealed(),
        ).sealed()

    @property
    def wants_seal(self) -> bool:
        """Return True if a bounded run has nothing left to read; it still ends with an epoch."""
        return self._bounded and self._partitions.discovered and not self._finished and not self._partitions.to_read()

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """Do nothing: a partition is read on for its other tables, and the driver drops the rows of parked ones."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Do nothing: `KafkaSource.acknowledge` commits the offsets of the consumer group."""

    def statistics(self) -> EnumeratorStatistics:
        """Return the figures of the enumerator; its problems are events that did not end the run: a failed discovery,
        keys that are not compared, and replaced positions.
        """
        unreachable = {"discovery": "the cluster was unavailable at the last discovery"} if self._is_unreachable else {}
        unchecked = {f"keys of {table}": "too many to check all of them in two partitions" for table in self._keys.full}
        problems = {**unreachable, **unchecked, **self._partitions.problems()}
        return EnumeratorStatistics(Streamed(self._schemas.tables), len(self._assigner.waiting), problems)


def _tables(
    registry: SchemaRegistry, update: Update, emptied: Mapping[TableId, Sequence[SchemaChangeEvent]]
) -> tuple[dict[TableId, TableEpoch], dict[str, SchemaDocument]]:
    """Return the tables that get a new schema or are emptied in an epoch, and the schemas' documents."""
    tables = {}
    for table in (*update.schemas, *(table for table in emptied if table not in update.schemas)):
        changes = (*emptied.get(table, ()), *update.changes.get(table, ()))
        tables[table] = TableEpoch(registry.tables[table].fingerprint(), snapshot=False, changes=changes)
    documents = {schema.fingerprint(): SchemaDocument.of(schema) for schema in update.schemas.values()}
    return tables, documents


def _keys_may_meet(config: KafkaSourceConfig, *, several: bool, bounded: bool) -> bool:
    """Return True if changes of a key may come from two partitions, now or later, so that they have no order."""
    if config.same_key != "fail" or config.order_by is not None:
        return False
    return several or (config.discovery_interval is not None and not bounded)
