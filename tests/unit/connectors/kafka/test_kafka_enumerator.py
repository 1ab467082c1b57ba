"""The Kafka enumerator without a broker: what is found, shared, moved, ended and refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from raycdc.connectors.kafka.cluster.client import KafkaTopic
from raycdc.connectors.kafka.cluster.discovery import Partition
from raycdc.connectors.kafka.enumeration.enumerator import KafkaEnumerator, SealedTopics
from raycdc.connectors.kafka.events import SchemaChangeRequest, SchemasInForce, TableEmptied, TablePartition
from raycdc.connectors.kafka.plugin import KafkaSourceConfig, StopMode, StopOptions
from raycdc.connectors.kafka.split import NO_DECODER_STATE, PartitionState
from raycdc.errors import DataError, LogLostError, SourceUnavailableError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import TruncateTableEvent
from raycdc.model.rules.rate_limit import Until
from raycdc.source.protocol.metrics import SplitLoad
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import PartitionSplit, SourceSplit
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import SealedSplit


class Cluster:
    """Topics with as many partitions as told, each holding 10 to 100."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.identities = dict.fromkeys(partitions, "1")
        self.away = False
        self.low, self.high = 10, 100

    def topics(self) -> list[KafkaTopic]:
        if self.away:
            raise SourceUnavailableError("away")
        return [KafkaTopic(name, self.identities[name], tuple(range(n))) for name, n in self.partitions.items()]

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 10)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.high)

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        return dict.fromkeys(partitions, (self.low, self.high))

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 50)

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {}


PRODUCT = TableId("shop", "product")
KEYED = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))


class Context:
    """The enumerator's surroundings; asynchronous calls run when the test says so."""

    def __init__(self) -> None:
        self.readers: list[int] = []
        self.assigned: dict[int, dict[str, PartitionSplit]] = {}
        self.removed: list[tuple[int, str]] = []
        self.finished: list[int] = []
        self.events: list[tuple[int, SourceEvent]] = []
        self.calls: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.open_epoch = 1
        self.now_s = 0.0

    def split_loads(self) -> dict[str, SplitLoad]:
        return {}

    def may_have_splits(self, subtask_id: int) -> bool:
        return subtask_id in self.registered_readers()

    def registered_readers(self) -> Sequence[int]:
        return self.readers

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None:
        for reader, splits in assignment.items():
            for split in splits:
                assert isinstance(split, PartitionSplit)
                self.assigned.setdefault(reader, {})[split.split_id] = split

    def end_split(self, split_id: str, *, attempt: int) -> None: ...

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None:
        self.removed += [(subtask_id, split_id) for split_id in split_ids]

    def send_event(self, subtask_id: int, event: SourceEvent) -> None:
        self.events.append((subtask_id, event))

    def signal_no_more_splits(self, subtask_id: int) -> None:
        self.finished.append(subtask_id)

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        self.calls.append((call, handler))

    def run(self) -> None:
        """Carry out the oldest asynchronous call."""
        call, handler = self.calls.pop(0)
        handler(call())

    def owned(self) -> dict[int, list[str]]:
        return {reader: sorted(splits) for reader, splits in self.assigned.items() if splits}


def start(
    cluster: Cluster, *, readers: int = 1, until: Until | None = None, last: Manifest | None = None, **options: Any
) -> tuple[KafkaEnumerator, Context]:
    settings = {"topics": sorted(cluster.partitions), "discovery_interval": "1ms", **options}
    config = KafkaSourceConfig(bootstrap_servers="k:1", **{"format": {"type": "maxwell-json"}, **settings})
    context = Context()
    enumerator = KafkaEnumerator(context, config, cluster=lambda: cluster, until=until)
    if last is not None:
        enumerator.restore(last, document=lambda name: SchemaDocument({"fingerprint": name}))
    enumerator.start()
    for reader in range(readers):
        context.readers.append(reader)
        enumerator.add_reader(reader)
    context.run()
    return enumerator, context


def states(context: Context, **offsets: int) -> dict[str, SealedSplit]:
    """What a manifest has of all assigned partitions; `offsets` by partition number."""
    found = {s: split.state for splits in context.assigned.values() for s, split in splits.items()}
    return {split_id: moved(state, offsets.get(f"p{split_id.split(':')[1]}", 10)) for split_id, state in found.items()}


