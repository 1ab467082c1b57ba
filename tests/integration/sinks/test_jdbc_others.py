"""Other people at a database's target, beside the pipeline: rows are never lost, wiped or bent in silence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from raycdc.config import Secret
from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import (
    KeyRefusedError,
    ParkReason,
    SinkError,
    StateError,
    TargetDroppedError,
    TargetExistsError,
    TargetModifiedError,
)
from raycdc.model import Column
from raycdc.model.evolution import AddColumnEvent, CreateTableEvent, RenameColumnEvent, TruncateTableEvent
from raycdc.sandbox.servers import DatabaseServer, PostgresServer
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.sinks.jdbc.requirements import REQUIREMENTS, Requirement
from raycdc.sinks.jdbc.sink import JdbcSink
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import new_world
from tests.integration.sinks.others_story import INT, OthersStory, keyed

pytestmark = pytest.mark.server


def breach(requirement: Requirement) -> tuple[str, ...]:
    """The statements by which a table of PostgreSQL breaks a requirement."""
    found = REQUIREMENTS[requirement].postgres
    assert found is not None
    return found.statements


class OthersTable(OthersStory):
    """On a database."""

    def __init__(self, request: pytest.FixtureRequest, kind: str, root: Path) -> None:
        super().__init__(request, kind, root)
        assert self.world.server is not None
        self.server: PostgresServer | DatabaseServer = self.world.server

    @property
    def is_postgres(self) -> bool:
        return isinstance(self.server, PostgresServer)

    def execute(self, *statements: str) -> None:
        self.server.execute(*statements)

    def theirs(self, *, more: str = "") -> None:
        """Somebody's table with the columns of ours."""
        schema = "CREATE SCHEMA shop" if self.is_postgres else "CREATE DATABASE shop"
        self.execute(schema, f"CREATE TABLE shop.t (id bigint PRIMARY KEY, a bigint, b bigint{more})")


