"""The Kafka reader and its enumerator without a broker: what is sealed, held, moved and refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.checkpoint.manifest import Manifest
from raycdc.connectors.kafka.client import Topic
from raycdc.connectors.kafka.enumerator import KafkaEnumerator
from raycdc.connectors.kafka.messages import Fetched
from raycdc.connectors.kafka.offsets import Partition
from raycdc.connectors.kafka.partition_reader import Fetch
from raycdc.connectors.kafka.plugin import KafkaSourceConfig, StopMode, StopOptions
from raycdc.connectors.kafka.reader import KafkaReader, ReaderSettings
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import LogLostError, SchemaError, SourceUnavailableError
from raycdc.formats.api import MessageBatch, Origin
from raycdc.formats.plugins import load_format
from raycdc.model import TableId
from raycdc.source.hand_off import LogRows
from raycdc.source.partitioned import ReaderContext
from raycdc.source.source_event import (
    AddSplits,
    EpochSealed,
    Message,
    Registered,
    RemoveSplits,
    SealEpoch,
    SourceEventWrapper,
    SplitsRemoved,
)
from raycdc.source.split import PartitionSplit, SourceSplit

TABLE = TableId("shop", "product")


def maxwell(row: dict[str, Any], kind: str = "insert", **fields: Any) -> bytes:
    message = {"database": "shop", "table": "product", "type": kind, "ts": 1_700_000_000, "data": row, **fields}
    return json.dumps(message).encode()


class Output:
    """Rows of the open epoch in memory."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str, pa.RecordBatch]] = []
        self.sealed: dict[int, list[dict[str, Any]]] = {}
        self.fingerprints: dict[int, set[str]] = {}

    @property
    def open_bytes(self) -> int:
        return sum(int(batch.nbytes) for _, _, batch in self.open)

    def collect(self, table: TableId, *, fingerprint: str, batch: pa.RecordBatch, split_id: str) -> None:
        self.open.append((str(table), fingerprint, batch))

    def publish(self, segments: Sequence[dict[str, Any]]) -> None:
        raise AssertionError("no chunks here")

    def write_delta(self, rows: Sequence[LogRows], *, fingerprint: str, split_id: str) -> tuple[dict[str, Any], ...]:
        raise AssertionError("no chunks here")

    def cut(self, epoch: int) -> tuple[dict[str, Any], ...]:
        self.sealed[epoch] = [row for _, _, batch in self.open for row in batch.to_pylist()]
        self.fingerprints[epoch] = {fingerprint for _, fingerprint, _ in self.open}
        self.open = []
        return ()

    def release(self, paths: Sequence[str]) -> None: ...

    def close(self) -> None: ...


class Partitions:
    """A scripted fetcher."""

    def __init__(self) -> None:
        self.fetches: list[Fetch] = []
        self.calls: list[tuple[str, Any]] = []

    def add(self, topic: str, partition: int, offset: int) -> None:
        self.calls.append(("add", (topic, partition, offset)))

    def remove(self, split_id: str) -> None:
        self.calls.append(("remove", split_id))

    def pause(self, split_ids: Iterable[str]) -> None:
        self.calls.append(("pause", sorted(split_ids)))

    def resume(self, split_ids: Iterable[str]) -> None:
        self.calls.append(("resume", sorted(split_ids)))

    def poll(self) -> Fetch | None:
        return self.fetches.pop(0) if self.fetches else None

    def close(self) -> None: ...