def moved(state: SealedSplit, offset: int) -> SealedSplit:
    """The state of a partition that was read up to `offset`."""
    return PartitionState.of(state).moved(offset, NO_DECODER_STATE).sealed()


def offset_in(split: PartitionSplit) -> int:
    return PartitionState.of(split.state).offset


def seal(enumerator: KafkaEnumerator, context: Context, splits: dict[str, SealedSplit], epoch: int = 1) -> Manifest:
    share = enumerator.epoch_sealed(epoch, splits)
    context.open_epoch = epoch + 1
    return Manifest(
        epoch=epoch,
        generation=1,
        created_ms=0,
        from_splits={},
        to_splits=splits,
        enumerator=enumerator.snapshot_state(epoch),
        tables=dict(share.tables),
        final=bool(share.final),
    )


def test_partitions_are_shared_and_new_ones_found_later_begin_at_their_beginning() -> None:
    cluster = Cluster(m=4)
    enumerator, context = start(cluster, readers=3, startup="latest")
    assert context.owned() == {0: ["m:0", "m:3"], 1: ["m:1"], 2: ["m:2"]}
    cluster.partitions["m"] = 5
    context.run()
    new = context.assigned[1]["m:4"]
    assert offset_in(new) == 10
    assert offset_in(context.assigned[0]["m:0"]) == 100
    assert context.finished == []
    assert repr(enumerator)


def test_more_readers_than_partitions_leave_some_idle() -> None:
    _, context = start(Cluster(m=2), readers=4)
    assert context.owned() == {0: ["m:0"], 1: ["m:1"]}


def test_with_discovery_off_no_more_splits_follows_the_first_assignment() -> None:
    _, context = start(Cluster(m=1), readers=2, discovery_interval="off")
    assert (context.finished, context.calls) == ([0, 1], [])


def test_a_reader_that_joins_gets_its_share_after_the_next_seal() -> None:
    enumerator, context = start(Cluster(m=4))
    context.readers.append(1)
    enumerator.add_reader(1)
    assert context.removed == [(0, "m:3"), (0, "m:2")]
    for _, split_id in context.removed:
        split = context.assigned[0].pop(split_id)
        sealed = moved(split.state, 42)
        enumerator.add_splits_back([PartitionSplit(split_id, sealed)], 0)
    assert context.owned() == {0: ["m:0", "m:1"], 1: ["m:2", "m:3"]}
    assert offset_in(context.assigned[1]["m:3"]) == 42


def test_a_lost_readers_partitions_go_to_the_others() -> None:
    enumerator, context = start(Cluster(m=2), readers=2)
    context.readers.remove(1)
    enumerator.add_splits_back([context.assigned.pop(1)["m:1"]], 1)
    assert context.owned() == {0: ["m:0", "m:1"]}


def test_a_restart_goes_on_from_the_manifest_and_keeps_what_was_given_to_nobody() -> None:
    cluster = Cluster(m=2)
    enumerator, context = start(cluster)
    cluster.partitions["m"] = 3
    context.readers.clear()
    context.run()
    last = seal(enumerator, context, states(context, p0=20, p1=30))
    assert [state.partition for state in SealedTopics.of(last.enumerator).waiting] == [2]
    cluster.partitions["m"] = 4
    _, again = start(cluster, last=last, startup="latest")
    offsets = {s: offset_in(split) for s, split in again.assigned[0].items()}
    assert offsets == {"m:0": 20, "m:1": 30, "m:2": 10, "m:3": 10}


def test_a_topic_that_was_deleted_and_created_again_is_refused() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster)
    last = seal(enumerator, context, states(context))
    cluster.identities["m"] = "2"
    with pytest.raises(LogLostError, match="deleted and created again"):
        start(cluster, last=last)


@pytest.mark.parametrize(("low", "high"), [(50, 100), (10, 30)])
def test_a_sealed_position_that_a_partition_does_not_have_is_refused_or_set_by_policy(low: int, high: int) -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster)
    last = seal(enumerator, context, states(context, p0=40))
    cluster.low, cluster.high = low, high
    with pytest.raises(LogLostError, match=rf"m:0@40 is not in the topic.* it holds {low} to {high}"):
        start(cluster, last=last, until=Until.CAUGHT_UP)
    moved = {}
    for policy in ("earliest", "latest"):
        _, again = start(cluster, last=last, until=Until.CAUGHT_UP, on_out_of_range=policy)
        found = again.assigned.get(0, {}).get("m:0")
        moved[policy] = None if found is None else offset_in(found)
    # From the end there is nothing to read in a run up to the end.
    assert moved == {"earliest": low, "latest": None}


