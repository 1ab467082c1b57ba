"""From one shape of a table to another: the events lead there, and what they cannot say of the rows is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.connectors.mysql.ddl.conversions import keeps_values, may_lose
from raycdc.connectors.mysql.ddl.shape import ColumnLineage, reshape
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId
from raycdc.model.evolution import AlterColumnPositionEvent, apply_all

NAMES = tuple("abcdefgh")
TYPES = ("int", "bigint", "varchar(20)", "datetime(3)", "decimal(10,2)")
NOTHING = ColumnLineage({}, {}, {})


def table(*columns: MySqlColumn) -> MySqlTable:
    return MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int", nullable=False), *columns), ("id",))


@st.composite
def shapes(draw: st.DrawFn) -> tuple[MySqlTable, MySqlTable, dict[str, str]]:
    """A table before, after, and which columns of the second are which of the first under another name."""
    old = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=7))
    new = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=7))
    places = draw(st.permutations(["id", *new]))
    pairs = draw(st.lists(st.tuples(st.sampled_from(new or ["-"]), st.sampled_from(old or ["-"])), max_size=4))
    renamed = {to: name for to, name in pairs if to in new and name in old and to != name}
    renamed = {to: name for to, name in renamed.items() if list(renamed.values()).count(name) == 1}
    column = st.builds(MySqlColumn, st.none(), st.sampled_from(TYPES), nullable=st.booleans())
    before = table(*(replace(draw(column), name=name) for name in old))
    made = {name: replace(draw(column), name=name) for name in new}
    made["id"] = before.columns[0]
    return before, replace(before, columns=tuple(made[name] for name in places)), renamed


@given(shapes())
def test_the_events_lead_from_the_old_shape_to_the_new_one(
    drawn: tuple[MySqlTable, MySqlTable, dict[str, str]],
) -> None:
    before, after, renamed = drawn
    events, _ = reshape(before, after, ColumnLineage(renamed, {}, {}))
    led_to = apply_all(before.schema(), events)
    assert led_to is not None
    assert [(c.name, c.type, c.nullable) for c in led_to.columns] == [
        (c.name, c.type, c.nullable) for c in after.schema().columns
    ]


def test_the_fewest_columns_are_moved() -> None:
    columns = [MySqlColumn(name, "int") for name in "abcdef"]
    before, after = table(*columns), table(columns[5], *columns[:5])
    events, doubt = reshape(before, after, NOTHING)
    assert ([type(event) for event in events], doubt) == ([AlterColumnPositionEvent], None)


def test_a_new_column_nobody_knows_the_values_of_is_doubted() -> None:
    after = table(MySqlColumn("x", "int"))
    assert reshape(table(), after, NOTHING)[1] == "the existing rows' value in the new column 'x' is not known"
    assert reshape(table(), after, ColumnLineage({}, {"x": "1"}, {}))[1] is None


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ("int", "bigint", ""),
        ("int unsigned", "int", "numbers were cut"),
        ("int", "int unsigned", "numbers were cut"),
        ("tinyint unsigned", "smallint", ""),
        ("decimal(5,2)", "decimal(6,2) unsigned", "negative numbers were cut"),
        ("varchar(20)", "varchar(19)", "texts were cut"),
        ("varchar(20)", "text", ""),
        ("varchar(20000)", "text", "texts were cut"),
        ("text", "mediumtext", ""),
        ("text", "varchar(9000)", "texts were cut"),
        ("enum('a','bcd')", "varchar(3)", ""),
        ("enum('a','bcd')", "varchar(2)", "texts were cut"),
        ("varbinary(9)", "blob", ""),
        ("varbinary(9)", "varbinary(8)", "texts were cut"),
        ("datetime", "datetime(6)", ""),
        ("decimal(45,3)", "varchar(47)", "texts were cut"),
        ("decimal(45,3)", "varchar(48)", ""),
        ("decimal(45,3)", "decimal(50,3)", ""),
        ("uuid", "char(35)", "texts were cut"),
        ("uuid", "char(36)", ""),
        ("datetime(3)", "varchar(22)", "texts were cut"),
        ("datetime(3)", "varchar(23)", ""),
        ("point", "varbinary(12)", "texts were cut"),
        ("point", "geometry", ""),
        ("point", "longblob", ""),
    ],
)
def test_what_a_conversion_without_complaint_may_have_cut(before: str, after: str, lost: str) -> None:
    assert may_lose(*columns_of(before, after), forgiving=True) == lost


def columns_of(*types: str) -> tuple[MySqlColumn, MySqlColumn]:
    text = ("char", "text", "enum")
    old, new = (MySqlColumn("x", kind, "utf8mb4" if any(word in kind for word in text) else "") for kind in types)
    return old, new


@pytest.mark.parametrize(
    ("before", "after", "cut"),
    [
        ("varchar(20)", "varchar(19)", True),
        ("varchar(20)", "varchar(20)", False),
        ("varchar(20)", "text", False),
        ("text", "tinytext", True),
        ("text", "text", False),
        ("text", "varchar(9000)", True),
        ("char(20)", "char(19)", False),
        ("char(20)", "varchar(19)", False),
        ("varbinary(9)", "varbinary(8)", False),
        ("enum('a','bcd')", "varchar(2)", False),
        ("int", "int unsigned", False),
        ("decimal(45,3)", "varchar(9)", False),
    ],
)
def test_spaces_at_the_end_are_cut_even_where_a_statement_complains_of_all_else(
    before: str, after: str, cut: bool
) -> None:
    assert may_lose(*columns_of(before, after), forgiving=False) == (
        "spaces at the end of texts were cut" if cut else ""
    )


def test_a_text_type_that_gets_another_character_set_is_followed() -> None:
    old = MySqlColumn("x", "text", "latin1")
    assert may_lose(old, replace(old, charset="utf8mb4"), forgiving=False) == ""


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ("utf8mb3", "utf8mb4", ""),
        ("latin1", "utf8mb4", ""),
        ("ascii", "latin1", ""),
        ("utf8mb4", "utf8mb3", "characters that utf8mb3 lacks were replaced"),
        ("utf8mb4", "latin1", "characters that latin1 lacks were replaced"),
    ],
)
def test_which_characters_a_conversion_may_have_replaced(before: str, after: str, lost: str) -> None:
    old, new = (MySqlColumn("x", "varchar(9)", charset) for charset in (before, after))
    assert may_lose(old, new, forgiving=True) == lost


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("time", "time(3)", False),
        ("time(3)", "time(3)", True),
        ("datetime", "datetime(3)", True),
        ("decimal(50,2)", "decimal(50,4)", False),
        ("decimal(50,4)", "decimal(50,2)", False),
        ("decimal(40,2)", "decimal(50,2)", True),
        ("decimal(50,2)", "varchar(60)", True),
        ("varchar(60)", "decimal(50,2)", False),
        ("varchar(60)", "uuid", False),
        ("uuid", "varchar(60)", True),
        ("uuid", "char(60)", True),
        ("inet4", "inet6", False),
        ("enum('a','b')", "varchar(60)", True),
        ("set('a','b')", "text", True),
        ("enum('a','b')", "decimal(45,3)", False),
        ("set('a','b')", "inet6", False),
    ],
)
def test_values_that_are_text_in_targets_keep_their_text_or_begin_again(before: str, after: str, kept: bool) -> None:
    texts = ("char", "enum", "set")
    old, new = (MySqlColumn("x", kind, "utf8mb4" * any(t in kind for t in texts)) for kind in (before, after))
    assert keeps_values(old, new) == kept


def test_labels_that_are_bytes_do_not_become_characters() -> None:
    text = MySqlColumn("x", "varchar(9)", "utf8mb4")
    # MySQL names no character set for them, MariaDB names "binary".
    assert not keeps_values(MySqlColumn("x", "enum('a ','b')", "binary"), text)
    assert not keeps_values(MySqlColumn("x", "enum('a ','b')"), text)
    assert keeps_values(MySqlColumn("x", "enum('a','b')", "latin1"), text)


def test_nulls_and_trailing_spaces_do_not_survive_everywhere() -> None:
    old = MySqlColumn("x", "varchar(9)", "utf8mb4")
    assert may_lose(old, replace(old, nullable=False), forgiving=True) == "NULL became another value"
    assert not keeps_values(old, replace(old, column_type="char(9)"))
    assert keeps_values(replace(old, column_type="char(9)"), old)
