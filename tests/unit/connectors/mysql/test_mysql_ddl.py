"""MySQL DDL: what a statement means, and what it does to a table."""

from __future__ import annotations

from typing import Any

import pytest

from raycdc.connectors.mysql.ddl.apply import (
    AppliedDdl,
    DdlDialect,
    RefusedStatement,
    apply_ddl,
    parse_ddl,
)
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    AlterTableCommentEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    First,
    Last,
    RenameColumnEvent,
    RenameTableEvent,
    TruncateTableEvent,
    apply_all,
)

ORDERS = TableId("shop", "orders")
INT = LogicalType(TypeKind.INT32, native="int")
MARIADB = DdlDialect(mariadb=True, display_width=True)


def create(sql: str, dialect: DdlDialect | None = None) -> MySqlTable:
    dialect = dialect or DdlDialect()
    parsed = parse_ddl(sql, "shop", dialect=dialect)
    assert isinstance(parsed, tuple), parsed
    (ddl,) = parsed
    table = apply_ddl(None, ddl, dialect=dialect).table
    assert table is not None
    return table


BASE = create("CREATE TABLE orders (id INT PRIMARY KEY, price DECIMAL(10,2), note VARCHAR(20)) CHARSET latin1")


def alter(actions: str, table: MySqlTable = BASE, dialect: DdlDialect | None = None) -> AppliedDdl:
    """Apply ALTER TABLE to `table`, and check the law that the events lead from the old schema to the new one."""
    dialect = dialect or DdlDialect()
    parsed = parse_ddl(f"ALTER TABLE orders {actions}", "shop", dialect=dialect)
    assert isinstance(parsed, tuple), parsed
    ddl = parsed[0]
    applied = apply_ddl(table, ddl, dialect=dialect)
    assert applied.table is not None
    led_to, expected = apply_all(table.schema(), applied.events), applied.table.schema()
    assert led_to is not None
    # The value that old rows hold is the event's alone; the table keeps the declared default.
    assert [(c.name, c.type, c.nullable) for c in led_to.columns] == [
        (c.name, c.type, c.nullable) for c in expected.columns
    ]
    assert led_to.primary_key == expected.primary_key
    return applied


def columns(applied: AppliedDdl) -> list[str]:
    assert applied.table is not None
    return [column.name for column in applied.table.columns]


def refused(statement: str) -> str:
    parsed = parse_ddl(statement, "shop")
    assert isinstance(parsed, RefusedStatement), parsed
    assert parsed.statement == statement
    return parsed.reason


# CREATE TABLE -----------------------------------------------------------------------------------------------


def test_types_are_spelled_as_the_catalogue_of_mysql_8_does() -> None:
    table = create(
        """CREATE TABLE t (
        a INT(11) UNSIGNED, b INTEGER ZEROFILL, c TINYINT(1), d BOOL, e BIGINT(20), f DEC(5), g NUMERIC, h FLOAT(30),
        i FLOAT(7,4) UNSIGNED, j REAL, k DOUBLE PRECISION, l CHAR, m NATIONAL VARCHAR(5), n CHARACTER VARYING(7),
        o TEXT(100), p TEXT(70000), q BLOB(10), r LONG, s YEAR(4), t DATETIME(0), u TIMESTAMP(6), v BIT, w BINARY,
        x ENUM('a','it''s', "q\\\\n\\n"), y SET('x','y z  '), z INT4, aa CHAR(3) CHARACTER SET binary, ab JSON,
        ac VARCHAR(5) BYTE) CHARSET latin1""".replace("ac VARCHAR(5) BYTE", "ac CHAR BYTE")
    )
    assert {column.name: column.column_type for column in table.columns} == {
        "a": "int unsigned",
        "b": "int(10) unsigned zerofill",
        "c": "tinyint(1)",
        "d": "tinyint(1)",
        "e": "bigint",
        "f": "decimal(5,0)",
        "g": "decimal(10,0)",
        "h": "double",
        "i": "float(7,4) unsigned",
        "j": "double",
        "k": "double",
        "l": "char(1)",
        "m": "varchar(5)",
        "n": "varchar(7)",
        "o": "tinytext",
        "p": "mediumtext",
        "q": "tinyblob",
        "r": "mediumtext",
        "s": "year",
        "t": "datetime",
        "u": "timestamp(6)",
        "v": "bit(1)",
        "w": "binary(1)",
        "x": "enum('a','it''s','q\\\\n\\n')",
        "y": "set('x','y z')",
        "z": "int",
        "aa": "binary(3)",
        "ab": "json",
        "ac": "binary(1)",
    }


