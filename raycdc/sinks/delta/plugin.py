"""The section ``[sink] type = "delta"`` of the configuration. The sink itself is imported on use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from raycdc.config import Duration, FolderOrUrl, PipelineOptions, SinkConfig, option
from raycdc.model import TableSchema
from raycdc.model.rules.layout import TableLayout
from raycdc.model.rules.names import NAMES, NameRules, misread
from raycdc.plugins import Plugin
from raycdc.sinks.lakes.lake_options import OptimizeOptions
from raycdc.storage.url import is_url

NO_SPARK_ORDER = "sink.optimize.z_order: Spark puts rows in order, and --local runs without it."
NO_SPARK_AT_STORES = (
    "{}: Spark does that, and Delta's Spark writes to an object store in a way in which two writers overwrite each "
    "other's commit. Leave it out."
)
#: The shortest retention, because readers that began earlier may still read files that a vacuum deletes.
VACUUM_MIN = timedelta(hours=1)


class DeltaOptimizeOptions(OptimizeOptions):
    """``optimize = { … }`` of Delta tables."""

    z_order: tuple[str, ...] = option(
        (),
        help="Columns (whole numbers, dates) by which Spark clusters rows, which copies the table each time.",
    )
    vacuum: Duration | None = option(
        None,
        help="Delete files that were taken out of the table so long ago. Without it nothing is deleted.",
        example="7d",
    )

    @field_validator("vacuum")
    @classmethod
    def _leaves_time(cls, retention: timedelta | None) -> timedelta | None:
        if retention is not None and retention < VACUUM_MIN:
            raise ValueError("readers need an hour at least")
        return retention


class DeltaSinkConfig(SinkConfig):
    """``[sink] type = "delta"``: one Delta table per source table in ``PATH/DB/TABLE``."""

    type: Literal["delta"] = option("delta", help="Delta Lake tables.")
    path: FolderOrUrl = option(
        help="Folder of the lake, or its URL in an object store: s3://, gs://, az:// or abfss:// (see [storage]).",
        example="./lake",
        min_length=1,
    )
    optimize: DeltaOptimizeOptions | None = option(
        None, help="Upkeep on a schedule. Without it there is none.", example={"every": "1h", "target_file": "128MiB"}
    )

    @property
    def folder(self) -> str:
        return "" if is_url(self.path) else self.path

    @property
    def store(self) -> str:
        return self.path if is_url(self.path) else ""

    @property
    def names(self) -> NameRules:
        rules = NAMES[self.type]
        if not self.store:
            return rules
        # The path of a URL ends before these characters.
        return replace(rules, database=f"{rules.database}?#", table=f"{rules.table}?#")

    def problems(self, pipeline: PipelineOptions, *, local: bool) -> Iterator[str]:
        if self.store and self.optimize is not None and self.optimize.z_order:
            yield NO_SPARK_AT_STORES.format("sink.optimize.z_order")
        elif local and self.optimize is not None and self.optimize.z_order:
            yield NO_SPARK_ORDER
        if self.folder and (invalid := misread(str(Path(self.folder).absolute()))):
            yield (
                f"sink.path: Delta's library reads {invalid!r} in {Path(self.folder).absolute()} as something else, so "
                "it would look for the tables' logs in another folder. Use a path without it."
            )

    def no_layout(self, layout: TableLayout, schema: TableSchema) -> str:
        from raycdc.sinks.delta.layout import BY_SPARK, no_layout

        if self.store and (by_spark := BY_SPARK & dict(layout.options).keys()):
            return NO_SPARK_AT_STORES.format(f"table_options: {', '.join(sorted(by_spark))}")
        return no_layout(layout, schema)


DELTA = Plugin("delta", "Delta Lake, upsert or changelog", DeltaSinkConfig, "raycdc.sinks.delta.sink:DeltaSink")
