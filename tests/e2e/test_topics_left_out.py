"""A table from topics whose target refuses: it is parked, and there is a way on for the others and for itself."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import KafkaServer
from tests.support.jobs import TopicJob, catch_up

pytestmark = pytest.mark.server


def feed(broker: KafkaServer, topic: str, rows: Mapping[str, int]) -> None:
    """One row with that key for each table."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for table, key in rows.items():
        head = {"database": "shop", "table": table, "type": "insert", "ts": 1_700_000_000 + key}
        producer.produce(topic, json.dumps({**head, "data": {"id": key, "v": key}}).encode(), partition=0)
    assert producer.flush(20) == 0


def keys(job: TopicJob, table: str, *, lake: str = "lake") -> list[int]:
    return sorted(row["id"] for row in read_delta(job.folder / lake / "shop" / table).to_pylist())


def test_a_parked_table_that_is_left_out_owes_nothing_and_another_pipeline_reads_on(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    broker: Any = kafka
    with kafka.fresh_topic(partitions=1) as topic:
        job = TopicJob(tmp_path, broker, "shop", (), local=True, readers=1)
        job.topic, job.columns = topic, "id BIGINT, v BIGINT, PRIMARY KEY (id)"
        feed(kafka, topic, {"healthy": 1, "touched": 1})
        catch_up(job)
        write_deltalake(job.lake / "shop" / "touched", pa.table({"x": [1]}), mode="overwrite", schema_mode="overwrite")
        said = ""
        for number in (2, 3):
            feed(kafka, topic, {"healthy": number, "touched": number})
            run = job.run()
            assert run.wait() == 4, run.story()
            said = run.story()
            assert keys(job, "healthy") == list(range(1, number + 1))
        assert "leave it out (source.format.exclude)" in said
        (begin,) = set(re.findall(r"source\.startup = (\{ mode = .*?\} \})", said.replace('\\"', '"')))
        # As the message says: without it, whatever becomes of its target.
        job.format = "exclude = ['shop\\.touched']"
        catch_up(job)
        moved = tmp_path / "moved"
        shutil.move(job.lake / "shop" / "touched", moved)
        feed(kafka, topic, {"healthy": 4, "touched": 4})
        catch_up(job)
        assert keys(job, "healthy") == [1, 2, 3, 4]
        # And a pipeline of its own reads what this one left, behind what its target had.
        (tmp_path / "own").mkdir()
        own = TopicJob(tmp_path / "own", broker, "shop", (), local=True, readers=1, topic=topic, columns=job.columns)
        own.pipeline = 'on_existing = "merge"'
        own.format = "include = ['shop\\.touched']"
        own.source = f"startup = {begin}"
        catch_up(own)
        assert sorted(row["id"] for row in read_delta(own.lake / "shop" / "touched").to_pylist()) == [2, 3, 4]
        # Selected again it is parked as it was.
        job.format = ""
        run = job.run()
        assert run.wait() == 4, run.story()
