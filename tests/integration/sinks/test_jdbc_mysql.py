"""What MySQL and MariaDB of all ages and settings do with a target on their own, and the sink sees to."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import SinkError, ValueRefusedError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.sinks.api import TableCommit
from raycdc.sinks.jdbc.database import Made
from raycdc.sinks.jdbc.sink import JdbcSink
from raycdc.sinks.jdbc.target import marker_of
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import HOME, World, new_world, works_of

pytestmark = pytest.mark.server

INT = LogicalType(TypeKind.INT64)
TEXT = LogicalType(TypeKind.STRING)


def keyed(*columns: tuple[str, LogicalType], key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(tuple(Column(name, kind, nullable=name not in key) for name, kind in columns), key)


def world_on(
    server: DatabaseServer, root: Path, *schemas: tuple[str, TableSchema], kind: str = "mysql-upsert"
) -> World:
    """A world on an empty server with these tables alone."""
    server.execute(*(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", HOME)), f"CREATE DATABASE {HOME}")
    world = new_world(kind, root, None, server)
    world.script.tables = {}
    for name, schema in schemas:
        world.script.table(name, schema)
    return world


def change(table: ScriptedTable, columns: tuple[Column, ...], *events: SchemaChangeEvent) -> None:
    table.schema = TableSchema(columns, table.schema.primary_key)
    table.changes += events


def found(server: DatabaseServer, sql: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


@pytest.mark.parametrize("made", ["by us", "by an older raycdc"])
def test_a_moment_in_the_key_is_the_sources(mysql57: DatabaseServer, tmp_path: Path, made: str) -> None:
    """MySQL 5.7 makes the first TIMESTAMP NOT NULL the time of the row's last update."""
    schema = keyed(("id", INT), ("at", LogicalType(TypeKind.TIMESTAMP)), ("v", INT), key=("id", "at"))
    world = world_on(mysql57, tmp_path, ("shop.t", schema))
    table = world.script.table("shop.t")
    at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    table.insert({"id": 1, "at": at, "v": 1})
    table.insert({"id": 2, "at": at, "v": 1})
    world.script.seal(final=True)
    world.loop().run()
    if made == "by an older raycdc":
        mysql57.execute("ALTER TABLE shop.t MODIFY `at` timestamp(6) NOT NULL")
    assert ("ON UPDATE" in found(mysql57, "SHOW CREATE TABLE shop.t")[0][1]) is (made != "by us")
    n = Column("n", INT, default="5")
    change(table, (*schema.columns, n), AddColumnEvent(table.id, n))
    for row in table.rows.values():
        row["n"] = 5
    table.update((1, at), v=2)
    world.script.seal(final=True)
    world.restart()
    assert found(mysql57, "SELECT id, at, v, n FROM shop.t ORDER BY id") == [
        (1, at.replace(tzinfo=None), 2, 5),
        (2, at.replace(tzinfo=None), 1, 5),
    ]


def work_of(world: World, epoch: int) -> TableCommit:
    (work,) = works_of(world.loop(), world.store.manifest(epoch))
    return work


def keyed_by(length: int) -> LogicalType:
    return LogicalType(TypeKind.STRING, native=f"varchar({length})")


EXACT = "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL"


@pytest.mark.parametrize(
    ("definition", "refusal"),
    [
        (
            "id varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, v bigint",
            "id by the collation utf8mb4_general_ci.* COLLATE utf8mb4_nopad_bin",
        ),
        (
            "id varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, v bigint",
            "compares key column id by the collation utf8mb4_bin",
        ),
        (f"id {EXACT}, v bigint, UNIQUE KEY k (id(3))", "compares key column id of index k by only its first 3"),
        (f"id {EXACT} PRIMARY KEY, v bigint, UNIQUE KEY (v)", r"has other unique indexes than one on \(id\)"),
        (f"id {EXACT} PRIMARY KEY, v bigint) ENGINE=MyISAM", "is a table of MyISAM, which has no transact"),
        (
            f"id {EXACT} PRIMARY KEY, v bigint, t timestamp(6) NOT NULL DEFAULT 0 ON UPDATE current_timestamp(6)",
            "has a column t that the server may set",
        ),
    ],
)
def test_a_table_that_would_change_rows_is_not_adopted(
    mariadb: DatabaseServer, tmp_path: Path, definition: str, refusal: str
) -> None:
    schema = keyed(("id", keyed_by(20)), ("v", INT), ("t", LogicalType(TypeKind.TIMESTAMP)))
    world = world_on(mariadb, tmp_path, ("shop.t", schema))
    closing = "" if definition.endswith("MyISAM") else ")"
    mariadb.execute("CREATE DATABASE shop", f"CREATE TABLE shop.t ({definition}{closing}")
    world.script.table("shop.t").insert({"id": "a", "v": 1, "t": None})
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=refusal):
        world.loop(world.sink(on_existing="merge")).run()
    assert found(mariadb, "SELECT * FROM shop.t") == []