def test_types_are_spelled_as_the_catalogue_of_mariadb_does() -> None:
    table = create("CREATE TABLE t (a INT, b SMALLINT UNSIGNED, c YEAR, d JSON, e TINYINT)", MARIADB)
    assert [(c.column_type, c.collation) for c in table.columns] == [
        ("int(11)", ""),
        ("smallint(5) unsigned", ""),
        ("year(4)", ""),
        ("longtext", "utf8mb4_bin"),
        ("tinyint(4)", ""),
    ]


def test_character_set_comes_from_column_then_table_then_database() -> None:
    table = create(
        "CREATE TABLE t (a CHAR(1), b CHAR(1) CHARACTER SET utf8, c TEXT COLLATE koi8r_bin, d NCHAR(1), e INT, "
        "f VARBINARY(3)) DEFAULT CHARACTER SET = latin1 COLLATE=latin1_bin"
    )
    assert [(c.charset, c.collation) for c in table.columns] == [
        ("latin1", "latin1_bin"),
        ("utf8mb3", ""),
        ("koi8r", "koi8r_bin"),
        ("utf8mb3", ""),
        ("", ""),
        ("", ""),
    ]
    assert create("CREATE TABLE t (a CHAR(1))").columns[0].charset == "utf8mb4"


def test_defaults_are_kept_when_they_are_constants() -> None:
    table = create(
        "CREATE TABLE t (a INT DEFAULT -5, b CHAR(3) DEFAULT _utf8mb4'x''y', c INT DEFAULT TRUE,"
        " d BIT(4) DEFAULT b'101',"
        " e DATETIME DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE NOW(3), f INT DEFAULT (1 + (2)), g CHAR(3) DEFAULT ('q'),"
        " h INT DEFAULT NULL, i DATE DEFAULT DATE '2020-01-01', j CHAR(9) DEFAULT \"a\" 'b')"
    )
    assert [c.default for c in table.columns] == [
        "-5", "x'y", "1", "5", None, None, "q", None, "2020-01-01", "ab",
    ]  # fmt: skip


def test_keys_and_constraints_are_no_columns() -> None:
    table = create(
        "CREATE TABLE t (a INT, `key` INT, b INT REFERENCES x (y) ON DELETE SET NULL ON UPDATE NO ACTION, "
        "c INT CHECK (c > 1),"
        " d INT GENERATED ALWAYS AS (a + 1) STORED, PRIMARY KEY USING BTREE (b DESC, a(3)), UNIQUE u (a), KEY (c),"
        " CONSTRAINT FOREIGN KEY fk (a) REFERENCES y (z, w), CONSTRAINT `q` CHECK (a in (1,2)) NOT ENFORCED,"
        " FULLTEXT INDEX ft (a) WITH PARSER ngram, INDEX ((lower(a))))"
        " ENGINE=InnoDB, COMMENT 'x, PARTITION' /*!50100 PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (1)) */"
    )
    assert [c.name for c in table.columns] == ["a", "key", "b", "c", "d"]
    assert table.primary_key == ("b", "a")
    assert [c.nullable for c in table.columns] == [False, True, False, True, True]


