"""Every reason for which a target is parked (`ParkReason`), and its way out as people are told it: literally tried.

A story has a table of its own beside a healthy one, and ends with its target equal to its source. A reason without a
story fails `test_each_reason_has_a_story`. All stories of one sink are played in the same runs.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.errors import ParkReason
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from raycdc.state.parked import WAYS_OUT
from raycdc.state.store import CheckpointStore
from tests.e2e.short_patience import shorten_retry
from tests.e2e.test_jdbc import sink_keys
from tests.e2e.test_parked_targets import make, merged_equals_sources
from tests.e2e.test_refusing_targets import parked_run
from tests.support.comparing import require_rows_equal
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import tables_command

DATABASE = "ways"
#: The sink of a run that waits briefly for a lock.
LOCKED = "jdbc, locked"
MASK = f'[[mask]]\ncolumns = "{DATABASE}.rules.secret"\nmethod = "mask"\nlength = 4\n'
MERGED = f"[[route]]\ntable = '{DATABASE}\\.shard_\\d'\nto = \"lake.items\"\n"
NAMED = f'[[route]]\ntable = "{DATABASE}.named"\nto = "{{}}"\n'


@dataclass(slots=True)
class RefusingRun:
    job: Job
    server: MariaDbServer
    #: Runs a statement at the sink, or answers with its rows.
    sink: Callable[[str], list[tuple[object, ...]]] = lambda _: []
    #: Opens another session there.
    session: Callable[[], Any] = lambda: None
    sessions: list[Any] = field(default_factory=list)

    def source(self, *statements: str) -> None:
        self.server.execute(*statements, database=DATABASE)

    def holds(self, at_source: str, at_sink: str) -> None:
        with self.server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute(at_source)
            expected = [tuple(row) for row in cursor.fetchall()]
        assert self.sink(at_sink) == expected

    @property
    def lake(self) -> Path:
        return self.job.lake / DATABASE


@dataclass(frozen=True, slots=True)
class WayOut:
    """`cause` makes the target of `tables` refuse; `way_out` does what `told` says; then the tables are read anew."""

    sink: str
    tables: tuple[str, ...]
    cause: Callable[[RefusingRun], None]
    told: str
    way_out: Callable[[RefusingRun], None] = lambda _: None
    target: str = ""
    #: Whether the table comes only when the others are followed.
    late: bool = False
    #: What is said of a table that is known to be refused before anything of it reaches the sink.
    known: str = ""
    equal: Callable[[RefusingRun], None] | None = None


def constrained(world: RefusingRun) -> None:
    DeltaTable(str(world.lake / "touched")).alter.add_constraint({"small": "id < 3"})
    world.source("INSERT INTO touched VALUES (3, 3)")


def taken(world: RefusingRun) -> None:
    write_deltalake(world.lake / "taken", pa.table({"other": [1]}))
    world.source("CREATE TABLE taken (id INT PRIMARY KEY, v INT)", "INSERT INTO taken VALUES (1, 1)")


def deleted(world: RefusingRun) -> None:
    shutil.rmtree(world.lake / "gone")
    world.source("INSERT INTO gone VALUES (3, 3)")


def masked(world: RefusingRun) -> None:
    rows = read_delta(world.lake / "rules").select(["id", "v", "secret"]).sort_by("id").to_pylist()
    assert rows == [{"id": n, "v": n, "secret": "****" if n == 3 else None} for n in (1, 2, 3)]


def renamed(world: RefusingRun) -> None:
    rows = read_delta(world.lake / "changed").select(["number", "v"]).sort_by("number").to_pylist()
    assert rows == [{"number": n, "v": n} for n in (1, 2, 3)]


def mask_changed(world: RefusingRun) -> None:
    world.job.sections += MASK.replace("rules.secret", "rules.note")


def checked(world: RefusingRun) -> None:
    world.sink(f"ALTER TABLE {DATABASE}.valued ADD CHECK (v < 50)")
    world.source("UPDATE valued SET v = 99")


def moved_away(world: RefusingRun) -> None:
    shutil.move(world.lake / "taken", world.job.folder / "elsewhere")


def too_wide(world: RefusingRun) -> None:
    """A key that no index of PostgreSQL's has room for."""
    world.source(
        "CREATE TABLE wide (k VARCHAR(3050) CHARACTER SET latin1 PRIMARY KEY, v INT)",
        f"INSERT INTO wide VALUES ('{secrets.token_urlsafe(2250)}', 1)",
    )


def locked(world: RefusingRun) -> None:
    world.sessions.append(world.session())
    with world.sessions[-1].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"LOCK TABLE {DATABASE}.blocked IN ACCESS EXCLUSIVE MODE")
    world.source("INSERT INTO blocked VALUES (3, 3)")


def session_ended(world: RefusingRun) -> None:
    world.sessions.pop().close()