def test_a_seal_looks_only_at_partitions_whose_state_is_another() -> None:
    looked: list[str] = []

    class Looked(SealedSplit):
        __slots__ = ()

        def to_json(self) -> Any:
            found = super().to_json()
            looked.append(f"p{found['position']['partition']}")
            return found

    enumerator, context = start(Cluster(m=3))
    sealed: dict[str, SealedSplit] = {name: Looked(state.to_json()) for name, state in states(context).items()}
    seal(enumerator, context, sealed)
    other = Looked(moved(sealed["m:2"], 11).to_json())
    looked.clear()
    seal(enumerator, context, {**sealed, "m:2": other}, epoch=2)
    assert set(looked) == {"p2"}


def test_a_position_set_anew_is_in_the_state_before_anybody_read_from_there() -> None:
    cluster = Cluster(m=2)
    enumerator, context = start(cluster)
    sealed = states(context, p0=40, p1=30)
    last = seal(enumerator, context, sealed)
    cluster.high = 30
    again, _ = start(cluster, last=last, until=Until.CAUGHT_UP, on_out_of_range="latest")
    last = seal(again, Context(), sealed, epoch=2)
    # Had the position been kept, what comes now up to it would be passed over in silence.
    cluster.high = 60
    _, later = start(cluster, last=last, on_out_of_range="latest")
    assert offset_in(later.assigned[0]["m:0"]) == 30
    assert PartitionState.of(later.assigned[0]["m:0"].state).resets == 1
    assert "did not have its position 1 times" in again.statistics().problems["m:0"]


def test_a_bounded_run_is_over_when_every_partition_was_sealed_at_its_end() -> None:
    enumerator, context = start(Cluster(m=2), stop=StopOptions(mode=StopMode.LATEST))
    assert not seal(enumerator, context, states(context, p0=100, p1=60)).final
    assert seal(enumerator, context, states(context, p0=100, p1=100), epoch=2).final
    assert context.finished == [0]


def test_every_run_stops_where_the_configuration_says_then_and_not_where_an_earlier_one_did() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster, stop=StopOptions(mode=StopMode.LATEST))
    last = seal(enumerator, context, states(context, p0=100))
    assert last.final
    cluster.high = 120
    again, later = start(cluster, stop=StopOptions(mode=StopMode.LATEST), last=last)
    assert offset_in(later.assigned[0]["m:0"]) == 100
    assert not seal(again, later, states(later, p0=110), epoch=2).final
    last = seal(again, later, states(later, p0=120), epoch=3)
    assert last.final
    cluster.high, cluster.partitions["m"] = 150, 2
    given = StopOptions(mode=StopMode.OFFSETS, offsets={"m:0": 130, "m:1": 20})
    enumerator, context = start(cluster, stop=given, last=last)
    stops = {name: PartitionState.of(split.state).stop for name, split in context.assigned[0].items()}
    assert stops == {"m:0": 130, "m:1": 20}
    last = seal(enumerator, context, states(context, p0=130, p1=20))
    assert last.final
    _, on = start(cluster, last=last)
    assert {name: offset_in(split) for name, split in on.assigned[0].items()} == {"m:0": 130, "m:1": 20}
    assert all(PartitionState.of(split.state).stop is None for split in on.assigned[0].values())


def test_a_stop_that_was_reached_before_its_messages_expired_is_no_lost_log() -> None:
    cluster = Cluster(m=1)
    given = StopOptions(mode=StopMode.OFFSETS, offsets={"m:0": 40})
    enumerator, context = start(cluster, stop=given)
    last = seal(enumerator, context, states(context, p0=40))
    cluster.low = 60
    again, later = start(cluster, stop=given, last=last)
    assert (later.assigned, again.wants_seal) == ({}, True)
    with pytest.raises(LogLostError, match=r"m:0@40 is not in the topic any more"):
        start(cluster, last=last)


def test_a_run_until_caught_up_ends_at_the_positions_of_its_start_even_with_nothing_to_read() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster, until=Until.CAUGHT_UP)
    assert context.assigned[0]["m:0"].until == 100
    last = seal(enumerator, context, states(context, p0=100))
    assert last.final
    again, later = start(cluster, until=Until.CAUGHT_UP, last=last)
    assert (later.assigned, again.wants_seal) == ({}, True)
    assert seal(again, later, dict(last.to_splits), epoch=2).final
    assert not again.wants_seal


