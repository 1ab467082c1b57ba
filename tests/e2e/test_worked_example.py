"""The worked example: products changed on a server, Maxwell's messages, a lake, and sums that agree at every step."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer

from raycdc.config import load_config
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import KafkaServer, MySqlServer
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from raycdc.spark.session import spark_session

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    # py4j leaves sockets of its gateway to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CREATE = "CREATE TABLE product (id INT PRIMARY KEY, name VARCHAR(50), description VARCHAR(200), weight FLOAT)"
FIRST = (
    "(101, 'scooter', 'Small 2-wheel scooter', 3.14), (102, 'battery', '12V', 8.1), (103, 'drill', 'bits', 0.8), "
    "(104, 'hammer', '12oz', 0.75), (105, 'hammer', '14oz', 0.875), (106, 'hammer', NULL, 1), (107, 'rocks', '', 5.3)"
)
STATEMENTS = (
    f"INSERT INTO product VALUES {FIRST}",
    "UPDATE product SET description = '18oz hammer', weight = 1.5 WHERE id = 106",
    "UPDATE product SET name = 'jacket', weight = 0.2 WHERE id IN (104, 107)",
    "DELETE FROM product WHERE name = 'battery' OR id = 105",
    "INSERT INTO product VALUES (110, 'jacket', 'new', 0.1), (102, 'battery', NULL, 2.55)",
)
SUMS = "SELECT name, SUM(CAST(weight AS DECIMAL(10,2))) FROM product GROUP BY name"

MAXWELL = {"type": "maxwell-json"}

Rows = dict[int, dict[str, Any]]


def contents(server: MySqlServer, database: str) -> Rows:
    names = ("id", "name", "description", "weight")
    return {
        row[0]: dict(zip(names, row, strict=True)) for row in server.execute("SELECT * FROM product", database=database)
    }


def messages(before: Rows, after: Rows) -> list[bytes]:
    """What Maxwell says of one statement."""
    told: list[dict[str, Any]] = []
    for identity in sorted({*before, *after}):
        old, new = before.get(identity), after.get(identity)
        if old is None:
            told.append({"type": "insert", "data": new})
        elif new is None:
            told.append({"type": "delete", "data": old})
        elif old != new:
            changed = {name: value for name, value in old.items() if value != new[name]}
            told.append({"type": "update", "data": new, "old": changed})
    envelope = {"database": "shop", "table": "product", "ts": 1_700_000_000, "xid": 1, "commit": True}
    return [json.dumps({**envelope, **entry}).encode() for entry in told]


@pytest.mark.long(suite="stories")
def test_sums_over_the_changelog_agree_with_the_server_after_every_statement(
    mysql80: MySqlServer, kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    spark = spark_session("local[2]", tmp_path / "spark", {"spark.sql.shuffle.partitions": "1"})
    try:
        with mysql80.fresh_database() as database, kafka.fresh_topic() as topic:
            environment = {"KAFKA": kafka.bootstrap_servers, "TOPIC": topic, "LAKE": str(tmp_path / "lake")}
            mysql80.execute(CREATE, database=database)
            for statement in STATEMENTS:
                before = contents(mysql80, database)
                mysql80.execute(statement, database=database)
                for text in messages(before, contents(mysql80, database)):
                    producer.produce(topic, text)
                assert producer.flush(20) == 0
                config = load_config(EXAMPLES / "maxwell_to_lake.toml", environment=environment)
                Pipeline.from_config(config).run(until="caught-up", local=True)
                example().maintain(spark, str(tmp_path / "lake"), str(tmp_path / "sums"))
                found = spark.read.format("delta").load(str(tmp_path / "sums")).collect()
                expected: dict[str, Decimal] = dict(mysql80.execute(SUMS, database=database))
                assert {row["name"]: row["weight"] for row in found} == expected, statement
    finally:
        spark.stop()


@pytest.mark.long(suite="stories")
def test_the_commands_of_the_manual_give_the_sums(kafka: KafkaServer, tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "raycdc" / "manual" / "kafka.md").read_text()
    (commands,) = (block for block in re.findall(r"```bash\n(.*?)```", page, re.S) if "maxwell_weights" in block)
    for name in ("maxwell_to_lake.toml", "maxwell_weights.py"):
        (tmp_path / "examples").mkdir(exist_ok=True)
        shutil.copy(EXAMPLES / name, tmp_path / "examples" / name)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with kafka.fresh_topic() as topic:
        script = "set -e\n" + commands.replace("127.0.0.1:9092", kafka.bootstrap_servers).replace(
            "TOPIC=maxwell", f"TOPIC={topic}"
        )
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        # That they go on where they stopped is the test above.
        first: Rows = {1: {"id": 1, "name": "hammer", "description": None, "weight": 1.5}}
        for text in [*messages({}, first), *messages(first, {1: {**first[1], "weight": 2.25}})]:
            producer.produce(topic, text)
        assert producer.flush(20) == 0
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"hammer\|\s*2\.25\|\s*1\|", done.stdout), done.stdout


def test_the_changelog_written_back_as_maxwell_and_read_again_gives_the_same_table(
    mysql80: MySqlServer, kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    with mysql80.fresh_database() as database, kafka.fresh_topic() as topic:
        mysql80.execute(CREATE, database=database)
        for statement in STATEMENTS:
            before = contents(mysql80, database)
            mysql80.execute(statement, database=database)
            for text in messages(before, contents(mysql80, database)):
                producer.produce(topic, text)
        assert producer.flush(20) == 0
        environment = {"KAFKA": kafka.bootstrap_servers, "TOPIC": topic}
        first = load_config(EXAMPLES / "maxwell_to_lake.toml", environment=environment)
        back = KafkaSinkConfig(bootstrap_servers=kafka.bootstrap_servers, topic=f"{topic}.back", format=MAXWELL)
        Pipeline(name="back", state=tmp_path / "back", source=first.source, sink=back).run(
            until="caught-up", local=True
        )
        again = first.source.model_copy(update={"topics": (f"{topic}.back",)})
        rows: Rows = {}
        for epoch in Pipeline(name="again", state=tmp_path / "again", source=again).epochs(until="caught-up"):
            for table in epoch.tables:
                for batch in epoch.batches(table):
                    for row in batch.select(["id", "name", "description", "weight", "_op"]).to_pylist():
                        if row.pop("_op") in ("+I", "+U"):
                            rows[row["id"]] = row
                        else:
                            del rows[row["id"]]
            epoch.ack()
        there = contents(mysql80, database)
        expected = {k: {**row, "weight": float(np.float32(row["weight"]))} for k, row in there.items()}
        assert rows == expected


def example() -> Any:
    """The script beside the configuration."""
    specification = importlib.util.spec_from_file_location("maxwell_weights", EXAMPLES / "maxwell_weights.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
