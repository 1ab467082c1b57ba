"""Messages that tell a part of their row are refused by name: what they leave out is not NULL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.formats.format_messages import Message, batch, decode, decoder, failure, rows_of

#: Of a format: a message about an insert, update or delete with these rows, as its producer writes it.
Row = dict[str, Any]


def ogg(op: str, *, before: Row | None = None, after: Row | None = None) -> Message:
    images = {name: row for name, row in (("before", before), ("after", after)) if row is not None}
    return {"table": "S.T", "op_type": op, "op_ts": "2026-01-01 00:00:00.000000", **images}


def maxwell(op: str, data: Row, old: Row | None = None) -> Message:
    images: Row = {"data": data} if old is None else {"data": data, "old": old}
    return {"database": "s", "table": "t", "type": op, "ts": 1, **images}


def canal(op: str, data: Row, old: Row | None = None, *, types: dict[str, str] | None = None) -> Message:
    types = types or {"id": "int", "v": "varchar(9)", "n": "int"}
    images: Row = {"data": [data], "old": None if old is None else [old]}
    return {"database": "s", "table": "t", "type": op, "es": 1, "isDdl": False, "mysqlType": types, **images}


WHOLE = {"id": 1, "v": "a", "n": 1}
TEXTS = {"id": "1", "v": "a", "n": "1"}
PART = "PartialRowError: topic/3@2: table {}: the row lacks the field 'n', which rows before it had."


@pytest.mark.parametrize("before_image", ["required", "optional"])
@pytest.mark.parametrize(
    ("name", "table", "whole", "part"),
    [
        ("ogg-json", "S.T", ogg("I", after=WHOLE), ogg("U", before={"id": 1, "v": "a"}, after={"id": 1, "v": "b"})),
        ("ogg-json", "S.T", ogg("I", after=WHOLE), ogg("I", after={"id": 2, "v": "b"})),
        ("maxwell-json", "s.t", maxwell("insert", WHOLE), maxwell("update", {"id": 1, "v": "b"}, {"v": "a"})),
        ("maxwell-json", "s.t", maxwell("insert", WHOLE), maxwell("insert", {"id": 2, "v": "b"})),
        ("canal-json", "s.t", canal("INSERT", TEXTS), canal("UPDATE", {"id": "1", "v": "b"}, {"v": "a"})),
        (
            "canal-json",
            "s.t",
            canal("INSERT", TEXTS),
            canal("UPDATE", {"id": "1", "v": "b"}, {"v": "a"}, types={"id": "int", "v": "varchar(9)"}),
        ),
    ],
)
def test_a_row_without_a_field_that_its_table_had_is_refused(
    name: str, table: str, whole: Message, part: Message, before_image: str
) -> None:
    assert failure(name, whole, part, before_image=before_image).startswith(PART.format(table))
    # The same in another batch, and in another process that goes on from the state.
    before = decoder(name, before_image=before_image)
    assert before.decode(batch([whole])).failure is None
    after = decoder(name, before_image=before_image)
    after.restore_state(before.snapshot_state())
    for one in (before, after):
        assert type(one.decode(batch([part], first=2)).failure).__name__ == "PartialRowError"


def test_the_images_of_an_update_may_complete_each_other() -> None:
    part = ogg("U", before={"id": 1, "v": "a", "n": 1}, after={"id": 1, "v": "b"})
    assert decode("ogg-json", ogg("I", after=WHOLE), part)[1:] == [("-U", WHOLE), ("+U", {**WHOLE, "v": "b"})]


def test_a_delete_of_a_key_alone_is_enough_where_no_row_before_is_needed() -> None:
    messages = (ogg("I", after=WHOLE), ogg("D", before={"id": 1}))
    assert failure("ogg-json", *messages).startswith(PART.format("S.T").replace("'n'", "'v'"))
    assert decode("ogg-json", *messages, before_image="optional")[1] == ("-D", {"id": 1, "v": None, "n": None})


@pytest.mark.parametrize("op", ["U", "D"])
def test_an_empty_row_before_is_none(op: str) -> None:
    after = {"id": 1, "v": "b", "n": 1} if op == "U" else None
    part = ogg(op, before={}, after=after)
    assert failure("ogg-json", ogg("I", after=WHOLE), part).startswith("MissingBeforeImageError: topic/3@2")
    if op == "U":
        told = decode("ogg-json", ogg("I", after=WHOLE), part, before_image="optional")
        assert told[1:] == [("+U", {"id": 1, "v": "b", "n": 1})]


def test_an_added_column_is_null_in_the_rows_before_it_alone() -> None:
    more = {**WHOLE, "id": 2, "w": None}
    rows = decode("maxwell-json", maxwell("insert", WHOLE), maxwell("insert", more), maxwell("insert", more | {"w": 5}))
    assert [row.get("w") for _, row in rows] == [None, None, 5]
    messages = [maxwell("insert", WHOLE), maxwell("insert", more | {"w": 5}), maxwell("insert", WHOLE)]
    assert "lacks the field 'w'" in failure("maxwell-json", *messages)


def test_a_column_that_a_statement_dropped_is_not_missed() -> None:
    types = {"id": "int", "v": "varchar(9)"}
    less = {"id": "2", "v": "b"}
    ddl: Message = {
        "database": "s",
        "table": "t",
        "type": "ALTER",
        "isDdl": True,
        "es": 1,
        "sql": "ALTER TABLE t DROP n",
    }
    after = decoder("canal-json", ddl="ignore")
    decoded = after.decode(batch([canal("INSERT", TEXTS), ddl, canal("INSERT", less, types=types)]))
    assert decoded.failure is None
    assert [row["id"] for _, row in rows_of(decoded)] == [1, 2]
    # From here on the rows have these two, and each needs both.
    assert type(after.decode(batch([canal("INSERT", {"id": "3"}, types=types)])).failure).__name__ == "PartialRowError"


def test_a_bad_message_is_left_out_as_the_user_says() -> None:
    part = maxwell("update", {"id": 1, "v": "b"}, {"v": "a"})
    messages = [maxwell("insert", WHOLE), part, maxwell("insert", {**WHOLE, "id": 2})]
    decoded = decoder("maxwell-json", on_error="dead-letter").decode(batch(messages))
    assert [type(bad.error).__name__ for bad in decoded.bad] == ["PartialRowError"]
    assert [row["id"] for _, row in rows_of(decoded)] == [1, 2]


def test_columns_that_the_user_gives_are_missed_once_a_row_had_them() -> None:
    given = "id INT, v STRING, n INT"
    first = maxwell("insert", {"id": 1, "v": "a"})
    assert decode("maxwell-json", first, maxwell("insert", WHOLE), columns=given)[0] == ("+I", {**WHOLE, "n": None})
    assert "lacks the field 'n'" in failure("maxwell-json", maxwell("insert", WHOLE), first, columns=given)
