"""Changes of one key in several partitions, ordered by a column: what goes on, and what has no order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.emitter import new_images
from raycdc.errors import ConfigError, DataError
from raycdc.formats.decoding.sql_types import parse_columns
from raycdc.model import RowKind, TableId, TableSchema, changelog_schema
from raycdc.pipeline import Pipeline
from raycdc.sinks.delta.plugin import DeltaSinkConfig

TABLE = TableId("shop", "product")
INSERT, BEFORE, AFTER, DELETE, _ = RowKind
Row = tuple[RowKind, int, int | None]


def schema(kind: str = "BIGINT") -> TableSchema:
    return parse_columns(f"id BIGINT, version {kind}, PRIMARY KEY (id)", key_path="columns")


def passed(*rows: Row, order_by: str = "version", of: TableSchema | None = None) -> list[Row]:
    """Op, id and version of the rows that go on."""
    described = of or schema()
    arrow = changelog_schema(described)
    values: list[dict[str, Any]] = [{"id": key, "version": by, "_op": int(op), "_seq": 0} for op, key, by in rows]
    batch = pa.RecordBatch.from_pylist(values, schema=arrow)
    found = new_images(TABLE, batch, described, order_by=order_by, split_id="m:1")
    return [(RowKind(row["_op"]), row["id"], row["version"]) for row in found.to_pylist()]


def test_only_new_images_go_on() -> None:
    assert passed((INSERT, 1, 1), (BEFORE, 1, 1), (AFTER, 1, 2)) == [(INSERT, 1, 1), (AFTER, 1, 2)]


@pytest.mark.parametrize(
    "rows",
    [
        [(INSERT, 1, 1), (DELETE, 1, 1)],
        [(BEFORE, 1, 1), (AFTER, 2, 2)],
        [(BEFORE, 1, 1)],
        [(BEFORE, 1, 1), (BEFORE, 2, 1), (AFTER, 1, 2), (AFTER, 2, 2)],
    ],
)
def test_what_leaves_nothing_to_compare_with_is_refused(rows: list[Row]) -> None:
    with pytest.raises(DataError, match=r"shop.product: partition m:1 deletes a row or changes its key"):
        passed(*rows)


def test_a_row_without_the_value_and_a_table_without_the_column_are_refused() -> None:
    with pytest.raises(DataError, match="has no value in 'version'"):
        passed((INSERT, 1, None))
    with pytest.raises(DataError, match=r"has no column 'updated'.*source.format.metadata"):
        passed((INSERT, 1, 1), order_by="updated")


def test_a_column_whose_order_is_not_sure_is_refused() -> None:
    with pytest.raises(DataError, match="'version' is float64"):
        passed(of=schema("DOUBLE"))
    with pytest.raises(DataError, match="'version' is string"):
        passed(of=schema("STRING"))


def test_a_target_that_keeps_every_change_cannot_be_ordered() -> None:
    source = KafkaSourceConfig(
        bootstrap_servers="k:1", topics=("m",), format={"type": "maxwell-json"}, order_by="version"
    )
    with pytest.raises(ConfigError, match=r"source.order_by: delta with write = \"changelog\" cannot keep"):
        Pipeline(name="k", source=source, sink=DeltaSinkConfig(type="delta", path="lake", write="changelog"))
    with pytest.raises(ConfigError, match="a sink of one's own"):
        next(Pipeline(name="k", source=source).epochs())