def routed(world: RefusingRun) -> None:
    world.job.sections = NAMED.format(f"{DATABASE}.another")


STORIES: Mapping[ParkReason, WayOut] = {
    ParkReason.CHANGE: WayOut(
        "delta",
        ("changed",),
        lambda world: world.source(
            "ALTER TABLE changed RENAME COLUMN id TO number", "INSERT INTO changed VALUES (3, 3)"
        ),
        "any other is emptied, and gets the columns that the table has now",
        equal=renamed,
    ),
    ParkReason.COLUMNS: WayOut(
        "jdbc",
        ("wide",),
        too_wide,
        "Rename or change the column at the source",
        lambda world: world.source("UPDATE wide SET k = 'short'", "ALTER TABLE wide MODIFY k VARCHAR(100)"),
        late=True,
        equal=lambda world: world.holds("SELECT k, v FROM wide", f"SELECT k, v FROM {DATABASE}.wide"),
    ),
    ParkReason.NAME: WayOut(
        "jdbc",
        ("named",),
        lambda world: world.source("CREATE TABLE named (id INT PRIMARY KEY, v INT)", "INSERT INTO named VALUES (1, 1)"),
        "Give it another name in the sink with a [[route]]",
        routed,
        known="Give the target another name by a [[route]]",
        late=True,
        equal=lambda world: world.holds("SELECT * FROM named", f"SELECT id, v FROM {DATABASE}.another"),
    ),
    ParkReason.KEY: WayOut(
        "delta",
        ("shard_1", "shard_2"),
        lambda world: world.source("INSERT INTO shard_2 VALUES (2, 5)"),
        "change one of two rows that have the same key",
        lambda world: world.source("UPDATE shard_2 SET id = 12"),
        target="lake.items",
        equal=lambda world: merged_equals_sources(world.job, "shard_1", "shard_2"),
    ),
    ParkReason.VALUE: WayOut(
        "jdbc",
        ("valued",),
        checked,
        "Mend the row",
        lambda world: world.source("UPDATE valued SET v = 9"),
        equal=lambda world: world.holds("SELECT * FROM valued", f"SELECT id, v FROM {DATABASE}.valued ORDER BY id"),
    ),
    ParkReason.TAKEN: WayOut(
        "delta",
        ("taken",),
        taken,
        "Move what is there away",
        moved_away,
        late=True,
    ),
    ParkReason.MISSING: WayOut("delta", ("gone",), deleted, "The target is made anew"),
    ParkReason.MODIFIED: WayOut(
        "delta",
        ("touched",),
        constrained,
        "or delete the target",
        lambda world: shutil.rmtree(world.lake / "touched"),
    ),
    ParkReason.BLOCKED: WayOut(
        LOCKED,
        ("blocked",),
        locked,
        "End the session that has the target locked",
        session_ended,
        equal=lambda world: world.holds("SELECT * FROM blocked", f"SELECT id, v FROM {DATABASE}.blocked ORDER BY id"),
    ),
    ParkReason.RULES: WayOut(
        "delta",
        ("rules",),
        lambda world: world.source(
            "ALTER TABLE rules ADD note VARCHAR(20)",
            "ALTER TABLE rules RENAME COLUMN note TO secret",
            "INSERT INTO rules VALUES (3, 3, 'hush')",
        ),
        "Change the [[transform]], [[lookup]], [[mask]] or [[route]]",
        mask_changed,
        equal=masked,
    ),
}


def test_each_reason_has_a_story() -> None:
    assert set(STORIES) == set(ParkReason) == set(WAYS_OUT)
    assert [reason for reason, story in STORIES.items() if story.told not in WAYS_OUT[reason]] == []


@pytest.mark.server
def test_what_a_parked_table_is_said_to_need_mends_it(mariadb: MariaDbServer, tmp_path: Path) -> None:
    play(RefusingRun(Job(tmp_path, mariadb, DATABASE, (r"\w+",), local=True, sections=MASK + MERGED), mariadb))


