"""What a changed key means for a state: every key there is has a class, and what a state remembers is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.config import Options, PipelineConfig, SinkConfig, config_from_dict, option
from raycdc.config.changes import CLASSES, ConfigChangeClass, class_of, declared_models, keys_of, listed_class
from raycdc.plugins import list_plugins
from raycdc.state.configured import configured_keys, differences, read_configured, write_configured
from raycdc.state.store import CheckpointStore

#: What others bring is not ours to list.
THIRD_PARTY = {listing.type for listing in list_plugins() if listing.package != "raycdc"}


def own_keys() -> list[tuple[str, str]]:
    return [
        (section, key)
        for section, model in declared_models()
        if section.partition(":")[2] not in THIRD_PARTY
        for key, _ in keys_of(model)
        if key != "format" or section == "logging"
    ]


def test_every_key_of_ours_has_a_class() -> None:
    assert [f"{section} {key}" for section, key in own_keys() if listed_class(section, key) is None] == []


def test_the_table_has_no_key_that_is_not_there() -> None:
    there = {(section.partition(":")[0], key) for section, key in own_keys()}
    #: Keys that are on their way.
    coming = {("pipeline", "state_key"), ("pipeline", "on_table_error")}
    assert {(section.partition(":")[0], key) for section, key in CLASSES} - there <= coming


def test_the_next_key_is_found_and_a_third_partys_has_a_default() -> None:
    class Planted(SinkConfig):
        folder_layout: str = option("flat", help="A key without a class.")
        batch: int = option(1, help="One that says it.", change="free")

    fields = dict(keys_of(Planted))
    assert [key for key in fields if listed_class("sink:planted", key) is None] == ["folder_layout", "batch"]
    assert class_of("sink:planted", "folder_layout", fields["folder_layout"]) is ConfigChangeClass.NEW_STATE
    assert class_of("sink:planted", "batch", fields["batch"]) is ConfigChangeClass.FREE
    assert issubclass(Planted, Options)


def config(**sections: dict[str, Any]) -> PipelineConfig:
    data: dict[str, Any] = {
        "pipeline": {"name": "shop"},
        "source": {"type": "mysql", "user": "cdc", "password": "geheim", "tables": ["shop.a"]},
        "sink": {"type": "delta", "path": "./lake"},
    }
    return config_from_dict({**data, **{name: {**data.get(name, {}), **keys} for name, keys in sections.items()}})


def changed(before: PipelineConfig, after: PipelineConfig) -> dict[str, ConfigChangeClass]:
    return {d.key: d.change for d in differences(configured_keys(before), configured_keys(after), after)}


def test_what_differs_is_told_with_its_class() -> None:
    assert changed(config(), config()) == {}
    assert changed(config(), config(readers={"max": 9}, source={"user": "other", "password": "x"})) == {}
    assert changed(config(), config(sink={"write": "changelog"})) == {"sink.write": ConfigChangeClass.NEW_STATE}
    assert changed(config(), config(sink={"path": "./other"})) == {"sink.path": ConfigChangeClass.LOCATION}
    assert changed(config(), config(source={"tables": ["shop.b"]})) == {}
    types = {"types": {"invalid_dates": "text"}, "startup": {"mode": "latest"}}
    assert changed(config(), config(source=types)) == {
        "source.types.invalid_dates": ConfigChangeClass.NEW_SNAPSHOT,
        "source.startup.mode": ConfigChangeClass.NEW_TABLES,
    }
    other = config(sink={"type": "jsonl", "write": "changelog"})
    assert changed(config(), other) == {"sink.type": ConfigChangeClass.NEW_STATE}


def test_another_receiver_of_messages_changes_nothing_of_a_state() -> None:
    was = configured_keys(config())
    data = {"pipeline": {"name": "shop"}, "sink": {"type": "delta", "path": "./lake"}}
    source = {"type": "mysql", "user": "cdc", "password": "geheim", "tables": ["shop.a"]}
    told = [{"type": "webhook", "url": "https://hooks.example/x", "on": ["table_parked"]}]
    now = config_from_dict({**data, "source": source, "notify": told, "route": [{"table": "shop.a", "to": "lake.b"}]})
    found = {d.key: d.change for d in differences(was, configured_keys(now), now)}
    assert (found.pop("notify", ConfigChangeClass.FREE), found) == (
        ConfigChangeClass.FREE,
        {"route": ConfigChangeClass.JUDGED},
    )


def test_a_state_keeps_no_secret(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    assert read_configured(store) is None
    mongodb = {"type": "mongodb", "uri": "mongodb://me:geheim@h/", "record": "home"}
    given = config()
    data = given.sink.model_dump()
    assert data["type"] == "delta"
    made = config_from_dict(
        {
            "pipeline": {"name": "shop"},
            "source": {"type": "mysql", "user": "cdc", "password": "geheim", "tables": ["shop.a"]},
            "sink": mongodb,
        }
    )
    write_configured(store, configured_keys(made))
    [configured] = (store.path / "documents").glob("configured.json.*")
    assert "geheim" not in configured.read_text()
    assert read_configured(store) == configured_keys(made)


@pytest.mark.parametrize("was", [{"shop.a": "id > 1"}, {}])
def test_only_tables_that_a_key_names_are_concerned(was: dict[str, str]) -> None:
    tables = ["shop.a", "shop.b", "shop.c"]
    before = config(source={"tables": tables, "snapshot": {"filter": was}})
    after = config(source={"tables": tables, "snapshot": {"filter": {"shop.a": "id > 2", "shop.c": "id > 1"}}})
    (found,) = differences(configured_keys(before), configured_keys(after), after)
    assert found.tables(["shop.a", "shop.b"]) == ["shop.a"]


def test_a_state_with_older_names_of_keys_and_values_is_read_as_one_with_todays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    store.documents.write(
        "configured.json",
        {
            "keys": {
                "source.start.mode": "latest",
                "source.types.invalid_dates": "error",
                "source.types.invalid_text": "error",
                "source.columns": {"shop.a": ["error"]},
                "lookup": [{"table": "shop.a", "on_misfit": "null"}],
            }
        },
    )
    assert read_configured(store) == {
        "source.startup.mode": "latest",
        "source.types.invalid_dates": "park",
        "source.types.invalid_text": "park",
        "source.columns": {"shop.a": ["error"]},
        "lookup": [{"table": "shop.a", "on_type_mismatch": "null"}],
    }