def test_created_like_another_table() -> None:
    (ddl,) = parse_ddl("CREATE TABLE copy LIKE orders", "shop") or ()  # type: ignore[misc]
    copy = TableId("shop", "copy")
    applied = apply_ddl(None, ddl, find_table={ORDERS: BASE}.get)
    assert applied.events == (CreateTableEvent(copy, BASE.schema()),)
    with pytest.raises(SchemaError, match=r"shop.copy is created like shop.orders, whose columns are not known"):
        apply_ddl(None, ddl)


def test_created_again_changes_nothing_or_replaces() -> None:
    (again,) = parse_ddl("CREATE TABLE IF NOT EXISTS orders (x INT)", "shop") or ()  # type: ignore[misc]
    assert apply_ddl(BASE, again) == AppliedDdl(BASE)
    (replaced,) = parse_ddl("CREATE OR REPLACE TABLE orders (x INT)", "shop") or ()  # type: ignore[misc]
    assert [event.type for event in apply_ddl(BASE, replaced).events] == ["drop_table", "create_table"]
    (impossible,) = parse_ddl("CREATE TABLE orders (x INT)", "shop") or ()  # type: ignore[misc]
    with pytest.raises(SchemaError, match="is created, but exists already"):
        apply_ddl(BASE, impossible)


def test_ansi_quotes_make_names_of_double_quoted_texts() -> None:
    dialect = DdlDialect(ansi_quotes=True)
    assert create('CREATE TABLE "t t" ("a""b" INT)', dialect).columns[0].name == 'a"b'


def test_backslashes_are_plain_where_the_session_says_so() -> None:
    dialect = DdlDialect(backslash_escapes=False)
    assert create(r"CREATE TABLE t (a CHAR(9) DEFAULT 'a\')", dialect).columns[0].default == "a\\"


# ALTER TABLE ------------------------------------------------------------------------------------------------


def test_added_columns_land_where_they_are_put() -> None:
    applied = alter(
        "ADD a INT, ADD COLUMN b INT FIRST, ADD COLUMN c INT AFTER price, ADD (d INT, e INT), ADD f INT AFTER d"
    )
    assert columns(applied) == ["b", "id", "price", "c", "note", "a", "d", "f", "e"]


def test_added_column_as_an_event() -> None:
    applied = alter("ADD COLUMN `size` INT DEFAULT 7 COMMENT 'it''s, big' AFTER `id`, ALGORITHM=INPLACE, LOCK=NONE")
    assert applied.events == (AddColumnEvent(ORDERS, Column("size", INT, True, "7"), After("id")),)
    assert applied.rewrites is None


def test_added_column_takes_the_character_set_of_its_table() -> None:
    applied = alter("ADD a CHAR(3), ADD b TEXT CHARACTER SET utf8mb4")
    assert applied.table is not None
    assert [c.charset for c in applied.table.columns] == ["", "", "latin1", "latin1", "utf8mb4"]
    applied = alter("ADD a CHAR(3), DEFAULT CHARSET=koi8r")
    assert applied.table is not None
    assert [c.charset for c in applied.table.columns] == ["", "", "latin1", "koi8r"]
    assert applied.table.charset == "koi8r"


@pytest.mark.parametrize(
    ("definition", "fill"),
    [
        ("INT NOT NULL", "0"),
        ("INT", None),
        ("DECIMAL(5,2) NOT NULL", "0"),
        ("VARCHAR(5) NOT NULL", ""),
        ("ENUM('b','a') NOT NULL", "b"),
        ("TIME NOT NULL", "00:00:00"),
        ("JSON NOT NULL", "null"),
        ("INT NOT NULL DEFAULT 3", "3"),
    ],
)
def test_existing_rows_hold_the_default_or_the_zero_of_the_type(definition: str, fill: str | None) -> None:
    (event,) = alter(f"ADD c {definition}").events
    assert isinstance(event, AddColumnEvent)
    assert event.column.default == fill


