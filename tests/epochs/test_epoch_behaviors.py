"""Every kind of schema change, under every behaviour, into every sink, against a table of what readers must see.

`CHANGES` is the source's side: what a statement does to a table, its rows and its events. The promise is
`raycdc.model.evolution.effects`, which the manual's page is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import PipelineOptions
from raycdc.core.failpoints import FailpointError
from raycdc.errors import SinkError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    AlterTableCommentEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    First,
    RenameColumnEvent,
    RenameTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
    effects,
)
from raycdc.model.evolution.effects import ChangeEffect, SchemaChangeBehavior, effect
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.testing.epochs import Row, ScriptedTable
from tests.epochs.sink_world import KINDS, TOPICS, UPSERTS, World, world_of

WIDE = LogicalType(TypeKind.INT64)
TEXT = LogicalType(TypeKind.STRING)
AT = Column("at", TEXT)

BEHAVIORS = ("fail", "evolve", "try_evolve", "lenient", "ignore")


@dataclass(frozen=True)
class Change:
    """A statement at the source: events, the columns after it, what it makes of a row, and values of new rows.

    `follows` shows a row from before as a target that follows the change has it; `stays` a row from after as one that
    stays as it is. `lenient` are both for the behaviour of that name, where it differs from following.
    """

    events: Callable[[ScriptedTable], list[SchemaChangeEvent]]
    columns: Callable[[list[Column]], list[Column]] = lambda columns: columns
    row: Callable[[Row], Row] = dict
    values: Row = field(default_factory=dict)
    empties: bool = False


def renamed(row: Row, name: str, new: str) -> Row:
    return {(new if n == name else n): v for n, v in row.items()}


def without(row: Row, name: str) -> Row:
    return {n: v for n, v in row.items() if n != name}


def _typed(columns: list[Column], kind: LogicalType) -> list[Column]:
    return [replace(c, type=kind) if c.name == "qty" else c for c in columns]


CHANGES = {
    "add_column": Change(
        lambda t: [AddColumnEvent(t.id, AT)], lambda c: [*c, AT], lambda r: {**r, "at": None}, {"at": "now"}
    ),
    "drop_column": Change(
        lambda t: [DropColumnEvent(t.id, "name")],
        lambda c: [x for x in c if x.name != "name"],
        lambda r: without(r, "name"),
        {"qty": -1},
    ),
    "rename_column": Change(
        lambda t: [RenameColumnEvent(t.id, "qty", "amount")],
        lambda c: [replace(x, name="amount") if x.name == "qty" else x for x in c],
        lambda r: renamed(r, "qty", "amount"),
        {"amount": -1},
    ),
    "rename_case": Change(
        lambda t: [RenameColumnEvent(t.id, "qty", "QTY")],
        lambda c: [replace(x, name="QTY") if x.name == "qty" else x for x in c],
        lambda r: renamed(r, "qty", "QTY"),
        {"QTY": -1},
    ),
    "wider_type": Change(
        lambda t: [AlterColumnTypeEvent(t.id, "qty", WIDE)], lambda c: _typed(c, WIDE), values={"qty": 1 << 40}
    ),
    "other_type": Change(
        lambda t: [AlterColumnTypeEvent(t.id, "qty", TEXT)],
        lambda c: _typed(c, TEXT),
        lambda r: {**r, "qty": None if r["qty"] is None else str(r["qty"])},
        {"qty": "many"},
    ),
    "alter_column_position": Change(
        lambda t: [AlterColumnPositionEvent(t.id, "qty", First())], lambda c: [c[2], c[0], c[1]], values={"qty": -1}
    ),
    "alter_primary_key": Change(lambda t: [AlterPrimaryKeyEvent(t.id, ("id", "name"))], values={"qty": -1}),
    "alter_table_comment": Change(lambda t: [AlterTableCommentEvent(t.id, "said")], values={"qty": -1}),
    "rename_table": Change(lambda t: [RenameTableEvent(t.id, TableId("shop", "old"))], values={"qty": -1}),
    "truncate_table": Change(lambda t: [TruncateTableEvent(t.id)], values={"qty": -1}, empties=True),
    "drop_table": Change(
        lambda t: [DropTableEvent(t.id), CreateTableEvent(t.id, t.schema)], values={"qty": -1}, empties=True
    ),
    "begins_again": Change(
        lambda t: [TruncateTableEvent(t.id), CreateTableEvent(t.id, t.schema)],
        lambda c: [c[2], c[0], AT],
        lambda r: {**without(r, "name"), "at": None},
        {"qty": -1, "at": "now"},
        empties=True,
    ),
}

#: Not those whose partition column would be renamed, which is a question for `partition_by`; and each sink one way: how
#: its rows come to it, by tasks or not, makes no difference to the columns.
_OTHERS = ("partitioned", "-tasks", "-parts")
WHOLE = tuple(kind for kind in KINDS if not any(other in str(kind) for other in _OTHERS))
WHOLE_UPSERTS = tuple(kind for kind in UPSERTS if not any(other in str(kind) for other in _OTHERS))

#: The promise, which the manual's page is made of.
REFUSED, FOLLOWS, STAYS, BOTH = ChangeEffect.REFUSED, ChangeEffect.FOLLOWS, ChangeEffect.STAYS, ChangeEffect.BOTH


def target_of(kind: str) -> str:
    """The kind of target as the promise has it."""
    return kind.partition("-")[0]


def outcome(kind: str, behavior: str, name: str) -> ChangeEffect:
    return effect(target_of(kind), SchemaChangeBehavior(behavior), name)


def test_the_promise_is_about_all_changes_and_sinks_that_are_played() -> None:
    assert set(CHANGES) == set(effects.CHANGES)
    kinds = [str(kind.values[0]) if hasattr(kind, "values") else str(kind) for kind in KINDS]
    assert {target_of(kind) for kind in kinds} == set(effects.TARGETS)


@pytest.fixture(params=WHOLE)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return world_of(request, request.param, tmp_path)


@pytest.fixture(params=WHOLE_UPSERTS)
def upsert(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return world_of(request, request.param, tmp_path)


@dataclass
class Altered:
    """A table that was altered: its rows and changes from before."""

    table: ScriptedTable
    change: Change
    before: dict[tuple[Any, ...], Row]
    told_before: int


def alter(table: ScriptedTable, change: Change) -> Altered:
    """Rows, the change, and rows of the new shape: one updated, one new."""
    altered = Altered(table, change, {key: dict(row) for key, row in table.rows.items()}, len(table.changelog))
    if change.empties:
        table.truncate()
    table.schema = replace(table.schema, columns=tuple(change.columns(list(table.schema.columns))))
    table.changes.extend(change.events(table))
    table.rows = {key: change.row(row) for key, row in table.rows.items()}
    names = [column.name for column in table.schema.columns]
    if not change.empties:
        table.update((1,), **change.values)
    table.insert({"name": "new", "qty": None, **dict.fromkeys(names), "id": 1000, **change.values})
    for _, row in table.changelog[altered.told_before :]:
        for name in set(row) - set(names):
            del row[name]
    table.rows = {key: {n: row[n] for n in names} for key, row in table.rows.items()}
    return altered


def shown(row: Row, outcome: ChangeEffect, change: Change, *, old: bool, upsert: bool) -> Row:
    """A row as the target shows it; `old` rows were written before the change, and an `upsert` target's have what the
    source's have.
    """
    before = ("id", "name", "qty")
    match outcome:
        case ChangeEffect.FOLLOWS:
            return change.row(row) if old else row
        case ChangeEffect.STAYS:
            return {name: row.get(name) for name in before}
        case _:
            now = change.row(row) if old and upsert else {}
            after = change.row(dict.fromkeys(before))
            return {name: row.get(name, now.get(name)) for name in (*before, *(set(after) - set(before)))}


def check(world: World, altered: Altered, outcome: ChangeEffect) -> None:
    table, change = altered.table, altered.change
    got = world.rows(table)
    if outcome is FOLLOWS and target_of(world.kind) in effects.PLACED:
        names = [column.name for column in table.schema.columns]
        assert [name for name in got[0] if name in names] == names
    if world.write == "upsert":
        touched = {(1,), (1000,)}
        expected = [
            shown(altered.before[key], outcome, change, old=True, upsert=True)
            if key not in touched
            else shown(row, outcome, change, old=False, upsert=True)
            for key, row in sorted(table.rows.items())
        ]
        assert sorted(got, key=lambda row: row["id"]) == expected
        return
    told = table.changelog
    got.sort(key=lambda row: (row["id"] or 0, row["_seq"]))
    wanted = sorted(enumerate(told), key=lambda entry: (entry[1][1]["id"] or 0, entry[0]))
    assert [row["_op"] for row in got] == [op for _, (op, _) in wanted]
    for row, (at, (_, source)) in zip(got, wanted, strict=True):
        old = at < altered.told_before
        shows = (
            source if target_of(world.kind) in effects.LOOSE else shown(source, outcome, change, old=old, upsert=False)
        )
        if world.kind in TOPICS and old:  # Read with the columns of the end, as far as they were there.
            shows = {name: value for name, value in change.row(source).items() if name in source}
        assert {name: row.get(name) for name in shows} == shows


def altered_world(world: World, names: list[str]) -> dict[str, Altered]:
    """A table per change in two epochs: rows, then the change with rows of the new shape."""
    world.script.tables.clear()
    for name in names:
        table = world.script.table(f"shop.{name}")
        table.read([{"id": n, "name": f"row {n}", "qty": n} for n in range(5)])
        table.update((2,), name=None)
    world.script.seal()
    found = {name: alter(world.script.table(f"shop.{name}"), CHANGES[name]) for name in names}
    world.script.seal(final=True)
    return found


@pytest.mark.long_variants(
    "kafka-try_evolve",
    "p*sql*-try_evolve",
    "m*-try_evolve",
    "postgres-changelog-*",
    "mongodb-changelog-*",
    suite="sinks",
)
@pytest.mark.parametrize("behavior", BEHAVIORS[1:])
def test_what_readers_of_a_target_see_of_each_change(world: World, behavior: str) -> None:
    if target_of(world.kind) in effects.FILES and behavior == "ignore":
        options = PipelineOptions(name="shop", schema_change=SchemaChangeBehavior.IGNORE)
        (problem,) = load_plugin(PluginGroup.SINKS, world.kind).config(**world.settings).problems(options, local=True)
        assert "files always have the columns of their rows" in problem
        return
    outcomes = {name: outcome(world.kind, behavior, name) for name in CHANGES}
    followed = [name for name, what in outcomes.items() if what != REFUSED]
    altered = altered_world(world, followed)
    world.loop(world.sink(schema_change=behavior)).run()
    for name in followed:
        check(world, altered[name], outcomes[name])


@pytest.mark.long_variants(
    "*-postgres-changelog", "*-mongodb-changelog", "ignore-kafka", "ignore-postgres*", "ignore-m*", suite="sinks"
)
@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("behavior", ["fail", "lenient", "ignore"])
def test_what_a_target_cannot_follow_ends_the_run_before_a_row_of_it(
    kind: str, behavior: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for name in CHANGES:
        if outcome(kind, behavior, name) != REFUSED or (target_of(kind) in effects.FILES and behavior == "ignore"):
            continue
        world = world_of(request, kind, tmp_path / name)
        altered = altered_world(world, [name])[name]
        with pytest.raises(SinkError, match=rf"shop\.{name}"):
            world.loop(world.sink(schema_change=behavior)).run()
        got = world.rows(altered.table)
        if world.write == "upsert":
            assert sorted(got, key=lambda row: row["id"]) == [altered.before[key] for key in sorted(altered.before)]
        else:
            assert len(got) == altered.told_before


POINTS = (
    "before_stage",
    "after_stage",
    "before_schema",
    "after_schema",
    "in_commit",
    "after_commit",
    "after_last_commit",
)


def crashes() -> Iterator[Any]:
    """The points where the behaviors differ in what was done, and each point with one of them."""
    for point, behavior in product(POINTS, ("evolve", "lenient")):
        alike = behavior == "lenient" and point in ("before_stage", "after_stage", "after_last_commit")
        yield pytest.param(point, behavior, marks=pytest.mark.long(suite="sinks") if alike else ())


@pytest.mark.long_variants(
    "*sql-upsert-*_stage-*", "mongodb-upsert-*_stage-*", "*-after_*commit-lenient", suite="sinks"
)
@pytest.mark.parametrize(("point", "behavior"), list(crashes()))
def test_a_crash_at_any_step_of_the_changes_is_as_if_there_was_none(
    upsert: World, behavior: str, point: str, fail_at: Callable[[str, int], None]
) -> None:
    outcomes = {name: outcome(upsert.kind, behavior, name) for name in CHANGES}
    followed = [name for name, what in outcomes.items() if what != REFUSED]
    altered = altered_world(upsert, followed)
    # The second epoch is the one with the changes, and some of its tables have theirs already.
    fail_at(point, {"before_stage": 2, "after_stage": 2, "after_last_commit": 2}.get(point, len(followed) + 3))
    with pytest.raises(FailpointError):
        upsert.loop(upsert.sink(schema_change=behavior)).run()
    upsert.restart(sink=upsert.sink(schema_change=behavior))
    for name in followed:
        check(upsert, altered[name], outcomes[name])
