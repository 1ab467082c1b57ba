"""Changes of a table that two descriptions of its columns show are followed or refused like statements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.connectors.kafka.enumeration.schemas import conform, merge
from raycdc.connectors.kafka.reading.held_partitions import BatchRequirements, judge
from raycdc.connectors.kafka.reading.statements import DdlMessages
from raycdc.connectors.mysql.ddl.catalogue import events_of_statement
from raycdc.errors import SchemaError
from raycdc.formats.api import ChangeItem, FormatDecoder, MessageBatch, Origin, RowsItem
from raycdc.formats.plugins import load_format
from raycdc.model import TableId, TableSchema
from raycdc.model.evolution import AddColumnEvent, DropColumnEvent

TABLE = TableId("shop", "p")
INT, TEXT = {"type": "int32", "optional": True}, {"type": "string", "optional": True}


def debezium(
    row: dict[str, Any] | None, at: int = 0, *, connector: str = "mysql", **columns: Mapping[str, Any]
) -> bytes:
    fields = [{"field": name, **described} for name, described in {"id": {**INT, "optional": False}, **columns}.items()]
    side = {"type": "struct", "optional": True, "fields": fields}
    source = {"type": "struct", "name": f"io.debezium.connector.{connector}.Source", "field": "source", "fields": []}
    schema = {"type": "struct", "fields": [{**side, "field": "before"}, {**side, "field": "after"}, source]}
    event = {"before": None, "after": row, "source": {"db": "shop", "table": "p", "ts_ms": at}, "op": "c"}
    return json.dumps({"schema": schema, "payload": event}).encode()


def canal(row: dict[str, Any], **types: str) -> bytes:
    told = {"database": "shop", "table": "p", "type": "INSERT", "isDdl": False, "es": 1, "pkNames": ["id"]}
    return json.dumps({**told, "data": [row], "old": None, "mysqlType": {"id": "int", **types}}).encode()


class Topic:
    """One partition: its decoder, the schema in force, and the dropped columns that are remembered."""

    def __init__(self, format_: str = "debezium-json", *, ddl: str = "follow", **options: Any) -> None:
        self._format = load_format(format_, **options)
        self._decoder: FormatDecoder = self._format.decoder(keep_null_columns=True)
        given = "columns" in options
        self._statements = DdlMessages(events_of_statement, given=lambda _: given, follow=ddl == "follow")
        self.schemas: dict[TableId, TableSchema] = {}
        self.judged = BatchRequirements()

    def read(self, *messages: bytes) -> list[dict[str, Any]]:
        """Return the rows of the messages as the epoch gets them."""
        key = b'{"id": 1}'
        values = pa.array(messages, pa.large_binary())
        keys = pa.array([key] * len(messages), pa.binary())
        decoded = self._decoder.decode(MessageBatch(Origin("shop.p", 0), values, np.arange(len(messages)), keys))
        assert decoded.failure is None, decoded.failure
        self.judged = judge(decoded, self._statements, in_force=self.schemas, dropped=self.judged.dropped)
        for table, schema in self.judged.schemas:
            self.schemas[table] = merge(table, self.schemas.get(table), schema)[0]
        rows = []
        for number, item in enumerate(decoded.items):
            if isinstance(item, RowsItem):
                without = self.judged.without[number]
                rows += conform(TABLE, item.batch, self.schemas[TABLE], without=without).to_pylist()
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    def restart(self) -> None:
        state = json.loads(json.dumps(self._decoder.snapshot_state()))
        self._decoder = self._format.decoder(keep_null_columns=True)
        self._decoder.restore_state(state)

    def declare(self, format_: str, columns: str | None, *, ddl: str = "follow") -> Topic:
        """Restart with other declared columns."""
        self._format = load_format(format_, **({} if columns is None else {"columns": columns}))
        self._statements = DdlMessages(events_of_statement, given=lambda _: columns is not None, follow=ddl == "follow")
        self.restart()
        return self

    def default(self, column: str) -> str | None:
        (found,) = (c for c in self.schemas[TABLE].columns if c.name == column)
        return found.default


@pytest.mark.parametrize("restarts", [False, True])
def test_the_default_of_an_added_column_fills_rows_from_before(restarts: bool) -> None:
    topic = Topic()
    topic.read(debezium({"id": 1}))
    if restarts:
        topic.restart()
    assert topic.read(debezium({"id": 2, "n": 7}, n={"type": "int32", "optional": False, "default": 5})) == [
        {"id": 2, "n": 7}
    ]
    assert topic.default("n") == "5"
    assert [column.name for _, _, column in topic.judged.defaults] == ["n"]


DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}


@pytest.mark.parametrize(
    ("described", "default"),
    [
        ({**INT, "default": -5}, "-5"),
        ({"type": "int32", "optional": False}, "0"),
        ({"type": "string", "optional": False}, ""),
        ({**TEXT, "default": "it's"}, "it's"),
        (INT, None),
        ({"type": "boolean", "optional": False, "default": True}, "true"),
        ({"type": "double", "optional": False, "default": 1.5}, "1.5"),
        ({**DECIMAL, "optional": False, "default": "AfQ="}, "5.00"),
        ({**DECIMAL, "optional": False, "default": "AA=="}, "0.00"),
        ({"type": "int32", "name": "io.debezium.time.Date", "optional": False, "default": 19723}, "2024-01-01"),
        (
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "default": 1704067200000001},
            "2024-01-01 00:00:00.000001",
        ),
        ({"type": "bytes", "name": "io.debezium.data.Bits", "optional": False, "default": "BQ==",
          "parameters": {"length": "3"}}, "5"),
        ({"type": "bytes", "optional": False, "default": "YWI="}, "ab"),
        ({"type": "string", "name": "io.debezium.data.Enum", "optional": False, "default": "a"}, "a"),
    ],
)  # fmt: skip
def test_defaults_of_all_types_are_read(described: dict[str, Any], default: str | None) -> None:
    topic = Topic()
    topic.read(debezium({"id": 1}), debezium({"id": 2, "n": None}, n=described))
    assert topic.default("n") == default


@pytest.mark.parametrize(
    ("described", "connector", "why"),
    [
        ({"type": "int64", "name": "io.debezium.time.Timestamp", "optional": False, "default": 0}, "mysql",
         "database generates"),
        ({"type": "int32", "optional": False, "default": 0}, "postgresql", "database generates"),
        ({"type": "string", "optional": False, "default": "00000000-0000-0000-0000-000000000000"}, "postgresql",
         "database generates"),
        ({"type": "int32", "name": "io.debezium.time.Date", "optional": False}, "mysql", "cannot be null"),
        ({**INT, "default": "x"}, "mysql", "cannot be read"),
        ({"type": "bytes", "optional": False, "default": "/w=="}, "mysql", "cannot be read"),
        ({"type": "string", "name": "io.debezium.time.ZonedTimestamp", "default": "2024-01-01T00:00:00Z"}, "mysql",
         "time zone of the session"),
    ],
)  # fmt: skip
def test_an_unknown_value_of_existing_rows_is_refused(described: dict[str, Any], connector: str, why: str) -> None:
    topic, ignoring = Topic(), Topic(ddl="ignore")
    messages = [debezium({"id": 1}, connector=connector)]
    messages.append(debezium({"id": 2, "n": None}, connector=connector, n=described))
    topic.read(messages[0])
    with pytest.raises(SchemaError, match=rf"add_column n.*{why}.*source\.format\.ddl = \"ignore\""):
        topic.read(messages[1])
    assert Topic().read(messages[1]) == [{"id": 2, "n": None}]
    assert ignoring.read(*messages)[1:] == [{"id": 2, "n": None}]


def test_a_dropped_column_cannot_come_again_while_rows_have_its_value() -> None:
    topic = Topic()
    topic.read(debezium({"id": 1, "n": 7}, n=INT))
    assert topic.read(debezium({"id": 2})) == [{"id": 2, "n": None}]
    topic.restart()
    with pytest.raises(SchemaError, match="rows that exist lost their value in 'n' when it was dropped"):
        topic.read(debezium({"id": 3, "n": 8}, n=INT))


def test_a_column_that_goes_when_another_one_comes_may_be_renamed() -> None:
    topic = Topic()
    topic.read(debezium({"id": 1, "n": 7}, n=INT))
    with pytest.raises(SchemaError, match=r"drop_column n, add_column m.*'n' was renamed to 'm'"):
        topic.read(debezium({"id": 2, "m": 7}, m=INT))
    given = Topic(columns="id INT, n INT, m INT, PRIMARY KEY (id)")
    given.read(debezium({"id": 1, "n": 7}, n=INT))
    with pytest.raises(SchemaError, match="'n' was renamed to 'm'"):
        given.read(debezium({"id": 2, "m": 7}, m=INT))
    ignoring = Topic(ddl="ignore")
    ignoring.read(debezium({"id": 1, "n": 7}, n=INT))
    assert ignoring.read(debezium({"id": 2, "m": 7}, m=INT)) == [{"id": 2, "n": None, "m": 7}]


@pytest.mark.parametrize(
    ("was", "now", "follows"),
    [
        ("int32", "int64", True),
        ("int64", "int32", True),
        ("int32", "string", True),
        ("double", "int32", False),
        ("double", "string", False),
        ("string", "int32", False),
    ],
)
def test_a_type_that_converts_existing_values_is_refused(was: str, now: str, follows: bool) -> None:
    topic = Topic()
    topic.read(debezium({"id": 1, "n": None}, n={"type": was, "optional": True}))
    message = debezium({"id": 2, "n": None}, n={"type": now, "optional": True})
    if follows:
        assert topic.read(message) == [{"id": 2, "n": None}]
        return
    with pytest.raises(SchemaError, match=r"alter_column_type n.*values of 'n' in rows that exist were converted"):
        topic.read(message)


def test_a_type_is_compared_with_the_one_described_before() -> None:
    """Not with the wider type that the column has here because it was wider once, or is declared so."""
    for topic in (Topic(), Topic(columns="id INT, n DECIMAL(20, 3), PRIMARY KEY (id)")):
        for kind in ("int64", "int32", "int64", "int16"):
            assert topic.read(debezium({"id": 1, "n": 3}, n={"type": kind, "optional": True}))


def test_messages_that_a_producer_repeats_show_no_change() -> None:
    topic = Topic()
    added = {"type": "int32", "optional": False, "default": 5}
    older, newer = debezium({"id": 1}, 1000), debezium({"id": 2, "n": 5}, 2000, n=added)
    topic.read(older, newer)
    assert topic.read(older, newer, older, newer) == [{"id": 1, "n": 5}, {"id": 2, "n": 5}] * 2
    topic.restart()
    assert topic.read(older, newer) == [{"id": 1, "n": 5}, {"id": 2, "n": 5}]
    topic.read(debezium({"id": 3}, 3000))
    with pytest.raises(SchemaError, match="lost their value in 'n'"):
        topic.read(newer.replace(b"2000", b"4000"))


def test_a_change_that_a_clock_dated_back_is_judged_as_soon_as_its_time_has_come() -> None:
    """The time of a snapshot may be of another clock than those of changes."""
    topic = Topic()
    added = {"type": "int32", "optional": False, "default": 5}
    topic.read(debezium({"id": 1}, 5000))
    assert topic.read(debezium({"id": 2, "n": 5}, 3000, n=added)) == [{"id": 2, "n": 5}]
    with pytest.raises(SchemaError, match="rows with 'n' came before it"):
        topic.read(debezium({"id": 3, "n": 5}, 6000, n=added))


def test_canals_types_are_compared_and_its_statements_speak_for_themselves() -> None:
    topic = Topic("canal-json")
    topic.read(canal({"id": "1", "n": "7"}, n="double"))
    with pytest.raises(SchemaError, match="values of 'n' in rows that exist were converted"):
        topic.read(canal({"id": "2", "n": "7"}, n="int"))
    topic = Topic("canal-json")
    topic.read(canal({"id": "1", "n": "7"}, n="int"))
    statement = {"database": "shop", "table": "p", "type": "ALTER", "isDdl": True, "data": None, "es": 2,
                 "sql": "ALTER TABLE p DROP COLUMN n, ADD COLUMN m INT NOT NULL DEFAULT 3"}  # fmt: skip
    rows = topic.read(json.dumps(statement).encode(), canal({"id": "2", "m": "3"}, m="int"))
    assert rows == [{"id": 2, "n": None, "m": 3}]
    assert topic.default("m") == "3"


def test_the_decoder_tells_changes_after_the_rows_before_them() -> None:
    opened = load_format("debezium-json").decoder(keep_null_columns=True)
    messages = debezium({"id": 1, "n": 7}, n=INT), debezium({"id": 2}), debezium({"id": 3, "m": 1}, m=INT)
    values = pa.array(messages, pa.large_binary())
    decoded = opened.decode(MessageBatch(Origin("t", 0), values, np.arange(3)))
    told = [item.described for item in decoded.items if isinstance(item, ChangeItem)][1:]
    assert [type(item) for item in decoded.items] == [ChangeItem, RowsItem] * 3
    assert [[type(event) for event in events] for events in told] == [[DropColumnEvent], [AddColumnEvent]]


def row(**values: Any) -> bytes:
    return json.dumps(values).encode()


def declared(was: str, now: str | None, before: bytes, **options: str) -> Topic:
    """Return a topic whose declared columns change at a restart, after one message."""
    topic = Topic("json", columns=was)
    topic.read(before)
    return topic.declare("json", now, **options)


def test_declared_columns_that_change_hold_from_the_next_message_on() -> None:
    topic = declared("id INT, n INT, PRIMARY KEY (id)", "id INT, m INT, PRIMARY KEY (id)", row(id=1, n=7), ddl="ignore")
    assert topic.read(row(id=2, n=8, m=9)) == [{"id": 2, "n": None, "m": 9}]
    topic = declared("id INT, n INT, PRIMARY KEY (id)", "id BIGINT, n INT, m INT, PRIMARY KEY (id)", row(id=1, n=7))
    assert topic.read(row(id=2**40, n=8, m=9)) == [{"id": 2**40, "n": 8, "m": 9}]
    topic = declared("id INT, n INT, PRIMARY KEY (id)", None, row(id=1, n=7))
    assert topic.read(row(id=2, n=8, x="y")) == [{"id": 2, "n": 8, "x": "y"}]


@pytest.mark.parametrize(
    ("now", "n", "why"),
    [
        ("id INT, n DATE, PRIMARY KEY (id)", None, "values of 'n' in rows that exist were converted"),
        ("id INT, n INT, PRIMARY KEY (n)", 3, r"the primary key was \(id\)"),
        ("id INT, m INT, PRIMARY KEY (id)", 3, "'n' was renamed to 'm'"),
    ],
)
def test_declared_columns_that_change_rows_from_before_are_refused(now: str, n: int | None, why: str) -> None:
    topic = declared("id INT, n INT, PRIMARY KEY (id)", now, row(id=1, n=7))
    with pytest.raises(SchemaError, match=rf"its columns changed.*{why}.*ddl"):
        topic.read(row(id=2, n=n))


def test_a_declared_column_that_was_left_out_cannot_come_again() -> None:
    both, one = "id INT, n INT, PRIMARY KEY (id)", "id INT, PRIMARY KEY (id)"
    topic = declared(both, one, row(id=1, n=7))
    topic.read(row(id=2, n=8))
    topic.declare("json", both)
    with pytest.raises(SchemaError, match="lost their value in 'n'"):
        topic.read(row(id=3, n=8))
