"""The data source in the form that Spark requires: its name, its columns and its two readers.

It is registered here, too. Spark creates the data source again in its own processes, so the object has only its
options.
"""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from raycdc.datasource.bounded import RaycdcReader, new_folder, remove_folders_of
from raycdc.datasource.options import ReadOptions
from raycdc.datasource.rows import changelog_ddl, discover_schema, known_schema, widened
from raycdc.datasource.stream import RaycdcStreamReader
from raycdc.errors import ConfigError
from raycdc.model import TableId, TableSchema
from raycdc.model.table import quoted
from raycdc.state.location import state_of
from raycdc.state.store import CheckpointStore


class RaycdcDataSource(DataSource):
    """The data source ``format("raycdc")``; the options are those of `raycdc.datasource.options`."""

    #: The result of `schema`, which is pickled with the object; None if the user gives the columns.
    _found: TableSchema | None = None

    @classmethod
    def name(cls) -> str:
        return "raycdc"

    def schema(self) -> str:
        """Return the columns as Spark SQL: the present columns of the table, and the columns of rows that a stream has
        not delivered yet.

        Runs the source for some seconds. Not called if the user gives the columns.
        """
        options = ReadOptions.of(self.options)
        schema = _schema_of(options)
        self._found = schema
        return changelog_ddl(schema) if options.metadata else schema.spark_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        return RaycdcReader(ReadOptions.of(self.options), _types(schema), self._found)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = ReadOptions.of(self.options)
        if not options.metadata or options.changelog:
            raise ConfigError("options metadata and changelog are for bounded reads; a stream is always a changelog.")
        return RaycdcStreamReader(options, _types(schema), self._found)


def register(spark: Any) -> None:
    """Register ``format("raycdc")`` in a session.

    Files that its bounded reads leave on disk are deleted when this process ends.
    """
    spark.dataSource.register(RaycdcDataSource)
    pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    atexit.register(remove_folders_of, pid)


def create_views(spark: Any, config: str | Path, tables: Sequence[str], **options: str) -> None:
    """Create a temporary view of each table, with the table's name.

    Its rows are those at the first query of the view. Raises `ConfigError` if two tables in different databases have
    the same name.
    """
    named: dict[str, str] = {}
    for table in tables:
        # Spark's names of views ignore case.
        if (other := named.setdefault(TableId.parse(table).table.lower(), table)) != table:
            raise ConfigError(f"{other} and {table} cannot both have a view: both would be called alike.")
    register(spark)
    for table in tables:
        given = {"config": str(config), "metadata": "false", **options, "table": table}
        rows = spark.read.format(RaycdcDataSource.name()).options(**given).load()
        rows.createOrReplaceTempView(quoted(TableId.parse(table).table))


def _schema_of(options: ReadOptions) -> TableSchema:
    folder = new_folder()
    try:
        found = discover_schema(options, folder / "state")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    stream = state_of(options.pipeline().config)
    if not options.metadata or stream.open().read("meta.json") is None:
        return found
    return widened(options.table, known_schema(CheckpointStore(stream, create=False), options.table), found)


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}
