"""A configuration that is not the one a state was made with: refused by name, with ways out that are tried here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.cli.planning.check import state_effects
from raycdc.config import config_from_dict
from raycdc.driver.resolve import FITTING, next_run
from raycdc.errors import ConfigError, SinkError
from raycdc.sandbox.servers import MariaDbServer
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_requests import ask
from raycdc.state.store import CheckpointStore
from tests.integration.small_shop import Shop

pytestmark = pytest.mark.server


@pytest.fixture
def shop(mariadb: MariaDbServer, tmp_path: Path) -> Iterator[Shop]:
    with mariadb.fresh_database("shop") as database:
        yield Shop(mariadb, database, tmp_path)


@pytest.mark.parametrize(
    ("sink", "key"),
    [({"write": "changelog"}, "sink.write"), ({"type": "jsonl", "write": "changelog"}, "sink.type")],
)
def test_another_way_of_writing_is_refused_and_the_ways_out_work(shop: Shop, sink: dict[str, Any], key: str) -> None:
    shop.run("a")
    shop.execute("UPDATE a SET v = 5 WHERE id = 1")
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf'{key} is ".*", and was ".*" when the state was made: rows already'):
            shop.run("a", sink=sink)
    # Taken back.
    assert shop.run("a") == []
    assert shop.rows("a") == [(1, 5), (2, 2)]
    # Another state, and the target replaced.
    anew = {"state": str(shop.root / "another"), "on_existing": "replace"}
    assert shop.run("a", sink=sink, pipeline=anew) == []
    if key == "sink.write":
        found = DeltaTable(str(shop.root / "lake" / shop.database / "a")).to_pyarrow_table().to_pylist()
        assert sorted((row["_op"], row["id"], row["v"]) for row in found) == [("+I", 1, 5), ("+I", 2, 2)]


def test_a_target_at_another_place_must_be_the_one_that_was_written(shop: Shop) -> None:
    shop.run("a")
    elsewhere = {"path": str(shop.root / "elsewhere")}
    with pytest.raises(
        SinkError, match=r"sink\.path is .*elsewhere.*Take it back.*(?s:.)*holds nothing of this pipeline"
    ):
        shop.run("a", sink=elsewhere)
    assert shop.run("a") == []
    (shop.root / "lake").rename(shop.root / "elsewhere")
    shop.execute("INSERT INTO a VALUES (3, 3)")
    assert [text.partition(" is ")[0] for text in shop.run("a", sink=elsewhere)] == ["sink.path"]
    assert shop.run("a", sink=elsewhere) == []
    with pytest.raises(SinkError, match=r"sink\.path is .*lake"):
        shop.run("a")


def test_types_that_are_read_otherwise_need_a_new_snapshot(shop: Shop) -> None:
    shop.execute("CREATE TABLE d (id INT PRIMARY KEY, at DATE)", "INSERT INTO d VALUES (1, '2024-01-01')")
    shop.run("a", "d")
    text = {"types": {"invalid_dates": "text"}}
    source = shop.config("a", "d")["source"] | text
    config = config_from_dict(shop.config("a", "d", source=source))
    with pytest.raises(
        ConfigError, match=r"source\.types\.invalid_dates is .*raycdc tables resnapshot CONFIG"
    ) as refused:
        shop.run("a", "d", source=source)
    said = [line.removeprefix("A run refuses this. ") for line in state_effects(next_run(config))]
    assert said == [str(refused.value)]
    (found,) = FITTING.results(next_run(config))
    assert (found.ok, found.text) == (False, str(refused.value))
    # As `raycdc tables resnapshot` asks.
    store = CheckpointStore(shop.root / "state")
    ask(store, [f"{shop.database}.a", f"{shop.database}.d"], TableRequest.RESNAPSHOT)
    shop.run("a", "d", source=source)
    (row,) = DeltaTable(str(shop.root / "lake" / shop.database / "d")).to_pyarrow_table().to_pylist()
    assert row == {"id": 1, "at": "2024-01-01"}
    assert shop.run("a", "d", source=source) == []


def test_a_condition_concerns_the_tables_that_it_names(shop: Shop) -> None:
    shop.run("a", "b")
    source = shop.config("a", "b")["source"] | {"snapshot": {"filter": {f"{shop.database}.a": "id > 1"}}}
    with pytest.raises(ConfigError, match=rf"rows of {shop.database}\.a already written would not match"):
        shop.run("a", "b", source=source)
    ask(CheckpointStore(shop.root / "state"), [f"{shop.database}.a"], TableRequest.RESNAPSHOT)
    shop.run("a", "b", source=source)
    assert (shop.rows("a"), shop.rows("b")) == ([(2, 2)], [(1, 1), (2, 2)])


def test_a_state_from_before_gets_the_document_at_its_next_start(shop: Shop) -> None:
    shop.run("a")
    [configured] = (shop.root / "state" / "documents").glob("configured.json.*")
    configured.unlink()
    assert shop.run("a") == []
    with pytest.raises(ConfigError, match=r"sink\.write"):
        shop.run("a", sink={"write": "changelog"})


def test_a_table_that_is_selected_now_and_merged_with_others_is_refused(shop: Shop) -> None:
    route = {"route": [{"table": rf"{shop.database}\.[ab]", "to": "lake.all"}]}
    shop.execute("UPDATE b SET id = id + 10")
    shop.run("a", **route)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"\.b is selected now, but its rows in lake\.all cannot be told"):
            shop.run("a", "b", **route)
    assert shop.run("a", **route) == []
