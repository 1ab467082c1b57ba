"""The split enumerator for topics: finds partitions, fixes their ends, gives them to readers and keeps those balanced.

A partition's first and last offsets are decided when it is found, now and for ever. Who reads it is the assigner's
matter (`raycdc.source.partitions.assigner`); one that is sealed at its end is given to nobody any more.

State (in every manifest): partitions that no reader reported yet (also those that began at their end, and were given
to nobody), and the tables' schemas. The positions of the others are the manifest's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, assert_never

from raycdc.checkpoint.manifest import Manifest, TableEpoch
from raycdc.connectors.kafka.client import Topic
from raycdc.connectors.kafka.events import (
    AlignWatermarks,
    CheckKeys,
    EnumeratorEvent,
    KeysRead,
    ReaderEvent,
    SchemaChangeRequest,
    TableEmptied,
    TableHome,
    WatermarksReached,
)
from raycdc.connectors.kafka.homes import TableHomes
from raycdc.connectors.kafka.keys import KeyOwners
from raycdc.connectors.kafka.offsets import Offsets, Partition, in_range, new_states
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.schemas import SchemaRegistry
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.kafka.watermark import Alignment
from raycdc.errors import LogLostError, ProtocolError, SourceError, SourceUnavailableError, StateError
from raycdc.model import TableId
from raycdc.model.until import Until
from raycdc.schema import event_from_json
from raycdc.source.parking import Refusal
from raycdc.source.partitions.assigner import PartitionAssigner
from raycdc.source.protocol.api import EnumeratorStatistics, EpochShare, SplitEnumeratorContext, TableProgress
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import PartitionSplit, SourceSplit

#: What to do about a sealed position that a partition does not have.
ANOTHER_POSITION = (
    'Accept that messages are missing or come again with source.on_out_of_range = "earliest" or "latest", or start '
    "another pipeline."
)
#: Version of this enumerator's state.
STATE_VERSION = 1


class ClusterQuestions(Offsets, Protocol):
    """What the enumerator asks the cluster. Blocks; called off the coordinator's thread."""

    def topics(self) -> list[Topic]: ...


class Discovery:
    """One look at the cluster: new partitions with their offsets, and this run's ends when it is bounded.

    `states` has known partitions too, where the policy moved their position.
    """

    def __init__(self, topics: list[Topic], states: list[PartitionState], ends: dict[str, int]) -> None:
        self.topics = topics
        self.states = states
        self.ends = ends