def test_a_table_that_fits_is_adopted(mariadb: DatabaseServer, tmp_path: Path) -> None:
    world = world_on(mariadb, tmp_path, ("shop.t", keyed(("id", keyed_by(20)), ("v", INT))))
    mariadb.execute("CREATE DATABASE shop", f"CREATE TABLE shop.t (id {EXACT} PRIMARY KEY)")
    for id_ in ("a", "A", "a "):
        world.script.table("shop.t").insert({"id": id_, "v": 1})
    world.script.seal(final=True)
    world.loop(world.sink(on_existing="merge")).run()
    world.check()


def test_two_tables_that_the_server_takes_for_one_are_refused(tmp_path: Path) -> None:
    schema = keyed(("id", INT), ("v", INT))
    with MariaDbServer({"lower_case_table_names": "1"}) as server:
        for on_existing in ("fail", "merge", "replace"):
            root = tmp_path / on_existing
            world = world_on(server, root, ("shop.Items", schema), ("shop.items", schema))
            for number, table in enumerate(world.script.tables.values()):
                table.insert({"id": 1, "v": number})
            world.script.seal(final=True)
            with pytest.raises(SinkError, match=r"shop\.items and shop\.Items are one table in .*ignore case"):
                world.loop(world.sink(on_existing=on_existing)).run()
            assert found(server, "SELECT v FROM shop.items WHERE v = 1") == []


def test_a_table_made_for_a_dropped_epoch_is_made_again_in_the_shape_that_counts(
    mariadb: DatabaseServer, tmp_path: Path
) -> None:
    world = world_on(mariadb, tmp_path, ("shop.t", keyed(("id", INT), ("d", decimal(10, 2)))))
    world.script.seal()
    sink, work = world.sink(), work_of(world, 1)
    assert isinstance(sink, JdbcSink)
    marker = marker_of(sink._context.app_id, work.target, 1)
    with sink._database.session() as session:
        # The driver dies before it wrote the record.
        session.tables.create(work.target, Made(work.schema.columns, ["id"]), marker, replace=False)
    sink.tombstone(replace(work, generation=2))
    schema = keyed(("id", INT), ("d", decimal(12, 4)))
    created = CreateTableEvent(TableId("shop", "t"), schema)
    sink.apply_schema(replace(work, epoch=2, generation=2, schema=schema, changes=(created,)))
    assert found(mariadb, "SHOW COLUMNS FROM shop.t LIKE 'd'")[0][1] == "decimal(12,4)"


def decimal(precision: int, scale: int) -> LogicalType:
    return LogicalType(TypeKind.DECIMAL, precision=precision, scale=scale)


@pytest.mark.parametrize("flavor", ["mariadb", "mysql80", "mysql57"])
def test_bytes_texts_and_zeros_of_all_kinds_arrive(request: pytest.FixtureRequest, tmp_path: Path, flavor: str) -> None:
    server = request.getfixturevalue(flavor)
    kinds = ("b", LogicalType(TypeKind.BINARY)), ("s", TEXT), ("f", LogicalType(TypeKind.FLOAT32))
    world = world_on(server, tmp_path, ("shop.t", keyed(("id", INT), *kinds, ("d", LogicalType(TypeKind.FLOAT64)))))
    table = world.script.table("shop.t")
    # Every pair of a byte and a quote, a backslash, or the beginning of a longer character.
    for first in range(256):
        raw = b"".join(bytes([first, second, 0x27, first]) for second in (0x00, 0x27, 0x5C, 0xC3, 0xE2, 0xF0, 0xFF))
        table.insert({"id": first, "b": raw, "s": f"{chr(first)}'\\{chr(first)}", "f": -0.0, "d": -0.0})
    table.insert({"id": 256, "b": b"", "s": "", "f": 0.0, "d": 0.0})
    world.script.seal(final=True)
    world.loop().run()
    world.check()
    signs = {(math.copysign(1, row["f"]), math.copysign(1, row["d"])) for row in world.rows(table) if row["id"] < 256}
    # MariaDB has one zero, whatever is written.
    assert signs == ({(1.0, 1.0)} if flavor == "mariadb" else {(-1.0, -1.0)})


def test_a_row_beyond_the_servers_packet_is_named(mariadb: DatabaseServer, tmp_path: Path) -> None:
    ((before,),) = found(mariadb, "SELECT @@GLOBAL.max_allowed_packet")
    world = world_on(mariadb, tmp_path, ("shop.t", keyed(("id", INT), ("b", LogicalType(TypeKind.BINARY)))))
    table = world.script.table("shop.t")
    try:
        mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
        # Together more than a statement may be, and one of almost the largest size.
        for number in range(8):
            table.insert({"id": number, "b": b"x" * 400_000})
        table.insert({"id": 8, "b": b"y" * 1_048_000})
        world.script.seal()
        table.insert({"id": 9, "b": b"z" * 1_048_576})
        world.script.seal(final=True)
        with pytest.raises(SinkError, match=r"shop\.t: A row has \d+ bytes in column b.*Raise max_allowed_packet"):
            world.loop().run()
    finally:
        mariadb.execute(f"SET GLOBAL max_allowed_packet = {before}")
    world.restart()
    world.check()


