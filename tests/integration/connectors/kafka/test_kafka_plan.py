"""``raycdc plan`` of a pipeline that reads topics: tables and columns as the last messages or the format say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers import KafkaServer
from tests.integration.connectors.kafka.test_kafka_check import insert, produce
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server


def plan(kafka: KafkaServer, folder: Path, topic: str, form: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, targets, and what was said beside them."""
    (folder / "p.toml").write_text(
        f'[pipeline]\nname = "p"\n[source]\ntype = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        f'topics = ["{topic}"]\nformat = {form}\n[[transform]]\ntable = "shop.p"\nprojection = "id AS number, name"\n'
        '[[route]]\ntable = "shop.p"\nto = "lake.products"\n'
        f'[sink]\ntype = "delta"\nwrite = "changelog"\npath = "{folder}/lake"\n'
    )
    done = completed(["plan", "p.toml", "--json"], environment=os.environ, folder=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_targets_of_a_topic_are_planned_from_its_last_messages(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        code, targets, said = plan(kafka, tmp_path, topic, '"maxwell-json"')
        assert (code, targets, "No table is captured yet." in said) == (0, [], True)
        produce(kafka, topic, insert(1), insert(2, weight=1.5))
        code, (target,), said = plan(kafka, tmp_path, topic, '"maxwell-json"')
        assert code == 0
        assert "so more tables and columns may come" in said
        assert (target["target"], target["sources"][0]["table"]) == ("lake.products", "shop.p")
        assert target["sources"][0]["how"] == "columns chosen or renamed, without Spark"
        columns = [(column["name"], column["type"]) for column in target["columns"]]
        assert columns == [("number", "bigint"), ("name", "string")]
        assert "CREATE TABLE `lake`.`products`" in target["ddl"]
        declared = '{ type = "maxwell-json", columns = "id INT, name VARCHAR(9), PRIMARY KEY (id)" }'
        code, (target,), _ = plan(kafka, tmp_path, topic, declared)
        assert (code, target["primary_key"], target["columns"][0]["type"]) == (0, ["number"], "int")
        code, targets, said = plan(kafka, tmp_path, topic, '"canal-json"')
        assert (code, targets) == (4, [])
        assert f"{topic} is not all canal-json" in said
        assert not (tmp_path / "lake").exists()
        assert not (tmp_path / "state").exists()
