"""A message whose structure is not its format's: each field absent, null, twice, or of another kind.

A producer of another version, a proxy, or a bug writes such messages. Each is decoded, ignored, or a bad message, and
that within a moment: no endless loop, and no error without a name.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from raycdc.formats.api import RowsItem
from raycdc.formats.envelope import KnownTables
from tests.unit.formats.format_messages import batch, decoder, failure, rows_of

#: A decoder that has not ended by then never will: each message takes microseconds.
TIMEOUT_S = 20
ABSENT = object()
#: The values that take the place of a field.
KINDS: tuple[Any, ...] = (
    ABSENT,
    None,
    5,
    -1.5,
    1e300,
    True,
    "",
    "x",
    "null",
    [],
    {},
    [1],
    [[]],
    [{}],
    {"a": 1},
    {"": None},
)

MESSAGES: dict[str, list[dict[str, Any]]] = {
    "debezium-json": [
        {
            "before": None,
            "after": {"id": 1, "v": "a", "n": None},
            "source": {"connector": "mysql", "db": "s", "table": "t", "ts_ms": 1, "snapshot": "false"},
            "op": "c",
            "ts_ms": 2,
            "transaction": {"id": "x", "total_order": 1},
        },
        {
            "schema": {
                "type": "struct",
                "fields": [
                    {
                        "type": "struct",
                        "field": "after",
                        "optional": True,
                        "fields": [
                            {"type": "int32", "optional": False, "field": "id"},
                            {
                                "type": "bytes",
                                "optional": True,
                                "field": "d",
                                "name": "org.apache.kafka.connect.data.Decimal",
                                "version": 1,
                                "parameters": {"scale": "2", "connect.decimal.precision": "5"},
                                "default": "AA==",
                            },
                        ],
                    }
                ],
            },
            "payload": {
                "before": {"id": 1, "d": "AMg="},
                "after": {"id": 1, "d": "AMg="},
                "source": {"connector": "postgresql", "db": "s", "schema": "p", "table": "t", "ts_ms": 1},
                "op": "u",
            },
        },
        {
            "before": None,
            "after": '{"_id": {"$oid": "5f43a1b2c3d4e5f6a7b8c9d0"}, "v": {"$numberLong": "5"}}',
            "source": {"connector": "mongodb", "db": "s", "collection": "t", "ts_ms": 1},
            "op": "r",
            "updateDescription": {"updatedFields": "{}", "removedFields": []},
        },
        {
            "source": {"connector": "mysql", "db": "s", "table": "t", "ts_ms": 1},
            "databaseName": "s",
            "ddl": "CREATE TABLE t (id INT)",
            "tableChanges": [{"type": "CREATE", "id": "s.t", "table": {"columns": [{"name": "id"}]}}],
        },
        {"before": None, "after": None, "source": {"db": "s", "table": "t", "ts_ms": 1}, "op": "t"},
    ],
    "canal-json": [
        {
            "data": [{"id": "1", "v": "a"}, {"id": "2", "v": None}],
            "old": [{"v": "b"}, {"v": "c"}],
            "database": "s",
            "table": "t",
            "type": "UPDATE",
            "es": 1,
            "ts": 2,
            "id": 3,
            "isDdl": False,
            "sql": "",
            "pkNames": ["id"],
            "mysqlType": {"id": "int", "v": "varchar(10)"},
            "sqlType": {"id": 4, "v": 12},
        },
        {"data": None, "database": "s", "table": "t", "type": "ALTER", "isDdl": True, "sql": "ALTER TABLE t ADD x INT"},
    ],
    "maxwell-json": [
        {
            "database": "s",
            "table": "t",
            "type": "update",
            "ts": 1,
            "xid": 2,
            "commit": True,
            "position": "m.1:4",
            "primary_key_columns": ["id"],
            "data": {"id": 1, "v": "b"},
            "old": {"v": "a"},
        },
        {
            "type": "table-alter",
            "database": "s",
            "table": "t",
            "old": {"columns": [{"type": "int", "name": "id", "signed": True}], "primary-key": ["id"]},
            "def": {
                "database": "s",
                "table": "t",
                "columns": [
                    {"type": "int", "name": "id", "signed": True},
                    {"type": "enum", "name": "e", "enum-values": ["a", "b"]},
                    {"type": "datetime", "name": "d", "column-length": 3},
                ],
                "primary-key": ["id"],
            },
            "ts": 1,
            "sql": "ALTER TABLE t ADD e ENUM('a','b')",
        },
    ],
    "ogg-json": [
        {
            "table": "S.T",
            "op_type": "U",
            "op_ts": "2026-01-01 00:00:00.000000",
            "current_ts": "2026-01-01T00:00:00",
            "pos": "1",
            "primary_keys": ["ID"],
            "before": {"ID": 1, "V": "a"},
            "after": {"ID": 1, "V": "b"},
        }
    ],
    "json": [{"id": 1, "v": "a", "nested": {"a": [1, {"b": None}]}}],
}


@contextmanager
def at_once() -> Iterator[None]:
    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("the decoder does not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(TIMEOUT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def changed(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the message with one field changed, for each field at any depth and each kind of change: path, text."""

    def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            yield (*above, key)
            yield from paths(value[key], (*above, key))

    for path in paths(message):
        where = ".".join(map(str, path))
        for kind in KINDS:
            copy = json.loads(json.dumps(message))
            holder = copy
            for key in path[:-1]:
                holder = holder[key]
            if kind is ABSENT:
                del holder[path[-1]]
            else:
                holder[path[-1]] = kind
            yield where, json.dumps(copy)
            if kind is not ABSENT and isinstance(holder, dict):
                # The same key a second time, which JSON allows and parsers answer differently.
                holder[path[-1]] = "\0twice"
                first = json.dumps(copy)
                key = json.dumps(path[-1])
                original = json.dumps(_at(message, path))
                yield where, first.replace('"\\u0000twice"', f"{original}, {key}: {json.dumps(kind)}")


