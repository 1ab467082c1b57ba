"""Which events are one unit, when a transaction is known to be whole, and where the stream stands after each."""

from __future__ import annotations

from collections import deque
from typing import Any

import bson
import numpy as np
import pytest

from raycdc.connectors.mongodb.large_documents import LargeDocuments
from raycdc.connectors.mongodb.layout import CollectionLayout, OnTypeMismatch, Spelling, declared, parse_type
from raycdc.connectors.mongodb.log_reader import ChangeRows, ChangeStreamReader
from raycdc.connectors.mongodb.stream.causal import Found
from raycdc.connectors.mongodb.stream.document_reads import Absent, DocumentReads, ReadDocuments, is_complete
from raycdc.connectors.mongodb.stream.events import MongoDbTransactionAssembler, RowWriter, Scanner
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.connectors.mongodb.stream.raw_stream import EventTooLargeError, RawBatch, Scope, StreamEndedError
from raycdc.connectors.mongodb.stream.reopened_stream import ReopenedStream
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken, StreamPosition
from raycdc.connectors.mongodb.stream.token import ordinal_of
from raycdc.core import typed_codec
from raycdc.errors import DataError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.source.snapshot.log.log_unit import (
    NOWHERE,
    BeginTableUpdate,
    LogTransactions,
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    SchemaUpdate,
    in_transaction,
    rows_of,
    updates_of,
)
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.source.tables.resnapshots import FollowableTable, ProbeTable, UnfollowableTable, unread
from raycdc.state.opaque import NO_NOTES, LogNotes

ORDERS = TableId("shop", "orders")
UUID = "00" * 16
#: Later than all events here.
NOW = ordinal_of(1000, 1)
BEGIN = StreamPosition(ordinal_of(10, 1), replica_set="rs0")


def layout(uuid: str = UUID) -> CollectionLayout:
    types = {"_id": parse_type("long"), "n": parse_type("long")}
    made = declared(types, json=Spelling.RELAXED, on_type_mismatch=OnTypeMismatch.FAIL)
    return CollectionLayout(made.columns, made.json, made.on_type_mismatch, uuid=uuid)


def token(second: int, place: int = 0) -> ResumeToken:
    """Of an event, or with place 0 of the time itself."""
    return ResumeToken.of({"_data": f"82{second:08X}00000001{place:04X}"})


def event(second: int, place: int, kind: str = "insert", key: int | None = None, **more: Any) -> dict[str, Any]:
    if key is not None:
        more = {"documentKey": {"_id": key}, **more}
        if kind == "insert":
            more["fullDocument"] = {"_id": key, "n": second}
    namespace = {"db": "shop", "coll": "orders"}
    plain = {"_id": token(second, place).document(), "operationType": kind, "clusterTime": bson.Timestamp(second, 1)}
    return {**plain, "ns": namespace, **more}


def answer(
    *events: dict[str, Any], behind: ResumeToken | None = None, ended: bool = False, server_time: int = NOW
) -> RawBatch:
    last = behind or (ResumeToken.of(events[-1]["_id"]) if events else None)
    return RawBatch(b"".join(bson.encode(e) for e in events), last, ended, server_time)


class Script:
    """Answers in their order; an error among them is raised. Notes where the stream was opened, and where leanly."""

    def __init__(self, *answers: RawBatch | Exception) -> None:
        self.answers = deque(answers)
        self.opened: list[StreamPosition] = []
        self.lean: list[int] = []

    def open(self, position: StreamPosition, *, lean: bool) -> Script:
        self.lean += [len(self.opened)] * lean
        self.opened.append(position)
        return self

    def next(self) -> RawBatch:
        if not self.answers:
            return RawBatch(b"", None, False, NOW)
        found = self.answers.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        pass


