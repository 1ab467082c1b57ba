"""What a sealed plan has of a configuration: every key but those that may hold a secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from raycdc.config import PipelineConfig, config_from_dict
from raycdc.state.configured import all_keys

SECRET = "geheim"


FORMAT = {"type": "maxwell-json", "include": ["shop.a"], "on_error": "skip", "ddl": "ignore"}


def config(*, secret: str = SECRET, message: Mapping[str, Any] = FORMAT, **lookup: Any) -> PipelineConfig:
    """A pipeline from topics to files, with a secret wherever one may be."""
    added = {"collection": "crm.users", "on": "user_id", "columns": {"name": "string"}, **lookup}
    return config_from_dict(
        {
            "pipeline": {"name": "shop"},
            "source": {
                "type": "kafka",
                "bootstrap_servers": "h:9092",
                "topics": ["t"],
                "format": message,
                "properties": {"sasl.password": secret},
            },
            "sink": {"type": "jsonl", "path": "/lake", "write": "changelog"},
            "spark": {"conf": {"spark.hadoop.key": secret}},
            "lookup": [{"table": r"shop\..*", "uri": f"mongodb://me:{secret}@h/", **added}],
            "mask": [{"columns": r"shop\.\w+\.email", "method": "hash", "key": secret}],
        }
    )


def differing(after: PipelineConfig) -> set[str]:
    """The keys that a plan of the pipeline would name."""
    was, now = all_keys(config()), all_keys(after)
    return {key for key in {*was, *now} if was.get(key) != now.get(key)}


@pytest.mark.parametrize(
    ("option", "value"),
    [("include", ["shop.b"]), ("exclude", ["shop.b"]), ("on_error", "fail"), ("ddl", "follow"),
     ("tables", {"shop.a": "id BIGINT"}), ("columns", "id BIGINT"), ("case_sensitive", True)],
)  # fmt: skip
def test_every_option_of_a_format_is_compared(option: str, value: Any) -> None:
    assert differing(config(message={**FORMAT, option: value})) == {f"source.format.{option}"}


@pytest.mark.parametrize(("key", "value"), [("batch", 7), ("cache_ttl", "1m"), ("many", "first")])
def test_every_key_of_a_repeated_section_is_compared(key: str, value: Any) -> None:
    assert differing(config(**{key: value})) == {"lookup"}


def test_no_secret_is_compared_or_kept_in_any_form() -> None:
    assert differing(config(secret="rotated")) == set()
    assert SECRET not in json.dumps(all_keys(config()))


@pytest.mark.parametrize(
    ("sink", "hidden"),
    [
        ({"type": "mongodb", "uri": f"mongodb://me:{SECRET}@h/"}, {"uri"}),
        (
            {
                "type": "iceberg",
                "catalog": {"type": "rest", "uri": f"https://me:{SECRET}@h/", "properties": {"token": SECRET}},
            },
            {"catalog.uri", "catalog.properties"},
        ),
        ({"type": "jdbc", "url": "jdbc:postgresql://h/lake", "user": "cdc", "password": SECRET}, {"password"}),
        (
            {
                "type": "kafka",
                "bootstrap_servers": "h",
                "format": "debezium-json",
                "write": "changelog",
                "properties": {"sasl.password": SECRET},
            },
            {"properties"},
        ),
    ],
    ids=["mongodb", "iceberg", "jdbc", "kafka"],
)
def test_keys_of_sinks_that_may_hold_a_secret_are_left_out(sink: dict[str, Any], hidden: set[str]) -> None:
    made = config_from_dict(
        {
            "pipeline": {"name": "shop"},
            "source": {"type": "mysql", "user": "cdc", "password": SECRET, "tables": ["shop.a"]},
            "sink": sink,
        }
    )
    found = all_keys(made)
    assert [key for key in found if key.removeprefix("sink.") in hidden] == []
    assert found["sink.type"] == sink["type"]