class Rig:
    """A reader with its surroundings scripted."""

    def __init__(self, *, columns: str | None = "id BIGINT, name STRING, PRIMARY KEY (id)", **options: Any) -> None:
        self.output = Output()
        self.partitions = Partitions()
        self.sent: list[Message] = []
        self.now_s = 0.0
        self._format = load_format("maxwell-json", columns=columns, **options)
        context = ReaderContext(self.output, self.sent.append, lambda: None, lambda: self.now_s, 1 << 20)
        self.reader = KafkaReader(
            context,
            partitions=self.partitions,
            make_decoder=self._format.decoder,
            settings=ReaderSettings(30.0, aligned=True, dead_letters=options.get("on_error") == "dead-letter"),
            wall_ms=lambda: 1_700_000_001_000,
        )
        self.reader.handle(Registered(1))

    def add(self, *, offset: int = 0, stop: int | None = None, partition: int = 0, until: int | None = None) -> None:
        state = PartitionState("m", partition, "id", offset, stop)
        self.reader.handle(AddSplits((PartitionSplit(state.split_id, state.to_json(), until).to_json(),)))

    def bring(
        self, *messages: bytes | None, first: int = 0, partition: int = 0, next_offset: int | None = None
    ) -> None:
        offsets = np.arange(first, first + len(messages))
        batch = MessageBatch(Origin("m", 0), pa.array(list(messages), pa.large_binary()), offsets)
        end = next_offset or first + len(messages)
        part = Fetched("m:0", end, batch if messages else None, 10, 1_700_000_000_500, 1_700_000_000_000)
        self.partitions.fetches.append(Fetch((part,), {}, 10))
        self.work()

    def work(self) -> None:
        for _ in range(5):
            self.reader.poll_next()

    def allow(self) -> None:
        """Answer the schema requests as the enumerator does: from the next epoch on."""
        asked = [
            m.event for m in self.sent if isinstance(m, SourceEventWrapper) and m.event["type"] == "schema_request"
        ]
        tables = {event["table"]: event["schema"] for event in asked}
        self.reader.handle(SourceEventWrapper({"type": "schemas", "from_epoch": 0, "tables": tables}))
        self.work()

    def seal(self, epoch: int) -> EpochSealed:
        self.reader.handle(SealEpoch(epoch))
        self.work()
        return [m for m in self.sent if isinstance(m, EpochSealed) and m.epoch == epoch][-1]

    def offset(self, report: EpochSealed, split: str = "m:0") -> int:
        return int(report.splits[split]["position"]["offset"])


def test_a_batch_waits_for_its_schema_and_its_position_with_it() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    assert rig.reader.seal_matters == (True, False)
    first = rig.seal(1)
    assert (rig.output.sealed[1], rig.offset(first), first.tables) == ([], 0, {})
    asked = next(m.event for m in rig.sent if isinstance(m, SourceEventWrapper))
    event = {"type": "schemas", "from_epoch": 3, "tables": {asked["table"]: asked["schema"]}}
    rig.reader.handle(SourceEventWrapper(event))
    second = rig.seal(2)
    assert (rig.output.sealed[2], rig.offset(second)) == ([], 0)
    rig.work()
    third = rig.seal(3)
    assert [row["id"] for row in rig.output.sealed[3]] == [1]
    assert (rig.offset(third), list(third.tables)) == (1, ["shop.product"])


def test_rows_are_numbered_in_order_and_positions_are_sealed_with_them() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}), maxwell({"id": 1, "name": "b"}, "update", old={"name": "a"}))
    rig.allow()
    report = rig.seal(1)
    rows = [(row["_op"], row["name"], row["_seq"]) for row in rig.output.sealed[1]]
    assert rows == [(0, "a", 0), (1, "a", 1), (2, "b", 2)]
    assert rig.offset(report) == 2
    assert report.watermark_ms == 1_700_000_000_000


def test_a_partition_that_is_taken_away_is_answered_after_its_positions_were_sealed() -> None:
    rig = Rig()
    rig.add()
    rig.add(partition=1)
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.reader.handle(RemoveSplits(("m:0",)))
    rig.bring(maxwell({"id": 2, "name": "b"}), first=1)
    assert not any(isinstance(m, SplitsRemoved) for m in rig.sent)
    assert rig.reader.seal_matters[0]
    report = rig.seal(1)
    assert ([row["id"] for row in rig.output.sealed[1]], rig.offset(report)) == ([1], 1)
    (removed,) = [m for m in rig.sent if isinstance(m, SplitsRemoved)]
    assert rig.sent.index(removed) > rig.sent.index(report)
    assert removed.states["m:0"]["position"]["offset"] == 1
    assert list(rig.seal(2).splits) == ["m:1"]


def test_nothing_at_or_beyond_the_end_is_read_and_the_end_asks_for_a_seal() -> None:
    rig = Rig()
    rig.add(stop=2)
    rig.bring(*(maxwell({"id": i, "name": "a"}) for i in range(4)))
    rig.allow()
    report = rig.seal(1)
    assert ([row["id"] for row in rig.output.sealed[1]], rig.offset(report)) == ([0, 1], 2)


def test_a_position_that_only_markers_moved_is_sealed_too() -> None:
    rig = Rig()
    rig.add(stop=5)
    rig.bring(next_offset=5)
    assert rig.reader.heartbeat().metrics["dirty"]
    assert rig.offset(rig.seal(1)) == 5


