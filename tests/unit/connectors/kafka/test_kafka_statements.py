"""DDL messages of topics: what is followed, what needs nothing, and what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from raycdc.connectors.kafka.enumeration.schemas import conform
from raycdc.connectors.kafka.reading.held_partitions import judge
from raycdc.connectors.kafka.reading.statements import DdlMessages, Dropped, StatementEffects
from raycdc.connectors.mysql.ddl.catalogue import events_of_statement
from raycdc.errors import SchemaError
from raycdc.formats.api import ChangeItem, Decoded, RowsItem
from raycdc.formats.decoding.sql_types import parse_columns
from raycdc.formats.options import DEAD_LETTERS
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.model.evolution import DropTableEvent, TruncateTableEvent

TABLE, OTHER = TableId("shop", "p"), TableId("shop", "q")


def schema(text: str = "id BIGINT, name VARCHAR(20), n INT, at DATETIME(3), PRIMARY KEY (id)") -> TableSchema:
    return parse_columns(text, key_path="columns")


def follow(sql: str, *, known: bool = True, given: bool = False, **options: bool) -> StatementEffects:
    statements = DdlMessages(events_of_statement, given=lambda _: given, **options)  # type: ignore[arg-type]
    tables = {TABLE: schema(), OTHER: schema()} if known else {}
    return statements.followed(ChangeItem(TABLE, (), 0, sql), tables.get)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE p ADD COLUMN extra INT",
        "ALTER TABLE p DROP COLUMN absent, COMMENT 'x'",
        "ALTER TABLE p MODIFY n BIGINT UNSIGNED, MODIFY name TEXT, MODIFY at DATETIME(6)",
        "ALTER TABLE p MODIFY n VARCHAR(30)",
        "ALTER TABLE p ADD INDEX (n)",
        "CREATE INDEX i ON p (n)",
        "CREATE TABLE IF NOT EXISTS p (id BIGINT PRIMARY KEY)",
        "GRANT SELECT ON *.* TO x",
    ],
)
def test_what_rows_show_by_themselves_needs_nothing(sql: str) -> None:
    assert follow(sql) == StatementEffects()


def test_a_dropped_column_is_remembered_and_cannot_be_added_again_while_rows_have_its_value() -> None:
    statements = DdlMessages(events_of_statement)

    def after(sql: str, dropped: Dropped) -> StatementEffects:
        return statements.followed(ChangeItem(TABLE, (), 0, sql), {TABLE: schema()}.get, dropped=dropped)

    dropped = after("ALTER TABLE p DROP COLUMN N, DROP COLUMN at", {}).dropped
    assert dropped == {"shop.p": ["at", "n"]}
    assert after("ALTER TABLE p ADD COLUMN extra INT", dropped) == StatementEffects(dropped=dropped)
    for sql in ("ALTER TABLE p ADD COLUMN n INT", "ALTER TABLE p ADD COLUMN n INT NOT NULL DEFAULT 5"):
        with pytest.raises(SchemaError, match=r"rows that exist lost their value in 'n' when it was dropped.*ignore"):
            after(sql, dropped)
    assert after("TRUNCATE p", dropped).dropped == {}
    assert statements.followed(
        ChangeItem(OTHER, (), 0, "ALTER TABLE q ADD n INT"), lambda _: None, dropped=dropped
    ).dropped


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("ALTER TABLE p RENAME COLUMN name TO title", "rows that exist have their value in 'name'"),
        ("ALTER TABLE p CHANGE name title VARCHAR(30)", "rows that exist have their value in 'name'"),
        ("ALTER TABLE p MODIFY at DATETIME", "values of 'at' in rows that exist were converted"),
        ("ALTER TABLE p MODIFY name INT", "values of 'name' in rows that exist were converted"),
        ("ALTER TABLE p ADD COLUMN made DATETIME DEFAULT CURRENT_TIMESTAMP", "the rows that exist get"),
        ("ALTER TABLE p ADD COLUMN made TIMESTAMP DEFAULT '2024-01-02 03:04:05'", "time zone of the session"),
        ("ALTER TABLE p DROP PRIMARY KEY, ADD PRIMARY KEY (n)", r"the primary key was \(id\)"),
        ("RENAME TABLE x TO p", "the rows that shop.p has from before"),
        ("ALTER TABLE p RENAME TO z", "the rows that shop.z has from before"),
        ("ALTER TABLE p TRUNCATE PARTITION p0", "cannot be followed"),
        ("ALTER TABLE p FROBNICATE", "cannot be followed"),
        ("DROP DATABASE shop", "all tables of shop are dropped at once"),
    ],
)
def test_what_changes_rows_that_exist_is_refused_with_the_way_out(sql: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why) as refused:
        follow(sql)
    assert 'source.format.ddl = "ignore"' in str(refused.value)
    assert follow(sql, follow=False) == StatementEffects()


def test_a_statement_about_a_table_without_rows_is_only_asked_for_its_columns() -> None:
    made = follow("CREATE TABLE p (id BIGINT PRIMARY KEY, price DECIMAL(8,2) NOT NULL)", known=False)
    ((table, created),) = made.schemas.items()
    assert (table, created.primary_key) == (TABLE, ("id",))
    assert [(c.name, c.type.kind) for c in created.columns] == [("id", TypeKind.INT64), ("price", TypeKind.DECIMAL)]
    assert follow("CREATE TABLE p (id BIGINT PRIMARY KEY)", known=False, given=True) == StatementEffects()
    assert follow("ALTER TABLE p FROBNICATE", known=False) == StatementEffects()
    assert follow("TRUNCATE p", known=False) == StatementEffects()


def test_tables_are_emptied_by_name() -> None:
    assert follow("TRUNCATE p").emptied == (TruncateTableEvent(TABLE),)
    assert follow("DROP TABLE p, q").emptied == (DropTableEvent(TABLE), DropTableEvent(OTHER))
    assert follow("DROP TABLE elsewhere.p") == StatementEffects()


@pytest.mark.parametrize(
    ("sql", "emptied"),
    [
        ("DROP TABLE p, raycdc.dead_letters", [TABLE]),
        ("DROP TABLE raycdc.dead_letters, p", [TABLE]),
        ("TRUNCATE raycdc.dead_letters", []),
        ("DROP DATABASE raycdc", []),
        ("ALTER TABLE raycdc.dead_letters FROBNICATE", []),
        ("RENAME TABLE raycdc.dead_letters TO elsewhere.p", []),
        ("ALTER TABLE raycdc.dead_letters MODIFY id DATE", []),
    ],
)
def test_no_statement_is_about_the_dead_letters(sql: str, emptied: list[TableId]) -> None:
    statements = DdlMessages(events_of_statement, ours=[DEAD_LETTERS])
    tables = {TABLE: schema(), DEAD_LETTERS: schema()}
    told = ChangeItem(DEAD_LETTERS, (), 0, sql.replace(" p", " shop.p"))
    followed = statements.followed(told, tables.get, tables)
    assert followed == StatementEffects(emptied=tuple(map(DropTableEvent, emptied)))


def test_a_statement_about_a_table_and_the_dead_letters_is_about_the_table() -> None:
    told = ChangeItem(TABLE, (), 0, "DROP TABLE p, raycdc.dead_letters")
    followed = DdlMessages(events_of_statement, ours=[DEAD_LETTERS]).followed(told, lambda _: schema())
    assert followed == StatementEffects(emptied=(DropTableEvent(TABLE),))


def test_a_default_of_a_new_column_is_part_of_the_schema_and_fills_rows_from_before() -> None:
    (after,) = follow("ALTER TABLE p ADD COLUMN extra INT NOT NULL DEFAULT 5").schemas.values()
    added = Column("extra", LogicalType(TypeKind.INT32, native=after.columns[-1].type.native), True, "5")
    assert after.columns[-1] == added
    statements = DdlMessages(events_of_statement)
    again = ChangeItem(TABLE, (), 0, "ALTER TABLE p ADD COLUMN extra INT NOT NULL DEFAULT 5")
    assert statements.followed(again, {TABLE: after}.get).schemas == {TABLE: after}
    empty = pa.RecordBatch.from_pylist([{"id": 1}], schema=changelog_schema(schema("id BIGINT, PRIMARY KEY (id)")))
    row = conform(TABLE, empty, after).to_pylist()[0]
    assert (row["id"], row["name"], row["extra"]) == (1, None, 5)


def test_a_default_that_comes_after_rows_with_the_column_is_refused() -> None:
    with pytest.raises(SchemaError, match="rows with 'n' came before it"):
        follow("ALTER TABLE p ADD COLUMN n INT DEFAULT 5")


@pytest.mark.parametrize("default", ["INT DEFAULT 5", "INT NOT NULL"])
def test_a_new_column_beyond_the_given_ones_is_left_out_instead_of_its_default_in_every_row(default: str) -> None:
    assert follow(f"ALTER TABLE p ADD COLUMN extra {default}", given=True) == StatementEffects()


def test_a_default_that_comes_after_rows_with_a_given_column_is_refused() -> None:
    with pytest.raises(SchemaError, match="rows with 'n' came before it"):
        follow("ALTER TABLE p ADD COLUMN n INT DEFAULT 5", given=True)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("DROP DATABASE shop", "all tables of shop are dropped at once"),
        ("CREATE OR REPLACE DATABASE shop", "all tables of shop are dropped at once"),
        ("ALTER TABLE s EXCHANGE PARTITION x WITH TABLE p", "cannot be followed"),
    ],
)
def test_a_message_about_something_else_is_refused_where_it_removes_rows_of_a_table_that_is_read(
    sql: str, why: str
) -> None:
    statements = DdlMessages(events_of_statement)
    elsewhere = ChangeItem(TableId("shop", "s" if "ALTER" in sql else ""), (), 0, sql)
    with pytest.raises(SchemaError, match=why):
        statements.followed(elsewhere, {TABLE: schema()}.get, [TABLE])
    far = TableId("far", "p")
    assert statements.followed(elsewhere, {far: schema()}.get, [far]) == StatementEffects()


def test_a_table_that_is_replaced_is_emptied() -> None:
    sql = "CREATE OR REPLACE TABLE p (id BIGINT PRIMARY KEY)"
    assert follow(sql) == StatementEffects({}, (DropTableEvent(TABLE),))
    made = follow(sql, known=False)
    assert (made.emptied, [c.name for c in made.schemas[TABLE].columns]) == ((), ["id"])


def test_a_column_that_is_dropped_and_added_at_once_is_refused() -> None:
    sql = "ALTER TABLE p DROP COLUMN n, ADD COLUMN N INT"
    with pytest.raises(SchemaError, match="rows that exist lose their value in 'N'"):
        follow(sql)
    assert follow(sql, known=False) == StatementEffects()


@pytest.mark.parametrize("sql", ["DROP TABLE IF EXISTS p", "DROP DATABASE IF EXISTS shop", "ALTER TABLE p FROBNICATE"])
def test_what_concerns_no_rows_before_it_is_not_judged_by_those_behind_it(sql: str) -> None:
    columns = schema()
    row = pa.RecordBatch.from_pylist([], schema=changelog_schema(columns))
    rows = RowsItem(TABLE, columns, row, np.array([1]))
    statement = ChangeItem(TABLE, (), 0, sql)
    judged = judge(Decoded((statement, rows)), DdlMessages(events_of_statement), in_force={}, dropped={})
    assert (judged.schemas, judged.emptied) == (((TABLE, columns),), {0: ()})
    behind = [(RowsItem(TABLE, columns, row, np.array([0])), statement), (statement,)]
    if "DROP TABLE" in sql:
        judged = judge(Decoded(behind[0]), DdlMessages(events_of_statement), in_force={}, dropped={})
        assert judged.emptied == {1: (DropTableEvent(TABLE),)}
        return
    for items, in_force in zip(behind, ({}, {TABLE: columns}), strict=True):
        with pytest.raises(SchemaError, match="cannot be followed"):
            judge(Decoded(items), DdlMessages(events_of_statement), in_force=in_force, dropped={})