@pytest.mark.parametrize(
    ("definition", "holds"),
    [
        ("DATETIME DEFAULT CURRENT_TIMESTAMP", "the time of the statement"),
        ("CHAR(36) DEFAULT (uuid())", "an expression"),
        ("INT AUTO_INCREMENT UNIQUE", "a counter"),
        ("SERIAL", "a counter"),
        ("INT AS (id * 2) PERSISTENT", "a generated value"),
    ],
)
def test_computed_values_of_existing_rows_are_not_guessed(definition: str, holds: str) -> None:
    assert alter(f"ADD c {definition}").rewrites == f"the new column 'c' holds {holds} in the existing rows"


@pytest.mark.parametrize(
    "default",
    [
        "t1.x", "x", "`x`", "shop.t1.x", "@@session.sql_mode", "@v", "uuid()", "CONCAT(x, ')')", "shop.f(x)",
        "CASE WHEN x THEN CASE x WHEN 1 THEN 2 END ELSE 3 END", "{d '2001-01-01'}", "PREVIOUS VALUE FOR shop.s",
        "DEFAULT(x)",
    ],
)  # fmt: skip
def test_a_default_that_is_not_computed_parks_no_new_table(default: str) -> None:
    made = create(f"CREATE TABLE t1 (x INT, y VARCHAR(9) DEFAULT {default} NOT NULL, z INT)", MARIADB)
    assert [(column.name, column.nullable) for column in made.columns] == [("x", True), ("y", False), ("z", True)]
    assert alter(f"ADD c VARCHAR(9) DEFAULT {default}, ADD d INT", dialect=MARIADB).rewrites == (
        "the new column 'c' holds an expression in the existing rows"
    )


def test_changes_mean_the_columns_before_the_statement() -> None:
    applied = alter("ADD note INT, CHANGE note remark VARCHAR(50) AFTER amount, RENAME COLUMN price TO amount, DROP id")
    assert columns(applied) == ["amount", "remark", "note"]
    assert applied.events[:2] == (DropColumnEvent(ORDERS, "id"), RenameColumnEvent(ORDERS, "price", "amount"))


def test_change_after_a_dropped_column_is_impossible() -> None:
    with pytest.raises(SchemaError, match="after 'id', which is no column"):
        alter("DROP COLUMN id, ADD x INT AFTER id")


def test_modify_and_change_as_events() -> None:
    applied = alter(
        "MODIFY COLUMN Price BIGINT NOT NULL FIRST, CHANGE `note` `remark` VARCHAR(20) CHARACTER SET latin1"
    )
    assert applied.events == (
        RenameColumnEvent(ORDERS, "price", "Price"),
        RenameColumnEvent(ORDERS, "note", "remark"),
        AlterColumnTypeEvent(ORDERS, "Price", LogicalType(TypeKind.INT64, native="bigint"), False),
        AlterColumnPositionEvent(ORDERS, "Price", First()),
    )
    assert applied.rewrites == "the column 'Price' was converted from decimal(10,2) to bigint"


@pytest.mark.parametrize(
    ("change", "rewritten"),
    [
        ("MODIFY id BIGINT", False),
        ("MODIFY id SMALLINT", True),
        ("MODIFY price DECIMAL(12,4)", False),
        ("MODIFY price DECIMAL(12,1)", True),
        ("MODIFY price DECIMAL(10,3)", True),
        ("MODIFY note VARCHAR(200)", False),
        ("MODIFY note TEXT CHARACTER SET utf8mb4", False),
        ("MODIFY note BLOB", True),
        ("CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", False),
        ("RENAME COLUMN note TO remark", False),
        ("DROP COLUMN note", False),
        ("ALTER COLUMN note SET DEFAULT 'x', ALTER price DROP DEFAULT", False),
    ],
)
def test_rows_are_rewritten_only_where_values_may_change(change: str, rewritten: bool) -> None:
    assert (alter(change).rewrites is not None) is rewritten