def reader(
    script: Script,
    *,
    sharded: bool = False,
    look: ProbeTable[CollectionLayout] = lambda _: None,
    found: dict[bytes, bytes] | None = None,
    follows: bool = True,
    read_documents: ReadDocuments | None = None,
    state: dict[str, Any] | None = None,
    start: StreamPosition = BEGIN,
) -> ChangeStreamReader:
    def captures(table: TableId) -> bool:
        return table.db == "shop"

    layouts = {ORDERS: layout()} if follows else {}
    followed = FollowedCollections(layouts, captures=captures, terms=ParkingSetup({}, look))
    document_reads = DocumentReads(read_documents or (lambda *_, **__: Found(found or {}, NOW)), state or {})
    return ChangeStreamReader(
        ReopenedStream(script.open, start, close=lambda: None),
        transactions=MongoDbTransactionAssembler(whole_when_idle=not sharded),
        scanner=Scanner(captures),
        followed=followed,
        document_reads=document_reads,
        rows=ChangeRows(followed, document_reads, LargeDocuments()),
    )


def units(stream: ChangeStreamReader, script: Script) -> list[LogUnit]:
    """All that comes of the script."""
    passed = []
    while True:
        unit = stream.fetch()
        if unit is not None:
            passed.append(unit)
        elif not script.answers:
            return passed


def told(unit: LogUnit) -> tuple[list[int], int, bool]:
    """Keys, the second the log stands at, and whether a transaction is open."""
    keys = [key for rows in rows_of(unit) for key in rows.batch.column("_id").to_pylist()]
    return keys, unit.log_position.ordinal >> 32, in_transaction(unit)


def changed(unit: LogUnit) -> tuple[SchemaUpdate, ...]:
    return unit.updates if isinstance(unit, SchemaChange) else ()


def parked_with_rows(unit: LogUnit) -> tuple[ParkTableUpdate, ...]:
    return unit.parked if isinstance(unit, LogTransactions) else ()


def test_the_last_time_of_an_answer_waits_for_what_shows_that_it_is_whole() -> None:
    script = Script(
        answer(event(11, 1, key=1), event(12, 1, key=2), event(12, 2, key=3)),
        answer(event(12, 3, key=4), event(13, 1, key=5)),
        answer(behind=token(13)),
    )
    found = [told(unit) for unit in units(reader(script), script)]
    assert found == [([1], 11, False), ([2, 3], 11, True), ([4], 12, False), ([5], 13, False)]


def test_a_later_token_shows_that_all_before_it_is_whole() -> None:
    script = Script(answer(event(11, 1, key=1), event(11, 2, key=2), behind=token(15)))
    stream = reader(script, sharded=True)
    passed = units(stream, script)
    assert [told(unit) for unit in passed] == [([1, 2], 11, False), ([], 15, False)]
    assert passed[-1].log_position.ordinal == ordinal_of(15, 1) - 1
    assert StreamPosition.of(passed[-1].log_position.position).token == token(15)


def test_behind_a_mongos_silence_shows_nothing() -> None:
    answers = answer(event(11, 1, key=1)), answer(behind=token(11)), answer(behind=token(12))
    script = Script(*answers)
    found = units(reader(script, sharded=True), script)
    assert [told(unit) for unit in found] == [([1], 11, False), ([], 12, False)]
    assert found[-1].log_position.ordinal == ordinal_of(12, 1) - 1
    script = Script(*answers[:2])
    assert units(reader(script, sharded=True), script) == []
    script = Script(*answers[:2])
    assert [told(unit) for unit in units(reader(script), script)] == [([1], 11, False)]


def test_a_quiet_stream_keeps_its_place() -> None:
    script = Script(answer(behind=token(20)), answer(behind=token(20)), answer(behind=token(30)))
    passed = units(reader(script), script)
    assert [told(unit) for unit in passed] == [([], 20, False), ([], 30, False)]
    assert StreamPosition.of(passed[-1].log_position.position) == StreamPosition(ordinal_of(30, 1), token(30), "rs0")


def test_a_time_that_has_not_come_has_not_passed() -> None:
    """The token of a stream that was just opened is of the time it was asked to begin at."""
    script = Script(answer(behind=token(20), server_time=ordinal_of(19, 7)), answer(behind=token(20)))
    assert [unit.log_position.ordinal for unit in units(reader(script), script)] == [
        ordinal_of(20, 1) - 1,
        ordinal_of(20, 1),
    ]


