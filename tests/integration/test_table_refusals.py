"""Tables that no target can hold as they are: each is parked, named at the start, and the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.cli.tables import change_table, table_list
from raycdc.config import config_from_dict
from raycdc.errors import RaycdcError, SchemaError
from raycdc.observe.events import RunEvent, Warned
from raycdc.pipeline import Pipeline
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.state.column_names import column_names
from raycdc.state.store import CheckpointStore

pytestmark = pytest.mark.server


class DatabaseRun:
    """A pipeline from a database of its own into Delta or files, run until it has caught up."""

    def __init__(self, server: DatabaseServer, database: str, folder: Path, sink: str = "delta") -> None:
        self.server, self.database, self.folder = server, database, folder
        self.sink: dict[str, Any] = {"type": sink, "path": str(folder / "lake")}
        if sink == "jsonl":
            self.sink["write"] = "changelog"
        self.exclude: list[str] = []
        self.pipeline: dict[str, Any] = {}
        self.told: list[RunEvent] = []

    def sql(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.database)

    def run(self) -> None:
        source = {"type": "mysql", "port": self.server.port, "user": "cdc", "password": "cdc"}
        tables = {"tables": [rf"{self.database}\..*"], "exclude": self.exclude}
        state = {"name": "names", "state": str(self.folder / "state"), "epoch_interval": "100ms"}
        document = {"pipeline": state | self.pipeline, "source": source | tables, "sink": self.sink}
        self.told.clear()
        Pipeline.from_config(config_from_dict(document)).run(until="caught-up", local=True, listener=self.told.append)

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.told if isinstance(event, Warned)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        return sorted(read_delta(self.folder / "lake" / self.database / table).to_pylist(), key=lambda row: row["id"])

    @property
    def phases(self) -> dict[str, str]:
        store = CheckpointStore(self.folder / "state", create=False)
        return {entry["table"].partition(".")[2]: entry["phase"] for entry in table_list(store)}

    def ask(self, action: str, table: str) -> None:
        change_table(self.folder / "state", f"{self.database}.{table}", action)


@pytest.fixture
def world(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path) -> DatabaseRun:
    return DatabaseRun(mariadb, mariadb_database, tmp_path)


def test_columns_that_delta_cannot_hold_keep_other_names_for_the_life_of_the_state(world: DatabaseRun) -> None:
    world.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, `unit (SI)` VARCHAR(9), `q;2` INT)", "INSERT INTO t VALUES (1,'m',2)"
    )
    world.run()
    assert world.rows("t") == [{"id": 1, "unit__SI_": "m", "q_2": 2}]
    told = f"{world.database}.t: 'unit (SI)' is 'unit__SI_', 'q;2' is 'q_2' in the target"
    assert [text.startswith(told) for text in world.warnings if "unit" in text] == [True]
    world.sql(
        "ALTER TABLE t ADD COLUMN `col x` INT DEFAULT 5",
        "INSERT INTO t VALUES (2, 's', 3, 6)",
    )
    world.run()
    assert [text for text in world.warnings if "unit" in text] == []
    assert world.rows("t") == [
        {"id": 1, "unit__SI_": "m", "q_2": 2, "col_x": 5},
        {"id": 2, "unit__SI_": "s", "q_2": 3, "col_x": 6},
    ]
    names = column_names(CheckpointStore(world.folder / "state"))
    assert names == {f"{world.database}.t": {"unit (SI)": "unit__SI_", "q;2": "q_2", "col x": "col_x"}}
    # Those that it has are kept even where no others are to come.
    world.sink["invalid_names"] = "park"
    world.pipeline["schema_change"] = "evolve"
    world.sql(
        "ALTER TABLE t RENAME COLUMN `col x` TO `col,y`",
        "ALTER TABLE t DROP COLUMN `q;2`",
        "UPDATE t SET `unit (SI)` = 'A' WHERE id = 1",
    )
    with pytest.raises(SchemaError, match=r"column 'col,y' of .* contains ','"):
        world.run()
    assert world.phases == {"t": "parked"}
    world.sink["invalid_names"] = "replace"
    world.ask("resnapshot", "t")
    world.run()
    left = ("col_x", "q_2")  # Columns of the target stay when its table begins again.
    assert [{n: v for n, v in row.items() if n not in left} for row in world.rows("t")] == [
        {"id": 1, "unit__SI_": "A", "col_y": 5},
        {"id": 2, "unit__SI_": "s", "col_y": 6},
    ]


def test_a_rename_that_both_names_hide_changes_nothing_and_a_key_may_have_such_a_name(world: DatabaseRun) -> None:
    world.pipeline["schema_change"] = "evolve"
    world.sql(
        "CREATE TABLE t (`id` INT, `k 1` INT, `a b` INT, PRIMARY KEY (id, `k 1`))", "INSERT INTO t VALUES (1,2,3)"
    )
    world.run()
    world.sql(
        "ALTER TABLE t RENAME COLUMN `a b` TO `a;b`",
        "INSERT INTO t VALUES (2, 3, 4)",
        "ALTER TABLE t RENAME COLUMN `a;b` TO c",
        "DELETE FROM t WHERE `k 1` = 2",
        "INSERT INTO t VALUES (3, 4, 5)",
    )
    world.run()
    assert world.rows("t") == [{"id": 2, "k_1": 3, "c": 4}, {"id": 3, "k_1": 4, "c": 5}]


def test_columns_that_would_have_one_name_park_their_table_alone(world: DatabaseRun) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, `a b` INT, a_b INT)", "INSERT INTO t VALUES (1, 2, 3)")
    world.sql("CREATE TABLE u (id INT PRIMARY KEY, `a b` INT)", "INSERT INTO u VALUES (1, 2)")
    world.sql("CREATE TABLE ok (id INT PRIMARY KEY)", "INSERT INTO ok VALUES (1)")
    with pytest.raises(SchemaError, match=r"columns 'a b' and 'a_b' of .*t would both be 'a_b'"):
        world.run()
    assert world.phases == {"t": "parked", "u": "stream", "ok": "stream"}
    world.sql("ALTER TABLE u ADD COLUMN `A_b` INT", "INSERT INTO u VALUES (2, 3, 4)", "INSERT INTO ok VALUES (2)")
    with pytest.raises(SchemaError, match=r"columns 'a b' and 'A_b' of .*u would both be 'A_b'"):
        world.run()
    assert world.phases == {"t": "parked", "u": "parked", "ok": "stream"}
    assert world.rows("ok") == [{"id": 1}, {"id": 2}]
    world.sql("ALTER TABLE u RENAME COLUMN `A_b` TO other")
    world.ask("resnapshot", "u")
    world.ask("remove", "t")
    world.run()
    assert world.rows("u") == [{"id": 1, "a_b": 2, "other": None}, {"id": 2, "a_b": 3, "other": 4}]


def test_a_table_without_a_key_is_parked_before_anything_is_made_and_has_ways_out(world: DatabaseRun) -> None:
    world.sql("CREATE TABLE ok (id INT PRIMARY KEY)", "INSERT INTO ok VALUES (1)")
    world.sql(*(f"CREATE TABLE {name} (id INT)" for name in ("keyed", "removed", "excluded")))
    world.sql(*(f"INSERT INTO {name} VALUES (1), (2)" for name in ("keyed", "removed", "excluded")))
    with pytest.raises(SchemaError, match=r"keyed has no primary key, so an upsert target"):
        world.run()
    parked = dict.fromkeys(("keyed", "removed", "excluded"), "parked")
    assert world.phases == {"ok": "stream", **parked}
    assert [path.name for path in (world.folder / "lake" / world.database).iterdir()] == ["ok"]
    world.sql("ALTER TABLE keyed ADD PRIMARY KEY (id)", "INSERT INTO ok VALUES (2)")
    world.ask("resnapshot", "keyed")
    world.ask("remove", "removed")
    world.exclude = [f"{world.database}.excluded"]
    world.run()
    assert world.phases == {"ok": "stream", "keyed": "stream", "removed": "removed"}
    assert world.rows("keyed") == world.rows("ok") == [{"id": 1}, {"id": 2}]
    # One that comes without a key while the others stream.
    world.sql("CREATE TABLE late (id INT)", "INSERT INTO late VALUES (1)", "INSERT INTO ok VALUES (3)")
    with pytest.raises(SchemaError, match=r"late has no primary key"):
        world.run()
    assert world.phases["late"] == "parked"
    world.sql("DROP TABLE late", "INSERT INTO ok VALUES (4)")
    world.exclude.append(f"{world.database}.late")
    world.run()
    assert len(world.rows("ok")) == 4


def test_whoever_may_create_tables_cannot_stop_the_others(world: DatabaseRun) -> None:
    world = DatabaseRun(world.server, world.database, world.folder, "jsonl")
    world.sql("CREATE TABLE ok (id INT PRIMARY KEY)", "CREATE TABLE `../../evil` (id INT PRIMARY KEY)")
    world.sql("INSERT INTO `../../evil` VALUES (1)", "INSERT INTO ok VALUES (1)")
    with pytest.raises(SchemaError, match=r"'\.\./\.\./evil' cannot be a folder"):
        world.run()
    assert world.phases == {"../../evil": "parked", "ok": "stream"}
    world.sql("CREATE TABLE `../late` (id INT PRIMARY KEY)", "INSERT INTO `../late` VALUES (1)")
    with pytest.raises(SchemaError, match=r"'\.\./late' cannot be a folder"):
        world.run()
    assert sorted(path.name for path in world.folder.iterdir()) == ["lake", "state"]
    world.sql("DROP TABLE `../../evil`", "DROP TABLE `../late`")
    world.exclude = [rf"{world.database}\.\.\./.*"]
    world.run()
    # Nothing of the others was ever read.
    assert world.phases == {"ok": "stream"}


def test_a_table_that_is_excluded_before_it_began_is_owed_nothing(world: DatabaseRun) -> None:
    world.sql("CREATE TABLE ok (id INT PRIMARY KEY)", "CREATE TABLE bad (id INT)", "INSERT INTO bad VALUES (1)")
    with pytest.raises(RaycdcError):
        world.run()
    world.exclude = [f"{world.database}.bad"]
    world.sql("INSERT INTO ok VALUES (7)", "INSERT INTO bad VALUES (2)")
    world.run()
    assert world.rows("ok") == [{"id": 7}]


def test_a_table_that_no_target_can_hold_ends_the_start_where_nothing_is_to_be_parked(world: DatabaseRun) -> None:
    world.sql("CREATE TABLE ok (id INT PRIMARY KEY)", "CREATE TABLE loose (id INT)", "INSERT INTO ok VALUES (1)")
    world.pipeline["on_table_error"] = "fail"
    with pytest.raises(SchemaError, match=r"loose has no primary key[^$]*on_table_error"):
        world.run()
    assert not (world.folder / "lake").exists()
    world.pipeline["on_table_error"] = "park"
    with pytest.raises(SchemaError, match="loose has no primary key"):
        world.run()
    assert world.rows("ok") == [{"id": 1}]