def _at(message: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        message = message[key]
    return message


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, messages in MESSAGES.items() for number in range(len(messages))]
)
def test_a_field_of_another_kind_is_decoded_or_a_bad_message_at_once(name: str, number: int) -> None:
    message = MESSAGES[name][number]
    with at_once():
        read = decoder(name, on_error="dead-letter")
        for where, text in changed(message):
            before = decoder(name).decode(batch([text]))
            # Alone, and after messages that made the table known.
            both = read.decode(batch([text, message]))
            for decoded in (before, both):
                for item in decoded.items:
                    if isinstance(item, RowsItem):
                        item.batch.validate(full=True)
            assert before.failure is None or str(before.failure).startswith("topic/3@1: "), (where, text)


@pytest.mark.parametrize(
    "key", ["null", "5", "[]", "{}", '"x"', '{"schema": null, "payload": 5}', '{"id": {"a": 1}}', "{"]
)
@pytest.mark.parametrize("name", list(MESSAGES))
def test_a_key_of_another_kind_is_decoded_or_a_bad_message_at_once(name: str, key: str) -> None:
    with at_once():
        for message in MESSAGES[name]:
            decoder(name).decode(batch([message], keys=[key.encode()]))


@pytest.mark.parametrize("value", ["null", "5", "[]", "{}", "true"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("debezium-json", '{"op": "c", "after": {"id": 1}, "source": {"db": "s", "table": %s, "ts_ms": 1}}'),
        ("debezium-json", '{"op": "c", "after": {"id": 1}, "source": {"db": %s, "table": "t", "ts_ms": 1}}'),
        ("debezium-json", '{"op": "c", "after": {"id": 1}, "source": {"db": "s", "collection": %s, "ts_ms": 1}}'),
        ("canal-json", '{"data": [{"id": "1"}], "database": %s, "table": "t", "type": "INSERT"}'),
        ("canal-json", '{"data": [{"id": "1"}], "database": "s", "table": %s, "type": "INSERT"}'),
        ("maxwell-json", '{"data": {"id": 1}, "database": %s, "table": "t", "type": "insert"}'),
        ("maxwell-json", '{"data": {"id": 1}, "database": "s", "table": %s, "type": "insert"}'),
        ("ogg-json", '{"after": {"ID": 1}, "table": %s, "op_type": "I"}'),
    ],
)
@pytest.mark.parametrize("options", [{}, {"include": ["s.other"]}])
def test_a_name_that_is_no_text_makes_a_bad_message(name: str, message: str, value: str, options: Any) -> None:
    with at_once():
        text = failure(name, message % value, **options)
    assert text == (
        "CorruptMessageError: topic/3@1: corrupt message: what should name its database, schema or table is no text"
    )


def test_a_name_with_escapes_is_the_same_name() -> None:
    with at_once():
        decoded = decoder("maxwell-json").decode(
            batch(
                [
                    '{"database": "s", "table": "\\u0074", "type": "insert", "ts": 1, "data": {"id": 1}}',
                    '{"database": "s", "table": "t", "type": "insert", "ts": 1, "data": {"id": 2}}',
                ]
            )
        )
    assert {str(item.table) for item in decoded.items} == {"s.t"}
    assert [row["id"] for _, row in rows_of(decoded)] == [1, 2]


def test_a_statement_about_a_whole_database_has_no_table() -> None:
    with at_once():
        created = {"source": {"db": "d", "table": None}, "databaseName": "d", "ddl": "CREATE DATABASE d", "ts_ms": 1}
        decoded = decoder("debezium-json").decode(batch([created]))
    assert decoded.failure is None
    assert rows_of(decoded) == []


def test_a_scan_that_does_not_advance_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next fault of this kind ends with an error that names the message."""
    monkeypatch.setattr(KnownTables, "add", lambda *_, **__: None)
    with at_once(), pytest.raises(RuntimeError, match="topic/3@1: its table does not become known"):
        decoder("ogg-json").decode(batch([MESSAGES["ogg-json"][0]]))
