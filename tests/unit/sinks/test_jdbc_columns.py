"""What the database sink makes of addresses, types and schema changes, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from raycdc.config import Secret
from raycdc.errors import SinkError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    SchemaChangeBehavior,
    SchemaChangeEvent,
)
from raycdc.sinks.api import TableCommit
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.database_columns import DATABASE, DatabasePlan, fits, plan
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.sinks.jdbc.types import mysql_type, postgres_type

ORDERS = TableId("shop", "orders")
INT = LogicalType(TypeKind.INT32)
TEXT = LogicalType(TypeKind.STRING)
ID, NAME, QTY = Column("id", INT, nullable=False), Column("name", TEXT), Column("qty", INT)


def decimal(precision: int, scale: int) -> LogicalType:
    if precision > 38:
        return LogicalType(
            TypeKind.STRING, precision=precision, scale=scale, native=f"decimal({precision},{scale}) unsigned"
        )
    return LogicalType(TypeKind.DECIMAL, precision=precision, scale=scale)


def planned(
    columns: tuple[Column, ...],
    *events: SchemaChangeEvent,
    behavior: str = "lenient",
    key: str = "id",
    may_rekey: bool = False,
) -> DatabasePlan:
    """What events that lead to `columns` make of a target with id, name and qty."""
    changes = events
    work = TableCommit(2, 1, ORDERS, ORDERS, TableSchema(columns, (key,)), changes, (), {})
    return plan(
        DATABASE,
        (ID, NAME, QTY),
        ("id",),
        work,
        ChangeRules(upsert=True, behavior=SchemaChangeBehavior(behavior)),
        may_rekey=may_rekey,
    )


def shape(made: DatabasePlan) -> list[tuple[str, str | None]]:
    return [(p.column.name, p.origin) for p in made.columns]


def test_lenient_keeps_what_goes_and_evolve_does_not() -> None:
    total = Column("total", INT)
    events = DropColumnEvent(ORDERS, "name"), RenameColumnEvent(ORDERS, "qty", "total")
    kept = planned((ID, total), *events)
    assert shape(kept) == [("id", "id"), ("name", "name"), ("qty", "qty"), ("total", None)]
    assert kept.copied == (("total", "qty"),)
    assert shape(planned((ID, total), *events, behavior="evolve")) == [("id", "id"), ("total", "qty")]


def test_a_column_renamed_onto_one_that_stayed_takes_its_name() -> None:
    number = Column("name", INT)
    events = DropColumnEvent(ORDERS, "name"), RenameColumnEvent(ORDERS, "qty", "name")
    kept = planned((ID, number), *events)
    assert (shape(kept), kept.copied) == ([("id", "id"), ("qty", "qty"), ("name", None)], (("name", "qty"),))
    assert shape(planned((ID, number), *events, behavior="evolve")) == [("id", "id"), ("name", "qty")]


@pytest.mark.parametrize("behavior", ["lenient", "evolve"])
def test_a_column_whose_name_another_one_takes_has_no_second_place(behavior: str) -> None:
    """It is renamed in place under any behaviour: nothing could stay under its name."""
    again = Column("qty", TEXT)
    made = planned(
        (ID, NAME, Column("total", INT), again),
        RenameColumnEvent(ORDERS, "qty", "total"),
        AddColumnEvent(ORDERS, again),
        behavior=behavior,
    )
    assert (shape(made), made.copied) == ([("id", "id"), ("name", "name"), ("total", "qty"), ("qty", None)], ())


@pytest.mark.parametrize("behavior", ["lenient", "evolve"])
def test_a_default_follows_its_column_under_its_later_name(behavior: str) -> None:
    added, named = Column("at", INT, default="7"), Column("since", LogicalType(TypeKind.INT64))
    made = planned(
        (ID, NAME, QTY, named),
        AddColumnEvent(ORDERS, added),
        RenameColumnEvent(ORDERS, "at", "since"),
        AlterColumnTypeEvent(ORDERS, "since", named.type),
        behavior=behavior,
    )
    assert made.filled == (Column("since", named.type, default="7"),)


def test_a_rename_with_a_narrower_type_is_refused_by_the_column_that_has_the_values() -> None:
    small = Column("total", LogicalType(TypeKind.INT16))
    with pytest.raises(SinkError, match="column total is int32 in the target and int16 at the source"):
        planned(
            (ID, NAME, small),
            RenameColumnEvent(ORDERS, "qty", "total"),
            AlterColumnTypeEvent(ORDERS, "total", small.type),
        )


def test_a_renamed_key_is_lenients_no() -> None:
    with pytest.raises(SinkError, match="the key column 'id' was renamed to 'number'"):
        planned((Column("number", INT), NAME, QTY), RenameColumnEvent(ORDERS, "id", "number"), key="number")


def test_a_column_that_comes_again_begins_anew_with_its_default() -> None:
    again = Column("qty", INT, default="7")
    made = planned((ID, NAME, again), DropColumnEvent(ORDERS, "qty"), AddColumnEvent(ORDERS, again))
    assert (shape(made), made.filled) == ([("id", "id"), ("name", "name"), ("qty", None)], (again,))


def test_an_emptied_table_takes_any_type() -> None:
    text = Column("qty", TEXT)
    create = CreateTableEvent(ORDERS, TableSchema((ID, NAME, text), ("id",)))
    made = planned((ID, NAME, text), DropTableEvent(ORDERS), create)
    assert (made.emptied, [p.column for p in made.columns]) == (True, [ID, NAME, text])


def test_what_would_change_values_or_keys_is_refused_by_name() -> None:
    with pytest.raises(SinkError, match=r"shop\.orders: column qty is int32 in the target and string at the source"):
        planned((ID, NAME, Column("qty", TEXT)), AlterColumnTypeEvent(ORDERS, "qty", TEXT))
    with pytest.raises(SinkError, match=r"its key is \(id\) and becomes \(qty\)"):
        planned((ID, NAME, QTY), DropTableEvent(ORDERS), key="qty")
    with pytest.raises(SinkError, match="a column 'at' that the target lacks"):
        planned((ID, NAME, QTY, Column("at", TEXT)))


def test_only_an_emptied_table_with_rows_of_its_own_gets_another_key() -> None:
    create = CreateTableEvent(ORDERS, TableSchema((ID, NAME, QTY), ("qty",)))
    again = DropTableEvent(ORDERS), create
    made = planned((ID, NAME, QTY), *again, key="qty", may_rekey=True)
    assert (made.emptied, made.rekeyed) == (True, True)
    assert not planned((ID, NAME, QTY), *again, may_rekey=True).rekeyed
    with pytest.raises(SinkError, match=r"its key is \(id\) and becomes \(qty\)"):
        planned((ID, NAME, QTY), create, key="qty", may_rekey=True)
    with pytest.raises(SinkError, match=r"its key is \(id\) and becomes \(at\)"):
        planned((Column("at", INT), NAME), *again, behavior="ignore", key="at", may_rekey=True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (INT, LogicalType(TypeKind.INT64), True),
        (LogicalType(TypeKind.INT64), INT, False),
        (decimal(10, 2), decimal(12, 2), True),
        (decimal(10, 2), decimal(12, 5), False),
        (decimal(38, 2), decimal(50, 3), True),
        (decimal(50, 3), TEXT, False),
        (TEXT, LogicalType(TypeKind.ENUM), True),
        (LogicalType(TypeKind.DATE), LogicalType(TypeKind.DATETIME), False),
    ],
)
def test_only_wider_types_fit(old: LogicalType, new: LogicalType, expected: bool) -> None:
    assert fits(old, new) is expected


@pytest.mark.parametrize("kind", list(TypeKind))
def test_every_kind_has_a_type(kind: TypeKind) -> None:
    assert postgres_type(LogicalType(kind, precision=5, scale=2, length=64))
    assert mysql_type(LogicalType(kind, precision=5, scale=2, length=64), key=False)


def test_a_key_of_text_has_a_length_in_mysql_or_is_refused() -> None:
    assert mysql_type(LogicalType(TypeKind.STRING, native="varchar(64)"), key=True) == "varchar(64)"
    assert mysql_type(LogicalType(TypeKind.BINARY, native="binary(16)"), key=True) == "varbinary(16)"
    with pytest.raises(ValueError, match=r"\(text\) is in the key, and MySQL needs a length"):
        mysql_type(LogicalType(TypeKind.STRING, native="text"), key=True)


def test_decimals_beyond_arrows_are_numerics() -> None:
    assert postgres_type(decimal(65, 30)) == "numeric(65,30)"
    assert mysql_type(decimal(65, 30), key=True) == "decimal(65,30)"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("jdbc:oracle://h/d", "must begin with"),
        ("jdbc:postgresql://h:5432", "must name a database"),
        ("postgresql://me:secret@h/d", "must not hold user or password"),
        ("postgresql://h/d?user=me", "must not hold user or password"),
        ("postgresql://h/d?sslmode=disable", "takes no parameters"),
        ("postgresql://h:99999/d", "names a port"),
    ],
)
def test_addresses_that_make_no_sense_are_refused(url: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        JdbcSinkConfig(url=url, user="me")


def test_an_address_never_shows_the_password() -> None:
    options: dict[str, Any] = {"user": "me", "password": Secret("geheim")}
    config = JdbcSinkConfig(url="jdbc:postgresql://[::1]:7000/a%20b", **options)
    address = config.address()
    assert (address.host, address.port, address.database, address.password) == ("::1", 7000, "a b", "geheim")
    assert "geheim" not in f"{config!r} {address!r} {address}"
