"""Each column type at its extremes, by the snapshot and by the log, as the server prints it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest

from raycdc.sandbox.servers import DatabaseServer
from tests.blackbox.command import Pipeline
from tests.blackbox.compare import Held, Printed, Value, print_table
from tests.blackbox.stages import target_of
from tests.blackbox.story import Server, Sink
from tests.blackbox.targets import Target
from tests.blackbox.type_table import ODD_DATES, TYPES, TypeCase

# The first test of a run plays all of it.
pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


@dataclass(frozen=True, slots=True)
class Scene:
    """A type on a server into a sink; `policy` is ``types.invalid_dates``, empty where it is not set, which is null."""

    server: Server
    sink: Sink
    case: TypeCase
    policy: str = ""

    @property
    def stage(self) -> tuple[Server, Sink, str]:
        return self.server, self.sink, self.policy

    @property
    def cases(self) -> list[TypeCase]:
        """The types of its run."""
        types = ODD_DATES if self.policy else (*TYPES, *ODD_DATES)
        return [case for case in types if self.server in case.servers and self.sink in case.sinks]


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a column by id, of both sides."""

    kind: str
    source: dict[str, Value] = field(default_factory=dict)
    target: dict[str, Value] = field(default_factory=dict)


def scenes() -> Iterator[object]:
    """Each type; those with odd dates under either policy. `make test` has Delta's."""
    for server in Server:
        for sink in Sink:
            for policy, cases in (("", TYPES), ("", ODD_DATES), ("text", ODD_DATES)):
                long = sink is not Sink.DELTA or (policy and server is not Server.MARIADB)
                for case in cases:
                    if server in case.servers and sink in case.sinks:
                        marks = [pytest.mark.long(suite="blackbox")] if long else []
                        odd = "" if cases is TYPES else policy or "null"
                        words = filter(None, (server, sink, odd, case.sql[:30].encode("ascii", "replace").decode()))
                        yield pytest.param(Scene(server, sink, case, policy), marks=marks, id="-".join(words))


class Stage:
    """Plays all types of a server, sink and policy when the first is asked for."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._columns: dict[tuple[Server, Sink, str], dict[TypeCase, Column] | AssertionError | pymysql.Error] = {}

    def column(self, scene: Scene) -> Column:
        if scene.stage not in self._columns:
            try:
                self._columns[scene.stage] = self._play(scene)
            except (AssertionError, pymysql.Error) as error:
                self._columns[scene.stage] = error
        columns = self._columns[scene.stage]
        if isinstance(columns, BaseException):
            raise columns
        return columns[scene.case]

    def _play(self, scene: Scene) -> dict[TypeCase, Column]:
        server: DatabaseServer = self._request.getfixturevalue(scene.server)
        folder = self._folder / "-".join(filter(None, scene.stage))
        with ExitStack() as stack:
            database = stack.enter_context(server.fresh_database("ty"))
            target = target_of(self._request, scene.sink, folder / "target", stack)
            cases = scene.cases
            tables = _create(server, database, cases)
            pipeline = Pipeline(folder, _configuration(server, database, target, scene.policy))
            pipeline.run().expect(0)
            _change(server, database, cases)
            pipeline.run().expect(0)
            found: dict[TypeCase, Column] = {}
            for number, case in enumerate(cases):
                found[case] = _column(server, target, database, tables[number])
            return found


def _create(server: DatabaseServer, database: str, cases: Sequence[TypeCase]) -> list[str]:
    """A table for each type, with its values."""
    names = [f"t{number}" for number in range(len(cases))]
    statements = ["SET SESSION sql_mode = '', time_zone = '+00:00'"]
    for name, case in zip(names, cases, strict=True):
        statements.append(f"CREATE TABLE {name} (id INT PRIMARY KEY, v {case.sql}) CHARACTER SET utf8mb4")
        statements += _inserts(name, case, 0)
    server.execute(*statements, database=database)
    return names


def _change(server: DatabaseServer, database: str, cases: Sequence[TypeCase]) -> None:
    """The values again by the log: inserted, updated each to the one after it, one deleted."""
    statements = ["SET SESSION sql_mode = '', time_zone = '+00:00'"]
    for number, case in enumerate(cases):
        values = (*case.values, "NULL")
        statements += _inserts(f"t{number}", case, 100)
        statements += _inserts(f"t{number}", case, 200)
        statements += [
            f"UPDATE t{number} SET v = {values[(place + 1) % len(values)]} WHERE id = {100 + place}"
            for place in range(len(values))
        ]
        statements.append(f"DELETE FROM t{number} WHERE id IN (0, 200)")
    server.execute(*statements, database=database)


def _inserts(table: str, case: TypeCase, base: int) -> list[str]:
    return [f"INSERT INTO {table} VALUES ({base + n}, {value})" for n, value in enumerate((*case.values, "NULL"))]


def _column(server: DatabaseServer, target: Target, database: str, table: str) -> Column:
    with server.connect() as connection:
        source = print_table(connection, database, table)
    assert isinstance(source, Printed)
    held, problems = target.read(database, table, ("id",))
    assert held is not None, f"{table} has no target"
    assert not problems, problems
    kind = source.types["v"]
    column = Column(kind)
    column.source.update((str(number), value) for number, value in source.rows)
    for row in held.rows:
        column.target[str(row["id"])] = _held(held, kind, row["v"])
    assert len(column.target) == len(held.rows), "a key is there twice"
    return column


def _held(held: Held, kind: str, value: object) -> Value:
    try:
        return str(found) if (found := held.canonical(kind, value)) is not None else None
    except (ValueError, ArithmeticError) as error:
        return f"{value!r}: {error}"


def _configuration(server: DatabaseServer, database: str, target: Target, policy: str) -> str:
    return f"""
[pipeline]
name = "types"
state = "state"

[source]
type = "mysql"
host = "{server.host}"
port = {server.port}
user = "cdc"
password = "${{env:SOURCE_PASSWORD}}"
tables = ['{database}\\..*']
{f'types = {{ invalid_dates = "{policy}" }}' if policy else ""}

[sink]
{target.toml}
"""


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(request, tmp_path_factory.mktemp("types"))


@pytest.mark.parametrize("scene", list(scenes()))
def test_type(scene: Scene, stage: Stage) -> None:
    column = stage.column(scene)
    expected = column.source
    if scene.case in ODD_DATES and not scene.policy:
        expected = {number: None if _is_odd(value) else value for number, value in expected.items()}
    assert column.target == expected
    assert len(expected) == 3 * (len(scene.case.values) + 1) - 2


def _is_odd(value: Value) -> bool:
    """Whether the server prints a date that no calendar has."""
    return value is not None and (value.startswith("0000") or "-00" in value[:10])