def test_a_stream_that_broke_is_opened_behind_what_waits() -> None:
    script = Script(
        answer(event(11, 1, key=1), event(12, 1, key=2)),
        StreamEndedError("gone"),
        answer(event(12, 2, key=3), event(13, 1, key=4)),
        answer(behind=token(14)),
    )
    stream = reader(script)
    found = [told(unit) for unit in units(stream, script)]
    assert found == [([1], 11, False), ([2], 11, True), ([3], 12, False), ([4], 13, False), ([], 14, False)]
    assert [position.token for position in script.opened] == [None, token(12, 1)]


def test_a_stream_that_only_breaks_is_told() -> None:
    script = Script(*[StreamEndedError("gone")] * 9)
    with pytest.raises(SourceUnavailableError, match="gone"):
        units(reader(script), script)


@pytest.mark.parametrize(
    ("selected", "scope"),
    [
        (["crm.users"], Scope("crm", "users")),
        (["crm.users", "crm.orders"], Scope("crm")),
        (["crm.users", "hr.users"], Scope()),
        (["crm.users", r"crm\.order_.*"], Scope("crm")),
        ([r"crm\.(a|b)"], Scope("crm")),
        ([r"crm\..*", r"hr\..*"], Scope()),
        ([r"crm\.a|hr\.b"], Scope()),
        ([r"crm\.[(]|hr\.b"], Scope()),
        ([r"crm\.(a\\)|hr\.b"], Scope()),
        ([r"crm\.?x\.a"], Scope()),
        ([r"crm.\w+"], Scope()),
        ([r".*\.orders"], Scope()),
    ],
)
def test_a_stream_is_no_wider_than_what_is_selected_and_never_narrower(selected: list[str], scope: Scope) -> None:
    assert Scope.of(TableSelector(selected)) == scope


def test_a_document_that_does_not_fit_parks_its_collection() -> None:
    wrong = event(12, 1, key=2)
    wrong["fullDocument"]["n"] = "text"
    script = Script(
        answer(event(11, 1, key=1), wrong, event(12, 2, key=3)),
        answer(event(12, 3, key=4), event(13, 1, key=5)),
        answer(behind=token(14)),
    )
    passed = units(reader(script), script)
    assert [told(unit) for unit in passed] == [
        ([1], 11, False), ([], 12, False), ([], 13, False), ([], 14, False)
    ]  # fmt: skip
    (why,) = [update.parking for unit in passed for update in parked_with_rows(unit)]
    assert not why.again
    assert "a document: n, a column of type long, is of type string" in why.reason


def test_a_collection_that_cannot_be_followed_is_parked_with_the_reason() -> None:
    looks = iter([UnfollowableTable("it has a collation", ordinal_of(11, 1))])
    script = Script(answer(event(11, 1, key=1)), answer(event(12, 1, key=2)), answer(behind=token(13)))
    passed = units(reader(script, follows=False, look=lambda _: next(looks)), script)
    updates = [update for unit in passed for update in updates_of(unit)]
    reasons = [update.parking.reason for update in updates if isinstance(update, ParkTableUpdate)]
    assert reasons == ["shop.orders appeared, and is read from its beginning", "it has a collation"]
    assert [key for unit in passed for key in told(unit)[0]] == []


def test_an_event_in_parts_is_one() -> None:
    whole = event(12, 1, key=2)
    after = whole.pop("fullDocument")
    parts = [
        {**whole, "_id": token(12, 1).document(), "splitEvent": {"fragment": 1, "of": 2}},
        {"_id": token(12, 2).document(), "fullDocument": after, "splitEvent": {"fragment": 2, "of": 2}},
    ]
    script = Script(answer(event(11, 1, key=1), parts[0]), answer(parts[1]), answer(behind=token(13)))
    stream = reader(script)
    passed = units(stream, script)
    assert [told(unit) for unit in passed] == [([1], 11, False), ([2], 12, False), ([], 13, False)]
    # Nothing is gone on from behind a part.
    assert StreamPosition.of(passed[0].log_position.position).token == token(11, 1)
    assert StreamPosition.of(passed[1].log_position.position).token == token(12, 2)


