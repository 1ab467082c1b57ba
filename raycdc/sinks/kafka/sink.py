"""Changes back into Kafka, as messages of a CDC format: one transaction per task partition and epoch.

| step | does |
|---|---|
| `apply_schema` | creates and claims the topic; tells of the change in ``ddl_topic``, with its record |
| `stage` | nothing: a transaction cannot change hands, so what opens it must also commit it |
| `commit` | tasks that read the segments, encode, write messages and their record in one transaction each |

An epoch of a table is one task where it is small or its topic has one partition, whose order then is the log's. Else
its keys are shared out among tasks (parts), each with an identity and a record of its own: the number of parts is
planned in the table's record, the parts are written, and the table's record ends the epoch. A crash in between leaves
it held in part (`STEP_APPEND`): the parts that lack it are written from the same segments.

The record of a target is read from the cluster after fencing whoever might still write to it (`tasks`). Order: all
changes of a key are written by one task in order and have one message key, so they are in one partition in order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

from raycdc.bridge.partitions import partitions_for
from raycdc.bridge.tasks import ResultT, StageTask
from raycdc.errors import TargetTakenError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.model.names import topic_name
from raycdc.references import read_again
from raycdc.sinks.api import (
    CHANGELOG,
    STEP_LAST,
    STEP_SCHEMA,
    STEP_TOMBSTONE,
    CommitVector,
    Sink,
    SinkContext,
    TableWork,
    TargetShape,
)
from raycdc.sinks.changes import check_changes, creates
from raycdc.sinks.kafka.checks import check_sink
from raycdc.sinks.kafka.keeper import RecordKeeper
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from raycdc.sinks.kafka.tasks import (
    Bar,
    FormatSection,
    Messages,
    PlanParts,
    WriteChanges,
    WriteEpoch,
    WritePart,
    held,
    open_format,
    seen,
)
from raycdc.sinks.kafka.topics import Topics
from raycdc.sinks.kafka.transactions import Target, identity_of
from raycdc.sinks.plan import by_partition
from raycdc.source.checks import CheckResult

#: Parts of an epoch at most: each reads all of its segments, and is a transaction that readers wait for.
PARTS_MAX = 8


class KafkaSink(Sink):
    """See the module's docstring."""

    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)

    def __init__(self, config: KafkaSinkConfig) -> None:
        self._config = config
        self._keeper: RecordKeeper | None = None
        #: The record that each target was last found or left with.
        self._reached: dict[TableId, CommitVector] = {}
        self._properties = {"bootstrap.servers": config.bootstrap_servers, "client.id": "raycdc", **config.properties}
        self._format: FormatSection = {
            **config.format,
            **({"tombstones": True} if config.tombstones else {}),
            **({"include_schema": True} if config.include_schema else {}),
        }

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        return check_sink(self._config, targets, pipeline=pipeline)

    def statement(self, target: TargetShape) -> str:
        """The topic, and how it is made where the broker has none."""
        options = self._config
        partitions = f"{options.partitions} partition{'' if options.partitions == 1 else 's'}"
        return f"topic {topic_name(options.topic, target.name)} (made with {partitions}, where there is none)"

    def open(self, context: SinkContext) -> None:
        self.look(context)
        self._keeper = RecordKeeper()

    def look(self, context: SinkContext) -> None:
        self._context = context
        open_format(self._format)
        self._topics = Topics(self._config, self._properties)
        self._topics.require()

    def require_free(self, target: TableId) -> None:
        topic = self._config.topic_of(target)
        if topic in self._topics:
            self._is_ours(topic, target)

    def committed(self, target: TableId) -> CommitVector | None:
        if self._config.topic_of(target) not in self._topics:
            return None
        if self._keeper is None:
            return seen(self._target(target))
        with self._using(target, writes=False):
            vector = held(self._target(target))
        if vector is not None:
            self._reached[target] = vector
        return vector

    def apply_schema(self, work: TableWork) -> None:
        if creates(work):
            self._reached.pop(work.target, None)
        with self._using(work.target, writes=True):
            check_changes(work, self._context.rules)
            topic = self._config.topic_of(work.target)
            if topic not in self._topics:
                self._topics.create(topic, self._config.partitions)
                known = False
            else:
                known = self._is_ours(topic, work.target)
            ddl_topic = self._config.ddl_topic
            if ddl_topic is None:
                if not known:
                    self._claim(topic, work)
                return
            if ddl_topic not in self._topics:
                self._topics.create(ddl_topic, 1, is_tables=False)
            wanted = [event for event in work.changes if event.type not in self._context.left_out]
            told = self._no_changes(work, _goal(work, STEP_SCHEMA))
            self._run(replace(told, ddl_topic=ddl_topic, changes=tuple(wanted), ts_ms=time.time_ns() // 1_000_000))

    def stage(self, works: Sequence[TableWork]) -> Mapping[TableId, Any]:
        return {work.target: None for work in works}

    def commit(self, work: TableWork, staged: Any) -> None:
        with self._using(work.target, writes=True):
            inputs = [entry for group in by_partition(work.segments) for entry in group]
            reach("before_commit")
            messages = Messages(self._context.table_input(work, inputs), self._format, self._context.left_out)
            target, goal = self._target(work.target), _goal(work, STEP_LAST)
            parts = self._parts_worth(work)
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
        self._reached[work.target] = goal

    def tombstone(self, work: TableWork) -> None:
        topic = self._config.topic_of(work.target)
        if topic not in self._topics:
            self._topics.create(topic, self._config.partitions)
        barred = 0
        with self._using(work.target, writes=True):
            # Until the table's record was written nobody is kept from planning more parts.
            while (most := self._bar(work, None, barred=barred)) > barred:
                for number in range(barred, most):
                    self._bar(work, number)
                barred = most
        self._reached[work.target] = _goal(work, STEP_TOMBSTONE)

    def _bar(self, work: TableWork, part: int | None, *, barred: int | None = None) -> int:
        """A tombstone of a part, or of the table whose first `barred` parts have theirs; how many parts there are."""
        target = self._target(work.target) if part is None else self._target(work.target).part(part)
        return self._run(Bar(target, _goal(work, STEP_TOMBSTONE), work.target, barred))

    def close(self) -> None:
        """Producers live only inside their transactions."""
        if self._keeper is not None:
            self._keeper.close()

    # -- how

    def _using(self, table: TableId, *, writes: bool) -> AbstractContextManager[None]:
        assert self._keeper is not None
        return self._keeper.using(table, self._target(table), writes=writes)

    def _parts_worth(self, work: TableWork) -> int:
        """The number of parts in which the epoch should be written. An earlier plan is kept all the same."""
        wanted = partitions_for(work.input_bytes, worth_bytes=self._config.task_bytes, most=PARTS_MAX)
        if wanted == 1 or not work.schema.primary_key:
            return 1
        return wanted if len(self._topics.partitions(self._config.topic_of(work.target))) > 1 else 1

    def _no_changes(self, work: TableWork, goal: CommitVector) -> WriteChanges:
        target = replace(self._target(work.target), begins=creates(work))
        return WriteChanges(target, goal, work.target, work.schema, self._format, target.topic)

    def _run(self, task: StageTask[ResultT]) -> ResultT:
        (result,) = self._context.run_tasks([task])
        return result

    def _target(self, table: TableId) -> Target:
        topic = self._config.topic_of(table)
        identity = identity_of(self._context.app_id, table)
        # Tasks on other machines cannot read for themselves what they are sent.
        read_again(self._properties.values())
        return Target(self._properties, topic, identity, self._topics.id_of(topic), self._reached.get(table))

    def _is_ours(self, topic: str, target: TableId) -> bool:
        """Whether the topic was claimed, or need not be. One with messages that this pipeline never wrote to is
        somebody else's, unless that was allowed: `SinkError`.
        """
        if self._config.shared or self._context.on_existing == "merge" or self.committed(target) is not None:
            return True
        if self._topics.has_messages(topic):
            raise TargetTakenError(
                f"Topic {topic} has messages that this pipeline did not write. Set pipeline.on_existing = "
                '"merge" to write behind them, delete the topic, or choose another sink.topic.'
            )
        return False

    def _claim(self, topic: str, work: TableWork) -> None:
        """Write into the record, before the first message, that the topic is ours and holds nothing of this epoch.

        What a transaction leaves behind that was aborted by our death cannot be told from somebody's messages.
        """
        self._run(self._no_changes(work, CommitVector(work.epoch - 1, STEP_LAST, work.generation)))


def _goal(work: TableWork, step: int) -> CommitVector:
    return CommitVector(work.epoch, step, work.generation)
