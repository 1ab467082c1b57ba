"""Spark is never asked to write to a Delta table in an object store, where its commits may overwrite each other."""

from __future__ import annotations

import pytest

from raycdc.errors import ColumnsRefusedError, TargetModifiedError
from raycdc.model import TableId
from raycdc.sinks.delta import spark_merge
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.storage.files import Access, any_path
from raycdc.storage.settings import StorageSettings

TARGET = DeltaTarget(
    any_path("s3://lake/shop/orders", Access(StorageSettings())), TableId("shop", "orders"), "raycdc:test:1"
)


@pytest.mark.parametrize("spark", [None, object()])
def test_files_are_not_made_larger_by_spark(spark: object) -> None:
    with pytest.raises(TargetModifiedError, match="does not write to an object store"):
        spark_merge.optimize(spark, TARGET, (), target_bytes=1)


@pytest.mark.parametrize("spark", [object()])
def test_properties_are_not_set_by_spark(spark: object) -> None:
    with pytest.raises(ColumnsRefusedError, match="does not write to an object store"):
        spark_merge.set_options(spark, TARGET, {"delta.any": "1"})
