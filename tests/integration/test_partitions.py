"""A large table's changes in hash partitions, through a whole pipeline: a task for each, and the lake equal as ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.config import load_config
from raycdc.pipeline import Pipeline
from raycdc.runtime.reader import output
from raycdc.runtime.reader.output import EpochOutput
from raycdc.sandbox.compare import read_delta, read_source
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.shop import ShopSize, create_shop
from raycdc.state.manifests.manifest import Segment
from tests.support.jobs import Job

pytestmark = pytest.mark.server


def test_an_upsert_target_is_right_when_a_tables_changes_are_in_partitions(
    mariadb: MariaDbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    cut = EpochOutput.cut

    def watched(self: EpochOutput, epoch: int) -> tuple[Segment, ...]:
        segments = cut(self, epoch)
        seen.extend((segment.kind, segment.partition) for segment in segments)
        return segments

    monkeypatch.setattr(EpochOutput, "cut", watched)
    monkeypatch.setattr(output, "partitions_for", lambda _volume: 4)
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", mariadb.cdc_user)
    database = "partitioned"
    with mariadb.connect() as connection:
        create_shop(connection, database, ShopSize(customers=50, products=30, orders=3_000))
        job = Job(tmp_path, mariadb, database, ("orders",), local=True, chunk_rows=1_000)
        pipeline = Pipeline.from_config(load_config(job.configuration()))
        pipeline.run(until="caught-up", local=True)
        for statement in (
            "UPDATE orders SET quantity = quantity + 1",
            "UPDATE orders SET quantity = quantity * 2 WHERE id % 2 = 0",
            "UPDATE orders SET id = id + 100000 WHERE id % 5 = 0",
            "DELETE FROM orders WHERE id % 7 = 0",
        ):
            mariadb.execute(statement, database=database)
        pipeline.run(until="caught-up", local=True)
        lake = read_delta(job.lake / database / "orders")
        source = read_source(connection, database, "orders", like=lake.schema)
        assert lake.select(source.column_names).sort_by("id") == source.sort_by("id")
        mariadb.execute("TRUNCATE TABLE orders", database=database)
        pipeline.run(until="caught-up", local=True)
        assert read_delta(job.lake / database / "orders").num_rows == 0
    assert {partition for kind, partition in seen if kind == "snapshot"} == {0}
    assert {partition for kind, partition in seen if kind == "log"} == {0, 1, 2, 3}
