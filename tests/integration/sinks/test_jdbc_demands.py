"""The demands on a database's table are the same at its adoption, at each start and in each commit.

A table of ours was altered by others, so that the server would round, cut, pad or merge values without an error. No row
is written to it, neither by the running pipeline nor by the next one, and the table is named with the column.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pytest

from raycdc.errors import TargetModifiedError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.sandbox.servers import PostgresServer
from raycdc.sinks.jdbc.types import mysql_keeps, postgres_keeps
from raycdc.sinks.jdbc.unsupported_features import _writes_to
from tests.epochs.sink_world import World, world_of

KEY = LogicalType(TypeKind.STRING, native="varchar(20)")
SCHEMA = TableSchema(
    (
        Column("id", KEY, nullable=False),
        Column("amount", LogicalType(TypeKind.DECIMAL, precision=12, scale=2)),
        Column("at", LogicalType(TypeKind.DATETIME, fsp=6)),
        Column("rate", LogicalType(TypeKind.FLOAT64)),
        Column("data", LogicalType(TypeKind.BINARY)),
        Column("note", LogicalType(TypeKind.STRING)),
    ),
    ("id",),
)
POSTGRES = [
    ("ALTER amount TYPE numeric(12,1)", r"column amount as numeric\(12,1\), and the pipeline made it numeric\(12,2\)"),
    ("ALTER amount TYPE double precision", "column amount as double precision"),
    ("ALTER amount TYPE bigint", "column amount as bigint"),
    ("ALTER at TYPE timestamp(0)", r"column at as timestamp\(0\) without time zone"),
    ("ALTER at TYPE timestamptz", "column at as timestamp with time zone"),
    ("ALTER rate TYPE real", "column rate as real"),
    ("ALTER data TYPE text USING encode(data, 'escape')", "column data as text"),
    ("ALTER note TYPE char(20)", r"column note as character\(20\)"),
    ("ALTER note TYPE varchar(20)", r"column note as character varying\(20\)"),
    ("ALTER id TYPE text COLLATE shop.loose", "compares key column id by a nondeterministic collation"),
    ("DROP CONSTRAINT t_pkey", r"has no primary key or unique index on \(id\)"),
]
MYSQL = [
    ("MODIFY amount decimal(12,1)", r"column amount as decimal\(12,1\), and the pipeline made it decimal\(12,2\)"),
    ("MODIFY amount bigint", "column amount as bigint"),
    ("MODIFY at datetime(0)", "column at as datetime"),
    ("MODIFY at date", "column at as date"),
    ("MODIFY rate float", "column rate as float"),
    ("MODIFY data longtext", "column data as longtext"),
    ("MODIFY data binary(200)", r"column data as binary\(200\)"),
    ("MODIFY note char(20)", r"column note as char\(20\)"),
    ("MODIFY note tinytext", "column note as tinytext"),
    ("MODIFY id varchar(20) COLLATE utf8mb4_general_ci", "compares key column id by the collation utf8mb4_general_ci"),
    ("DROP PRIMARY KEY", r"has no primary key or unique index on \(id\)"),
]
CASES = [
    *(("postgres-upsert", clause, text) for clause, text in POSTGRES),
    *(("mysql-upsert", clause, text) for clause, text in MYSQL),
]


def row(key: str, number: int) -> dict[str, object]:
    return {
        "id": key,
        "amount": Decimal(f"{number}.25"),
        "at": dt.datetime(2024, 1, 2, 3, 4, 5, 600_000),  # noqa: DTZ001 - a reading of a clock
        "rate": number + 0.1,
        "data": bytes([number, 65]),
        "note": f"note {number}  ",
    }


def begun(request: pytest.FixtureRequest, kind: str, root: Path) -> World:
    """A table of ours with two rows."""
    world = world_of(request, kind, root)
    world.script.tables = {}
    table = world.script.table("shop.t", SCHEMA)
    table.insert(row("a", 1))
    table.insert(row("b", 2))
    world.script.seal(final=True)
    return world


@pytest.mark.server
@pytest.mark.parametrize(("kind", "clause", "text"), CASES, ids=[f"{kind}: {clause}" for kind, clause, _ in CASES])
def test_a_table_that_others_altered_is_not_written_to(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, clause: str, text: str
) -> None:
    world = begun(request, kind, tmp_path)
    table = world.script.table("shop.t")
    sink = world.sink()
    world.loop(sink).run()
    assert world.server is not None
    if isinstance(world.server, PostgresServer):
        loose = "CREATE COLLATION shop.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        world.server.execute(loose)
    world.server.execute(f"ALTER TABLE shop.t {clause}")
    before = world.server.execute("SELECT * FROM shop.t")
    table.insert(row("c", 3))
    world.script.seal(final=True)
    with pytest.raises(TargetModifiedError, match=text):
        world.loop(sink).run()
    assert world.server.execute("SELECT * FROM shop.t") == before
    again = world.sink()
    refused = again.unfit([table.id])
    assert isinstance(refused[table.id], TargetModifiedError)


@pytest.mark.parametrize(
    ("have", "want", "kept"),
    [
        ("numeric", "numeric(12,2)", True),
        ("numeric(14,3)", "numeric(12,2)", True),
        ("numeric(11,2)", "numeric(12,2)", True),  # Too many digits are an error.
        ("numeric(12,1)", "numeric(12,2)", False),
        ("numeric(12,-1)", "integer", False),
        ("smallint", "bigint", True),
        ("bigint", "numeric(20,0)", True),
        ("bigint", "numeric(20,1)", False),
        ("double precision", "real", True),
        ("real", "double precision", False),
        ("real", "integer", False),
        ("jsonb", "json", False),
        ("citext", "text", False),
        ("character varying", "text", True),
        ("timestamp(3) without time zone", "timestamp without time zone", False),
    ],
)
def test_a_type_of_postgresql_keeps_values_or_rejects_them(have: str, want: str, *, kept: bool) -> None:
    assert postgres_keeps(have, want) is kept


@pytest.mark.parametrize(
    ("have", "want", "kept"),
    [
        ("decimal(14,3)", "decimal(12,2)", True),
        ("decimal(12,1)", "decimal(12,2)", False),
        ("decimal(30,0)", "int", True),
        ("tinyint", "bigint unsigned", True),
        ("double", "float", True),
        ("float", "double", False),
        ("datetime(3)", "datetime(6)", False),
        ("timestamp(6)", "datetime(6)", True),
        ("varchar(30)", "varchar(20)", True),
        ("varchar(10)", "varchar(20)", False),
        ("text", "longtext", False),
        ("json", "longtext", False),
        ("binary(20)", "varbinary(20)", False),
    ],
)
def test_a_type_of_mysql_keeps_values_or_rejects_them(have: str, want: str, *, kept: bool) -> None:
    assert mysql_keeps(have, want) is kept


@pytest.mark.parametrize(
    ("body", "writes"),
    [
        ("BEGIN UPDATE t SET a = 1; END", True),
        ('BEGIN DELETE FROM ONLY "shop"."t" WHERE a; END', True),
        ("INSERT INTO Shop.T VALUES (1)", True),
        ("BEGIN EXECUTE 'update ' || TG_TABLE_NAME; END", True),
        ("BEGIN INSERT INTO t_audit VALUES (1); END", False),
        ("BEGIN INSERT INTO audit SELECT * FROM t; END", False),
        ("BEGIN RAISE NOTICE 'update t'; END", False),
        ("BEGIN UPDATE other.t SET a = 1; END", False),
    ],
)
def test_a_trigger_that_writes_to_its_own_table_is_told_by_its_text(body: str, *, writes: bool) -> None:
    assert _writes_to(body, "shop", "t") is writes
