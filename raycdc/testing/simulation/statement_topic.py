"""Topics with rows and statements, for the simulation: a source that writes Canal's messages, and their cluster."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raycdc.connectors.kafka.client import Topic

TOPIC = "m"
#: Table that has rows in every partition, and no statements.
SHARED = "shared"
_COLUMNS_MAX = 5
_KEYS = 6

Row = dict[str, str | None]
Partition = tuple[str, int]


@dataclass
class SourceTable:
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
        self.tables: dict[str, SourceTable] = {SHARED: SourceTable(SHARED, exists=True)}
        self._added = 0
        for _ in range(partitions):
            self.grow()

    @property
    def lengths(self) -> dict[str, int]:
        return {split_id: len(messages) for split_id, messages in self.messages.items()}

    def grow(self) -> None:
        number = len(self.messages)
        self.messages[f"{TOPIC}:{number}"], self.changes[f"{TOPIC}:{number}"] = [], []
        self.tables[f"t{number}"] = SourceTable(f"t{number}")

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

    def _add_column(self, chance: random.Random, split_id: str, table: SourceTable) -> None:
        """Its name was never there before: one that comes again is refused."""
        self._added += 1
        name, default = f"c{self._added}", f"d{self._added}" if chance.random() < 0.7 else None
        clause = "" if default is None else f" NOT NULL DEFAULT '{default}'"
        self._state(split_id, table, "ALTER", f"ALTER TABLE {table.name} ADD COLUMN {name} VARCHAR(9){clause}")
        table.columns.append(name)
        for row in table.rows.values():
            row[name] = default

    def _change_row(self, chance: random.Random, split_id: str, table: SourceTable, prefix: str) -> None:
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
        self, split_id: str, table: SourceTable, kind: str, row: Row, old: Row | None, ops: tuple[str, ...]
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

    def _state(self, split_id: str, table: SourceTable, kind: str, sql: str, *, ops: tuple[str, ...] = ()) -> None:
        self._write(split_id, {**self._head(table, kind), "data": None, "isDdl": True, "sql": sql}, ops)

    @staticmethod
    def _head(table: SourceTable, kind: str) -> dict[str, Any]:
        return {"database": "shop", "table": table.name, "type": kind, "es": 1, "ts": 1, "isDdl": False, "sql": ""}

    def _write(self, split_id: str, message: Mapping[str, Any], ops: tuple[str, ...]) -> None:
        table = f"{message['database']}.{message['table']}"
        self.changes[split_id] += [(len(self.messages[split_id]), op, table) for op in ops]
        self.messages[split_id].append(json.dumps(message).encode())


class SimulatedCluster:
    """`raycdc.connectors.kafka.discovery.ClusterQuestions` of a `StatementTopic`."""

    def __init__(self, topic: StatementTopic) -> None:
        self._topic = topic

    def topics(self) -> list[Topic]:
        return [Topic(TOPIC, "id", tuple(range(len(self._topic.messages))))]

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