def test_primary_key_changes_once_per_statement() -> None:
    applied = alter("DROP PRIMARY KEY, ADD PRIMARY KEY (id, note)")
    assert applied.events[-1] == AlterPrimaryKeyEvent(ORDERS, ("id", "note"))
    assert [event.type for event in applied.events].count("alter_primary_key") == 1
    assert alter("RENAME COLUMN id TO order_id").events == (RenameColumnEvent(ORDERS, "id", "order_id"),)


@pytest.mark.parametrize(
    "actions",
    [
        "ADD INDEX i (note)",
        "ADD UNIQUE KEY (note), DROP INDEX j, RENAME KEY a TO b",
        "ADD CONSTRAINT c FOREIGN KEY (id) REFERENCES x (y) ON DELETE CASCADE",
        "DROP FOREIGN KEY c, DROP CHECK d, DROP CONSTRAINT e",
        "ADD FULLTEXT INDEX ft (note) WITH PARSER ngram, ADD CHECK (id > 1)",
        "ENGINE=InnoDB ROW_FORMAT=DYNAMIC, AUTO_INCREMENT = 7",
        "ORDER BY id, price DESC",
        "ALGORITHM=INSTANT, LOCK DEFAULT",
        "DISABLE KEYS",
        "FORCE",
        "ADD PARTITION (PARTITION p3 VALUES LESS THAN (10))",
        "PARTITION BY HASH (id) PARTITIONS 4",
        "REORGANIZE PARTITION p0 INTO (PARTITION a VALUES LESS THAN (1), PARTITION b VALUES LESS THAN (2))",
        "REMOVE PARTITIONING",
        "ALTER INDEX i INVISIBLE, ALTER CHECK c NOT ENFORCED, ALTER COLUMN note SET INVISIBLE",
        "ADD COLUMN IF NOT EXISTS note INT, DROP COLUMN IF EXISTS gone",
        "STATS_PERSISTENT=1",
        "",
    ],
)
def test_what_leaves_rows_and_columns_alone_makes_no_event(actions: str) -> None:
    applied = alter(actions)
    assert applied.events == ()
    assert columns(applied) == ["id", "price", "note"]


def test_options_may_follow_without_a_comma() -> None:
    applied = alter("ENGINE=InnoDB COMMENT='new' DEFAULT CHARSET utf8mb4")
    assert applied.events == (AlterTableCommentEvent(ORDERS, "new"),)
    assert applied.table is not None
    assert applied.table.charset == "utf8mb4"


def test_text_grows_when_its_characters_take_more_bytes() -> None:
    table = create("CREATE TABLE orders (a TEXT) CHARSET latin1")
    applied = alter("CONVERT TO CHARSET utf8mb4", table)
    assert applied.table is not None
    assert applied.table.columns[0].column_type == "mediumtext"


@pytest.mark.parametrize(("length", "becomes"), [(16_383, "varchar(16383)"), (16_384, "mediumtext")])
def test_varchar_becomes_text_when_its_characters_no_longer_fit(length: int, becomes: str) -> None:
    table = create(f"CREATE TABLE orders (a VARCHAR({length})) CHARSET latin1")
    applied = alter("CONVERT TO CHARSET utf8mb4", table)
    assert applied.table is not None
    assert applied.table.columns[0].column_type == becomes


def test_table_renamed_inside_alter() -> None:
    applied = alter("ADD x INT, RENAME TO old")
    assert applied.events == (
        AddColumnEvent(ORDERS, Column("x", INT), Last()),
        RenameTableEvent(ORDERS, TableId("shop", "old")),
    )
    assert applied.table is not None
    assert applied.table.id == TableId("shop", "old")


