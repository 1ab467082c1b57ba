"""Writes changes to Kafka as messages of a CDC format: one transaction per task partition and epoch.

| step | action |
|---|---|
| `apply_schema` | creates and claims the topic; writes the change to ``ddl_topic``, with its record |
| `stage` | nothing, because the task that opens a transaction must also commit it |
| `commit` | tasks read the segments, encode, and write messages and their record in one transaction each |

If an epoch of a table is small, or its topic has one partition, one task writes the epoch, with messages in the order
of the log. Otherwise the keys of the epoch are divided among several tasks, its *parts*. Each part has an identity and
a record of its own. The number of parts is first written to the table's record, then the parts are written, and finally
the table's record ends the epoch. After a crash in between, the target holds a part of the epoch (`STEP_APPEND`), and
the missing parts are written from the same segments. Before the record of a target is read from the cluster, all of its
other writers are fenced (`tasks`). All changes of a key are written by one task in order, and have the same message
key, so they are in order in one partition.

`OffsetRecordRenewer` preserves the commit records of tables without changes. A record is the offset of a consumer
group, and brokers forget a group's offset ``offsets.retention.minutes`` (7 days by default) after the last commit. A
thread of the driver therefore writes records again that are getting old. Each is written in a transaction of its
target, so that a driver that was replaced cannot restore an old record.

`Topics` has the topics of a cluster.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic, TopicPartition

from raycdc.clients.kafka import admin_client, answer_of, list_topics
from raycdc.config.checks import CheckResult
from raycdc.core.failpoints import reach
from raycdc.core.secrets import read_again
from raycdc.errors import SinkError, SinkUnavailableError, TargetExistsError, ValueRefusedError
from raycdc.model import TableId
from raycdc.model.evolution import TruncateTableEvent
from raycdc.model.rules.names import topic_name
from raycdc.segments.tasks import ResultT, StageTask
from raycdc.segments.writing import partitions_for
from raycdc.sinks.api import (
    CHANGELOG,
    STEP_LAST,
    STEP_SCHEMA,
    STEP_TOMBSTONE,
    CommitVector,
    Sink,
    SinkContext,
    TableCommit,
    TargetShape,
)
from raycdc.sinks.changes import check_changes, creates
from raycdc.sinks.kafka.checks import check_sink
from raycdc.sinks.kafka.keyed_topics import KeyedTopics, compacted_topics, topic_settings
from raycdc.sinks.kafka.message_limits import MessageLimits
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from raycdc.sinks.kafka.tasks import (
    EMPTYING,
    Bar,
    EpochMessages,
    FormatSection,
    PlanParts,
    WriteChanges,
    WriteEpoch,
    WritePart,
    held,
    no_truncation,
    open_format,
    renew,
    seen,
)
from raycdc.sinks.kafka.transactions import (
    MESSAGE_BYTES_FROM,
    MESSAGE_BYTES_TO,
    TIMEOUT_S,
    KafkaTarget,
    identity_of,
    is_unreachable,
    topic_error,
)
from raycdc.sinks.steps import TargetVectors
from raycdc.sinks.task_inputs import by_partition

#: The age at which a record is written again. Clusters with a shorter retention are not supported.
RENEW_AFTER_S = 6 * 3600.0
#: The interval of the search for old records.
POLL_EVERY_S = 300.0


class OffsetRecordRenewer:
    """Renews commit records; see the module's docstring. `using` may be called by any thread, but only one thread at a
    time per table.
    """

    def __init__(self) -> None:
        self._locks: dict[TableId, threading.RLock] = {}
        self._written_s: dict[TableId, float] = {}
        self._targets: dict[TableId, KafkaTarget] = {}
        self._changing = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raycdc-kafka-records", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def using(self, table: TableId, target: KafkaTarget, *, writes: bool) -> Iterator[None]:
        """Lock the table's record during the block. `writes` is True if the block writes the record."""
        with self._changing:
            lock = self._locks.setdefault(table, threading.RLock())
        with lock:
            yield
            with self._changing:
                self._targets[table] = target
                # The age of a record that was only read is unknown, so it is renewed soon.
                self._written_s.setdefault(table, time.monotonic() - RENEW_AFTER_S)
                if writes:
                    self._written_s[table] = time.monotonic()

    def close(self) -> None:
        """End the thread, after a running renewal."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(POLL_EVERY_S):
            with self._changing:
                due_s = time.monotonic() - RENEW_AFTER_S
                due = [table for table, written_s in self._written_s.items() if written_s <= due_s]
            for table in due:
                if not self._closed.is_set():
                    self._renew(table)

    def _renew(self, table: TableId) -> None:
        target = self._targets[table]
        # If the cluster is unreachable, the next round retries. The record is kept for days.
        with contextlib.suppress(SinkError), self.using(table, target, writes=True):
            renew(target)


#: The id that brokers without topic ids return.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class Topics:
    """The topics of a cluster: it returns their partitions and ids, checks if they have messages, and creates topics.
    Methods raise `SinkError` if the cluster does not answer.
    """

    def __init__(self, config: KafkaSinkConfig, properties: dict[str, str]) -> None:
        self._config = config
        self._properties = properties
        self._admin = admin_client({**properties, "log_level": 0}, section="sink")

    def require(self) -> None:
        """Raise `SinkError` if the cluster cannot be reached."""
        servers = self._config.bootstrap_servers
        try:
            list_topics(self._admin, servers, timeout_s=TIMEOUT_S)
        except KafkaException as cause:
            text = f"Kafka at {servers} cannot be reached: {cause.args[0].str()} ({cause.args[0].name()})"
            if is_unreachable(cause.args[0]):
                raise SinkUnavailableError(text) from cause
            raise SinkError(text) from cause

    def __contains__(self, topic: str) -> bool:
        return topic in self._listed()

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of the topic's partitions; empty if there is no such topic."""
        return self._listed().get(topic, [])

    def _listed(self) -> dict[str, list[int]]:
        """Return the partitions of all topics. Asking for a single topic would create it on some clusters."""
        try:
            topics = list_topics(self._admin, self._config.bootstrap_servers, timeout_s=TIMEOUT_S).topics
        except KafkaException as cause:
            refusal = SinkUnavailableError if is_unreachable(cause.args[0]) else SinkError
            raise refusal(f"Kafka at {self._config.bootstrap_servers}: {cause.args[0]}") from cause
        return {name: list(topic.partitions) for name, topic in topics.items()}

    def compacted(self, topic: str) -> bool:
        """Return True if the topic is compacted. False if the account may not see that, or if there is no topic."""
        try:
            return bool(compacted_topics(self._admin, [topic]))
        except KafkaException as cause:
            raise topic_error(KafkaTarget(self._properties, topic, ""), cause.args[0]) from cause

    def message_bytes(self, topic: str) -> int:
        """Return how many bytes a message of the topic may have with its key; 0 if the account may not see that, or if
        there is no topic.
        """
        try:
            found = topic_settings(self._admin, [topic], "max.message.bytes").get(topic, "")
        except KafkaException as cause:
            raise topic_error(KafkaTarget(self._properties, topic, ""), cause.args[0]) from cause
        return min(max(int(found), MESSAGE_BYTES_FROM), MESSAGE_BYTES_TO) if found.isdecimal() else 0

    def id_of(self, topic: str) -> str:
        """Return an identity of the topic, which a later topic with the same name does not have. Empty if the cluster
        has no such identities.
        """
        try:
            (asked,) = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S).values()
            found = str(answer_of(asked, TIMEOUT_S, self._admin).topic_id)
        except KafkaException as cause:
            if is_unreachable(error := cause.args[0]):
                raise topic_error(KafkaTarget(self._properties, topic, ""), error) from cause
            return ""
        return "" if found == _NO_ID else found

    def create(self, topic: str, partitions: int, *, is_tables: bool = True) -> None:
        """Create a topic for one table, or for all tables. Does nothing if it exists."""
        new = NewTopic(topic, num_partitions=partitions, replication_factor=self._config.replication_factor)
        try:
            answer_of(self._admin.create_topics([new])[topic], TIMEOUT_S, self._admin)
        except KafkaException as cause:
            if cause.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                error = topic_error(KafkaTarget(self._properties, topic, ""), cause.args[0])
                is_whose = is_tables or isinstance(error, SinkUnavailableError)
                raise (error if is_whose else SinkError(str(error))) from cause

    def has_messages(self, topic: str) -> bool:
        """Return True if the topic has any message now."""
        partitions = [TopicPartition(topic, number) for number in self.partitions(topic)]
        first: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        end: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(partitions, first) != self._offsets(partitions, end)

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
        asked = self._admin.list_offsets(dict.fromkeys(partitions, spec))
        try:
            return {
                partition.partition: answer_of(future, TIMEOUT_S, self._admin).offset
                for partition, future in asked.items()
            }
        except KafkaException as cause:
            raise topic_error(KafkaTarget(self._properties, partitions[0].topic, ""), cause.args[0]) from cause


