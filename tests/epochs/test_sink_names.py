"""Every sink and names that it may not hold: held as they are, or under another name that the table in the code gives.

What this finds out of a new sink, or of a new version of one, is a row of `raycdc.model.rules.names`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.delivery.ports import Routing
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent, DropColumnEvent, RenameColumnEvent
from raycdc.model.rules.names import NAMES
from raycdc.model.rules.routes import Router
from raycdc.transform import TransformedTables
from raycdc.transform.naming import Naming
from tests.epochs.sink_world import World, world_of

ODD = [
    *(f"a{one}b" for one in " ,;{}()\n\t=.`'\"\\/$%?#:*<>|[]&+-~^@!"),
    *" .$%-`'\"\\/",
    *(
        "a ",
        " b",
        "ü",
        "列",
        "😀",
        "a😀",
        "$a",
        "_id",
        "0",
        "1a",
        "select",
        "order",
        "null",
        "true",
        "x\x7fy",
        "x\x01y",
    ),
    *("ctid", "xmin", "oid", "rowid", "m" * 63, "M" * 64, "n" * 65, "ü" * 32, "w" * 300),
    *("_change_type", "__raycdc", "element", "file_path", "pos"),
]
KINDS = [
    ("delta-upsert", "delta"),
    ("delta-changelog", "delta"),
    ("iceberg-upsert", "iceberg"),
    ("iceberg-changelog", "iceberg"),
    ("parquet", "parquet"),
    ("jsonl", "jsonl"),
    pytest.param("postgres-upsert", "postgresql", marks=pytest.mark.server),
    pytest.param("postgres-changelog", "postgresql", marks=pytest.mark.server),
    pytest.param("mysql-upsert", "mysql", marks=pytest.mark.server),
    pytest.param("mongodb-upsert", "mongodb", marks=pytest.mark.server),
    pytest.param("mongodb-changelog", "mongodb", marks=pytest.mark.server),
]


def named_world(request: pytest.FixtureRequest, kind: str, store: str, root: Path) -> tuple[World, Naming, list[str]]:
    """A world with one table that has a column of each odd name, of those that are not equal in the target."""
    world = world_of(request, kind, root)
    upsert = world.write == "upsert"
    naming = Naming(NAMES[store], replaces=True, upsert=upsert)
    taken = {"id"}
    names = []
    for name in ODD:
        made = NAMES[store].column(name).casefold()
        if made not in taken and name.casefold() not in taken:
            taken |= {made, name.casefold()}
            names.append(name)
    number = LogicalType(TypeKind.INT32)
    columns = [Column("id", number, nullable=False), *(Column(name, number) for name in names)]
    world.script.tables = {}
    world.script.table("shop.t", TableSchema(tuple(columns), ("id",)))
    return world, naming, names


@pytest.mark.parametrize(("kind", "store"), KINDS)
def test_every_sink_holds_every_name_as_it_is_or_as_the_table_says(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, store: str
) -> None:
    world, naming, names = named_world(request, kind, store, tmp_path)
    table = world.script.table("shop.t")
    row = {name: at for at, name in enumerate(names)}
    table.insert({"id": 1, **row})
    table.insert({"id": 2, **row})
    world.script.seal()
    table.update((1,), **{names[0]: 77})
    table.delete((2,))
    world.script.seal(final=True)
    routing = Routing(Router(()), world.write == "upsert", transforms=TransformedTables(naming=naming))
    world.loop(routing=routing).run()
    wanted = {"id": 1, **{naming.rules.column(name): at for name, at in row.items()}, naming.rules.column(names[0]): 77}
    found = world.rows(table)
    if world.write == "changelog":
        found.sort(key=lambda row: row["_seq"])
    held = [{name: value for name, value in row.items() if name in wanted} for row in found]
    assert held[-1 if world.write == "upsert" else -2] == wanted


#: Names that print alike, that are a folder's own if an escape is read, or that differ in what a store may not hold.
ODD_TABLES = [
    *(
        TableId(*parts)
        for parts in (("shop", "x.t"), ("shop.x", "t"), ("shop.x", "T"), ("`shop.x`", "t"), ("a%20b", "t"))
    ),
    *(TableId("shop", f"a{one}b") for one in " ,;{}()\n\t=.`'\"\\$%?#:*<>|[]&+-~^@!\x7f\x01"),
    *(TableId("shop", one) for one in ("a%20b", "a%2520b", "%2e%2e", "..\\x", "ü", "u\u0308", "A B")),
]


@pytest.mark.parametrize(
    ("kind", "store"),
    [("delta-upsert", "delta"), ("iceberg-upsert", "iceberg"), ("parquet", "parquet"), ("jsonl", "jsonl")],
)
def test_every_sink_of_folders_keeps_tables_of_every_name_apart_or_the_table_refuses_it(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, store: str
) -> None:
    world = world_of(request, kind, tmp_path)
    world.script.tables = {}
    number = LogicalType(TypeKind.INT32)
    columns = Column("id", number, nullable=False), Column("v", number)
    names = [name for name in ODD_TABLES if not NAMES[store].no_table(name)]
    tables = [world.script.table(str(name), TableSchema(columns, ("id",))) for name in names]
    for at, table in enumerate(tables):
        table.insert({"id": 1, "v": at})
    world.script.seal()
    for table in tables:
        table.update((1,), v=-table.rows[(1,)]["v"])
    world.script.seal(final=True)
    world.loop().run()
    assert [[row["v"] for row in world.rows(table)][-1] for table in tables] == [-at for at in range(len(tables))]


@pytest.mark.parametrize(("kind", "store"), [("delta-upsert", "delta"), ("delta-changelog", "delta")])
def test_columns_that_come_and_go_have_the_names_that_they_had(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, store: str
) -> None:
    world = world_of(request, kind, tmp_path)
    world.script.tables = {}
    number = LogicalType(TypeKind.INT32)
    table = world.script.table("shop.t", TableSchema((Column("id", number), Column("a b", number)), ("id",)))
    told: list[dict[str, str]] = []
    naming = Naming(NAMES[store], replaces=True, upsert=world.write == "upsert")
    tables = TransformedTables(naming=naming, on_names=lambda _, names: told.append(dict(names)))
    routing = Routing(Router(()), world.write == "upsert", transforms=tables)
    table.insert({"id": 1, "a b": 2})
    world.script.seal()
    assert TableId("shop", "t") == table.id
    changes = tables.changes(
        table.id,
        table.schema,
        table.schema,
        [
            AddColumnEvent(table.id, Column("c;d", number)),
            RenameColumnEvent(table.id, "c;d", "c,d"),
            RenameColumnEvent(table.id, "c,d", "e"),
            DropColumnEvent(table.id, "e"),
        ],
    )
    assert [repr(change).count("c_d") for change in changes][-2:] == [1, 0]
    world.script.seal(final=True)
    world.loop(routing=routing).run()
    assert [row["a_b"] for row in world.rows(table)] == [2]
    assert told == [{"a b": "a_b"}]