def test_a_run_that_began_at_the_end_and_read_nothing_is_gone_on_from_there() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster, until=Until.CAUGHT_UP, startup="latest")
    assert context.assigned == {}
    last = seal(enumerator, context, {})
    assert last.final
    cluster.high = 120
    _, again = start(cluster, until=Until.CAUGHT_UP, startup="latest", last=last)
    assert offset_in(again.assigned[0]["m:0"]) == 100


def test_a_cluster_that_is_away_later_is_looked_for_again() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster)
    cluster.away = True
    context.run()
    assert "unavailable" in enumerator.statistics().problems["discovery"]
    cluster.away, cluster.partitions["m"] = False, 2
    context.run()
    assert (context.owned(), enumerator.statistics().problems) == ({0: ["m:0", "m:1"]}, {})


def test_everyone_hears_of_a_schema_and_its_changes_are_in_the_epoch_it_begins_with() -> None:
    enumerator, context = start(Cluster(m=2), readers=2)
    request = SchemaChangeRequest(PRODUCT, KEYED)
    enumerator.handle_source_event(0, request)
    enumerator.handle_source_event(1, request)
    told = [(reader, event.from_epoch) for reader, event in context.events if isinstance(event, SchemasInForce)]
    assert told == [(0, 2), (1, 2)]
    assert seal(enumerator, context, states(context)).tables == {}
    (entry,) = seal(enumerator, context, states(context), epoch=2).tables.values()
    assert [change.type for change in entry.changes] == ["create_table"]


def know(enumerator: KafkaEnumerator) -> None:
    enumerator.handle_source_event(0, SchemaChangeRequest(PRODUCT, KEYED))


def empty(enumerator: KafkaEnumerator, *, offset: int, split: str = "m:0") -> None:
    enumerator.handle_source_event(0, TableEmptied(PRODUCT, split, offset, TruncateTableEvent(PRODUCT)))


def test_a_truncation_is_in_the_epoch_that_passes_it_and_not_in_that_of_a_lost_reader() -> None:
    enumerator, context = start(Cluster(m=1))
    know(enumerator)
    seal(enumerator, context, states(context))
    seal(enumerator, context, states(context), epoch=2)
    empty(enumerator, offset=20)
    assert seal(enumerator, context, states(context, p0=20), epoch=3).tables == {}
    empty(enumerator, offset=20)
    (entry,) = seal(enumerator, context, states(context, p0=21), epoch=4).tables.values()
    assert [change.type for change in entry.changes] == ["truncate_table"]
    assert seal(enumerator, context, states(context, p0=22), epoch=5).tables == {}


def test_a_truncation_of_a_table_with_rows_in_another_partition_is_refused_also_after_a_restart() -> None:
    cluster = Cluster(m=2)
    enumerator, context = start(cluster)
    know(enumerator)
    enumerator.handle_source_event(0, TablePartition(PRODUCT, "m:1"))
    last = seal(enumerator, context, states(context))
    with pytest.raises(DataError, match=r"partition m:0 removes all rows of shop.product, and partition m:1"):
        empty(enumerator, offset=20)
    again, _ = start(cluster, last=last)
    with pytest.raises(DataError, match="their order is unknown"):
        empty(again, offset=20)


def test_a_truncation_is_forgotten_where_ddl_messages_are_passed_over_since() -> None:
    cluster = Cluster(m=2)
    enumerator, context = start(cluster)
    know(enumerator)
    empty(enumerator, offset=20)
    last = seal(enumerator, context, states(context))
    row = TablePartition(PRODUCT, "m:1")
    again, _ = start(cluster, last=last)
    with pytest.raises(DataError, match=r'source\.format\.ddl = "ignore"'):
        again.handle_source_event(0, row)
    ignoring, context = start(cluster, last=last, format={"type": "maxwell-json", "ddl": "ignore"})
    ignoring.handle_source_event(0, row)
    assert SealedTopics.of(ignoring.snapshot_state(2)).homes.emptied == {}


def test_rows_that_come_from_elsewhere_after_a_truncation_are_refused() -> None:
    enumerator, _ = start(Cluster(m=2))
    empty(enumerator, offset=20)
    with pytest.raises(DataError, match="partition m:1 has rows of it"):
        enumerator.handle_source_event(0, TablePartition(PRODUCT, "m:1"))