#: The most parts of an epoch. More parts cost more, because each part reads all segments, and readers wait for its
#: transaction.
PARTS_MAX = 8


class KafkaSink(Sink):
    """The Kafka sink; see the module's docstring."""

    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)

    def __init__(self, config: KafkaSinkConfig) -> None:
        self._config = config
        self._keeper: OffsetRecordRenewer | None = None
        #: The newest vector with which each target was read or written.
        self._reached = TargetVectors()
        self._properties = {"bootstrap.servers": config.bootstrap_servers, "client.id": "raycdc", **config.properties}
        self._format: FormatSection = config.message_format

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        return check_sink(self._config, targets, pipeline=pipeline)

    def statement(self, target: TargetShape) -> str:
        """Return a description of the topic, and of its creation if it is missing."""
        options = self._config
        partitions = f"{options.partitions} partition{'' if options.partitions == 1 else 's'}"
        return f"topic {topic_name(options.topic, target.name)} (made with {partitions}, where there is none)"

    def open(self, context: SinkContext) -> None:
        self.inspect(context)
        self._keeper = OffsetRecordRenewer()

    def inspect(self, context: SinkContext) -> None:
        self._context = context
        open_format(self._format)
        self._topics = Topics(self._config, self._properties)
        self._topics.require()
        self._limits = MessageLimits(self._properties, self._format, self._topics.message_bytes)
        self._by_key = KeyedTopics(self._config, self._topics.compacted)

    def require_free(self, target: TableId) -> None:
        topic = self._config.topic_of(target)
        if topic in self._topics:
            self._is_ours(topic, target)

    def no_merging(self, target: TableId) -> str:
        return self._by_key.no_merging(target)

    def committed(self, target: TableId) -> CommitVector | None:
        if self._config.topic_of(target) not in self._topics:
            return None
        if self._keeper is None:
            return seen(self._target(target))
        with self._using(target, writes=False):
            vector = held(self._target(target))
        # An epoch of another copy of the state stays unknown, so that the next commit is refused.
        if vector is not None and not self._reached.is_of_copy(target, vector):
            self._reached.note(target, vector)
        return vector

    def apply_schema(self, work: TableCommit) -> None:
        if creates(work):
            self._reached.forget(work.target)
        with self._using(work.target, writes=True):
            check_changes(work, self._context.rules)
            self._by_key.require(work)
            topic = self._config.topic_of(work.target)
            self._limits.forget(topic)
            if topic not in self._topics:
                self._topics.create(topic, self._config.partitions)
                known = False
            else:
                known = self._is_ours(topic, work.target)
            if text := kept_rows(work, self._config, self._topics, self._context.left_out):
                self._context.warn(text)
            ddl_topic = self._config.ddl_topic
            if ddl_topic is None:
                if not known:
                    # A record from before the first message says that the topic belongs to this pipeline and holds
                    # nothing of this epoch. If this driver dies, its aborted transaction leaves offsets in the topic,
                    # which would otherwise look like another writer's messages.
                    self._run(self._no_changes(work, CommitVector(work.epoch - 1, STEP_LAST, work.generation)))
                return
            if ddl_topic not in self._topics:
                self._topics.create(ddl_topic, 1, is_tables=False)
            # The message of a truncation's row is in its place among the rows, and is not repeated in the same topic.
            repeated = {TruncateTableEvent.type} if ddl_topic == topic else set()
            wanted = [event for event in work.changes if event.type not in {*self._context.left_out, *repeated}]
            reported = self._no_changes(work, _goal(work, STEP_SCHEMA))
            self._run(replace(reported, ddl_topic=ddl_topic, changes=tuple(wanted), ts_ms=time.time_ns() // 1_000_000))

    def stage(self, commits: Sequence[TableCommit]) -> Mapping[TableId, Any]:
        return {work.target: None for work in commits}

    def commit(self, work: TableCommit, staged: Any) -> None:
        self._by_key.require(work)
        with self._using(work.target, writes=True):
            inputs = [entry for group in by_partition(work.segments) for entry in group]
            reach("before_commit")
            table_input, begins = self._context.table_input(work, inputs), creates(work)
            rekeyed = any(entry.segment.view is not None and entry.segment.view.owner for entry in inputs)
            owned = rekeyed and self._by_key.decides(self._config.topic_of(work.target))
            messages = EpochMessages(table_input, self._format, self._context.left_out, begins=begins, by_owner=owned)
            target, goal = self._target(work.target, work), _goal(work, STEP_LAST)
            self._reached.tries(work.target, None, goal)
            try:
                parts = parts_worth(work, self._config, self._topics)
                if parts == 1:
                    parts = self._run(WriteEpoch(target, goal, work.target, messages)).parts
                else:
                    parts = self._run(PlanParts(target, _goal(work, STEP_SCHEMA), work.target, parts))
                if parts > 1:
                    self._context.run_tasks(
                        [WritePart(target, goal, work.target, messages, number, parts) for number in range(parts)]
                    )
                    reach("after_parts")
                    self._run(self._no_changes(work, goal))
            except ValueRefusedError:
                self._limits.forget(target.topic)
                raise
        self._reached.note(work.target, goal)

    def unrepresentable(self, work: TableCommit, rows: pa.RecordBatch) -> pa.Array:
        return self._limits.unrepresentable(work, self._config.topic_of(work.target), rows)

    def tombstone(self, work: TableCommit) -> None:
        topic = self._config.topic_of(work.target)
        if topic not in self._topics:
            self._topics.create(topic, self._config.partitions)
        barred = 0
        with self._using(work.target, writes=True):
            # Repeat until no new parts appear: until the table's tombstone is written, another driver may plan more
            # parts.
            while (most := self._bar(work, None, barred=barred)) > barred:
                for number in range(barred, most):
                    self._bar(work, number)
                barred = most
        self._reached.note(work.target, _goal(work, STEP_TOMBSTONE))

    def _bar(self, work: TableCommit, part: int | None, *, barred: int | None = None) -> int:
        """Write a tombstone of a part. For the table, write its tombstone after its first `barred` parts have
        tombstones. Return the number of parts.
        """
        target = self._target(work.target) if part is None else self._target(work.target).part(part)
        return self._run(Bar(target, _goal(work, STEP_TOMBSTONE), work.target, barred))

    def close(self) -> None:
        """End the renewal of records. Producers need not be closed, because each lives only during its transaction."""
        if self._keeper is not None:
            self._keeper.close()

    def _using(self, table: TableId, *, writes: bool) -> AbstractContextManager[None]:
        assert self._keeper is not None
        return self._keeper.using(table, self._target(table), writes=writes)

    def _no_changes(self, work: TableCommit, goal: CommitVector) -> WriteChanges:
        target = replace(self._target(work.target, work), begins=creates(work))
        return WriteChanges(target, goal, work.target, work.schema, self._format, target.topic)

    def _run(self, task: StageTask[ResultT]) -> ResultT:
        (result,) = self._context.run_tasks([task])
        return result

    def _target(self, table: TableId, work: TableCommit | None = None) -> KafkaTarget:
        topic = self._config.topic_of(table)
        identity = identity_of(self._context.app_id, table)
        # Tasks on other machines cannot resolve references to secrets.
        read_again(self._properties.values())
        target = KafkaTarget(self._properties, topic, identity, self._topics.id_of(topic), self._reached.of(table))
        digests = () if work is None else self._reached.digests(table, _goal(work, STEP_LAST))
        return replace(target, digests=digests, message_bytes=0 if work is None else self._limits.of(topic))

    def _is_ours(self, topic: str, target: TableId) -> bool:
        """Return True if the topic was claimed for this pipeline, or need not be claimed.

        Raises `SinkError` if the topic has messages and this pipeline never wrote to it, unless
        ``pipeline.on_existing`` allows that.
        """
        if self._config.shared or self._context.on_existing == "merge" or self.committed(target) is not None:
            return True
        if self._topics.has_messages(topic):
            raise TargetExistsError(
                f"Topic {topic} has messages that this pipeline did not write. Set pipeline.on_existing = "
                '"merge" to write behind them, delete the topic, or choose another sink.topic.'
            )
        return False


def parts_worth(work: TableCommit, config: KafkaSinkConfig, topics: Topics) -> int:
    """Return the number of parts in which the epoch should be written. It is only a proposal: if parts were planned
    already, that plan is kept.
    """
    wanted = partitions_for(work.input_bytes, worth_bytes=config.task_bytes, most=PARTS_MAX)
    if wanted == 1 or not work.schema.primary_key:
        return 1
    return wanted if len(topics.partitions(config.topic_of(work.target))) > 1 else 1


def kept_rows(work: TableCommit, config: KafkaSinkConfig, topics: Topics, left_out: Collection[str]) -> str:
    """Return a warning if a table is read again and no message can say that its earlier rows are gone; else empty."""
    emptied = any(isinstance(event, TruncateTableEvent) for event in work.changes)
    if not (creates(work) and emptied) or set(left_out) >= EMPTYING:
        return ""
    topic = config.topic_of(work.target)
    encoder = open_format(config.message_format).encoder(work.target, work.schema)
    if why := no_truncation(encoder, work.target, len(topics.partitions(topic))):
        return (
            f"{work.target} is read again into topic {topic}, and {why}: rows that were deleted meanwhile get no "
            "message. Readers that keep the rows by their keys must forget those from before."
        )
    return ""


def _goal(work: TableCommit, step: int) -> CommitVector:
    return CommitVector(work.epoch, step, work.generation, work.digest)
