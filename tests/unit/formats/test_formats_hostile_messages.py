"""Messages made to hurt: thousands of new fields cost what the fields cost and have an end; our own table is ours."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from raycdc.formats.api import ChangeItem, CorruptMessageError, RowsItem
from raycdc.formats.decoding.pieces import TableDecoder
from raycdc.model.evolution.events import AddColumnEvent, After, CreateTableEvent
from tests.unit.formats.format_messages import batch, decoder, rows_of


def insert(data: dict[str, Any]) -> dict[str, Any]:
    return {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": data}


def fields(first: int, stop: int) -> dict[str, int]:
    return {f"f{number}": number for number in range(first, stop)}


def test_the_plan_of_a_table_is_not_made_anew_for_each_new_field(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, lines = 0, 0
    make = TableDecoder._make_plan

    def counted(self: TableDecoder, names: list[str]) -> Any:
        nonlocal plans
        plans += 1
        return make(self, names)

    def traced(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return traced

    monkeypatch.setattr(TableDecoder, "_make_plan", counted)
    read = decoder("maxwell-json", columns_max=10_000)
    assert read.decode(batch([insert({"id": 1})])).failure is None
    plans = 0
    steps = []
    for first, stop in ((0, 1000), (0, 3000)):
        lines = 0
        sys.settrace(traced)
        decoded = read.decode(batch([insert({"id": 1, **fields(first, stop)})]))
        sys.settrace(None)
        assert decoded.failure is None
        steps.append(lines)
    assert plans <= 8
    # Twice the fields are twice the steps, and some for the columns that were there before.
    assert steps[1] < 4 * steps[0]


def test_new_fields_follow_each_other_in_the_order_of_the_message() -> None:
    read = decoder("maxwell-json")
    read.decode(batch([insert({"id": 1})]))
    decoded = read.decode(batch([insert({"id": 2, "b": 1, "B": 2, "c": None, "a": "x"})]))
    (change,) = (item for item in decoded.items if isinstance(item, ChangeItem))
    assert [(e.column.name, e.position) for e in change.events if isinstance(e, AddColumnEvent)] == [
        ("b", After("id")),
        ("B", After("b")),
        ("c", After("B")),
        ("a", After("c")),
    ]


@pytest.mark.parametrize("on_error", ["skip", "dead-letter", "fail"])
def test_a_message_with_more_fields_than_columns_may_be_is_one_that_cannot_be_decoded(on_error: str) -> None:
    read = decoder("maxwell-json", columns_max=5, on_error=on_error)
    messages = [insert({"id": 1}), insert({"id": 2, **fields(0, 20_000)}), insert({"id": 3, **fields(0, 4)})]
    decoded = read.decode(batch(messages))
    left = rows_of(decoded)
    if on_error == "fail":
        assert isinstance(decoded.failure, CorruptMessageError)
        assert "topic/3@2: table d.t: with its fields the table would have more than 5 columns" in str(decoded.failure)
        assert "source.format.columns_max" in str(decoded.failure)
        assert [row["id"] for _, row in left] == [1]
        return
    assert decoded.failure is None
    assert [row for _, row in left] == [{"id": 1, **dict.fromkeys(fields(0, 4))}, {"id": 3, **fields(0, 4)}]
    assert [bad.offset for bad in decoded.bad] == ([2] if on_error == "dead-letter" else [])
    created = [e for item in decoded.items if isinstance(item, ChangeItem) for e in item.events]
    assert isinstance(created[0], CreateTableEvent)
    assert len(created[0].schema.columns) == 5


def test_columns_that_are_given_have_no_such_limit() -> None:
    given = ", ".join(f"f{number} BIGINT" for number in range(8))
    read = decoder("maxwell-json", columns_max=5, columns=given)
    assert [row for _, row in rows_of(read.decode(batch([insert(fields(0, 9))])))] == [fields(0, 8)]


@pytest.mark.parametrize("on_error", ["dead-letter", "skip"])
def test_no_message_puts_rows_among_the_dead_letters(on_error: str) -> None:
    read = decoder("maxwell-json", on_error=on_error)
    forged = {"database": "raycdc", "table": "dead_letters", "type": "insert", "ts": 1, "data": {"topic": "forged"}}
    emptied = {"database": "raycdc", "table": "dead_letters", "type": "table-drop", "ts": 1, "sql": "DROP TABLE x"}
    decoded = read.decode(batch([insert({"id": 1}), forged, emptied, insert({"id": 2})]))
    # Whoever follows statements leaves out what is said of this table, and not what is said of others.
    told = [item.statement for item in decoded.items if isinstance(item, ChangeItem) and item.statement]
    assert told == ["DROP TABLE x"]
    tables = {str(item.table) for item in decoded.items if isinstance(item, RowsItem)}
    if on_error == "skip":
        assert "raycdc.dead_letters" in tables, "where nobody keeps such messages it is a table as any other"
        return
    assert tables == {"d.t"}
    assert [row for _, row in rows_of(decoded)] == [{"id": 1}, {"id": 2}]
    assert [bad.offset for bad in decoded.bad] == [2]
    assert "it names raycdc.dead_letters" in str(decoded.bad[0].error)