@pytest.mark.parametrize("kind", ["postgres-upsert", "mysql-upsert"])
def test_a_column_that_the_server_computes_is_none_for_a_value_of_the_source(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    schema = "CREATE SCHEMA shop" if story.is_postgres else "CREATE DATABASE shop"
    story.execute(
        schema, "CREATE TABLE shop.t (id bigint PRIMARY KEY, a bigint, b bigint GENERATED ALWAYS AS (a + 1) STORED)"
    )
    story.seal((1, 1, 1))
    with pytest.raises(TargetExistsError, match="has a column b that the server computes"):
        story.run(on_existing="merge")


@pytest.mark.parametrize("kind", ["postgres-upsert", "mysql-upsert"])
def test_others_columns_triggers_behind_rows_and_indexes_are_harmless(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    if story.is_postgres:
        story.theirs(more=", theirs bigint DEFAULT 7, sum bigint GENERATED ALWAYS AS (a + b) STORED")
        story.execute(
            "CREATE TABLE shop.log (id bigint)",
            "CREATE FUNCTION shop.note() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO shop.log VALUES (NEW.id); RETURN NULL; END'",
            "CREATE TRIGGER notes AFTER INSERT ON shop.t FOR EACH ROW EXECUTE FUNCTION shop.note()",
            "CREATE INDEX ON shop.t (b)",
        )
    else:
        story.theirs(more=", theirs bigint DEFAULT 7, sum bigint GENERATED ALWAYS AS (a + b) STORED, KEY (b)")
        story.execute(
            "CREATE TABLE shop.log (id bigint)",
            "CREATE TRIGGER shop.notes AFTER INSERT ON shop.t FOR EACH ROW INSERT INTO shop.log VALUES (NEW.id)",
        )
    story.seal((1, 1, 1), (2, 2, 2))
    story.run(on_existing="merge")
    story.execute("UPDATE shop.t SET theirs = 8 WHERE id = 1")
    story.seal((1, 5, 5), (3, 3, 3))
    story.run()
    rows = sorted(story.world.rows(story.table), key=lambda row: row["id"])
    assert [(row["id"], row["a"], row["theirs"], row["sum"]) for row in rows] == [
        (1, 5, 8, 10),
        (2, 2, 7, 4),
        (3, 3, 7, 6),
    ]


def test_a_rule_that_was_there_once_is_harmless(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    story = OthersTable(request, "postgres-upsert", tmp_path)
    story.theirs()
    story.execute(*breach(Requirement.NO_RULES), "DROP RULE away ON shop.t")
    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    story.world.check()


def test_a_trigger_that_is_switched_off_is_harmless(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    story = OthersTable(request, "postgres-upsert", tmp_path)
    story.theirs()
    story.execute(*breach(Requirement.NO_TRIGGERS), "ALTER TABLE shop.t DISABLE TRIGGER g")
    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    story.world.check()
    story.execute("ALTER TABLE shop.t ENABLE TRIGGER g")
    story.seal((1, 2, 2))
    with pytest.raises(SinkError, match=r"has a trigger \(g\)"):
        story.run()


SERVERS = pytest.mark.parametrize("kind", ["postgres-upsert", "mysql-upsert"])


def unique_values(story: OthersTable, statement: str = "CREATE UNIQUE INDEX own ON shop.t (b)") -> None:
    story.seal((1, 1, 1), (2, 2, 2), (3, 3, 3))
    story.run()
    story.execute(statement)


@SERVERS
def test_unique_values_that_rows_exchange_within_an_epoch_arrive(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    unique_values(story)
    story.exchange_values()
    story.run()
    story.world.check()


@SERVERS
def test_rows_that_others_refer_to_are_never_taken_out(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    unique_values(story)
    story.execute(
        "CREATE TABLE shop.child (id bigint, FOREIGN KEY (id) REFERENCES shop.t (id) ON DELETE CASCADE)",
        "INSERT INTO shop.child VALUES (1)",
    )
    story.table.update((1,), b=9)
    story.table.update((2,), b=1)
    story.seal((1, 1, 2))
    with pytest.raises(KeyRefusedError, match="own"):
        story.run()
    assert len(story.world.rows(ScriptedTable(story.table.id.parse("shop.child"), keyed("id")))) == 1


@SERVERS
def test_emptying_the_source_spares_the_rows_of_others(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    story.theirs()
    story.execute("INSERT INTO shop.t VALUES (100, 1, 1)")
    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    story.table.truncate()
    story.seal((2, 2, 2))
    with pytest.raises(TargetExistsError, match="may have rows of others"):
        story.run(on_existing="merge")
    assert sorted(row["id"] for row in story.world.rows(story.table)) == [1, 100]
    story.run(on_existing="replace")
    story.world.check()
    # From here on the target is the pipeline's own.
    story.table.truncate()
    story.seal((3, 3, 3))
    story.run()
    story.world.check()


@SERVERS
def test_a_new_beginning_spares_the_rows_of_others(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    story = OthersTable(request, kind, tmp_path)
    story.theirs()
    story.execute("INSERT INTO shop.t VALUES (100, 1, 1)")
    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    story.table.changes += [TruncateTableEvent(story.table.id), CreateTableEvent(story.table.id, story.table.schema)]
    story.table.truncate()
    story.seal((2, 2, 2))
    with pytest.raises(TargetExistsError, match="may have rows of others"):
        story.run(on_existing="merge")
    assert sorted(row["id"] for row in story.world.rows(story.table)) == [1, 100]


@SERVERS
def test_emptying_a_table_spares_the_rows_of_a_second_pipeline(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    story.seal((1, 1, 1))
    story.run()
    other = new_world(kind, tmp_path / "other", None, story.server, pipeline="other")
    other.script.tables = {}
    other.script.table("shop.t", keyed("id", "a", "b")).insert({"id": 50, "a": 5, "b": 5})
    other.script.seal(final=True)
    other.loop(other.sink(on_existing="merge")).run()
    story.table.truncate()
    story.seal((2, 2, 2))
    with pytest.raises(TargetExistsError, match="may have rows of others"):
        story.run()
    assert sorted(row["id"] for row in story.world.rows(story.table)) == [1, 50]


@SERVERS
def test_tables_that_refer_to_each_other_are_written_in_the_order_that_they_need(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    child = story.world.script.table("shop.child", keyed("id", "a", "b"))
    story.seal((1, 1, 1))
    story.run()
    story.execute("ALTER TABLE shop.child ADD CONSTRAINT kept FOREIGN KEY (a) REFERENCES shop.t (id)")
    # The child's share is the larger one, which is written first.
    for number in range(200):
        child.insert({"id": number, "a": 2, "b": 0})
    story.seal((2, 2, 2))
    story.run()
    story.world.check()
    for number in range(200):
        child.delete((number,))
    for number in range(300, 1000):
        story.table.insert({"id": number, "a": 0, "b": 0})
    story.table.delete((2,))
    story.seal()
    story.run()
    story.world.check()


@pytest.mark.parametrize("deferrable", ["", " DEFERRABLE"])
@SERVERS
def test_a_table_that_refers_to_itself_is_written_in_the_order_that_it_needs(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, deferrable: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    if deferrable and not story.is_postgres:
        pytest.skip("MySQL defers nothing")
    story.seal((1, 1, 1), (2, 1, 1), (3, 2, 1))
    story.run()
    story.execute(f"ALTER TABLE shop.t ADD CONSTRAINT kept FOREIGN KEY (a) REFERENCES shop.t (id){deferrable}")
    # A row goes to which another one referred, and one comes for it.
    story.table.delete((2,))
    story.seal((3, 4, 2), (4, 1, 4), (5, 4, 2))
    story.run()
    story.world.check()
    # MySQL looks at each row, and not at the end of a statement: a chain that goes as a whole parks there.
    for key in (3, 5, 4) if story.is_postgres else (3,):
        story.table.delete((key,))
    story.seal((1, 6, 1), (6, 1, 6))
    story.run()
    story.world.check()


def made_anew(story: OthersTable) -> None:
    story.execute("DROP TABLE shop.t", "CREATE TABLE shop.t (id bigint PRIMARY KEY, a bigint, b bigint)")


@SERVERS
def test_an_adopted_table_made_anew_under_a_running_pipeline_is_noticed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    story.theirs()
    story.seal((1, 1, 1))
    sink = story.world.sink(on_existing="merge")
    story.world.loop(sink).run()
    made_anew(story)
    story.seal((2, 2, 2))
    with pytest.raises(TargetDroppedError, match=r"held epoch 1 and now holds nothing of this pipeline.*made it anew"):
        story.world.loop(sink).run()
    assert story.world.rows(story.table) == []


@SERVERS
def test_an_adopted_table_made_anew_between_runs_is_noticed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersTable(request, kind, tmp_path)
    story.theirs()
    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    made_anew(story)
    story.seal((2, 2, 2))
    with pytest.raises((SinkError, StateError), match=r"shop\.t"):
        story.run()
    assert story.world.rows(story.table) == []


def test_a_table_that_was_taken_over_keeps_its_comment_and_may_be_rebuilt(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    story = OthersTable(request, "mysql-upsert", tmp_path)
    story.theirs()
    words = "Ana's ledger \\o/ 100 %"
    story.execute("ALTER TABLE shop.t COMMENT = '" + words.replace("'", "''").replace("\\", "\\\\") + "'")

    def comment() -> str:
        assert not isinstance(story.server, PostgresServer)
        with story.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'shop' AND TABLE_NAME = 't'"
            )
            return str(cursor.fetchall()[0][0])

    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    assert comment() == f"{words} [raycdc]"
    story.execute("ALTER TABLE shop.t FORCE", "OPTIMIZE TABLE shop.t", "ALTER TABLE shop.t ADD COLUMN theirs INT")
    story.seal((2, 2, 2))
    story.run()
    story.table.schema = keyed("id", "a", "b", "c")
    story.table.changes.append(AddColumnEvent(story.table.id, Column("c", INT)))
    for row in story.table.rows.values():
        row["c"] = None
    story.seal()
    story.run()
    assert re.fullmatch(re.escape(words) + r" raycdc \w+:\w+:3", comment())
    assert [(row["id"], row["c"]) for row in story.world.rows(story.table)] == [(1, None), (2, None)]
    story.execute("CREATE TABLE shop.other LIKE shop.t", "INSERT INTO shop.other SELECT * FROM shop.t")
    story.execute("DROP TABLE shop.t", "RENAME TABLE shop.other TO shop.t")
    story.table.insert({"id": 3, "a": 3, "b": 3, "c": 3})
    story.seal()
    # A copy with all rows, as tools for schema changes make one, is the table.
    story.run()
    assert sorted(row["id"] for row in story.world.rows(story.table)) == [1, 2, 3]


def test_tables_of_mysql_that_refer_to_each_other_in_a_circle_are_parked_together(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """PostgreSQL has it with the commands, in `tests.e2e.test_touched_databases`."""
    story = OthersTable(request, "mysql-upsert", tmp_path)
    egg, healthy = (story.world.script.table(f"shop.{name}", keyed("id", "a")) for name in ("egg", "healthy"))
    for table in (egg, healthy):
        table.insert({"id": 1, "a": 1})
    story.seal((1, 1, 1))
    story.run()
    story.execute(
        "ALTER TABLE shop.t ADD CONSTRAINT of_hen FOREIGN KEY (a) REFERENCES shop.egg (id)",
        "ALTER TABLE shop.egg ADD CONSTRAINT of_egg FOREIGN KEY (a) REFERENCES shop.t (id)",
    )
    for table in (egg, healthy):
        table.insert({"id": 2, "a": 2})
    story.seal((2, 2, 2))
    story.world.restart(parking=ParkingPolicy())
    record = story.world.store.last_commit()
    assert record is not None
    assert set(record.parked) == {"shop.t", "shop.egg"}
    assert all("Drop the foreign keys of and to this table" in entry.text for entry in record.parked.values())
    assert sorted(row["id"] for row in story.world.rows(healthy)) == [1, 2]


def test_a_user_who_may_make_no_record_is_told_which_grant_is_missing(postgres: PostgresServer) -> None:
    postgres.execute("CREATE ROLE maker LOGIN PASSWORD 'maker'", "DROP TABLE IF EXISTS raycdc_commit")
    try:
        postgres.execute("GRANT CREATE ON DATABASE postgres TO maker")
        sink = JdbcSink(JdbcSinkConfig(url=f"jdbc:{postgres.url()}", user="maker", password=Secret("maker")))
        with pytest.raises(
            SinkError,
            match=r'schema public\. Who owns it may permit that: GRANT USAGE, CREATE ON SCHEMA public TO "maker";',
        ):
            sink.open(SinkContext("any", "upsert", run_in_process))
    finally:
        postgres.execute("DROP OWNED BY maker CASCADE", "DROP ROLE maker")


PLPGSQL = "RETURNS trigger LANGUAGE plpgsql AS"
PARTITION_BREACHES = [
    pytest.param(
        (
            f"CREATE FUNCTION shop.f() {PLPGSQL} 'BEGIN NEW.a := 0; RETURN NEW; END'",
            "CREATE TRIGGER g BEFORE INSERT OR UPDATE ON shop.low FOR EACH ROW EXECUTE FUNCTION shop.f()",
        ),
        r"has a trigger \(g of shop.low\) before each row",
        id="trigger",
    ),
    pytest.param(
        (
            f"CREATE FUNCTION shop.f() {PLPGSQL} 'BEGIN DELETE FROM shop.low; RETURN NULL; END'",
            "CREATE TRIGGER g AFTER INSERT ON shop.low FOR EACH ROW EXECUTE FUNCTION shop.f()",
        ),
        r"has a trigger \(g of shop.low\) whose function writes to the table itself",
        id="writing trigger",
    ),
    pytest.param(("ALTER TABLE shop.low SET UNLOGGED",), "has an UNLOGGED partition shop.low", id="unlogged"),
]


@pytest.mark.parametrize("adopts", [True, False])
@pytest.mark.parametrize(("statements", "text"), PARTITION_BREACHES)
def test_a_partition_must_meet_what_its_table_must(
    request: pytest.FixtureRequest, tmp_path: Path, statements: tuple[str, ...], text: str, adopts: bool
) -> None:
    story = OthersTable(request, "postgres-upsert", tmp_path)
    story.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (id bigint PRIMARY KEY, a bigint, b bigint) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.part PARTITION OF shop.t FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.low PARTITION OF shop.part FOR VALUES FROM (0) TO (100)",
    )
    story.seal((1, 1, 1))
    if not adopts:
        story.run(on_existing="merge")
        story.world.check()
        story.seal((2, 2, 2))
    story.execute(*statements)
    with pytest.raises(TargetExistsError if adopts else TargetModifiedError, match=text):
        story.run(on_existing="merge")
    assert [row["id"] for row in story.world.rows(story.table)] == ([] if adopts else [1])


@pytest.mark.parametrize("kind", ["postgres-upsert", "mysql-upsert", "mysql-changelog"])
@pytest.mark.parametrize("default", ["", "7", None])
def test_a_column_of_others_is_not_replaced_by_one_of_the_source(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, default: str | None
) -> None:
    """An added column, with and without a default, or one that a renamed column is copied into."""
    story = OthersStory(request, kind, tmp_path)
    story.seal((1, 1, 1), (2, 2, 2))
    story.run()
    assert story.world.server is not None
    story.world.server.execute("ALTER TABLE shop.t ADD COLUMN c BIGINT", "UPDATE shop.t SET c = 99")
    table, columns = story.table, story.table.schema.columns
    if default is None:
        table.changes.append(RenameColumnEvent(table.id, "b", "c"))
        table.schema = replace(table.schema, columns=tuple(c.with_name("c") if c.name == "b" else c for c in columns))
    else:
        column = Column("c", INT, default=default or None)
        table.changes.append(AddColumnEvent(table.id, column))
        table.schema = replace(table.schema, columns=(*columns, column))
    table.insert({column.name: 5 for column in table.schema.columns})
    story.world.script.seal(final=True)
    for _ in range(2):
        with pytest.raises(TargetModifiedError, match=r"column c of another writer|column \"c\" of relation \"t\""):
            story.run()
    rows = story.world.server.execute("SELECT c FROM shop.t")
    assert [tuple(row) for row in rows] == [(99,), (99,)]


AFTER = "CREATE TRIGGER shop.g AFTER INSERT ON shop.t FOR EACH ROW"
FAILING = {
    "a function of a trigger without RETURN": (
        "postgres-upsert",
        f"CREATE FUNCTION shop.f() {PLPGSQL} 'BEGIN NEW.a := 0; END'",
        "CREATE TRIGGER g AFTER INSERT ON shop.t FOR EACH ROW EXECUTE FUNCTION shop.f()",
    ),
    "an error code of a trigger's own": (
        "postgres-upsert",
        f"CREATE FUNCTION shop.f() {PLPGSQL} $$BEGIN RAISE EXCEPTION '%', NEW.b USING ERRCODE = 'ZX001'; END$$",
        "CREATE TRIGGER g AFTER INSERT ON shop.t FOR EACH ROW EXECUTE FUNCTION shop.f()",
    ),
    "a deferred trigger": (
        "postgres-upsert",
        f"CREATE FUNCTION shop.f() {PLPGSQL} $$BEGIN RAISE EXCEPTION '%', NEW.b USING ERRCODE = 'ZX001'; END$$",
        "CREATE CONSTRAINT TRIGGER g AFTER INSERT ON shop.t INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION shop.f()",
    ),
    "a table that a trigger needs": (
        "postgres-upsert",
        f"CREATE FUNCTION shop.f() {PLPGSQL} 'BEGIN INSERT INTO shop.audit VALUES (1); RETURN NULL; END'",
        "CREATE TRIGGER g AFTER INSERT ON shop.t FOR EACH ROW EXECUTE FUNCTION shop.f()",
    ),
    "no partition for a value": (
        "mysql-upsert",
        "ALTER TABLE shop.t PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (2))",
    ),
    "a trigger that writes to its own table": (
        "mysql-upsert",
        f"{AFTER} DELETE FROM shop.t WHERE id = 1",
    ),
    "a trigger whose owner was dropped": (
        "mysql-upsert",
        "CREATE DEFINER='away'@'away' TRIGGER shop.g AFTER INSERT ON shop.t FOR EACH ROW SET @x = 1",
    ),
    "an error number of a trigger's own": (
        "mysql-upsert",
        f"{AFTER} SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31001, MESSAGE_TEXT = '4711'",
    ),
    "a missing table that a trigger needs": (
        "mysql-upsert",
        f"{AFTER} INSERT INTO shop.audit VALUES (NEW.id)",
    ),
}


@pytest.mark.parametrize("what", FAILING)
def test_what_fails_at_one_table_parks_that_table_alone(
    request: pytest.FixtureRequest, tmp_path: Path, what: str
) -> None:
    kind, *statements = FAILING[what]
    story = OthersTable(request, kind, tmp_path)
    other = story.world.script.table("shop.other", keyed("id", "a", "b"))
    story.seal((1, 1, 1))
    story.run()
    story.execute(*statements)
    other.insert({"id": 7, "a": 7, "b": 7})
    story.seal((2, 2, 4711))
    loop = story.world.loop(parking=ParkingPolicy())
    loop.recover()
    if loop.committed < story.world.store.next_epoch() - 1:
        loop.run()
    (parked,) = loop._parts.parked.entries.values()
    assert parked.reason is ParkReason.MODIFIED
    assert "4711" not in parked.text
    assert [row["id"] for row in story.world.rows(story.table)] == [1]
    assert story.world.rows(other) == other.contents()
