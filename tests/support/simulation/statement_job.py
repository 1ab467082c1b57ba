"""A job over a topic with statements among its rows: Kafka's enumerator, reader and decoder under a random schedule.

As `partition_job`, with real parts for scripted ones. The oracle reads manifests as a sink would: changes of an epoch
first, then its rows. Each partition's changes of a table must come in order, each once, as far as its sealed position
says; and when all is read the target must hold what the source's tables do.

Topics with rows and statements, for the simulation: a source that writes Canal's messages, and their cluster.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.connectors.kafka.cluster.client import KafkaTopic
from raycdc.connectors.kafka.enumeration.enumerator import KafkaEnumerator
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.held_partitions import KafkaReaderSettings
from raycdc.connectors.kafka.reading.messages import Fetched, PartitionRecords, PartitionStart
from raycdc.connectors.kafka.reading.reader import KafkaReader
from raycdc.connectors.kafka.reading.statements import DdlMessages
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.mysql.ddl.catalogue import events_of_statement
from raycdc.formats.api import MessageBatch, Origin
from raycdc.formats.plugins import load_format
from raycdc.model import RowKind, TableId
from raycdc.model.batch import SYMBOLS
from raycdc.model.evolution import AddColumnEvent, DropTableEvent, SchemaChangeEvent, TruncateTableEvent
from raycdc.model.rules.rate_limit import Until
from raycdc.source.protocol.api import Availability, SplitEnumeratorContext
from raycdc.source.protocol.source_event import Heartbeat, Message
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.reader.split_reader import RecordsWithSplitIds, SplitRecords
from raycdc.state.manifests.manifest import Manifest, Segment
from tests.support.simulation.network import NoThreads
from tests.support.simulation.partition_job import PartitionJob
from tests.support.simulation.world import SimulationError

TOPIC = "m"
#: Table that has rows in every partition, and no statements.
SHARED = "shared"
_COLUMNS_MAX = 5
_KEYS = 6

Row = dict[str, str | None]
Partition = tuple[str, int]


@dataclass
class SimTopicTable:
    """A table of the source now. `columns` in order; all are texts but the key."""

    name: str
    columns: list[str] = field(default_factory=lambda: ["id", "v"])
    rows: dict[str, Row] = field(default_factory=dict)
    exists: bool = False


class StatementTopic:
    """Messages by partition: table ``t0`` has all of its rows and statements in partition 0, and so on.

    `changes` are (offset, op, table) of the rows that each partition's messages mean, in order.
    """

    def __init__(self, partitions: int) -> None:
        self.messages: dict[str, list[bytes]] = {}
        self.changes: dict[str, list[tuple[int, str, str]]] = {}
        self.tables: dict[str, SimTopicTable] = {SHARED: SimTopicTable(SHARED, exists=True)}
        self._added = 0
        for _ in range(partitions):
            self.grow()

    @property
    def lengths(self) -> dict[str, int]:
        return {split_id: len(messages) for split_id, messages in self.messages.items()}

    def grow(self) -> None:
        number = len(self.messages)
        self.messages[f"{TOPIC}:{number}"], self.changes[f"{TOPIC}:{number}"] = [], []
        self.tables[f"t{number}"] = SimTopicTable(f"t{number}")

    def append(self, chance: random.Random) -> None:
        """The source does something, and one message says so."""
        split_id = chance.choice(list(self.messages))
        number = split_id.rpartition(":")[2]
        if chance.random() < 0.3:
            self._change_row(chance, split_id, self.tables[SHARED], f"{int(number) + 1}0")
            return
        table = self.tables[f"t{number}"]
        dice = chance.random()
        if not table.exists:
            columns = ", ".join(f"{name} VARCHAR(9)" for name in table.columns[1:])
            self._state(split_id, table, "CREATE", f"CREATE TABLE {table.name} (id BIGINT PRIMARY KEY, {columns})")
            table.exists = True
        elif dice < 0.12 and len(table.columns) < _COLUMNS_MAX:
            self._add_column(chance, split_id, table)
        elif dice < 0.18:
            self._state(split_id, table, "TRUNCATE", f"TRUNCATE TABLE {table.name}", ops=("T",))
            table.rows.clear()
        elif dice < 0.22:
            self._state(split_id, table, "ERASE", f"DROP TABLE {table.name}", ops=("T",))
            table.rows.clear()
            table.exists = False
        else:
            self._change_row(chance, split_id, table, "")

    def _add_column(self, chance: random.Random, split_id: str, table: SimTopicTable) -> None:
        """Its name was never there before: one that comes again is refused."""
        self._added += 1
        name, default = f"c{self._added}", f"d{self._added}" if chance.random() < 0.7 else None
        clause = "" if default is None else f" NOT NULL DEFAULT '{default}'"
        self._state(split_id, table, "ALTER", f"ALTER TABLE {table.name} ADD COLUMN {name} VARCHAR(9){clause}")
        table.columns.append(name)
        for row in table.rows.values():
            row[name] = default

    def _change_row(self, chance: random.Random, split_id: str, table: SimTopicTable, prefix: str) -> None:
        key = f"{prefix}{chance.randrange(_KEYS)}"
        before = table.rows.get(key)
        after: Row = {name: key if name == "id" else f"v{chance.randrange(100)}" for name in table.columns}
        if before is None:
            self._say(split_id, table, "INSERT", after, None, ("+I",))
        elif chance.random() < 0.3:
            self._say(split_id, table, "DELETE", table.rows.pop(key), None, ("-D",))
            return
        else:
            old = {name: value for name, value in before.items() if after[name] != value}
            self._say(split_id, table, "UPDATE", after, old, ("-U", "+U"))
        table.rows[key] = after

    def _say(
        self, split_id: str, table: SimTopicTable, kind: str, row: Row, old: Row | None, ops: tuple[str, ...]
    ) -> None:
        types = {name: "bigint" if name == "id" else "varchar(9)" for name in table.columns}
        self._write(
            split_id,
            {
                **self._head(table, kind),
                "data": [row],
                "old": None if old is None else [old],
                "mysqlType": types,
                "pkNames": ["id"],
            },
            ops,
        )

    def _state(self, split_id: str, table: SimTopicTable, kind: str, sql: str, *, ops: tuple[str, ...] = ()) -> None:
        self._write(split_id, {**self._head(table, kind), "data": None, "isDdl": True, "sql": sql}, ops)

    @staticmethod
    def _head(table: SimTopicTable, kind: str) -> dict[str, Any]:
        return {"database": "shop", "table": table.name, "type": kind, "es": 1, "ts": 1, "isDdl": False, "sql": ""}

    def _write(self, split_id: str, message: Mapping[str, Any], ops: tuple[str, ...]) -> None:
        table = f"{message['database']}.{message['table']}"
        self.changes[split_id] += [(len(self.messages[split_id]), op, table) for op in ops]
        self.messages[split_id].append(json.dumps(message).encode())


class SimulatedCluster:
    """`raycdc.connectors.kafka.cluster.discovery.ClusterQuestions` of a `StatementTopic`."""

    def __init__(self, topic: StatementTopic) -> None:
        self._topic = topic

    def topics(self) -> list[KafkaTopic]:
        return [KafkaTopic(TOPIC, "id", tuple(range(len(self._topic.messages))))]

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {(name, number): len(self._topic.messages[f"{name}:{number}"]) for name, number in partitions}

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        return {partition: (0, end) for partition, end in self.latest(partitions).items()}

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]:
        raise AssertionError("nobody begins at a time here")

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        raise AssertionError("nobody begins at a group's offsets here")


FETCHED_MAX = 4
EPOCH_BYTES_MAX = 1 << 20
CONFIG = KafkaSourceConfig(
    bootstrap_servers="sim",
    topics=("m",),
    format={"type": "canal-json"},
    discovery_interval="1s",  # type: ignore[arg-type]
)


@dataclass(slots=True)
class _SimOffset:
    position: int
    addition: int


class SimulatedPartitions:
    """`raycdc.connectors.kafka.reading.held_partitions.PartitionFetchers`, in whose one queue waits what was fetched,
    whoever leaves.
    """

    def __init__(self, topic: StatementTopic) -> None:
        self._topic = topic
        self._places: dict[str, _SimOffset] = {}
        self._queue: deque[SplitRecords[PartitionRecords]] = deque()

    def add_splits(self, splits: Sequence[PartitionStart], *, addition: int = 0) -> None:
        self._places.update({start.split_id: _SimOffset(start.offset, addition) for start in splits})

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        for split_id in split_ids:
            self._places.pop(split_id, None)

    def pause_or_resume_splits(self, *, pause: Sequence[str] = (), resume: Sequence[str] = ()) -> None:
        raise AssertionError("nothing is aligned here")

    def fetch(self, chance: random.Random) -> None:
        messages = self._topic.messages
        readable = [s for s, place in self._places.items() if place.position < len(messages[s])]
        if not readable:
            return
        split_id = chance.choice(readable)
        place = self._places[split_id]
        stop = min(place.position + chance.randrange(1, FETCHED_MAX), len(messages[split_id]))
        values = pa.array(messages[split_id][place.position : stop], pa.large_binary())
        topic, _, number = split_id.rpartition(":")
        offsets = np.arange(place.position, stop, dtype=np.int64)
        batch = MessageBatch(Origin(topic, int(number)), values, offsets)
        self._queue.append(SplitRecords(split_id, Fetched(split_id, stop, batch, values.nbytes, 0), place.addition))
        place.position = stop

    def poll(self) -> RecordsWithSplitIds[PartitionRecords] | None:
        return RecordsWithSplitIds((self._queue.popleft(),)) if self._queue else None

    def close(self) -> None: ...


class SimulatedOutput:
    """`raycdc.source.protocol.api.ReaderOutput` in memory; what is cut goes to the job's spool."""

    def __init__(self, spool: dict[str, list[Any]], name: str) -> None:
        self._spool = spool
        self._name = name
        self._rows: list[tuple[str, dict[str, Any]]] = []

    @property
    def open_bytes(self) -> int:
        return 100 * len(self._rows)

    def collect(self, table: TableId, *, batch: pa.RecordBatch, **_: Any) -> None:
        self._rows += [(str(table), row) for row in batch.to_pylist()]

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        rows, self._rows = self._rows, []
        if not rows:
            return ()
        name = f"{self._name}-{epoch}"
        self._spool[name] = rows
        count = len(rows)
        table = TableId("topic", "all")
        return (Segment("sim", name, "", table, "f", "", 0, "log", 0, count, count * 100, 0),)

    def publish(self, segments: Sequence[Segment]) -> None:
        raise AssertionError("no chunks here")

    def spill(self, rows: Any) -> Any:
        raise AssertionError("no chunks here")

    def write_delta(self, rows: Any, *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        raise AssertionError("no chunks here")

    def release(self, paths: Sequence[str]) -> None: ...

    def discard(self, segments: Sequence[Segment]) -> None: ...

    def close(self) -> None: ...


class StatementReader:
    """A `KafkaReader` that is driven as the simulation drives readers."""

    def __init__(self, job: StatementJob, send: Callable[[Message], None], name: str) -> None:
        self.partitions = SimulatedPartitions(job.topic)
        made = load_format("canal-json")
        self.reader = KafkaReader(
            ReaderContext(
                SimulatedOutput(job.spool, name),
                send,
                Availability(),
                now_s=lambda: job.clock.now_s,
                epoch_bytes_max=EPOCH_BYTES_MAX,
                threads=NoThreads(),
            ),
            self.partitions,
            make_decoder=lambda: made.decoder(positions=True),
            settings=KafkaReaderSettings(idle_after_s=30.0, statements=DdlMessages(events_of_statement)),
            wall_ms=lambda: 0,
        )

    def __repr__(self) -> str:
        return repr(self.reader)

    def handle(self, message: Message) -> None:
        self.reader.handle(message)

    def heartbeat(self) -> Heartbeat:
        return self.reader.heartbeat()

    def poll(self, chance: random.Random, *, calm: bool = False) -> None:
        self.partitions.fetch(chance)
        if calm or chance.random() < 0.6:
            self.reader.poll_next()


class StatementJob(PartitionJob):
    """See the module's docstring."""

    topic: StatementTopic

    def __init__(self, seed: int, **options: Any) -> None:
        #: The target: rows by table and key.
        self.target: dict[str, dict[str, dict[str, Any]]] = {}
        self._told: dict[str, int] = {}
        super().__init__(seed, **options)

    def make_topic(self) -> StatementTopic:
        return StatementTopic(self.settings.partitions)

    def make_reader(self, send: Callable[[Message], None], name: str) -> StatementReader:
        return StatementReader(self, send, name)

    def make_enumerator(
        self, context: SplitEnumeratorContext, until: Until | None, last: Manifest | None
    ) -> KafkaEnumerator:
        made = KafkaEnumerator(context, CONFIG, cluster=lambda: SimulatedCluster(self.topic), until=until)
        if last is not None:
            made.restore(last, document=self.state.schema_document)
        return made

    def run(self) -> None:
        super().run()
        wanted = {f"shop.{t.name}": list(t.rows.values()) for t in self.topic.tables.values() if t.rows}
        for name, rows in wanted.items():
            found = self.target.get(name, {})
            have = {str(key): row for key, row in found.items()}
            for row in rows:
                got = have.pop(str(row["id"]), None)
                shown = None if got is None else {c: None if got.get(c) is None else str(got[c]) for c in row}
                if shown != row:
                    raise SimulationError(self._report(f"{name} holds {shown} for {row}"))
            if have:
                raise SimulationError(self._report(f"{name} holds {have}, which the source does not"))
        empty = {name for name, rows in self.target.items() if rows} - set(wanted)
        if empty:
            raise SimulationError(self._report(f"{empty} should be empty"))

    # -- the oracle

    def _look_at_manifest(self, manifest: Manifest) -> None:
        rows = [entry for segment in manifest.segments for entry in self.spool[segment.path]]
        for table, entry in manifest.tables.items():
            self._change(str(table), entry.changes)
        for table_name, row in rows:
            self._apply(table_name, row)
        told: dict[str, list[tuple[int, str, str]]] = {}
        for table_name, row in rows:
            topic, partition, offset, _ = row["_pos"].split(":")
            change = int(offset), SYMBOLS[RowKind(row["_op"])], table_name
            told.setdefault(f"{topic}:{partition}", []).append(change)
        for split_id, state in manifest.to_splits.items():
            sealed = PartitionState.of(state).offset
            first = self._told.get(split_id, 0)
            changes = self.topic.changes[split_id]
            wanted = [change for change in changes[first:] if change[0] < sealed]
            # Tables have no order between them: a batch is decoded table by table.
            found = sorted(told.pop(split_id, []), key=lambda change: change[2])
            if found != sorted(wanted, key=lambda change: change[2]):
                self.problems.append(f"epoch {manifest.epoch}: {split_id} up to {sealed} says {found}, not {wanted}")
            self._told[split_id] = first + len(wanted)
            self.read[split_id] = sealed
        self.problems.extend(f"epoch {manifest.epoch} has rows of {s}, and no position" for s in told)
        self._note(f"epoch {manifest.epoch} of generation {manifest.generation} sealed: {dict(self.read)}")

    def _change(self, table: str, changes: Sequence[SchemaChangeEvent]) -> None:
        rows = self.target.setdefault(table, {})
        for change in changes:
            match change:
                case TruncateTableEvent() | DropTableEvent():
                    rows.clear()
                case AddColumnEvent(_, column):
                    for row in rows.values():
                        row.setdefault(column.name, column.default)

    def _apply(self, table: str, row: dict[str, Any]) -> None:
        rows = self.target.setdefault(table, {})
        match RowKind(row["_op"]):
            case RowKind.TRUNCATE:
                rows.clear()
            case RowKind.INSERT | RowKind.UPDATE_AFTER:
                rows[str(row["id"])] = row
            case RowKind.DELETE:
                # Absent where the epoch also empties the table, which comes first.
                rows.pop(str(row["id"]), None)
