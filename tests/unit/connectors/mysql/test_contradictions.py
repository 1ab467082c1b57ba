"""What a table map says of a table otherwise than it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raycdc.connectors.mysql.binlog.tables.map_plans import contradiction
from raycdc.connectors.mysql.binlog.tables.table_map import (
    ENUM,
    GEOMETRY,
    LONG,
    VARCHAR,
    MapColumn,
    TableMap,
    infer_table,
    parse_table_map,
)
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId

T = TableId("shop", "t")
KNOWN = MySqlTable(
    T,
    (
        MySqlColumn("id", "int", nullable=False),
        MySqlColumn("v", "varchar(20)", "utf8"),
        MySqlColumn("e", "enum('да','нет')", "cp1251"),
        MySqlColumn("g", "geomcollection"),
        MySqlColumn("b", "blob", nullable=False),
    ),
    ("id",),
    row_end="",
)
SEEN = (
    MapColumn(LONG, 0, "id", unsigned=False, nullable=False),
    MapColumn(VARCHAR, 60, "v", charset="utf8mb3", nullable=True),
    MapColumn(ENUM, 1, "e", charset="cp1251", labels=("да", "нет"), nullable=True),
    MapColumn(GEOMETRY, 4, "g", nullable=True, geometry="geometrycollection"),
    MapColumn(252, 2, "b", charset="binary", nullable=False),
)


def seen(column: int, **changes: object) -> TableMap:
    columns = [replace(each, **changes) if n == column else each for n, each in enumerate(SEEN)]  # type: ignore[arg-type]
    return TableMap(T, tuple(columns), (0,))


@pytest.mark.parametrize(
    ("table_map", "why"),
    [
        (seen(0), None),
        (seen(1, charset="", nullable=None), None),
        (seen(0, nullable=True), "column 'id' may be NULL there"),
        (seen(1, nullable=False), "column 'v' is NOT NULL there"),
        (seen(1, charset="koi8r"), "column 'v' has the character set koi8r there"),
        (seen(1, charset="binary"), "column 'v' has the character set binary there"),
        (seen(4, charset="utf8mb4"), "column 'b' has the character set utf8mb4 there"),
        (seen(2, labels=("нет", "да")), "column 'e' has the labels 'нет', 'да' there"),
        (seen(2, labels=("да",)), "column 'e' has the labels 'да' there"),
        (seen(3, geometry="point"), "column 'g' is a point there"),
        (replace(seen(0), primary_key=(1,)), "the primary key is (v) there"),
        (replace(seen(0), primary_key=()), "the primary key is () there"),
        (TableMap(T, tuple(replace(each, name="") for each in SEEN), ()), None),
    ],
)
def test_a_map_that_says_otherwise(table_map: TableMap, why: str | None) -> None:
    assert contradiction(table_map, KNOWN) == why


def test_what_a_map_does_not_say_for_sure_is_no_contradiction() -> None:
    unique = replace(KNOWN, primary_key=())
    assert contradiction(replace(seen(0), primary_key=(1,)), unique) is None  # A unique key that serves as one.
    # Of a table in an outer join all columns may be NULL.
    assert contradiction(TableMap(T, tuple(replace(each, nullable=True) for each in SEEN), (0,)), KNOWN) is None
    versioned = replace(KNOWN, row_end="b")
    assert contradiction(replace(seen(0), primary_key=(0, 4)), versioned) is None
    # Python reads some bytes of this set otherwise than servers do.
    greek = replace(KNOWN, columns=(KNOWN.columns[0], replace(KNOWN.columns[2], charset="greek")))
    labels = TableMap(T, (SEEN[0], replace(SEEN[2], charset="greek", labels=("ά", "x"))), (0,))
    assert contradiction(labels, greek) is None
    with_address = replace(KNOWN, columns=(*KNOWN.columns, MySqlColumn("a", "uuid")))
    assert contradiction(seen(1, charset="koi8r"), with_address) is None


_GEOMETRY = b"\x01g\0\x01a\0\x03\xff\xfe\x0f\x05\x04\xf7\x01 \0\x07"


@pytest.mark.parametrize(
    ("mariadb", "content"),
    [
        # (line GEOMETRY, kind ENUM('a'), name VARCHAR(32)) in latin1: MariaDB lists a set for the geometry, MySQL none.
        (True, _GEOMETRY + b"\x03\x02?\x08\x07\x01\0\x04\x0f\x04line\x04kind\x04name"),
        (False, _GEOMETRY + b"\x02\x01\x08\x07\x01\0\x04\x0f\x04line\x04kind\x04name"),
        # (p TEXT COMPRESSED, q VARCHAR(10) COMPRESSED, name VARCHAR(32)), the first two in utf8mb4.
        (True, b"\x01g\0\x01b\0\x03\x8c\x8d\x0f\x05\x02)\0 \0\x07\x02\x03-\x02\x08\x04\t\x01p\x01q\x04name"),
        # (v VECTOR(2), name VARCHAR(32), j JSON): MySQL lists one for vectors.
        (False, b"\x01g\0\x01v\0\x03\xf2\x0f\xf5\x04\x04 \0\x04\x07\x03\x02?\x08\r\x01\x02\x04\t\x01v\x04name\x01j"),
    ],
)  # fmt: skip
def test_character_sets_go_to_the_columns_that_the_server_counts(content: bytes, *, mariadb: bool) -> None:
    name = next(
        column for column in infer_table(parse_table_map(content, mariadb=mariadb)).columns if column.name == "name"
    )
    assert (name.column_type, name.charset) == ("varchar(32)", "latin1")


def test_a_column_of_a_character_set_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match="Column 'v' has the character set 'filename', which is not supported"):
        MySqlTable(T, (MySqlColumn("v", "varchar(20)", "filename"),)).schema()
