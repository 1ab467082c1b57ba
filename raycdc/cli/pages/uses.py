"""A part of the page ``changes``: the reactions to changes of a column that the configuration names.

Each cell is the verdict of the rules that judge MySQL's statements (`raycdc.connectors.mysql.ddl.rules`), made from a
statement and a configuration. No server is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.ddl.apply import DdlDialect, apply_ddl, parse_ddl
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer
from raycdc.connectors.mysql.ddl.parse.statements import CreateTable
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import LogicalType, TableId, TypeKind
from raycdc.model.rules.layout import TableLayout, partition_fields
from raycdc.model.rules.mask import Mask, Masks
from raycdc.model.rules.selector import TableSelector
from raycdc.model.rules.transform import Lookup, LookupColumn, Transform, Transforms
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.transform.target_rules import TargetRules

TABLE = TableId("shop", "t")
_CREATED = (
    "CREATE TABLE t (id INT PRIMARY KEY, n INT, x VARCHAR(20) COLLATE utf8mb4_0900_ai_ci, f FLOAT) CHARSET=utf8mb4"
)
_HERE = BinlogOffset("binlog.000001", 400)


def _transformed(**transform: object) -> TargetRules:
    return TargetRules(Transforms([Transform(table="shop.t", **transform)]))  # type: ignore[arg-type]


def _looked_up(key: str) -> TargetRules:
    added = (LookupColumn("name", "user_name", LogicalType(TypeKind.STRING)),)
    lookup = Lookup(number=0, table="shop.t", dimension="mongodb crm.users", key=key, field="_id", columns=added)
    return TargetRules(Transforms(lookups=[lookup]))


@dataclass(frozen=True, slots=True)
class Use:
    """A key of the configuration that names a column. `text` describes it for the page. `rules` and `capture` are those
    of a pipeline with this key, for each name of a column.
    """

    text: str
    rules: Mapping[str, TargetRules] = field(default_factory=dict)
    capture: Mapping[str, Capture] = field(default_factory=dict)


COLUMNS = ("n", "x", "f")


def _each(**transforms: str) -> dict[str, TargetRules]:
    return {c: _transformed(**{name: text.format(c) for name, text in transforms.items()}) for c in COLUMNS}


#: Every key of the configuration that may name a column of a source table.
USES: Mapping[str, Use] = {
    "nothing": Use("(nothing)"),
    "expression": Use("an expression of `transform.projection`", _each(projection="id, hash({0}) AS h")),
    "filter": Use("`transform.filter`", _each(filter="cast({0} AS string) <> '1'")),
    "passed": Use("a column of `transform.projection` without an expression", _each(projection="id, {0} AS y")),
    "except": Use("`EXCEPT` in `transform.projection`", _each(projection="* EXCEPT ({0})")),
    "key": Use("`transform.primary_keys`", {c: _transformed(primary_keys=(c,)) for c in COLUMNS}),
    "partition": Use(
        "`partition_by`", {c: _transformed(layout=TableLayout(partition_fields([f"bucket(4, {c})"]))) for c in COLUMNS}
    ),
    "lookup": Use("`lookup.key`", {c: _looked_up(c) for c in COLUMNS}),
    "mask": Use("`mask.columns`", {c: TargetRules(masks=Masks([Mask(f"shop.t.{c}", "mask")])) for c in COLUMNS}),
    "snapshot filter": Use(
        "`source.snapshot.filter`", capture={"n": Capture("n <> 1"), "x": Capture("x <> 'a'"), "f": Capture("f <> 1")}
    ),
    "columns": Use("`source.columns`", capture={c: Capture(columns=("id", c)) for c in COLUMNS}),
}

#: The statements, by what they do to the column; each with the column that it concerns.
STATEMENTS: Mapping[str, tuple[str, str]] = {
    "dropped": ("n", "ALTER TABLE t DROP COLUMN n"),
    "renamed": ("n", "ALTER TABLE t RENAME COLUMN n TO other"),
    "another column takes its name": ("n", "ALTER TABLE t RENAME COLUMN n TO other, RENAME COLUMN x TO n"),
    "dropped and added in one statement": ("n", "ALTER TABLE t DROP COLUMN n, ADD COLUMN n INT"),
    "INT → BIGINT": ("n", "ALTER TABLE t MODIFY n BIGINT"),
    "FLOAT → DOUBLE": ("f", "ALTER TABLE t MODIFY f DOUBLE"),
    "INT → VARCHAR": ("n", "ALTER TABLE t MODIFY n VARCHAR(20)"),
    "VARCHAR: longer": ("x", "ALTER TABLE t MODIFY x VARCHAR(40) COLLATE utf8mb4_0900_ai_ci"),
    "VARCHAR: other collation": ("x", "ALTER TABLE t MODIFY x VARCHAR(20) COLLATE utf8mb4_bin"),
}

PARKED, AGAIN, FOLLOWED = "parked", "resnapshot", "follows"


def reaction(use: Use, column: str, statement: str) -> str:
    """Return the reaction to a statement if the configuration names `column` as `use` says."""
    rules, capture = use.rules.get(column, TargetRules()), use.capture.get(column)
    history = DdlHistory(
        {TABLE: _table()},
        selector=TableSelector(("shop.t",)),
        server=LogServer(DdlDialect(), ("utf8mb4", "")),
        terms=ParkingSetup({}, rules=rules),
        captured={} if capture is None else {TABLE: capture},
    )
    history.attach(_Decoder())
    history.on_ddl(DdlItem("shop", statement, _HERE, _HERE, 0, in_transaction=False))
    updates, _ = history.take_updates()
    parked = next((update for update in updates if isinstance(update, ParkTableUpdate)), None)
    if parked is None:
        return FOLLOWED
    return AGAIN if parked.parking.again else PARKED


def uses_table() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the titles and the rows of the table."""
    rows = [
        (use.text, *(reaction(use, column, statement) for column, statement in STATEMENTS.values()))
        for use in USES.values()
    ]
    return ("the column is named by", *STATEMENTS), rows


@cache
def _table() -> MySqlTable:
    parsed = parse_ddl(_CREATED, TABLE.db)
    assert isinstance(parsed, tuple)
    (created,) = parsed
    assert isinstance(created, CreateTable)
    table = apply_ddl(None, created).table
    assert table is not None
    return table


class _Decoder:
    """The part of a decoder that a history needs."""

    def set_table(self, table: MySqlTable) -> None: ...

    def remove_table(self, table: TableId) -> None: ...

    def take_seq(self) -> int:
        return 0
