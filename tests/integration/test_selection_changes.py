"""Tables named, misspelt, left out and put back on an existing state: `raycdc run --local` on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from raycdc.core.failpoints import reach as real
from raycdc.errors import ConfigError, FencedError, SchemaError, SourceError
from raycdc.sandbox.servers import MariaDbServer
from raycdc.state.store import CheckpointStore
from tests.integration.small_shop import Shop

pytestmark = pytest.mark.server


@pytest.fixture
def shop(mariadb: MariaDbServer, tmp_path: Path) -> Iterator[Shop]:
    with mariadb.fresh_database("shop") as database:
        yield Shop(mariadb, database, tmp_path)


def test_a_table_newly_named_is_read_while_the_others_go_on(shop: Shop) -> None:
    assert shop.run("a") == []
    shop.execute("INSERT INTO a VALUES (3, 3)", "INSERT INTO b VALUES (3, 3)")
    new = "b, orders: selected and new to this pipeline: read with a snapshot while the others go on."
    assert shop.run("a", "b", r"or.*") == [new]
    assert [shop.rows(table) for table in ("a", "b", "orders")] == [
        [(1, 1), (2, 2), (3, 3)],
        [(1, 1), (2, 2), (3, 3)],
        [(1, 1), (2, 2)],
    ]
    shop.execute("DELETE FROM b WHERE id = 1")
    assert shop.run("a", "b", r"or.*") == []
    assert shop.rows("b") == [(2, 2), (3, 3)]


def test_a_table_left_out_is_listed_as_ended_and_read_anew_when_it_is_put_back(shop: Shop) -> None:
    shop.run("a", "b")
    assert shop.run("a") == ["b: not selected any more: ended, and the target keeps its rows."]
    assert shop.phases() == {"a": "stream", "b": "ended"}
    shop.execute("DELETE FROM b WHERE id = 1", "INSERT INTO b VALUES (3, 3)", "ALTER TABLE b ADD COLUMN w INT")
    shop.execute("DROP TABLE b", "CREATE TABLE b (id INT PRIMARY KEY, v INT)", "INSERT INTO b VALUES (2, 2), (7, 7)")
    assert shop.run("a") == []
    assert shop.rows("b") == [(1, 1), (2, 2)]
    assert shop.run("a", "b") == ["b: selected again: resnapshotted while the others go on."]
    assert shop.rows("b") == [(2, 2), (7, 7)]
    assert shop.phases() == {"a": "stream", "b": "stream"}
    assert shop.run("a", "b") == []


def test_a_misspelt_name_is_refused_at_every_start_and_a_pattern_without_tables_is_told(shop: Shop) -> None:
    missing = rf'there is no table {shop.database}\.ordres,.*; did you mean "{shop.database}\.orders"\?'
    for _ in range(2):
        with pytest.raises(SourceError, match=missing):
            shop.run("a", "ordres")
    assert shop.run("a", "z.*") == ["The pattern z.* of source.tables matches no table yet."]
    with pytest.raises(SourceError, match=rf'did you mean "{shop.database}\.orders"'):
        shop.run("a", "Orders")
    # One that was followed was not misspelt, whatever became of it.
    shop.execute("DROP TABLE a")
    shop.run("a", "b")
    assert shop.run("a", "b") == []


def test_a_table_made_while_nothing_runs_is_told_apart_from_one_that_was_not_selected(shop: Shop) -> None:
    assert shop.run("a", "c.*") == ["The pattern c.* of source.tables matches no table yet."]
    shop.execute("CREATE TABLE c1 (id INT PRIMARY KEY, v INT)", "INSERT INTO c1 VALUES (1, 1), (2, 2)")
    shop.execute("DELETE FROM c1 WHERE id = 1", "CREATE TABLE c2 (id INT PRIMARY KEY)", "DROP TABLE c2")
    made = "c1: created since the last run: followed from the log, or snapshotted if the log lacks a part."
    new = "b: selected and new to this pipeline: read with a snapshot while the others go on."
    assert shop.run("a", "b", "c.*") == [new, made]
    assert (shop.rows("b"), shop.rows("c1")) == ([(1, 1), (2, 2)], [(2, 2)])
    assert shop.phases() == {"a": "stream", "b": "stream", "c1": "stream"}
    shop.execute("INSERT INTO c1 VALUES (3, 3)")
    assert shop.run("a", "b", "c.*") == []
    assert shop.rows("c1") == [(2, 2), (3, 3)]


def test_a_start_in_the_past_parks_tables_that_were_others_there_and_reads_those_that_came_by_a_rename(
    shop: Shop,
) -> None:
    with shop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, pos = cursor.fetchone()[:2]
    shop.execute("INSERT INTO a VALUES (3, 3)", "TRUNCATE a", "INSERT INTO a VALUES (4, 4)")
    shop.execute("CREATE TABLE out_of_sight (id INT PRIMARY KEY, v INT)", "INSERT INTO out_of_sight VALUES (1, 1)")
    shop.execute("RENAME TABLE out_of_sight TO c", "INSERT INTO c VALUES (2, 2)", "ALTER TABLE b DROP COLUMN v")
    place = {"source": {"startup": {"mode": "offset", "file": file, "pos": pos}}}
    with pytest.raises(SchemaError, match="b was another table before this statement"):
        shop.run("a", "b", "c", **place)
    assert (shop.rows("a"), shop.rows("c")) == ([(4, 4)], [(1, 1), (2, 2)])
    assert shop.phases() == {"a": "stream", "b": "parked", "c": "stream"}


def test_a_shard_that_is_created_while_nothing_runs_comes_by_the_log(shop: Shop) -> None:
    route = {"route": [{"table": rf"{shop.database}\.[ab]\d?", "to": "lake.all"}]}
    shop.execute("UPDATE b SET id = id + 10")
    assert shop.run("[ab]\\d?", **route) == []
    shop.execute("CREATE TABLE a2 (id INT PRIMARY KEY, v INT)", "INSERT INTO a2 VALUES (20, 20)")
    assert shop.run("[ab]\\d?", **route) == []
    found = DeltaTable(str(shop.root / "lake" / "lake" / "all")).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in found) == [1, 2, 11, 12, 20]


def test_one_of_several_merged_tables_that_was_put_back_is_refused(shop: Shop) -> None:
    route = {"route": [{"table": rf"{shop.database}\.[ab]", "to": "lake.all"}]}
    shop.execute("UPDATE b SET id = id + 10")
    shop.run("[ab]", **route)
    shop.run("a", **route)
    with pytest.raises(ConfigError, match=r"\.b was put back, but its rows in lake\.all cannot be told from those of"):
        shop.run("[ab]", **route)
    assert shop.run("a", **route) == []


def test_a_driver_that_was_replaced_meanwhile_does_not_commit_under_its_successors_number(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(shop.root / "state", pipeline="shop")
    taken: list[int] = []

    def reach(point: str) -> None:
        if point == "before_commit" and not taken:
            taken.append(store.generations.next())
        real(point)

    monkeypatch.setattr("raycdc.delivery.epoch_writer.reach", reach)
    with pytest.raises(FencedError, match="generation 2 is the newest, and this one has 1"):
        shop.run("a")
    assert store.last_commit() is None
    # The first epoch may end before anything of the table was read, and then nothing has made its target.
    assert not shop.exists("a") or shop.rows("a") == []
