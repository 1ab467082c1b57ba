"""Requirement × server × time: a table of a database that others changed is found each time that it is looked at.

`raycdc.sinks.jdbc.requirements` has the requirements, each with a statement that breaks it; the manual's page
``requirements`` is made of it, and every statement of that page is run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import SinkError, TargetExistsError, TargetModifiedError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent
from raycdc.sinks.jdbc.requirements import REQUIREMENTS, Breach, Requirement
from raycdc.sinks.jdbc.unsupported_features import UnsupportedFeature
from tests.epochs.sink_world import new_world
from tests.integration.sinks.test_jdbc_demands import SCHEMA, begun, row

pytestmark = pytest.mark.server


class Moment(StrEnum):
    """When a table is looked at."""

    ADOPTION = "adoption"
    START = "start"
    COLUMNS = "a change of columns"
    COMMIT = "commit"


#: Row-level security does not apply to the tests' account, which may see all rows.
TOLD_BY_OTHERS = {Requirement.VISIBLE_ROWS: "test_a_table_whose_rows_are_hidden_is_not_adopted"}
#: Requirements whose breach is no `UnsupportedFeature` at the adoption, each with what the adoption does instead.
NOT_AT_ADOPTION = {
    Requirement.COLUMNS: "missing columns are added",
    Requirement.TYPES: "the types must be exactly those that the pipeline would make",
}


def cells() -> Iterator[Any]:
    for requirement, searched in REQUIREMENTS.items():
        if requirement in TOLD_BY_OTHERS:
            continue
        moments = [Moment.ADOPTION] if searched.adopts else list(Moment)
        for kind, breach in (("postgres-upsert", searched.postgres), ("mysql-upsert", searched.mysql)):
            for moment in moments if breach is not None else ():
                yield pytest.param(kind, requirement, breach, moment, id=f"{kind}: {requirement.name}, {moment}")


@pytest.mark.parametrize(("kind", "requirement", "breach", "moment"), list(cells()))
def test_a_breach_is_found_each_time_that_the_table_is_looked_at(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    requirement: Requirement,
    breach: Breach,
    moment: Moment,
) -> None:
    found = noted(monkeypatch)
    world = begun(request, kind, tmp_path)
    table = world.script.table("shop.t")
    sink = world.sink()
    world.loop(sink).run()
    assert world.server is not None
    world.server.execute(*breach.statements)
    match moment:
        case Moment.ADOPTION:
            second = new_world(kind, tmp_path / "second", None, world.server, pipeline="second")
            second.script.tables = {}
            second.script.table("shop.t", SCHEMA).insert(row("c", 3))
            second.script.seal(final=True)
            expected = SinkError if requirement in NOT_AT_ADOPTION else TargetExistsError
            if requirement is Requirement.COLUMNS:
                second.loop(second.sink(on_existing="merge")).run()
                return
            with pytest.raises(expected):
                second.loop(second.sink(on_existing="merge")).run()
        case Moment.START:
            refused = world.sink().unfit([table.id])
            assert isinstance(refused[table.id], TargetModifiedError)
            # The start itself looks, also without new rows.
            with pytest.raises(TargetModifiedError):
                world.loop(world.sink()).recover()
        case Moment.COLUMNS:
            more = Column("more", LogicalType(TypeKind.INT64))
            table.schema = TableSchema((*SCHEMA.columns, more), SCHEMA.primary_key)
            table.changes += (AddColumnEvent(table.id, more),)
            world.script.seal(final=True)
            with pytest.raises(TargetModifiedError):
                world.loop(sink).run()
            names = (
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'shop' AND table_name = 't'"
            )
            assert ("more",) not in world.server.execute(names)
        case Moment.COMMIT:
            before = world.server.execute("SELECT id FROM shop.t ORDER BY id")
            table.insert(row("c", 3))
            world.script.seal(final=True)
            with pytest.raises(TargetModifiedError) as refusal:
                world.loop(sink).run()
            there = world.server.execute("SELECT id FROM shop.t ORDER BY id")
            assert there == before or "Nothing was written" not in str(refusal.value)
    if not (moment is Moment.ADOPTION and requirement in NOT_AT_ADOPTION):
        assert requirement in found


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Requirement]:
    """The requirements of the features that errors are made of."""
    found: list[Requirement] = []
    for name in ("taken", "modified_error"):
        made = getattr(UnsupportedFeature, name)

        def noting(self: UnsupportedFeature, *where: Any, made: Any = made) -> SinkError:
            found.append(self.requirement)
            error: SinkError = made(self, *where)
            return error

        monkeypatch.setattr(UnsupportedFeature, name, noting)
    return found


def test_every_requirement_has_a_breach_on_a_server() -> None:
    assert set(REQUIREMENTS) == set(Requirement)
    assert [one for one, searched in REQUIREMENTS.items() if searched.postgres is None and searched.mysql is None] == []