def test_other_statements_as_events() -> None:
    statements = "RENAME TABLE orders TO b, b TO c", "TRUNCATE orders", "DROP TABLE orders", "DROP DATABASE shop"
    events: list[Any] = []
    for statement in statements:
        parsed = parse_ddl(statement, "shop")
        assert isinstance(parsed, tuple)
        table: MySqlTable | None = BASE
        for ddl in parsed:
            applied = apply_ddl(table, ddl)
            table = applied.table
            events += applied.events
    b, c = TableId("shop", "b"), TableId("shop", "c")
    assert events == [
        RenameTableEvent(ORDERS, b),
        RenameTableEvent(b, c),
        TruncateTableEvent(ORDERS),
        DropTableEvent(ORDERS),
        DropTableEvent(ORDERS),
    ]


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ("DROP PARTITION p", "DROP PARTITION brings or removes rows that the log does not show"),
        ("TRUNCATE PARTITION ALL", "TRUNCATE PARTITION brings or removes rows that the log does not show"),
        ("EXCHANGE PARTITION p WITH TABLE b", "EXCHANGE PARTITION brings or removes rows that the log does not show"),
        ("IMPORT TABLESPACE", "IMPORT brings or removes rows that the log does not show"),
    ],
)
def test_rows_that_come_or_go_without_the_log_leave_the_columns_and_are_said(actions: str, why: str) -> None:
    applied = alter(actions)
    assert (columns(applied), applied.events, applied.rewrites) == (["id", "price", "note"], (), why)


def test_columns_that_exchange_their_names_do_so_over_a_name_of_nobodys() -> None:
    applied = alter("RENAME COLUMN price TO note, RENAME COLUMN note TO price")
    assert columns(applied) == ["id", "note", "price"]
    assert applied.events == (
        RenameColumnEvent(ORDERS, "price", "price\u2197"),
        RenameColumnEvent(ORDERS, "note", "price"),
        RenameColumnEvent(ORDERS, "price\u2197", "note"),
    )


def test_the_primary_key_goes_by_the_name_of_its_index_too() -> None:
    for actions in ("DROP INDEX `PRIMARY`", "DROP CONSTRAINT `PRIMARY`", "DROP KEY IF EXISTS `primary`"):
        assert alter(actions).events == (AlterPrimaryKeyEvent(ORDERS, ()),)
    assert parse_ddl("DROP INDEX `PRIMARY` ON orders", "shop") == parse_ddl(
        "ALTER TABLE orders DROP PRIMARY KEY", "shop"
    )
    assert parse_ddl("DROP INDEX i ON orders", "shop") == ()


# What a statement says of the columns that it adds itself ----------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "fill"),
    [
        ("ADD COLUMN c INT NOT NULL, ALTER COLUMN c DROP DEFAULT", "0"),
        ("ADD COLUMN c INT NOT NULL DEFAULT 7, ALTER COLUMN c DROP DEFAULT", "0"),
        ("ALTER C SET DEFAULT 5, ADD COLUMN c INT", "5"),
        ("ADD COLUMN c INT DEFAULT 7, ALTER c SET DEFAULT 9", "9"),
        # `IF EXISTS` is about the columns before the statement.
        ("ADD COLUMN c INT DEFAULT 7, ALTER COLUMN IF EXISTS c SET DEFAULT 9", "7"),
    ],
)
def test_the_default_that_a_statement_gives_its_own_column_is_that_of_the_rows_that_exist(
    actions: str, fill: str | None
) -> None:
    applied = alter(actions, dialect=MARIADB)
    (event,) = applied.events
    assert isinstance(event, AddColumnEvent)
    assert (event.column.name, event.column.default, applied.rewrites) == ("c", fill, None)


def test_a_computed_default_that_is_set_for_an_added_column_makes_the_table_begin_again() -> None:
    assert alter("ADD COLUMN c INT, ALTER c SET DEFAULT (1 + 1)", dialect=MARIADB).rewrites is not None
    assert alter("ADD COLUMN c INT, ALTER c SET DEFAULT 0x41", dialect=MARIADB).rewrites is not None


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ("ADD COLUMN c INT, ADD COLUMN IF NOT EXISTS C VARCHAR(9)", ["id", "price", "note", "c"]),
        ("ADD COLUMN IF NOT EXISTS (c INT, c INT, d INT)", ["id", "price", "note", "c", "d"]),
        # A column that the statement drops was there: the server adds none in its place.
        ("DROP COLUMN note, ADD COLUMN IF NOT EXISTS note INT", ["id", "price"]),
        ("ALTER COLUMN IF EXISTS nothing SET DEFAULT 5, ALTER IF EXISTS nothing DROP DEFAULT", ["id", "price", "note"]),
    ],
)
def test_whether_a_column_exists_is_asked_of_the_table_before_the_statement(actions: str, expected: list[str]) -> None:
    assert columns(alter(actions, dialect=MARIADB)) == expected


