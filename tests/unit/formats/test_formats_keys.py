"""Keys and tombstones: a tombstone deletes the row of its key, and two rows never become one in silence.

A row without its key, another key than before, and a value of the key of another type are bad messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from raycdc.formats.api import Decoded, FormatDecoder, MessageBatch, Origin, RowsItem
from raycdc.model.evolution import AlterPrimaryKeyEvent, CreateTableEvent
from tests.unit.formats.format_messages import Message, batch, decoder, events_of, rows_of

#: A message and the key of its partition's message.
Keyed = tuple[Any, Message]
KEYED_JSON = {"columns": "id BIGINT, v STRING, PRIMARY KEY (id)"}


def text(value: Any) -> bytes | None:
    return value if isinstance(value, bytes | None) else json.dumps(value).encode()


def messages(*keyed: Keyed, first: int = 1, topic: str = "topic") -> MessageBatch:
    made = batch([message for _, message in keyed], first=first, keys=[text(key) for key, _ in keyed])
    return replace(made, origin=Origin(topic, 3))


def decoded(name: str, *keyed: Keyed, topic: str = "topic", **options: Any) -> Decoded:
    return decoder(name, **options).decode(messages(*keyed, topic=topic))


def debezium(op: str, row: Any, table: str = "t", **source: Any) -> dict[str, Any]:
    before, after = (row, None) if op == "d" else (None, row)
    return {"op": op, "before": before, "after": after, "source": {"db": "s", "table": table, "ts_ms": 1, **source}}


def canal(row: dict[str, Any], keys: Any, kind: str = "INSERT") -> dict[str, Any]:
    types = dict.fromkeys(row, "varchar(9)")
    described = {"pkNames": keys, "mysqlType": types, "type": kind, "isDdl": False}
    return {"data": [row], "old": None, "database": "s", "table": "t", "es": 1, **described}


def maxwell(row: dict[str, Any], keys: Any) -> dict[str, Any]:
    told = {"primary_key_columns": keys} if keys else {}
    return {"database": "s", "table": "t", "type": "insert", "ts": 1, "data": row, **told}


def ogg(row: dict[str, Any], keys: Any) -> dict[str, Any]:
    return {"table": "S.T", "op_type": "I", "op_ts": "2024-01-01 00:00:00", "primary_keys": keys, "after": row}


def mongo(op: str, document: Any, **more: Any) -> dict[str, Any]:
    return debezium(op, None if document is None else json.dumps(document), connector="mongodb", **more)


def error(done: Decoded) -> str:
    assert done.failure is not None
    return f"{type(done.failure).__name__}: {done.failure}"


# -- tombstones


def test_a_tombstone_of_json_deletes_the_row_of_its_key() -> None:
    done = decoded(
        "json",
        ({"id": 1}, {"id": 1, "v": "a"}),
        ({"id": 2}, {"id": 2, "v": "b"}),
        ({"id": 1}, None),
        ({"schema": {"type": "struct"}, "payload": {"id": 2}}, b"null"),
        **KEYED_JSON,
    )
    assert (done.failure, done.tombstones) == (None, 0)
    assert rows_of(done) == [
        ("+I", {"id": 1, "v": "a"}),
        ("+I", {"id": 2, "v": "b"}),
        ("-D", {"id": 1, "v": None}),
        ("-D", {"id": 2, "v": None}),
    ]


def test_a_tombstone_is_what_is_left_of_a_delete_in_a_compacted_topic() -> None:
    empty = b'{"schema": null, "payload": null}'
    done = decoded(
        "debezium-json",
        ({"id": 1}, debezium("c", {"id": 1, "v": "a"})),
        ({"id": 2}, debezium("c", {"id": 2, "v": "b"})),
        ({"id": 2}, None),
        ({"id": 1}, empty),
    )
    assert rows_of(done)[2:] == [("-D", {"id": 2, "v": None}), ("-D", {"id": 1, "v": None})]
    assert done.key_only == {item.table for item in done.items}


def one_by_one(made: FormatDecoder, *keyed: Keyed, restored: bool) -> list[tuple[str, Any]]:
    rows = []
    for number, one in enumerate(keyed):
        done = made.decode(messages(one, first=number + 1))
        assert done.failure is None
        rows += rows_of(done)
        if restored:
            assert done.state_changed
            state = json.loads(json.dumps(made.snapshot_state()))
            made = decoder("debezium-json")
            made.restore_state(state)
    return rows


@pytest.mark.parametrize("restored", [False, True])
def test_a_tombstone_right_after_its_delete_says_nothing_new(restored: bool) -> None:
    row = {"id": 1, "v": "a"}
    story: Sequence[Keyed] = [({"id": 1}, debezium("c", row)), ({"id": 1}, debezium("d", row)), ({"id": 1}, None)]
    expected = [("+I", row), ("-D", row)]
    done = decoded("debezium-json", *story)
    assert (rows_of(done), done.tombstones, done.key_only) == (expected, 1, frozenset())
    assert one_by_one(decoder("debezium-json"), *story[:2], restored=restored) == expected
    # Over the end of a batch, also after a restart.
    made = decoder("debezium-json")
    made.decode(messages(*story[:2]))
    state = json.loads(json.dumps(made.snapshot_state()))
    again = decoder("debezium-json") if restored else made
    if restored:
        again.restore_state(state)
    last = again.decode(messages(story[2], first=3))
    assert (rows_of(last), last.tombstones) == ([], 1)
    # The next tombstone of the key belongs to it, too; one of another key does not.
    assert rows_of(again.decode(messages(({"id": 1}, None), first=4))) == []
    assert rows_of(again.decode(messages(({"id": 7}, None), first=5))) == [("-D", {"id": 7, "v": None})]


def test_the_schema_of_a_key_is_not_taken_for_that_of_rows() -> None:
    key = {"schema": {"type": "struct", "fields": [{"type": "int32", "field": "id"}]}, "payload": {"id": 1}}
    row = {
        "type": "struct",
        "field": "after",
        "fields": [{"type": "int32", "field": "id"}, {"type": "string", "field": "v"}],
    }
    event = {"schema": {"type": "struct", "fields": [row]}, "payload": debezium("c", {"id": 1, "v": "a"})}
    done = decoded("debezium-json", (key, event), (key, None), (key, event))
    assert [op for op, _ in rows_of(done)] == ["+I", "-D", "+I"]
    assert len(events_of(done)) == 1


def test_a_tombstone_before_any_row_means_nothing() -> None:
    done = decoded("debezium-json", ({"id": 1}, None), ({"id": 1}, debezium("c", {"id": 1})))
    assert (rows_of(done), done.tombstones) == ([("+I", {"id": 1})], 1)
    keyless = decoded("debezium-json", (None, debezium("c", {"id": 1})), ({"id": 1}, None), (None, None))
    assert (keyless.failure, keyless.tombstones, len(rows_of(keyless))) == (None, 2, 1)
    assert decoded("json", ({"id": 1}, {"id": 1}), ({"id": 1}, None)).tombstones == 1


TWO = [({"id": 1}, debezium("c", {"id": 1}, "t")), ({"id": 1}, debezium("c", {"id": 1}, "u"))]


@pytest.mark.parametrize(
    ("topic", "options", "deletes"),
    [
        ("topic", {}, None),
        ("server.s.t", {}, "t"),
        ("s.u", {}, "u"),
        ("server.s.v", {}, None),
        ("server.other_s.t", {}, None),
        ("topic", {"include": ["s.t"]}, None),
        ("topic", {"exclude": ["s.t"]}, None),
        ("server.s.t", {"include": ["s.t"]}, "t"),
        ("server.s.u", {"include": ["s.t"]}, None),
    ],
)
def test_a_tombstone_never_deletes_a_row_of_another_table(
    topic: str, options: dict[str, Any], deletes: str | None
) -> None:
    done = decoded("debezium-json", *TWO, ({"id": 1}, None), topic=topic, **options)
    deleted = [
        item.table.table for item in done.items if isinstance(item, RowsItem) and 3 in item.batch["_op"].to_pylist()
    ]
    assert deleted == ([deletes] if deletes else [])
    if deletes is None:
        assert error(done).startswith(f"UnclearTombstoneError: {topic}/3@3: a tombstone whose table cannot be told")
    # The delete before it says whose it is, also of a table that is left out.
    for table in ("t", "u"):
        own = [({"id": 1}, debezium("d", {"id": 1}, table)), ({"id": 1}, None)]
        assert decoded("debezium-json", *TWO, *own, topic=topic, **options).failure is None


@pytest.mark.parametrize(
    ("key", "text_of_error"),
    [
        (
            {"v": 1},
            "MissingKeyError: topic/3@2: table topics.topic: the key of a tombstone has no value in 'id' of the",
        ),
        ({"id": None}, "MissingKeyError: topic/3@2: table topics.topic: the key of a tombstone has no value in 'id'"),
        (b"1", "MissingKeyError: topic/3@2: a tombstone whose key is no JSON object with the names of the key"),
        (b"{", "MissingKeyError: topic/3@2: a tombstone whose key is no JSON object"),
        ({"id": "x"}, "UnrepresentableValueError: topic/3@2: table topics.topic, column 'id': a value is"),
    ],
)
def test_a_tombstone_whose_key_cannot_be_read_is_a_bad_message(key: Any, text_of_error: str) -> None:
    story: Sequence[Keyed] = [({"id": 1}, {"id": 1}), (key, None), ({"id": 2}, {"id": 2})]
    assert error(decoded("json", *story, **KEYED_JSON)).startswith(text_of_error)
    kept = decoded("json", *story, **KEYED_JSON, on_error="dead-letter")
    assert [row["id"] for _, row in rows_of(kept)] == [1, 2]
    assert [(bad.offset, bad.key, bad.value) for bad in kept.bad] == [(2, text(key), None)]


def test_rows_and_tombstones_in_turns_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from raycdc.formats.decoding.pieces import TableDecoder

    calls: list[int] = []
    decode = TableDecoder.decode

    def counted(*args: Any) -> Any:
        calls.append(1)
        return decode(*args)

    monkeypatch.setattr(TableDecoder, "decode", counted)
    story = [({"id": n}, debezium("c", {"id": n}) if n % 2 else None) for n in range(1, 400)]
    done = decoded("debezium-json", *story)
    assert len(rows_of(done)) == 399
    assert len(calls) < 5


def test_tombstones_of_other_formats_delete_by_their_keys_too() -> None:
    done = decoded("canal-json", ({"id": "1"}, canal({"id": "1", "v": "a"}, ["id"])), ({"id": "1"}, None))
    assert rows_of(done)[1] == ("-D", {"id": "1", "v": None})
    done = decoded("maxwell-json", ({"id": 1}, maxwell({"id": 1, "v": "a"}, ["id"])), ({"id": 1}, None))
    assert rows_of(done)[1] == ("-D", {"id": 1, "v": None})


TABLE = "__dbz__physicalTableIdentifier"


@pytest.mark.parametrize("envelope", [False, True])
@pytest.mark.parametrize("prefix", ["", "server."])
def test_a_tombstone_whose_key_names_its_table_deletes_a_row_of_no_other_table(prefix: str, envelope: bool) -> None:
    """The topic has the name of one of its tables, and compaction left nothing of the deletes themselves."""

    def key(number: int, table: str) -> dict[str, Any]:
        fields = {"id": number, TABLE: f"{prefix}s.{table}"}
        return {"schema": {"type": "struct"}, "payload": fields} if envelope else fields

    done = decoded(
        "debezium-json",
        (key(1, "t"), debezium("c", {"id": 1})),
        (key(1, "u"), debezium("c", {"id": 1}, table="u")),
        (key(1, "u"), None),
        (key(2, "u"), None),
        (key(3, "t"), None),
        (key(4, "unknown"), None),
        (key(5, "u"), None),
        topic="s.t",
    )
    assert done.failure is None
    rows = [
        (i.table.table, r["_op"], r["id"]) for i in done.items if isinstance(i, RowsItem) for r in i.batch.to_pylist()
    ]
    assert sorted(rows) == [("t", 0, 1), ("t", 3, 3), ("u", 0, 1), ("u", 3, 1), ("u", 3, 2), ("u", 3, 5)]
    assert done.tombstones == 1
    assert [event.schema.columns[0].name for event in events_of(done) if isinstance(event, CreateTableEvent)] == [
        "id",
        "id",
    ]


def test_the_table_in_a_key_is_no_column_of_a_topic_with_one_table() -> None:
    key = {"id": 1, TABLE: "elsewhere.s.t"}
    done = decoded("debezium-json", (key, debezium("c", {"id": 1})), (key, debezium("r", {"id": 1})), (key, None))
    assert rows_of(done)[-1] == ("-D", {"id": 1})
    (created,) = events_of(done)
    assert isinstance(created, CreateTableEvent)
    assert created.schema.primary_key == ("id",)


def test_a_tombstone_of_a_table_that_is_left_out_means_nothing() -> None:
    story: Sequence[Keyed] = [
        ({"id": 1, TABLE: "s.t"}, debezium("c", {"id": 1})),
        ({"id": 1, TABLE: "s.u"}, debezium("c", {"id": 1}, table="u")),
        ({"id": 1, TABLE: "s.u"}, None),
    ]
    done = decoded("debezium-json", *story, include=["s.t"])
    assert (rows_of(done), done.tombstones) == ([("+I", {"id": 1})], 1)


# -- the key of a table


@pytest.mark.parametrize(
    ("name", "story"),
    [
        (
            "debezium-json",
            [
                ({"id": 1}, debezium("c", {"id": 1, "r": "eu"})),
                ({"id": 1, "r": "us"}, debezium("c", {"id": 1, "r": "us"})),
            ],
        ),
        (
            "canal-json",
            [(None, canal({"id": "1", "r": "x"}, ["id"])), (None, canal({"id": "1", "r": "y"}, ["id", "r"]))],
        ),
        ("maxwell-json", [(None, maxwell({"id": 1, "r": 1}, ["id"])), (None, maxwell({"id": 1, "r": 2}, ["id", "r"]))]),
        (
            "maxwell-json",
            [
                ({"database": "s", "table": "t", "pk.id": 1}, maxwell({"id": 1, "r": 1}, None)),
                ({"database": "s", "table": "t", "pk.id": 1, "pk.r": 2}, maxwell({"id": 1, "r": 2}, None)),
            ],
        ),
        ("ogg-json", [(None, ogg({"id": 1, "r": 1}, ["id"])), (None, ogg({"id": 1, "r": 2}, ["id", "r"]))]),
    ],
)
@pytest.mark.parametrize("restored", [False, True])
def test_another_key_than_before_is_a_bad_message(name: str, story: list[Keyed], restored: bool) -> None:
    made = decoder(name)
    assert made.decode(messages(story[0])).failure is None
    if restored:
        state = json.loads(json.dumps(made.snapshot_state()))
        made = decoder(name)
        made.restore_state(state)
    wanted = "it names the key (id, r), the messages before it named (id). Rows that differ could become one"
    assert wanted in error(made.decode(messages(story[1], first=2)))
    assert error(decoded(name, *story)).startswith("ChangedKeyError: topic/3@2: table ")
    kept = decoded(name, *story, story[0], on_error="skip")
    assert len(rows_of(kept)) == 2


def test_a_key_that_goes_is_another_key() -> None:
    story: list[Keyed] = [({"id": 1}, debezium("c", {"id": 1})), (None, debezium("c", {"id": 1}))]
    assert "it names no key, the messages before it named (id)" in error(decoded("debezium-json", *story))
    assert "it names no key" in error(
        decoded("canal-json", (None, canal({"id": "1"}, ["id"])), (None, canal({"id": "1"}, None)))
    )


def test_a_key_in_another_order_is_the_same_and_one_that_comes_later_is_taken() -> None:
    a, b = canal({"id": "1", "r": "x"}, ["id", "r"]), canal({"id": "1", "r": "x"}, ["r", "id"])
    assert len(rows_of(decoded("canal-json", (None, a), (None, b)))) == 2
    late = decoded("debezium-json", (None, debezium("c", {"id": 1})), ({"id": 2}, debezium("c", {"id": 2})))
    assert [type(event) for event in events_of(late)] == [CreateTableEvent, AlterPrimaryKeyEvent]
    last = late.items[-1]
    assert isinstance(last, RowsItem)
    assert last.schema.primary_key == ("id",)


def test_the_key_that_the_user_gives_holds() -> None:
    given = {"columns": "id BIGINT, r STRING, PRIMARY KEY (id, r)"}
    story: list[Keyed] = [({"id": 1}, debezium("c", {"id": 1, "r": "eu"})), (None, debezium("c", {"id": 1, "r": "us"}))]
    assert len(rows_of(decoded("debezium-json", *story, **given))) == 2


@pytest.mark.parametrize("lacking", [{"v": "x"}, {"id": None, "v": "x"}])
@pytest.mark.parametrize(
    ("name", "make", "options"),
    [
        ("json", lambda row: ({"id": 7}, row), {"columns": "id BIGINT NOT NULL, v STRING, PRIMARY KEY (id)"}),
        ("json", lambda row: (None, row), KEYED_JSON),
        ("debezium-json", lambda row: ({"id": 7}, debezium("c", row)), {}),
        ("debezium-json", lambda row: ({"id": 7}, debezium("d", row)), {}),
        ("maxwell-json", lambda row: (None, maxwell(row, ["id"])), {}),
    ],
)
def test_a_row_without_its_key_is_a_bad_message(
    name: str, make: Any, options: dict[str, Any], lacking: dict[str, Any]
) -> None:
    story = [make({"id": 1, "v": "a"}), make(lacking), make({"id": 2, "v": "b"})]
    found = error(decoded(name, *story, **options))
    assert found.startswith(("MissingKeyError: topic/3@2: table ", "PartialRowError"))
    kept = decoded(name, *story, **options, on_error="skip")
    assert [row["id"] for _, row in rows_of(kept)] == [1, 2]


OID = "5f43a1b2c3d4e5f6a7b8c9d0"
IDS: dict[str, Any] = {
    "object id": {"$oid": OID},
    "its text": OID,
    "number": 1,
    "its digits": "1",
    "true": True,
    "date": {"$date": 1},
    "document": {"a": 1},
}


@pytest.mark.parametrize("second", IDS)
@pytest.mark.parametrize("first", IDS)
@pytest.mark.parametrize("columns", [None, "_id STRING, v BIGINT, PRIMARY KEY (_id)"])
def test_values_of_two_types_are_two_keys(first: str, second: str, columns: str | None) -> None:
    story = [(None, mongo("c", {"_id": IDS[name], "v": 1})) for name in (first, second)]
    options = {"columns": columns} if columns else {}
    made = decoder("debezium-json", **options)
    done = made.decode(messages(*story))
    if columns and {first, second} & {"true", "date", "document"}:
        return  # The type that the user gives may not hold such a value at all.
    if first == second or {first, second} == {"its text", "its digits"}:
        assert len(rows_of(done)) == 2
    else:
        assert "ChangedKeyError: topic/3@2: table s.t, column '_id': the value is of another type" in error(done)
        assert len(events_of(done)) == 1  # The column did not become a text.
        made = decoder("debezium-json", **options)
        made.decode(messages(story[0]))
        after = decoder("debezium-json", **options)
        after.restore_state(json.loads(json.dumps(made.snapshot_state())))
        assert "ChangedKeyError" in error(after.decode(messages(story[1], first=2)))


def test_numbers_of_all_sizes_are_one_type() -> None:
    ids = [1, {"$numberLong": "5"}, {"$numberInt": "3"}, 2.5, {"$numberDecimal": "7"}]
    done = decoded("debezium-json", *[(None, mongo("c", {"_id": value})) for value in ids])
    assert (done.failure, len(rows_of(done))) == (None, 5)


# -- documents, whose key is another field than the message's key


@pytest.mark.parametrize("value", ["number", "object id", "its text"])
def test_a_tombstone_deletes_a_document(value: str) -> None:
    key = {"id": json.dumps(IDS[value])}
    done = decoded("debezium-json", (key, mongo("c", {"_id": IDS[value], "v": 1})), (key, None))
    (_, (op, row)) = rows_of(done)
    assert (op, row["v"]) == ("-D", None)
    assert row["_id"] == rows_of(done)[0][1]["_id"]


def test_a_delete_without_its_document_goes_by_the_key() -> None:
    key = {"id": "1"}
    story = [(key, mongo("c", {"_id": 1, "v": 1})), (key, mongo("d", None)), (key, None)]
    assert "MissingBeforeImageError" in error(decoded("debezium-json", *story))
    done = decoded("debezium-json", *story, before_image="optional")
    assert (rows_of(done)[1:], done.tombstones) == ([("-D", {"_id": 1, "v": None})], 1)


def test_a_row_that_says_it_is_deleted_is_a_delete_unless_the_user_declares_that_field() -> None:
    """Debezium's unwrapped form, with its rewritten deletes; the tombstone after one deletes nothing more."""
    kept, gone = {"id": 1, "v": "a", "__deleted": "false"}, {"id": 1, "v": "a", "__deleted": "true"}
    other = {"id": 2, "v": None, "__deleted": True}
    for value in ("true", "tru\\u0065"):
        raw = json.dumps(gone).replace('"true"', f'"{value}"')
        found = decoded(
            "json", ({"id": 1}, kept), ({"id": 1}, raw), ({"id": 1}, None), ({"id": 2}, other), **KEYED_JSON
        )
        assert rows_of(found) == [
            ("+I", {"id": 1, "v": "a"}), ("-D", {"id": 1, "v": "a"}), ("-D", {"id": 2, "v": None}),
        ]  # fmt: skip
        assert found.tombstones == 1
    for said in ("x", 1, None, ["true"], {"true": True}):
        found = decoded("json", ({"id": 1}, {**gone, "__deleted": said}), **KEYED_JSON)
        assert [op for op, _ in rows_of(found)] == ["+I"]
    declared = "id BIGINT, __deleted STRING, PRIMARY KEY (id)"
    assert rows_of(decoded("json", ({"id": 1}, gone), columns=declared)) == [("+I", {"id": 1, "__deleted": "true"})]
    assert [op for op, _ in rows_of(decoded("json", (None, gone)))] == ["+I"]
    first, later = decoder("json", **KEYED_JSON), decoder("json", **KEYED_JSON)
    first.decode(messages(({"id": 1}, kept)))
    later.restore_state(first.snapshot_state())
    assert [op for op, _ in rows_of(later.decode(messages(({"id": 1}, gone))))] == ["-D"]