def test_a_new_field_waits_for_the_next_epoch_and_older_rows_have_null_in_it() -> None:
    rig = Rig(columns=None)
    rig.add()
    rig.bring(maxwell({"id": 1}, primary_key_columns=["id"]))
    rig.allow()
    rig.seal(1)
    rig.bring(maxwell({"id": 2, "note": "x"}, primary_key_columns=["id"]), first=1)
    rig.seal(2)
    rig.allow()
    rig.seal(3)
    assert (rig.output.sealed[2], [row["note"] for row in rig.output.sealed[3]]) == ([], ["x"])
    rig.bring(maxwell({"id": 3}, primary_key_columns=["id"]), first=2)
    rig.seal(4)
    assert [(row["id"], row["note"]) for row in rig.output.sealed[4]] == [(3, None)]


def test_a_bad_message_ends_the_job_by_name_after_what_came_before_it() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    with pytest.raises(Exception, match=r"m.0.*2.*corrupt"):
        rig.bring(maxwell({"id": 2, "name": "b"}), b"{", first=1)
    assert [row["id"] for _, _, batch in rig.output.open for row in batch.to_pylist()] == [1, 2]


def test_a_bad_message_becomes_a_row_where_dead_letters_are_kept() -> None:
    rig = Rig(on_error="dead-letter")
    rig.add()
    rig.bring(b"{", maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.seal(1)
    letters = [row for row in rig.output.sealed[1] if "reason" in row]
    assert [(row["topic"], row["offset"], row["value"]) for row in letters] == [("m", 0, b"{")]
    assert "corrupt" in letters[0]["reason"]


def test_truncation_is_refused_by_name() -> None:
    rig = Rig()
    rig.add()
    statement = {"type": "table-drop", "database": "shop", "table": "product", "ts": 1, "sql": "DROP TABLE product"}
    with pytest.raises(SchemaError, match="DROP TABLE product"):
        rig.bring(json.dumps(statement).encode())


def test_a_partition_that_is_too_far_ahead_waits() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.reader.handle(SourceEventWrapper({"type": "align", "limit_ms": 1_699_999_999_000}))
    rig.work()
    rig.reader.handle(SourceEventWrapper({"type": "align", "limit_ms": 1_700_000_009_000}))
    rig.work()
    assert [call for call in rig.partitions.calls if call[1] == ["m:0"]] == [("pause", ["m:0"]), ("resume", ["m:0"])]


def test_the_figures_every_source_reports() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.partitions.fetches.append(Fetch((), {"m:0": 11}, 0))
    rig.now_s = 2.0
    rig.work()
    figures = rig.reader.metrics()
    names = ("currentFetchEventTimeLag", "currentEmitEventTimeLag", "sourceIdleTime", "pendingRecords", "watermarkLag")
    assert [figures[name] for name in names] == [500, 1000, 2000, 10, 1000]


# --- the enumerator ---------------------------------------------------------------------------------------------------


class Cluster:
    """Topics with as many partitions as told, each holding 10 to 100."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.identities = dict.fromkeys(partitions, "1")
        self.committed_offsets: list[Mapping[Partition, int]] = []
        self.away = False

    def topics(self) -> list[Topic]:
        if self.away:
            raise SourceUnavailableError("away")
        return [Topic(name, self.identities[name], tuple(range(n))) for name, n in self.partitions.items()]

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 10)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 100)

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 50)

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {}

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self.committed_offsets.append(offsets)


class Context:
    """The enumerator's surroundings; asynchronous calls run when the test says so."""

    def __init__(self) -> None:
        self.readers: list[int] = []
        self.assigned: dict[int, dict[str, PartitionSplit]] = {}
        self.removed: list[tuple[int, str]] = []
        self.finished: list[int] = []
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.calls: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.open_epoch = 1

    def registered_readers(self) -> Sequence[int]:
        return self.readers

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None:
        for reader, splits in assignment.items():
            for split in splits:
                assert isinstance(split, PartitionSplit)
                self.assigned.setdefault(reader, {})[split.split_id] = split

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None:
        self.removed += [(subtask_id, split_id) for split_id in split_ids]

    def send_event(self, subtask_id: int, event: dict[str, Any]) -> None:
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
    cluster: Cluster, *, readers: int = 1, until: str | None = None, last: Manifest | None = None, **options: Any
) -> tuple[KafkaEnumerator, Context]:
    settings = {"topics": sorted(cluster.partitions), "discovery_interval": "1ms", **options}
    config = KafkaSourceConfig(bootstrap_servers="k:1", format={"type": "maxwell-json"}, **settings)
    context = Context()
    enumerator = KafkaEnumerator(context, config, cluster=lambda: cluster, until=until)
    if last is not None:
        enumerator.restore(last, document=lambda _: {})
    enumerator.start()
    for reader in range(readers):
        context.readers.append(reader)
        enumerator.add_reader(reader)
    context.run()
    return enumerator, context