def test_a_default_of_no_column_is_an_error() -> None:
    with pytest.raises(SchemaError, match="names column 'nothing'"):
        alter("ALTER nothing SET DEFAULT 5")


def test_a_position_names_its_column_as_the_table_does() -> None:
    applied = alter("MODIFY id INT NOT NULL AFTER NOTE, ADD c INT AFTER ID")
    assert [e.position for e in applied.events if isinstance(e, AddColumnEvent | AlterColumnPositionEvent)] == [
        After("note"),
        After("id"),
    ]


@pytest.mark.parametrize(
    ("column", "nullable"),
    [("a INT AUTO_INCREMENT UNIQUE", False), ("a INT NULL AUTO_INCREMENT UNIQUE", False), ("a INT UNIQUE", True)],
)
def test_a_counter_takes_no_null(column: str, nullable: bool) -> None:
    assert [c.nullable for c in create(f"CREATE TABLE t ({column})").columns] == [nullable]


def test_columns_of_an_applications_period_take_no_null() -> None:
    table = create("CREATE TABLE t (id INT PRIMARY KEY, s DATE, e DATE NULL, PERIOD FOR p (S, e))", MARIADB)
    assert [column.nullable for column in table.columns] == [False, False, False]
    later = alter("DROP PERIOD FOR p, ADD COLUMN f DATE NOT NULL DEFAULT '2030-01-01'", table, MARIADB)
    assert later.table is not None
    assert [column.nullable for column in later.table.columns] == [False] * 4
    added = alter("ADD COLUMN (s DATE, e DATE), ADD PERIOD FOR p (s, e)", dialect=MARIADB)
    assert added.table is not None
    assert [column.nullable for column in added.table.columns if column.name in "se"] == [False, False]


# What cannot be followed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER TABLE a FROBNICATE", "ALTER TABLE … 'FROBNICATE' is not understood"),
        ("ALTER TABLE a ADD x INT WOBBLY", "the column attribute 'WOBBLY' is not understood"),
        ("ALTER TABLE a ADD x", "a type is expected at the end of the statement"),
        ("CREATE TABLE a SELECT 1", "CREATE TABLE without a list of columns (… SELECT) does not say its columns"),
        ("CREATE TABLE a (x INT) AS SELECT 1", "CREATE TABLE … SELECT does not say all its columns"),
        ("CREATE TABLE a (x INT", "',' is expected at the end of the statement"),
        ("CREATE TABLE a (x CHAR(3) DEFAULT 'y", "a string that begins at character 35 does not end"),
        ("CREATE TABLE a (x ENUM())", "the type enum has no labels"),
        ("DROP TABLE a; DROP TABLE b", "'DROP TABLE b' after the statement is not understood"),
        ("ALTER TABLE a COMMENT 'x' /* open", "a comment does not end"),
    ],
)
def test_a_statement_that_cannot_be_followed_is_refused_with_the_reason(statement: str, reason: str) -> None:
    assert refused(statement) == reason


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ("ADD note INT", "leaves two columns called 'note'"),
        ("DROP COLUMN nowhere", "names column 'nowhere', but the table has id, price, note"),
        ("ADD PRIMARY KEY (nowhere)", "puts 'nowhere' into the primary key"),
        ("DROP id, DROP price, DROP note", "leaves no column"),
    ],
)
def test_a_statement_that_does_not_fit_the_table_is_an_error(actions: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        alter(actions)