@pytest.mark.server
def test_what_a_parked_table_of_a_database_is_said_to_need_mends_it(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    with postgres.fresh_database() as home:

        def run(statement: str) -> list[tuple[object, ...]]:
            with postgres.connect(home) as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                found = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
                connection.commit()
                return found

        keys = sink_keys(postgres, home)
        job = Job(tmp_path, mariadb, DATABASE, (r"\w+",), sink="jdbc", sink_keys=keys, local=True)
        job.sections = NAMED.format("public.raycdc_commit")
        play(RefusingRun(job, mariadb, run))


@pytest.mark.server
def test_what_a_table_is_said_to_need_whose_target_is_locked_mends_it(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_retry(tmp_path / "short", monkeypatch)
    with postgres.fresh_database() as home:

        def rows(statement: str) -> list[tuple[object, ...]]:
            with postgres.connect(home) as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                return [tuple(row) for row in cursor.fetchall()]

        keys = sink_keys(postgres, home)
        job = Job(tmp_path, mariadb, DATABASE, (r"\w+",), sink="jdbc", sink_keys=keys, local=True, cold=True)
        play(RefusingRun(job, mariadb, rows, lambda: postgres.connect(home)), sink=LOCKED)


@pytest.mark.server
def test_what_an_account_may_not_do_is_permitted_and_not_replaced(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    role = f"loader_{secrets.token_hex(4)}"
    with postgres.fresh_database() as home:

        def at_sink(*statements: str) -> None:
            with postgres.connect(home) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                connection.commit()

        names = ("healthy", "read_only", "viewed")
        make(mariadb, DATABASE, *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in names))
        postgres.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
        try:
            at_sink(f'GRANT CREATE ON DATABASE "{home}" TO {role}', f"GRANT CREATE ON SCHEMA public TO {role}")
            keys = f'url = "jdbc:{postgres.url(home)}"\nuser = "{role}"\npassword = "{role}"\n'
            job = Job(tmp_path, mariadb, DATABASE, (r"\w+",), sink="jdbc", sink_keys=keys, local=True)
            catch_up(job)
            at_sink(
                f"ALTER TABLE {DATABASE}.read_only OWNER TO {postgres.user}",
                f"GRANT SELECT ON {DATABASE}.read_only TO {role}",
                f"ALTER TABLE {DATABASE}.viewed RENAME TO data",
                f"CREATE VIEW {DATABASE}.viewed AS SELECT * FROM {DATABASE}.data",
            )
            mariadb.execute(*(f"INSERT INTO {name} VALUES (1, 1)" for name in names), database=DATABASE)
            parked_run(job, "read_only", "viewed")
            # Its target is gone, as far as that is known; a new snapshot meets the view.
            tables_command(job, "resnapshot", f"{DATABASE}.viewed")
            assert "--replace" not in parked_run(job, "read_only", "viewed")
            said = job.runs[-1].events[-1]["text"]
            assert "Permit what the text says, or move away what it names" in said
            (grant,) = {line.partition("permit that: ")[2] for line in said.splitlines() if "permit that: " in line}
            assert grant.startswith("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON read_only TO")
            # As it is told; the server's text has no schema.
            statement = grant.partition(". ")[0].replace(" ON read_only", f" ON {DATABASE}.read_only")
            at_sink(statement, f"DROP VIEW {DATABASE}.viewed")
            for name in ("read_only", "viewed"):
                tables_command(job, "resnapshot", f"{DATABASE}.{name}")
            parked_run(job, code=0)
            with postgres.connect(home) as connection, connection.cursor() as cursor:
                for name in names:
                    cursor.execute(f"SELECT id, v FROM {DATABASE}.{name}")
                    assert [tuple(row) for row in cursor.fetchall()] == [(1, 1)], name
        finally:
            at_sink(f"DROP OWNED BY {role} CASCADE")
            postgres.execute(f"DROP ROLE {role}")


def play(world: RefusingRun, *, sink: str = "") -> None:
    """All stories of the `sink` (empty: the job's): cause, parked beside a healthy table, way out, equal."""
    job = world.job
    stories = {reason: story for reason, story in STORIES.items() if story.sink == (sink or job.sink)}
    early = [name for story in stories.values() if not story.late for name in story.tables]
    make(
        world.server,
        DATABASE,
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("healthy", *early)),
        *(f"INSERT INTO {name} VALUES (1, 1), (2, 2)" for name in early if name != "shard_2"),
    )
    catch_up(job)
    for story in stories.values():
        story.cause(world)
    world.source("INSERT INTO healthy VALUES (1, 1)")
    said = parked_run(job, *(name for story in stories.values() for name in story.tables))
    record = CheckpointStore(job.state, create=False).last_commit()
    assert record is not None
    parked = [name for story in stories.values() for name in story.tables]
    named = "TABLE, once for each" if len(parked) > 1 else f"{DATABASE}.{parked[0]}"
    assert f"raycdc tables resnapshot CONFIG {named}" in said
    for reason, story in stories.items():
        if story.known:
            assert story.known in said
        else:
            entry = record.parked[story.target or f"{DATABASE}.{story.tables[0]}"]
            assert (entry.reason, WAYS_OUT[reason] in entry.text) == (reason, True), entry
        assert f"{DATABASE}.{story.tables[0]}" in said
        story.way_out(world)
        tables_command(job, "resnapshot", f"{DATABASE}.{story.tables[0]}")
    world.source("INSERT INTO healthy VALUES (2, 2)")
    catch_up(job)
    for story in stories.values():
        if story.equal is not None:
            story.equal(world)
        else:
            require_rows_equal(job, *story.tables)
