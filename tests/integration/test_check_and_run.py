"""`raycdc check` says what a run would refuse, in its words: each configuration here is given to both."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql.connections
import pytest

from raycdc.cli.planning.check import check_config
from raycdc.cli.planning.plan import plan_config
from raycdc.cli.tables import change_table
from raycdc.config import load_config
from raycdc.driver.resolve import resolve
from raycdc.driver.startup_checks import Start
from raycdc.errors import RaycdcError
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import KafkaServer, MariaDbServer
from raycdc.state.store import CheckpointStore

pytestmark = pytest.mark.server

CONFIG = """
[pipeline]
name = "both"
state = "{state}"
epoch_interval = "100ms"
{pipeline}

[source]
type = "mysql"
port = {port}
user = "{user}"
password = "cdc"
tables = ['{tables}']
{source}

[sink]
{sink}

{more}
"""
DELTA = 'type = "delta"\npath = "lake"'


class Both:
    """A database, and configurations of it for both commands."""

    def __init__(self, server: MariaDbServer, database: str, folder: Path) -> None:
        self.server, self.database, self.folder = server, database, folder
        self.path = folder / "both.toml"

    def sql(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.database)

    def write(self, sink: str = DELTA, more: str = "", *, user: str = "cdc", **places: str) -> None:
        """`places` are lines of other sections, or the state and tables."""
        tables = places.get("tables") or r"DB\..*"
        given = {name: places.get(name, "") for name in ("pipeline", "source")}
        state = places.get("state", "state")
        text = CONFIG.format(
            **given, state=state, port=self.server.port, user=user, tables=tables, sink=sink, more=more
        )
        self.path.write_text(text.replace("DB", self.database))

    def check(self, *, local: bool = True) -> int:
        return check_config(self.path, as_json=False, local=local)

    def run(self, *, local: bool = True) -> None:
        Pipeline.from_config(load_config(self.path)).run(until="caught-up", local=local)


@pytest.fixture
def both(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.chdir(tmp_path)
    found = Both(mariadb, mariadb_database, tmp_path)
    found.sql("CREATE TABLE ok (id INT PRIMARY KEY)", "INSERT INTO ok VALUES (1)")
    return found


@dataclass(frozen=True)
class Case:
    """A configuration that no run can have; DB in it is the database."""

    code: int
    text: str
    sql: str = ""
    sink: str = DELTA
    more: str = ""
    state: str = "state"
    tables: str = ""
    pipeline: str = ""
    source: str = ""


CASES = {
    "a table without a key": Case(4, "loose has no primary key, so an upsert target", "CREATE TABLE loose (id INT)"),
    "names that meet": Case(4, "columns 'a b' and 'a_b' of", "CREATE TABLE t (id INT PRIMARY KEY, `a b` INT, a_b INT)"),
    "a name that is to park": Case(
        4,
        "contains ' ', which a Delta table cannot hold",
        "CREATE TABLE t (id INT PRIMARY KEY, `a b` INT)",
        f'{DELTA}\ninvalid_names = "park"',
    ),
    "a table that is no folder": Case(4, "'../x' cannot be a folder", "CREATE TABLE `../x` (id INT PRIMARY KEY)"),
    "a column named as ours": Case(4, "column '_op' has a name that", "CREATE TABLE t (id INT PRIMARY KEY, _op INT)"),
    "a state in a file": Case(6, "taken is a file", state="taken/state"),
    "a sink below a file": Case(5, "taken is a file", sink='type = "delta"\npath = "taken/lake"'),
    "a sink of the kernel's": Case(
        5, "/proc/lake cannot be written", sink='type = "jsonl"\nwrite = "changelog"\npath = "/proc/lake"'
    ),
    "an expression without Spark": Case(
        2, "--local runs without it", more='[[transform]]\ntable = "DB.ok"\nfilter = "id > 0"'
    ),
    "an order without Spark": Case(2, "sink.optimize.z_order", sink=f"{DELTA}\noptimize = {{ z_order = ['id'] }}"),
    "changes left out of files": Case(
        2,
        "always have the columns of their rows",
        sink='type = "jsonl"\nwrite = "changelog"\npath = "lake"',
        pipeline='schema_change = "ignore"',
    ),
    "a table that is not there": Case(3, "nowhere", tables="DB.nowhere"),
    "a column that is not there": Case(2, "has no column 'x'", source="columns = { 'DB.ok' = ['id', 'x'] }"),
}


@pytest.mark.parametrize("name", CASES)
def test_check_says_what_a_run_refuses_in_its_words(both: Both, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    (both.folder / "taken").write_text("")
    both.sql(*filter(None, [case.sql]))
    both.write(case.sink, case.more, state=case.state, tables=case.tables, pipeline=case.pipeline, source=case.source)
    assert both.check() == case.code
    said = capsys.readouterr().out
    assert case.text in said
    assert "Everything needed is there" not in said
    with pytest.raises(RaycdcError) as refused:
        both.run()
    assert refused.value.exit_code == case.code
    assert case.text in str(refused.value)


@pytest.mark.parametrize("compacted", [False, True])
def test_tables_that_are_merged_into_a_topic_whose_keys_delete_rows_are_refused_by_both(
    both: Both, kafka: KafkaServer, compacted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    both.sql("CREATE TABLE also (id INT PRIMARY KEY)")
    config = {"cleanup.policy": "compact"} if compacted else {}
    with kafka.fresh_topic(config=config) as topic:
        sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\nformat = "canal-json"'
        route = f"[[route]]\ntable = 'DB\\..*'\nto = \"lake.{topic}\""
        both.write(f'{sink}\ntopic = "{{table}}"\ntombstones = {str(not compacted).lower()}', route)
        assert both.check() == 4
        said = capsys.readouterr().out
        assert f"all go to lake.{topic}, and topic {topic} {'is compacted' if compacted else 'gets tombstones'}" in said
        with pytest.raises(RaycdcError, match=f"all go to lake.{topic}, and topic {topic}"):
            both.run()
        both.write(f'{sink}\ntopic = "{topic}"\ntombstones = true')
        assert both.check() == 0


def test_check_says_that_a_table_was_begun_in_another_way(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    both.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    both.write()
    both.run()
    assert both.check() == 0
    both.write(source="columns = { 'DB.t' = ['id'] }")
    assert both.check() == 2
    said = capsys.readouterr().out
    assert "source.columns is" in said
    assert f"raycdc tables resnapshot CONFIG {both.database}.t" in said
    # The way out is one for both.
    assert change_table(both.path, f"{both.database}.t", "resnapshot") == 0
    assert both.check() == 0
    both.run()
    assert both.check() == 0


def test_plan_shows_the_names_of_the_target_and_what_is_parked(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    both.sql("CREATE TABLE t (id INT PRIMARY KEY, `unit (SI)` INT)", "CREATE TABLE loose (id INT)")
    both.write()
    assert plan_config(both.path, as_json=False) == 0
    said = capsys.readouterr()
    assert "  unit__SI_ int" in said.out
    assert "as it is, under names that the target can hold" in said.out
    assert f"{both.database}.loose  (" not in said.out
    assert "Names: " in said.err
    assert f"Parked: {both.database}.loose has no primary key" in said.err
    assert "Warning" not in said.err  # A password in the file is a matter of check and run.


def test_check_says_what_the_environment_lacks(
    both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both.write()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert (both.check(local=False), "Java is missing" in capsys.readouterr().out) == (2, True)
    with pytest.raises(RaycdcError, match="Java is missing"):
        both.run(local=False)
    assert both.check() == 0
    capsys.readouterr()
    both.write('type = "iceberg"\npath = "lake"')
    for name in [name for name in sys.modules if name.startswith(("pyiceberg", "raycdc.sinks.iceberg."))]:
        if name != "raycdc.sinks.iceberg.plugin":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    assert both.check() == 2
    said = capsys.readouterr().out
    assert "raycdc[iceberg]" in said
    with pytest.raises(RaycdcError, match=r"raycdc\[iceberg\]"):
        both.run()


def test_a_select_that_is_refused_is_not_followed_by_praise(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    both.sql("CREATE TABLE hidden (id INT PRIMARY KEY)")
    both.server.execute(
        "CREATE USER IF NOT EXISTS 'few'@'%' IDENTIFIED BY 'cdc'",
        "GRANT REPLICATION CLIENT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'few'@'%'",
        f"GRANT SELECT ON {both.database}.ok TO 'few'@'%'",
    )
    for tables, every in ((f"{both.database}.hidden", False), (f"{both.database}.ok', '{both.database}.hidden", True)):
        both.write(tables=tables, user="few")
        assert both.check() == 3
        said = capsys.readouterr().out
        assert "may SELECT from every table" not in said
        assert ("may SELECT from every other table" in said) is every


def test_names_and_dots_are_told_and_keys_are_none_of_a_changelogs(
    both: Both, capsys: pytest.CaptureFixture[str]
) -> None:
    both.sql("CREATE TABLE t (id INT, `unit (SI)` INT)")
    both.write(f'{DELTA}\nwrite = "changelog"', tables="DB.[a-z]*")
    assert both.check() == 0
    said = capsys.readouterr().out
    assert "'unit (SI)' is 'unit__SI_' in the target" in said
    assert f"Write {both.database}\\.[a-z]*" in said
    assert "primary key" not in said


def everything_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files of a folder, with when they were written and what they hold."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


class Asked:
    """`check` and then a run of one configuration, which must agree; `check` must leave everything as it was."""

    def __init__(self, both: Both, capsys: pytest.CaptureFixture[str]) -> None:
        self._both, self._capsys = both, capsys

    def said(self, code: int) -> str:
        """What `check` says, which ends with `code`."""
        before = everything_in(self._both.folder)
        self._capsys.readouterr()
        found = self._both.check()
        said = self._capsys.readouterr().out
        assert found == code, said
        assert everything_in(self._both.folder) == before
        return said

    def refused(self, code: int, text: str) -> None:
        """Both refuse it with `code` and in the same words, of which `text` is one."""
        said = self.said(code)
        with pytest.raises(RaycdcError) as refused:
            self._both.run()
        assert refused.value.exit_code == code
        assert text in said
        assert text in str(refused.value)
        assert all(line in said for line in str(refused.value).splitlines() if "wrote nothing since" not in line)


@pytest.fixture
def asked(both: Both, capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(both, capsys)


def test_check_asks_the_state_and_the_targets_what_they_hold(both: Both, asked: Asked) -> None:
    both.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    both.write()
    lake = both.folder / "lake" / both.database
    assert "There is no state yet" in asked.said(0)
    both.run()
    assert "The targets hold what the state says" in asked.said(0)
    # A run has the state.
    with CheckpointStore("state").lease():
        said = asked.said(0)
    assert f"The state is in use by process {os.getpid()}, so the targets were not compared" in said
    # An older state.
    shutil.copytree("state", "older")
    both.sql("INSERT INTO t VALUES (2)")
    both.run()
    Path("state").rename("newer")
    shutil.copytree("older", "state")
    asked.refused(5, "the state was restored from an older copy")
    shutil.rmtree("state")
    # None at all.
    said = asked.said(4)
    assert f"The Delta table {lake / 't'} exists and was not created by this pipeline" in said
    both.write(pipeline='on_existing = "fail"\non_table_error = "fail"')
    asked.refused(5, "was not created by this pipeline")
    shutil.rmtree("state")
    both.write()
    Path("newer").rename("state")
    # The name of a pipeline.
    both.path.write_text(both.path.read_text().replace('"both"', '"other"'))
    asked.refused(6, "belongs to pipeline 'both', not 'other'")
    both.write()
    # All targets, and one of them.
    (both.folder / "lake").rename("away")
    asked.refused(5, "holds nothing of this pipeline")
    Path("away").rename("lake")
    (lake / "t").rename("away")
    said = asked.said(4)
    assert f"The sink's table {both.database}.t holds nothing of this pipeline" in said
    assert f"raycdc tables resnapshot CONFIG {both.database}.t" in said
    # The advice is a way out for both.
    assert change_table(both.path, f"{both.database}.t", "resnapshot") == 0
    asked.said(0)
    both.run()
    asked.said(0)


def test_a_route_that_would_leave_rows_behind_is_told_by_check(both: Both, asked: Asked) -> None:
    both.write()
    both.run()
    both.write(more='[[route]]\ntable = "DB.ok"\nto = "other.ok"')
    asked.refused(6, "Routes changed")


def test_a_table_that_was_followed_and_dropped_is_missed_by_nobody(both: Both, asked: Asked) -> None:
    both.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    both.write(tables=f"{both.database}.ok', '{both.database}.t")
    both.run()
    both.sql("DROP TABLE t")
    both.run()
    asked.said(0)
    both.run()
    # One that was never there is.
    both.write(tables=f"{both.database}.ok', '{both.database}.okk")
    asked.refused(3, f'there is no table {both.database}.okk, or this account does not see it; did you mean "')


def test_a_key_of_beginnings_is_told_with_how_the_table_is_read(
    both: Both, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    both.sql(
        "CREATE TABLE beginnings (k TEXT, PRIMARY KEY (k(3)))",
        "CREATE TABLE other (k TEXT, n INT, PRIMARY KEY (k(3), n), KEY (n))",
        "CREATE TABLE named (k TEXT, n INT NOT NULL, PRIMARY KEY (k(3)), KEY (n))",
        "CREATE TABLE whole (k VARCHAR(9) PRIMARY KEY)",
    )
    both.write(source="snapshot = { key = { 'DB.named' = 'n' } }")
    lines = {
        f"{both.database}.beginnings: its primary key has only prefixes of k, so it is read in one piece.",
        f"{both.database}.other: its primary key has only prefixes of k, so it is read in chunks of n.",
    }
    said = asked.said(0)
    assert {line.removeprefix("warning").strip() for line in said.splitlines() if "prefixes of" in line} == lines
    assert said.count("index it whole, and name it in source.snapshot.key") == 2
    capsys.readouterr()
    assert plan_config(both.path, as_json=False) == 0
    planned = capsys.readouterr().err
    assert all(f"Chunks: {line}" in planned for line in lines)
    assert planned.count("Chunks: ") == 2


def test_a_spark_that_could_not_start_is_refused_before(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    for spark, text in (
        ('conf = { "spark.driver.memory" = "much" }', "Java does not start with spark.driver.memory: "),
        ('conf = { "spark.driver.extraJavaOptions" = "-XX:+NoSuchOption" }', "NoSuchOption"),
    ):
        both.write(more=f"[spark]\n{spark}")
        assert both.check(local=False) == 2
        said = capsys.readouterr().out
        assert text in said
        with pytest.raises(RaycdcError) as refused:
            both.run(local=False)
        assert refused.value.exit_code == 2
        assert str(refused.value) in said
        assert both.check() == 0, "without Spark it does not matter"
        capsys.readouterr()


def test_what_was_found_before_the_source_was_away_decides(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    (both.folder / "taken").write_text("")
    both.write(state="taken/state")
    both.path.write_text(both.path.read_text().replace(f"port = {both.server.port}", "port = 1"))
    assert both.check() == 6
    said = capsys.readouterr().out
    assert said.count("127.0.0.1:1") == 1
    with pytest.raises(RaycdcError) as refused:
        both.run()
    assert refused.value.exit_code == 6


@dataclass
class Questions:
    """Connections to the server, and the statements that were sent to it."""

    connections: int = 0
    statements: Counter[str] = field(default_factory=Counter)

    def of(self, command: Callable[[], object]) -> tuple[int, int, int]:
        """The connections, the listings and the questions about columns of one command."""
        self.connections = 0
        self.statements.clear()
        command()
        return self.connections, self.listings, self.columns

    @property
    def listings(self) -> int:
        """How often the names of all tables were asked for."""
        return sum(n for text, n in self.statements.items() if "TABLE_SCHEMA NOT IN" in text)

    @property
    def columns(self) -> int:
        """How often columns of tables were asked for."""
        return sum(
            n for text, n in self.statements.items() if text.startswith("SELECT TABLE_NAME, COLUMN_NAME, COLUMN_T")
        )


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Questions:
    asked = Questions()
    connect, query = pymysql.connections.Connection.connect, pymysql.connections.Connection.query

    def connected(self: Any, *args: Any, **more: Any) -> Any:
        asked.connections += 1
        return connect(self, *args, **more)

    def queried(self: Any, sql: str | bytes, *args: Any, **more: Any) -> Any:
        asked.statements[sql if isinstance(sql, str) else sql.decode()] += 1
        return query(self, sql, *args, **more)

    monkeypatch.setattr(pymysql.connections.Connection, "connect", connected)
    monkeypatch.setattr(pymysql.connections.Connection, "query", queried)
    return asked


def test_a_start_asks_the_server_each_of_its_questions_once(both: Both, questions: Questions) -> None:
    both.write()
    config = load_config(both.path)

    def resolved() -> None:
        store = CheckpointStore(both.folder / "state", pipeline="both")
        resolve(Start(config, local=True), store, warn=lambda _: None)

    # The selection, and what the source lacks; `check` has the findings and the tables beside them.
    assert questions.of(resolved) == (2, 2, 1)
    assert questions.of(both.check) == (4, 4, 3)
    both.run()
    # The log itself is asked for its place, from a connection each for its proof, its end and tables of its own.
    assert questions.of(resolved) == (6, 2, 1)
    assert questions.of(both.check) == (8, 4, 3)
