"""Changes whose document is not found: what settles them, what a reader that goes on knows, and what is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bson
import pytest

from raycdc.connectors.mongodb.stream import document_reads
from raycdc.connectors.mongodb.stream.causal import Found
from raycdc.connectors.mongodb.stream.resume_token import StreamPosition
from raycdc.connectors.mongodb.stream.token import ordinal_of
from raycdc.core import typed_codec
from raycdc.errors import StateError
from raycdc.model import RowKind
from raycdc.source.snapshot.log.log_unit import LogTransactions, LogUnit, rows_of
from raycdc.state.missing import MissingRow
from tests.unit.connectors.mongodb.test_mongodb_stream import ORDERS, Script, answer, event, reader, token, units


def update(second: int, key: int, place: int = 1) -> dict[str, Any]:
    return event(second, place, "update", key=key, fullDocument=None)


class Server:
    """What reads of documents find, and which were asked for: cluster time, keys, whether singly.
    `seen` is in seconds.
    """

    def __init__(self, seen: int, *found: list[int]) -> None:
        self.seen = seen
        self.found = list(found)
        self.asked: list[tuple[int, list[int], bool]] = []

    def __call__(self, table: Any, uuid: str, keys: list[int], cluster_time: int, *, singly: bool = False) -> Found:
        assert table == ORDERS
        self.asked.append((cluster_time >> 32, keys, singly))
        there = self.found.pop(0) if self.found else []
        documents = {bson.encode({"_id": key}): bson.encode({"_id": key, "n": 77}) for key in keys if key in there}
        return Found(documents, ordinal_of(self.seen, 1))


def rows(passed: list[LogUnit]) -> list[tuple[int, int]]:
    return [
        (RowKind(row["_op"]), row["_id"]) for unit in passed for part in rows_of(unit) for row in part.batch.to_pylist()
    ]


def missing_of(unit: LogUnit) -> tuple[MissingRow, ...]:
    return unit.missing if isinstance(unit, LogTransactions) else ()


def waiting(passed: list[LogUnit]) -> list[int]:
    """Keys of the changes that wait behind what was passed, as state has it."""
    state = [unit.log_position.notes.to_json() for unit in passed if unit.log_position.notes is not None]
    entries = state[-1].get("absent", []) if state else []
    return [bson.decode(typed_codec.read(document_reads.Absent, entry).key)["_id"] for entry in entries]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([event(12, 1, "delete", key=1)], [(RowKind.DELETE, 1)]),
        ([event(12, 1, "delete", key=1), event(13, 1, key=1)], [(RowKind.DELETE, 1), (RowKind.INSERT, 1)]),
        ([event(12, 1, "update", key=1, fullDocument={"_id": 1, "n": 5})], [(RowKind.UPDATE_AFTER, 1)]),
        ([event(12, 1, "delete", documentKey={"shard": "x", "_id": 1})], [(RowKind.DELETE, 1)]),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_what_the_stream_says_settles_a_change(later: list[Any], expected: list[Any], *, together: bool) -> None:
    answers = [[update(11, 1), *later]] if together else [[update(11, 1)], *([one] for one in later)]
    script = Script(*(answer(*some) for some in answers), answer(behind=token(40)))
    server = Server(30)
    passed = units(reader(script, read_documents=server), script)
    assert rows(passed) == expected
    assert waiting(passed) == []
    assert server.asked == [(11, [1], False)]
    assert not any(missing_of(unit) for unit in passed)


def test_a_change_after_the_last_deletion_is_not_settled_by_it() -> None:
    events = [update(11, 1), event(12, 1, "delete", key=1), event(13, 1, key=1), update(14, 1)]
    script = Script(answer(*events), answer(behind=token(20)))
    passed = units(reader(script, read_documents=Server(30)), script)
    assert waiting(passed) == [1]


@pytest.mark.parametrize("together", [False, True])
def test_one_that_changed_once_more_behind_an_end_is_not_settled_at_it(*, together: bool) -> None:
    events = [update(11, 1), update(14, 1)]
    answers = [answer(*events)] if together else [answer(one) for one in events]
    script = Script(*answers, answer(behind=token(20)))
    passed = units(reader(script, read_documents=Server(30)), script)
    notes = [unit.log_position.notes for unit in passed if unit.log_position.notes is not None][-1]
    assert not document_reads.is_complete(notes, ordinal_of(12, 1))
    assert document_reads.is_complete(notes, ordinal_of(10, 9))


def test_a_change_that_nothing_explains_is_looked_up_again_and_then_told() -> None:
    script = Script(answer(update(11, 1), update(11, 2, place=2), update(11, 3, place=3)), answer(behind=token(30)))
    server = Server(30, [3], [1])
    passed = units(reader(script, read_documents=server), script)
    assert server.asked == [(11, [1, 2, 3], False), (30, [1, 2], True)]
    assert rows(passed) == [(RowKind.UPDATE_AFTER, 3), (RowKind.UPDATE_AFTER, 1), (RowKind.DELETE, 2)]
    # Before it is known what became of all changes the stream has not passed what was seen.
    assert [unit.log_position.ordinal for unit in passed] == [
        ordinal_of(11, 1), ordinal_of(30, 1) - 1, ordinal_of(30, 1) - 1, ordinal_of(30, 1)
    ]  # fmt: skip
    assert [[row.key for row in missing_of(unit)] for unit in passed] == [[], [], [], ['{"_id": 2}']]
    (told,) = missing_of(passed[-1])
    assert (told.table, told.pos, told.ts_ms) == (ORDERS, "11.1", 11_000)
    assert [waiting(passed[: n + 1]) for n in range(4)] == [[1, 2], [1, 2], [2], []]


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_reader_that_goes_on_settles_what_waited(left: int) -> None:
    """It begins behind the first unit, and knows nothing but what state has of it."""
    answers = [
        answer(update(11, 1), update(11, 2, place=2), event(12, 1, key=9)),
        answer(event(13, 1, "delete", key=1), behind=token(13, 1)),
        answer(behind=token(30)),
    ]
    script = Script(*answers)
    passed = units(reader(script, read_documents=Server(30)), script)[: left + 1]
    state: Mapping[str, Any] = {}
    for unit in passed:
        state = state if unit.log_position.notes is None else unit.log_position.notes.to_json()
    begin = StreamPosition.of(passed[-1].log_position.position)
    rest = [
        answer(*(e for e in events if e["clusterTime"].time > begin.cluster_time >> 32), behind=behind)
        for events, behind in [
            ([event(12, 1, key=9)], token(12, 1)),
            ([event(13, 1, "delete", key=1)], token(13, 1)),
            ([], token(30)),
        ]
    ]
    script = Script(*rest)
    more = units(reader(script, read_documents=Server(30), state=dict(state), start=begin), script)
    expected = [(RowKind.INSERT, 9), (RowKind.DELETE, 1), (RowKind.DELETE, 2)]
    assert rows([*passed, *more]) == expected
    assert [row.key for unit in more for row in missing_of(unit)] == ['{"_id": 2}']
    assert waiting([*passed, *more]) == []


def test_one_that_changes_all_the_time_and_is_never_found_is_told() -> None:
    script = Script(*(answer(update(second, 1)) for second in range(11, 40)), answer(behind=token(50)))
    server = Server(20)
    passed = units(reader(script, read_documents=server), script)
    assert [row.pos for unit in passed for row in missing_of(unit)][:1] == ["11.1"]
    assert waiting(passed) == []


def test_where_many_wait_the_log_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_reads, "WAITING_BYTES_MAX", 200)
    events = [update(11, key, place=key) for key in (1, 2, 3, 4)]
    lean_insert = {name: value for name, value in event(15, 1, key=3).items() if name != "fullDocument"}
    script = Script(
        answer(*events, behind=token(12)),
        # Ahead, without documents:
        answer(event(14, 1, "delete", key=1), event(14, 2, "delete", key=2), lean_insert, behind=token(15, 1)),
        answer(behind=token(30)),
        # And as the stream comes to it:
        answer(event(14, 1, "delete", key=1), event(14, 2, "delete", key=2), event(15, 1, key=3), behind=token(30)),
    )
    server = Server(30)
    passed = units(reader(script, read_documents=server), script)
    assert script.lean == [1]
    assert [row.key for unit in passed for row in missing_of(unit)] == ['{"_id": 4}']
    assert sorted(rows(passed)) == sorted(
        [(RowKind.DELETE, 4), (RowKind.DELETE, 1), (RowKind.DELETE, 2), (RowKind.INSERT, 3)]
    )
    ordinals = [unit.log_position.ordinal for unit in passed]
    assert ordinals == sorted(ordinals)
    assert waiting(passed) == []


def test_the_end_of_a_collection_settles_its_changes() -> None:
    script = Script(answer(update(11, 1)), answer(event(12, 1, "drop")), answer(behind=token(40)))
    passed = units(reader(script, read_documents=Server(30)), script)
    assert not any(missing_of(unit) for unit in passed)
    assert waiting(passed) == []


def test_a_state_of_a_newer_raycdc_is_refused() -> None:
    with pytest.raises(StateError, match="newer raycdc"):
        reader(Script(), state={"version": document_reads.VERSION + 1})


KEYS: list[Any] = [
    7, 1 << 40, 1.5, "text", "", bson.ObjectId(), bson.Decimal128("1.5"), bson.DatetimeMS(5), bson.Binary(b"xyz", 4),
    bson.Binary(b""), {"a": 1}, {}, True, None, bson.Timestamp(1, 2), bson.MinKey(), bson.Regex("a"),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)
def test_a_key_is_the_same_with_and_without_the_fields_of_a_shard_key(key: Any) -> None:
    plain = bson.encode({"_id": key})
    found = [
        document_reads._key(b"before" + bson.encode(document) + b"after", 6)
        for document in ({"_id": key}, {"_id": key, "shard": 1}, {"shard": "x", "_id": key})
    ]
    assert found == [plain] * 3
