"""What the commit table's rows say, in every form that was ever written."""

from __future__ import annotations

import json

import pytest

from raycdc.errors import SinkError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.sinks.api import CommitVector
from raycdc.sinks.columns import TargetColumn
from raycdc.sinks.database_columns import DatabasePlan
from raycdc.sinks.record import NO_COMMITS, Before, Intent, TargetRecord, again, renamed

T = TableId("shop", "t")
INT = LogicalType(TypeKind.INT64)
ID, A, B, C = (Column(name, INT) for name in ("id", "a", "b", "c"))
PLAIN = TargetRecord(CommitVector(3, 3, 1), (ID, A), ("id",), created=True)
#: A row as the first version wrote it.
FIRST = (3, 3, 1, 1, json.dumps([ID.to_json(), A.to_json()]), '["id"]')


def test_a_record_of_the_first_version_is_read_and_a_plain_one_written_so() -> None:
    assert TargetRecord.from_row(FIRST) == PLAIN
    assert PLAIN.row() == (3, 3, 1, True, FIRST[4], FIRST[5])


def test_a_row_that_keeps_a_place_is_no_record() -> None:
    assert TargetRecord.from_row(NO_COMMITS) is None


def test_what_waits_for_rows_survives_the_table() -> None:
    before = Before((ID, A), ("id",), ("id", "b"))
    held = TargetRecord(CommitVector(4, 0, 2), (ID, B), ("id",), created=False, before=before)
    assert TargetRecord.from_row(held.row()) == held
    intent = TargetRecord(PLAIN.vector, PLAIN.columns, PLAIN.key, True, None, Intent("x:y:4", (ID, B), ("id",), before))
    assert TargetRecord.from_row(intent.row()) == intent
    assert intent.known("x:y:4") == TargetRecord(PLAIN.vector, (ID, B), ("id",), created=True, before=before)
    assert intent.known("x:y:3") == intent.known(None) == PLAIN
    assert held.written(CommitVector(4, 3, 2)).before is None


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(SinkError, match="a record of version 6"):
        TargetRecord.from_row((3, 3, 1, 1, '{"version": 6, "columns": []}', "[]"))


def test_a_record_says_which_columns_get_the_values_of_others_and_no_older_version_reads_it() -> None:
    before = Before((ID, A), ("id",), ("id", "a"))
    intent = Intent("4", (ID, A, B), ("id",), before, copies=(("b", "a"),))
    held = TargetRecord(PLAIN.vector, PLAIN.columns, PLAIN.key, created=True, intent=intent)
    assert TargetRecord.from_row(held.row()) == held
    assert json.loads(held.row()[4])["version"] == 5
    assert TargetRecord.from_row(held.known("4").row()) == held.known("4")


def test_a_record_says_which_table_it_is_of() -> None:
    held = TargetRecord(PLAIN.vector, PLAIN.columns, PLAIN.key, created=True, identity="16385")
    assert TargetRecord.from_row(held.row()) == held
    assert held.written(CommitVector(4, 3, 1)).identity == "16385"
    second = json.dumps({"version": 2, "columns": [ID.to_json()], "before": PLAIN.shape().to_json()})
    older = TargetRecord.from_row((3, 3, 1, 1, second, '["id"]'))
    assert older is not None
    assert (older.identity, older.before) == ("", PLAIN.shape())


def test_a_record_says_which_columns_take_no_null() -> None:
    held = TargetRecord(PLAIN.vector, PLAIN.columns, PLAIN.key, created=True, demands=("a",))
    assert TargetRecord.from_row(held.row()) == held
    assert held.written(CommitVector(4, 3, 1)).demands == ("a",)
    before = Before((ID, A), ("id",), ("id", "b"))
    intent = TargetRecord(
        PLAIN.vector,
        PLAIN.columns,
        PLAIN.key,
        True,
        None,
        Intent("x:y:4", (ID, B), ("id",), before, ("b",)),
        "",
        ("a",),
    )
    assert TargetRecord.from_row(intent.row()) == intent
    assert intent.known("x:y:4").demands == ("b",)
    assert intent.known("x:y:3").demands == ("a",)
    third = json.dumps({"version": 3, "columns": [ID.to_json()], "identity": "16385"})
    older = TargetRecord.from_row((3, 3, 1, 1, third, '["id"]'))
    assert older is not None
    assert older.demands == ()


def exchanged() -> DatabasePlan:
    return DatabasePlan((TargetColumn(ID, "id"), TargetColumn(A, "b"), TargetColumn(B, "a")))


def test_an_exchange_of_names_is_done_once() -> None:
    shape = TargetRecord(CommitVector(1, 3), (ID, A, B), ("id",), created=True).shape()
    before = renamed(shape, exchanged())
    assert before.now == ("id", "b", "a")
    held = TargetRecord(CommitVector(2, 7), (ID, A, B), ("id",), created=True, before=before)
    assert again(T, held, exchanged()) == DatabasePlan(
        (TargetColumn(ID, "id"), TargetColumn(A, "a"), TargetColumn(B, "b"))
    )


def test_a_column_that_was_added_is_there_and_one_that_went_cannot_come_back() -> None:
    before = Before((ID, A), ("id",), ("id", None))
    held = TargetRecord(CommitVector(2, 7), (ID, C), ("id",), created=True, before=before)
    assert again(T, held, DatabasePlan((TargetColumn(ID, "id"), TargetColumn(C, None)))) == DatabasePlan(
        (TargetColumn(ID, "id"), TargetColumn(C, "c"))
    )
    with pytest.raises(SinkError, match="column a went with a change of an epoch that was dropped"):
        again(T, held, DatabasePlan((TargetColumn(ID, "id"), TargetColumn(A, "a"))))