@pytest.mark.parametrize("flavor", ["mariadb", "mysql80"])
def test_changes_of_columns_are_followed(request: pytest.FixtureRequest, tmp_path: Path, flavor: str) -> None:
    """A key that grows, defaults of bytes and bits, and names that differ in case only."""
    server = request.getfixturevalue(flavor)
    world = world_on(server, tmp_path, ("shop.t", keyed(("id", keyed_by(20)), ("c", INT), ("d", INT))))
    table = world.script.table("shop.t")
    table.insert({"id": "a", "c": 1, "d": 2})
    world.script.seal()
    wide, name, again = Column("id", keyed_by(40), nullable=False), Column("C", INT), Column("D", TEXT, default="x")
    raw = Column("raw", LogicalType(TypeKind.BINARY), default="\0'ä")
    bit = Column("bit", LogicalType(TypeKind.BIT, length=5), default="21")
    change(
        table,
        (wide, name, again, raw, bit),
        AlterColumnTypeEvent(table.id, "id", wide.type, False),
        RenameColumnEvent(table.id, "c", "C"),
        DropColumnEvent(table.id, "d"),
        AddColumnEvent(table.id, again),
        AddColumnEvent(table.id, raw),
        AddColumnEvent(table.id, bit),
    )
    rest = {"D": "x", "raw": "\0'ä".encode(), "bit": 21}
    table.rows = {("a",): {"id": "a", "C": 1, **rest}}
    table.insert({"id": "b" * 40, "C": 3, **rest})
    world.script.seal(final=True)
    world.loop().run()
    world.check()


def test_an_error_quotes_no_value(mariadb: DatabaseServer, tmp_path: Path) -> None:
    schema = keyed(("id", INT), ("note", TEXT))
    world = world_on(mariadb, tmp_path, ("shop.t", schema), kind="mysql-changelog")
    note = "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
    mariadb.execute("CREATE DATABASE shop", f"CREATE TABLE shop.t (id bigint, note {note}, UNIQUE KEY one (note(20)))")
    for number in range(2):
        world.script.table("shop.t").insert({"id": number, "note": "geheim"})
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=r"Duplicate entry '…' for key 'one'") as refused:
        world.loop(world.sink(on_existing="merge")).run()
    assert "geheim" not in str(refused.value)


OF_MONGODB = LogicalType(TypeKind.TIMESTAMP, fsp=3, native="date")


@pytest.mark.parametrize("flavor", ["mariadb", "mysql80", "mysql57"])
def test_moments_before_1970_arrive(request: pytest.FixtureRequest, tmp_path: Path, flavor: str) -> None:
    server = request.getfixturevalue(flavor)
    world = world_on(server, tmp_path, ("shop.t", keyed(("id", INT), ("at", OF_MONGODB))))
    table = world.script.table("shop.t")
    years = {1: 1970, 2: 1, 3: 1969, 4: 2038, 5: 9999}
    for id_, year in years.items():
        table.insert({"id": id_, "at": dt.datetime(year, 6, 1, 12, tzinfo=dt.UTC)})
    world.script.seal(final=True)
    world.loop().run()
    assert found(server, "SELECT id, at FROM shop.t ORDER BY id") == [
        (id_, dt.datetime(year, 6, 1, 12, tzinfo=dt.UTC).replace(tzinfo=None)) for id_, year in years.items()
    ]


def test_a_column_of_moments_that_an_older_version_made_is_mended_by_a_new_beginning(
    mariadb: DatabaseServer, tmp_path: Path
) -> None:
    schema = keyed(("id", INT), ("at", OF_MONGODB))
    world = world_on(mariadb, tmp_path, ("shop.t", schema))
    table = world.script.table("shop.t")
    table.insert({"id": 1, "at": dt.datetime(2000, 1, 1, tzinfo=dt.UTC)})
    world.script.seal(final=True)
    world.loop().run()
    mariadb.execute("ALTER TABLE shop.t MODIFY `at` timestamp(6) NULL")
    old = dt.datetime(1950, 1, 1, tzinfo=dt.UTC)
    table.insert({"id": 2, "at": old})
    world.script.seal(final=True)
    with pytest.raises(ValueRefusedError, match="at"):
        world.restart()
    table.changes += [TruncateTableEvent(table.id), CreateTableEvent(table.id, schema)]
    table.truncate()
    table.insert({"id": 2, "at": old})
    manifest = world.script.seal(final=True)
    # As if the epoch that was refused had been given up.
    sink = world.sink()
    (work,) = works_of(world.loop(sink), manifest)
    sink.apply_schema(work)
    sink.commit(work, sink.stage([work])[work.target])
    assert found(mariadb, "SELECT id, at FROM shop.t") == [(2, old.replace(tzinfo=None))]
