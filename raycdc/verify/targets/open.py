"""Opens the reader of a target by the sink's section of the configuration."""

from __future__ import annotations

from typing import Any

from raycdc.config import PipelineConfig
from raycdc.model import TableId, TableSchema
from raycdc.verify.targets.api import NotComparedError, TargetTable

#: Sinks whose targets can be read.
READABLE = ("delta", "iceberg", "jdbc", "mongodb", "parquet")


def open_target(config: PipelineConfig, target: TableId, schema: TableSchema) -> TargetTable:
    """Return the reader of the target, whose rows have `schema`; opens no connection.

    Raises `NotComparedError` for a sink without a reader.
    """
    # Each sink's section has its own class, which only its plug-in knows.
    section: Any = config.sink
    settings = config.storage.settings()
    match section.type:
        case "delta":
            from raycdc.verify.targets.delta import DeltaRows

            return DeltaRows(section.path, target, settings)
        case "iceberg":
            from raycdc.verify.targets.iceberg import IcebergRows, Warehouse

            options = section.catalog_options()
            given = (options.uri.reveal(), options.properties, settings)
            return IcebergRows(Warehouse(options.type, options.name, options.warehouse, *given), target)
        case "parquet":
            from raycdc.verify.targets.parquet import ParquetRows

            return ParquetRows(section.path, target)
        case "mongodb":
            from raycdc.verify.targets.mongodb import MongoDbRows

            return MongoDbRows(section.uri, target, schema)
        case "jdbc":
            return _database_rows(section.address(), target)
        case other:
            raise NotComparedError(
                f"targets of the sink {other} cannot be read back; verify knows {', '.join(READABLE)}"
            )


def _database_rows(address: Any, target: TableId) -> TargetTable:
    """Return the reader of a table in a database. `address` is a `raycdc.sinks.jdbc.plugin.Address`."""
    if address.kind == "postgresql":
        from raycdc.verify.targets.postgres import Login, PostgresRows

        login = (address.host, address.port, address.database, address.user, address.password)
        return PostgresRows(Login(*login, address.tls_mode, address.tls_ca), target)
    from raycdc.clients.mysql import MySqlSettings
    from raycdc.verify.targets.mysql import MySqlRows

    account = (address.host, address.port, address.user, address.password)
    safety = (address.tls_mode, address.tls_ca, address.allow_public_key_retrieval)
    return MySqlRows(MySqlSettings(*account, *safety), target)