def states(context: Context, **offsets: int) -> dict[str, Any]:
    """What a manifest has of all assigned partitions; `offsets` by partition number."""
    found = {s: split.state for splits in context.assigned.values() for s, split in splits.items()}
    return {
        split_id: PartitionState.from_json(state).moved(offsets.get(f"p{split_id.split(':')[1]}", 10), {}).to_json()
        for split_id, state in found.items()
    }


def seal(enumerator: KafkaEnumerator, context: Context, splits: dict[str, Any], epoch: int = 1) -> Manifest:
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
    enumerator, context = start(cluster, readers=3, start="latest")
    assert context.owned() == {0: ["m:0", "m:3"], 1: ["m:1"], 2: ["m:2"]}
    cluster.partitions["m"] = 5
    context.run()
    new = context.assigned[1]["m:4"]
    assert new.state["position"]["offset"] == 10
    assert context.assigned[0]["m:0"].state["position"]["offset"] == 100
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
        sealed = PartitionState.from_json(split.state).moved(42, {}).to_json()
        enumerator.add_splits_back([PartitionSplit(split_id, sealed)], 0)
    assert context.owned() == {0: ["m:0", "m:1"], 1: ["m:2", "m:3"]}
    assert context.assigned[1]["m:3"].state["position"]["offset"] == 42


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
    assert [s["position"]["partition"] for s in last.enumerator["waiting"]] == [2]
    cluster.partitions["m"] = 4
    _, again = start(cluster, last=last, start="latest")
    offsets = {s: split.state["position"]["offset"] for s, split in again.assigned[0].items()}
    assert offsets == {"m:0": 20, "m:1": 30, "m:2": 10, "m:3": 10}


def test_a_topic_that_was_deleted_and_created_again_is_refused() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster)
    last = seal(enumerator, context, states(context))
    cluster.identities["m"] = "2"
    with pytest.raises(LogLostError, match="deleted and created again"):
        start(cluster, last=last)


def test_a_bounded_run_is_over_when_every_partition_was_sealed_at_its_end() -> None:
    enumerator, context = start(Cluster(m=2), stop=StopOptions(mode=StopMode.LATEST))
    assert not seal(enumerator, context, states(context, p0=100, p1=60)).final
    assert seal(enumerator, context, states(context, p0=100, p1=100), epoch=2).final
    assert context.finished == [0]


def test_a_run_until_caught_up_ends_at_the_positions_of_its_start_even_with_nothing_to_read() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster, until="caught-up")
    assert context.assigned[0]["m:0"].until == 100
    last = seal(enumerator, context, states(context, p0=100))
    assert last.final
    again, later = start(cluster, until="caught-up", last=last)
    assert (later.assigned, again.wants_seal) == ({}, True)
    assert seal(again, later, dict(last.to_splits), epoch=2).final
    assert not again.wants_seal


def test_a_cluster_that_is_away_later_is_looked_for_again() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster)
    cluster.away = True
    context.run()
    assert "away" in enumerator.problems["discovery"]
    cluster.away, cluster.partitions["m"] = False, 2
    context.run()
    assert (context.owned(), enumerator.problems) == ({0: ["m:0", "m:1"]}, {})


def test_offsets_go_to_the_group_when_the_sink_holds_the_epoch() -> None:
    cluster = Cluster(m=1)
    enumerator, context = start(cluster, group_id="watchers")
    seal(enumerator, context, states(context, p0=33))
    context.calls.clear()
    enumerator.notify_checkpoint_complete(1)
    context.run()
    assert cluster.committed_offsets == [{("m", 0): 33}]


def test_everyone_hears_of_a_schema_and_its_changes_are_in_the_epoch_it_begins_with() -> None:
    enumerator, context = start(Cluster(m=2), readers=2)
    columns = [{"name": "id", "type": {"kind": "int64"}, "nullable": True, "default": None}]
    request = {"type": "schema_request", "table": "shop.product", "schema": {"columns": columns, "primary_key": ["id"]}}
    enumerator.handle_source_event(0, request)
    enumerator.handle_source_event(1, request)
    told = [(reader, event["from_epoch"]) for reader, event in context.events if event["type"] == "schemas"]
    assert told == [(0, 2), (1, 2)]
    assert seal(enumerator, context, states(context)).tables == {}
    (entry,) = seal(enumerator, context, states(context), epoch=2).tables.values()
    assert [change["type"] for change in entry.changes] == ["create_table"]