def test_parts_are_asked_for_again_when_the_stream_broke_between_them() -> None:
    whole = event(12, 1, key=2)
    after = whole.pop("fullDocument")
    first = {**whole, "splitEvent": {"fragment": 1, "of": 2}}
    second = {"_id": token(12, 2).document(), "fullDocument": after, "splitEvent": {"fragment": 2, "of": 2}}
    script = Script(
        answer(event(11, 1, key=1), first), StreamEndedError("gone"), answer(first, second), answer(behind=token(13))
    )
    stream = reader(script)
    assert [told(unit)[0] for unit in units(stream, script)] == [[1], [2], []]
    assert [position.token for position in script.opened] == [None, token(11, 1)]


def test_a_stream_that_goes_back_in_time_is_refused() -> None:
    script = Script(answer(event(12, 1, key=1)), answer(event(11, 1, key=2)))
    with pytest.raises(DataError, match="goes back in time"):
        units(reader(script), script)


def test_an_update_without_its_document_is_looked_up_and_one_that_is_gone_has_no_row() -> None:
    found = {bson.encode({"_id": 1}): bson.encode({"_id": 1, "n": 77})}
    script = Script(
        answer(event(11, 1, "update", key=1, fullDocument=None), event(12, 1, "update", key=2, fullDocument=None)),
        answer(behind=token(12)),
    )
    rows = [rows.batch.to_pylist() for unit in units(reader(script, found=found), script) for rows in rows_of(unit)]
    assert [[(row["_id"], row["n"], row["_op"]) for row in some] for some in rows] == [[(1, 77, 2)]]