class KafkaEnumerator:
    """See the module's docstring. `until` as `IncrementalSnapshotEnumerator`'s; anything but None bounds the run."""

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
        self._cluster = cluster
        self._until = until
        #: What every known partition was last sealed at, or starts from.
        self._states: dict[str, PartitionState] = {}
        self._assigner = PartitionAssigner(context, self._split)
        self._ends: dict[str, int] = {}
        #: Partitions that no manifest has where they are: found in this run, or set anew.
        self._unsealed: set[str] = set()
        self._found_once = False
        self._looked = False
        self._finished = False
        self._schemas = SchemaRegistry({}, open_epoch=lambda: context.open_epoch)
        drift = config.alignment.max_drift
        self._alignment = Alignment(max_drift_ms=round(drift.total_seconds() * 1000)) if drift else None
        self._limit_ms: int | None = None
        self._keys = KeyOwners()
        self._homes = TableHomes()
        self._checking = False
        self._problems: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"KafkaEnumerator(known={len(self._states)}, {self._assigner!r})"

    @property
    def _bounded(self) -> bool:
        return self._until is not None or self._config.stops

    # -- life

    def restore(self, last: Manifest, *, document: Callable[[str], SchemaDocument]) -> None:
        """Go on as `last` says; called once, before `start`."""
        state = last.enumerator
        if state.get("kind") != "kafka" or state["version"] > STATE_VERSION:
            raise StateError(
                "The state was written by another kind of source or a newer raycdc. "
                "Use another pipeline.name, or that version."
            )
        self._found_once = state["found_once"]
        known = [PartitionState.from_json(data) for data in (*last.to_splits.values(), *state["waiting"])]
        self._states = {s.split_id: s for s in known}
        tables = {TableId.parse(t): document(fp).schema for t, fp in state["tables"].items()}
        self._schemas = SchemaRegistry(tables, open_epoch=lambda: self._context.open_epoch)
        # Who passes over DDL messages from now on has no use for what one of them emptied before.
        follows = self._config.format.get("ddl", "follow") == "follow"
        self._homes = TableHomes(state if follows else {**state, "emptied": {}})

    def start(self) -> None:
        """Look at the cluster now; nothing is given out before."""
        self._context.call_async(self._discover, self._on_discovered)

    # -- discovery

    def _discover(self) -> Discovery | None:
        """Runs off the coordinator's thread. None: the cluster was away, and a later look will do."""
        try:
            cluster = self._cluster()
            topics = cluster.topics()
            found = [(topic.name, number) for topic in topics for number in topic.partitions]
            known = {(state.topic, state.partition) for state in self._states.values()}
            identities = {topic.name: topic.identity for topic in topics}
            start = None if self._found_once else self._config.start
            fresh = [partition for partition in found if partition not in known]
            now_ms = time.time_ns() // 1_000_000
            policy = self._config.on_out_of_range
            states = new_states(
                cluster, fresh, identities, start=start, stop=self._config.stop, policy=policy, now_ms=now_ms
            )
            if not self._looked:
                states += self._moved(cluster, identities, known & set(found))
            ends = {f"{t}:{p}": end for (t, p), end in cluster.latest(found).items()} if self._until else {}
        except SourceUnavailableError:
            if not self._looked:
                raise
            return None
        return Discovery(topics, states, ends)

    def _moved(
        self, cluster: ClusterQuestions, identities: Mapping[str, str], there: set[Partition]
    ) -> list[PartitionState]:
        """Partitions of earlier runs that do not reach (back) to our position, where the policy has them go on.

        One that ends before our position would otherwise count as read up to its end, whatever comes there.
        """
        wanted = {
            (s.topic, s.partition): s
            for s in self._states.values()
            if (s.topic, s.partition) in there and not s.ended() and s.identity == identities[s.topic]
        }
        offsets = in_range(
            cluster,
            {partition: state.offset for partition, state in wanted.items()},
            policy=self._config.on_out_of_range,
            ways_out=ANOTHER_POSITION,
        )
        return [s.reset(offsets[p]) for p, s in wanted.items() if offsets[p] != s.offset]

    def _on_discovered(self, found: Discovery | None) -> None:
        self._problems.pop("discovery", None)
        if found is None:
            self._problems["discovery"] = "the cluster was away at the last look"
        else:
            self._take(found)
        again = self._config.discovery_interval
        if again is None or self._bounded:
            for reader in self._context.registered_readers():
                self._context.signal_no_more_splits(reader)
            return
        self._context.call_async(self._discover, self._on_discovered, after_s=again.total_seconds())

    def _take(self, found: Discovery) -> None:
        self._check(found.topics)
        self._states.update({state.split_id: state for state in found.states})
        self._unsealed.update(state.split_id for state in found.states)
        if not self._looked:
            self._ends = found.ends
        self._found_once = self._looked = True
        if not self._checking and self._keys_may_meet():
            self._checking = True
            self._tell_all(CheckKeys())
        self._assigner.add(s for s, p in self._states.items() if self._config.selects(p.topic) and not self._ended(s))

    def _keys_may_meet(self) -> bool:
        """Whether a key may come from two partitions unordered: of those there are, or of one that is added later."""
        if self._config.same_key != "refuse" or self._config.order_by is not None:
            return False
        selected = sum(self._config.selects(state.topic) for state in self._states.values())
        return selected > 1 or (self._config.discovery_interval is not None and not self._bounded)

    def _check(self, topics: Sequence[Topic]) -> None:
        """A topic that is missing, or that another one of the same name took the place of, is refused."""
        identities = {topic.name: topic.identity for topic in topics}
        missing = [name for name in self._config.topics if name not in identities]
        if missing:
            raise SourceError(
                f'Topic "{missing[0]}" does not exist at {self._config.bootstrap_servers}. Create it, or correct '
                "source.topics; topics that come later are found by source.topic_pattern."
            )
        for state in self._states.values():
            now = identities.get(state.topic)
            if now is not None and now != state.identity and self._config.selects(state.topic):
                raise LogLostError(
                    f"Topic {state.topic} was deleted and created again: offset {state.offset} of partition "
                    f"{state.partition} is of the old one. Start another pipeline for the new topic."
                )

    # -- assignment

    def add_reader(self, subtask_id: int) -> None:
        for update in self._schemas.updates():
            if update.schemas:
                self._context.send_event(subtask_id, update.to_event())
        if self._checking:
            self._context.send_event(subtask_id, CheckKeys())
        if self._limit_ms is not None:
            self._context.send_event(subtask_id, AlignWatermarks(self._limit_ms))
        self._assigner.give()
        self._assigner.balance()
        if self._looked and (self._bounded or self._config.discovery_interval is None):
            self._context.signal_no_more_splits(subtask_id)

    def handle_split_request(self, subtask_id: int) -> None:
        """Partitions are given, not asked for."""

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        """No bounded splits here: a partition that reached its end is known by its state."""

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        """Partitions of a lost reader, or of one that let them go; in the state last sealed."""
        gone = subtask_id not in self._context.registered_readers()
        if gone and self._alignment is not None:
            self._alignment.forget(subtask_id)
        for split in splits:
            if not isinstance(split, PartitionSplit):
                raise ProtocolError(f"{split.split_id} is none of this enumerator's splits")
            self._keep(PartitionState.from_json(split.state))
        ended = [split.split_id for split in splits if self._ended(split.split_id)]
        self._assigner.forget(ended)
        self._assigner.back(split.split_id for split in splits if split.split_id not in ended)

    def _keep(self, sealed: PartitionState) -> None:
        """What the coordinator knows of a partition, unless that is the position that was given up here."""
        known = self._states.get(sealed.split_id)
        if known is None or sealed.resets >= known.resets:
            self._states[sealed.split_id] = sealed
            self._unsealed.discard(sealed.split_id)

    def _split(self, split_id: str) -> PartitionSplit:
        return PartitionSplit(split_id, self._states[split_id].to_json(), self._ends.get(split_id))

    def _ended(self, split_id: str) -> bool:
        return self._states[split_id].ended(self._ends.get(split_id))

    # -- events

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        if not isinstance(event, EnumeratorEvent):
            raise ProtocolError(f"The Kafka enumerator does not know the event {type(event).__name__}")
        match event:
            case SchemaChangeRequest(table, schema):
                update = self._schemas.request(table, schema)
                if update is not None:
                    self._tell_all(update.to_event())
            case TableHome(table, split_id):
                self._homes.read(table, split_id)
            case TableEmptied(table, split_id, offset, change):
                self._homes.emptied(table, split_id, offset=offset, change=change)
            case KeysRead(name, split_id, hashes, all_told):
                self._keys.told(name, split_id, hashes, all_told=all_told)
            case WatermarksReached(splits):
                self._align(subtask_id, splits)
            case _:
                assert_never(event)

    def _align(self, subtask_id: int, splits: Mapping[str, int]) -> None:
        if self._alignment is None:
            raise ProtocolError("A reader told watermarks, which nobody asked for")
        self._alignment.report(subtask_id, splits)
        if self._alignment.limit_ms != self._limit_ms:
            self._limit_ms = self._alignment.limit_ms
            self._tell_all(AlignWatermarks(self._limit_ms))

    def _tell_all(self, event: ReaderEvent) -> None:
        for reader in self._context.registered_readers():
            self._context.send_event(reader, event)

    # -- epochs

    def epoch_sealed(self, epoch: int, splits: Mapping[str, Any]) -> EpochShare:
        """Schemas that begin with this epoch; whether everything was read; balance again."""
        for data in splits.values():
            self._keep(PartitionState.from_json(data))
        tables, documents = self._tables(epoch, splits)
        self._assigner.forget([split_id for split_id in splits if self._ended(split_id)])
        self._finished = self._bounded and self._looked and self._all_ended()
        self._assigner.balance()
        return EpochShare(tables, documents, final=self._finished)

    def _tables(
        self, epoch: int, splits: Mapping[str, Any]
    ) -> tuple[dict[TableId, TableEpoch], dict[str, SchemaDocument]]:
        """Tables whose schema begins with this epoch, or that it empties; and the schemas' documents."""
        update, emptied = self._schemas.sealed(epoch), self._homes.sealed(splits)
        tables = {}
        for table in (*update.schemas, *(table for table in emptied if table not in update.schemas)):
            changes = (*map(event_from_json, emptied.get(table, ())), *update.changes.get(table, ()))
            tables[table] = TableEpoch(self._schemas.tables[table].fingerprint(), snapshot=False, changes=changes)
        documents = {schema.fingerprint(): SchemaDocument.of(schema) for schema in update.schemas.values()}
        return tables, documents

    def snapshot_state(self, checkpoint_id: int) -> dict[str, Any]:
        return {
            "kind": "kafka",
            "version": STATE_VERSION,
            "found_once": self._found_once,
            "waiting": [self._states[s].to_json() for s in sorted(self._assigner.waiting | self._unsealed)],
            "tables": {str(table): schema.fingerprint() for table, schema in self._schemas.tables.items()},
            **self._homes.to_json(),
        }

    @property
    def wants_seal(self) -> bool:
        """A bounded run that has nothing (more) to read still ends with an epoch."""
        return self._bounded and self._looked and not self._finished and self._all_ended()

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """A partition is read on for its other tables; the driver drops the rows of these."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The consumer group is told by `KafkaSource.acknowledge`."""

    def _all_ended(self) -> bool:
        return all(self._ended(s) for s, state in self._states.items() if self._config.selects(state.topic))

    # -- figures

    def statistics(self) -> EnumeratorStatistics:
        tables = {table: TableProgress("stream") for table in self._schemas.tables}
        return EnumeratorStatistics(tables, len(self._assigner.waiting), self.problems)

    @property
    def problems(self) -> dict[str, str]:
        """What went wrong without ending the run: the last look at the cluster, keys that are not compared,
        positions that were set anew.
        """
        unchecked = {
            f"keys of {table}": "too many to look for all of them in two partitions" for table in self._keys.full
        }
        reset = {
            split_id: f"did not have its position {state.resets} times: on_out_of_range said where to go on"
            for split_id, state in self._states.items()
            if state.resets
        }
        return {**self._problems, **unchecked, **reset}