def test_a_change_that_the_log_ahead_settles_is_told_where_the_stream_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row tells it, and a run may wait for it."""
    monkeypatch.setattr("raycdc.connectors.mongodb.stream.document_reads.WAITING_BYTES_MAX", 0)
    waiting = Absent(ORDERS, UUID, bson.encode({"_id": 2}), ordinal_of(9, 1), -1, ordinal_of(20, 1))
    state = {"version": 1, "absent": [typed_codec.write(waiting)]}
    script = Script(answer(event(15, 1, "delete", key=2)), answer(behind=token(10)))
    (passed,) = units(reader(script, state=state), script)
    assert (told(passed), passed.log_position.notes) == (([], 10, False), NO_NOTES)


def test_notes_are_settled_up_to_the_first_change_that_is_absent() -> None:
    waiting = Absent(ORDERS, UUID, bson.encode({"_id": 2}), ordinal_of(9, 1), -1, ordinal_of(20, 1))
    notes = LogNotes.from_json({"version": 1, "absent": [typed_codec.write(waiting)]})
    assert [is_complete(notes, ordinal_of(9, n)) for n in (0, 1, 2)] == [True, False, False]
    assert is_complete(NO_NOTES, NOWHERE)


def test_what_becomes_of_a_collection_is_passed_before_the_place_behind_it() -> None:
    script = Script(answer(event(11, 1, key=1), event(12, 1, "drop"), event(13, 1, key=3)), answer(behind=token(14)))
    passed = units(reader(script), script)
    kinds = [
        (told(unit), [isinstance(u, ParkTableUpdate) for u in changed(unit)], len(parked_with_rows(unit)))
        for unit in passed
    ]
    assert kinds == [
        (([1], 11, False), [], 0),
        (([None], 11, False), [False], 0),
        (([], 12, False), [], 0),
        # What is new under the name is looked for, and is not there.
        (([], 13, False), [], 1),
        (([], 14, False), [], 0),
        (([], 14, False), [True], 0),
    ]


def test_a_collection_that_appears_begins_when_its_look_was_passed() -> None:
    looks = iter([FollowableTable(layout("11" * 16), ordinal_of(13, 1), unread("_id"))])
    script = Script(
        answer(event(11, 1, key=1), event(12, 1, key=2)),
        answer(event(13, 1, key=3)),
        answer(event(14, 1, key=4)),
        answer(behind=token(15)),
    )
    passed = units(reader(script, follows=False, look=lambda _: next(looks)), script)
    begun = [n for n, unit in enumerate(passed) if changed(unit)]
    assert len(begun) == 1
    assert passed[begun[0]].log_position.ordinal == ordinal_of(13, 1)
    assert isinstance(changed(passed[begun[0]])[0], BeginTableUpdate)
    assert [told(unit)[0] for unit in passed[begun[0] + 1 :]] == [[4], []]
    assert [len(parked_with_rows(unit)) for unit in passed[: begun[0]]].count(1) == 1


def test_a_drop_of_the_collection_that_had_the_name_before_changes_nothing() -> None:
    other = bson.Binary(bytes.fromhex("22" * 16), 4)
    script = Script(answer(event(11, 1, "drop", collectionUUID=other), event(12, 1, key=1)), answer(behind=token(13)))
    passed = units(reader(script), script)
    assert all(not updates_of(unit) for unit in passed)
    assert [told(unit)[0] for unit in passed] == [[], [1], []]


@pytest.mark.parametrize(("kind", "parked"), [("createIndexes", 0), ("modify", 0), ("somethingNew", 1)])
def test_an_event_of_an_unknown_kind_parks_its_collection(kind: str, parked: int) -> None:
    script = Script(answer(event(11, 1, kind), event(12, 1, key=1)), answer(behind=token(13)))
    passed = units(reader(script), script)
    assert sum(isinstance(update, ParkTableUpdate) for unit in passed for update in changed(unit)) == parked
    assert [key for unit in passed for key in told(unit)[0]] == ([] if parked else [1])


def test_both_documents_of_an_update_are_in_one_batch_however_large_they_are() -> None:
    text = parse_type("string")
    made = declared({"_id": parse_type("long"), "n": text}, json=Spelling.RELAXED, on_type_mismatch=OnTypeMismatch.FAIL)
    large = {"_id": 1, "n": "x" * (7 << 20)}
    events = [
        event(11, 1, "update", key=1, fullDocument=large, fullDocumentBeforeChange=large),
        event(12, 1, key=2) | {"fullDocument": {"_id": 2, "n": ""}},
        event(13, 1, "update", key=1, fullDocument={"_id": 1, "n": ""}, fullDocumentBeforeChange=large),
    ]
    batch = Scanner(lambda _: True).scan(b"".join(map(bson.encode, events)))
    numbers = 2 * np.arange(len(batch))
    rows = RowWriter(ORDERS, made).rows(batch.data, batch.events, numbers=numbers, ranks=numbers)
    assert [[int(op) for op in part.batch.column("_op").to_pylist()] for part in rows] == [[1, 2], [0], [1, 2]]


@pytest.mark.parametrize("kind", ["insert", "update", "replace"])
def test_an_event_too_large_for_an_answer_comes_without_its_document_which_is_looked_up(kind: str) -> None:
    found = {bson.encode({"_id": 2}): bson.encode({"_id": 2, "n": 77})}
    lean = event(12, 1, kind, key=2)
    lean.pop("fullDocument", None)
    script = Script(
        answer(event(11, 1, key=1)),
        EventTooLargeError("too large"),
        answer(lean),
        answer(event(13, 1, key=3)),
        answer(behind=token(14)),
    )
    passed = units(reader(script, found=found), script)
    assert [told(unit)[0] for unit in passed] == [[1], [2], [3], []]
    assert rows_of(passed[1])[0].batch.column("n").to_pylist() == [77]
    assert [position.token for position in script.opened] == [None, token(11, 1), token(12, 1)]
    assert script.lean == [1]


def test_a_lean_stream_goes_on_until_it_has_come_further() -> None:
    script = Script(
        EventTooLargeError("too large"), answer(), answer(event(11, 1, "delete", key=1)), answer(behind=token(14))
    )
    assert [told(unit)[0] for unit in units(reader(script), script)] == [[1], []]
    assert script.lean == [1]
    assert len(script.opened) == 3
    script = Script(*[EventTooLargeError("too large")] * 3)
    with pytest.raises(SourceError, match="too large"):
        units(reader(script), script)


def test_silence_between_the_parts_of_an_event_is_no_end_of_its_transaction() -> None:
    whole = event(11, 2, key=2)
    after = whole.pop("fullDocument")
    first = {**whole, "splitEvent": {"fragment": 1, "of": 2}}
    second = {"_id": token(11, 3).document(), "fullDocument": after, "splitEvent": {"fragment": 2, "of": 2}}
    script = Script(
        answer(event(11, 1, key=1), first), answer(behind=token(11, 1)), answer(second), answer(behind=token(12))
    )
    assert [told(unit) for unit in units(reader(script), script)] == [
        ([1], 10, True),
        ([2], 11, False),
        ([], 12, False),
    ]
