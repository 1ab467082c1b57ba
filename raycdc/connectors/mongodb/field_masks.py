"""Masks of collections' fields, and the columns in which the same fields would be readable.

A mask applies to a column. A field is also in `REST`, if its value fits no column or the column came later, and in
`WHOLE`, so it is masked only if that column is masked, too. A field of a shard key is in the key of each event, and so
in the change stream's tokens, which are the state's positions, and in bounds of chunks: it cannot be masked at all.
"""

from __future__ import annotations

from collections.abc import Collection

from raycdc.connectors.mongodb.layout import ID, REST, WHOLE, OnTypeMismatch
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig, SchemaMode
from raycdc.connectors.mongodb.server.catalog import layout_of, sharded
from raycdc.connectors.mongodb.server.client import Client, errors, probe
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.model.rules.mask import Masks


def require_masked(client: Client, config: MongoDbSourceConfig, tables: Collection[TableId], masks: Masks) -> None:
    """Raise `ConfigError` if a masked field could be read in another column. Queries samples."""
    for table in tables if masks else ():
        if shown := [name for name in _shard_key(client, table) if masks.of(table, name) is not None]:
            raise ConfigError(
                f"mask: {', '.join(shown)} of {table} belongs to the shard key, which the server puts into the change "
                "stream's positions: the state would have its values. Name the other fields in mask.columns, or leave "
                "the collection out (source.exclude)."
            )
        everything = _with_all_fields(config, table)
        if everything is None or masks.of(table, everything) is not None:
            continue
        fields = {plain[1] for mask in masks.all if (plain := mask.plain) is not None and plain[0] == table}
        fields |= {name for name in _shown(client, config, table) if masks.of(table, name) is not None}
        masked = sorted(fields - {ID, everything})
        if masked:
            raise ConfigError(
                f"mask: {', '.join(masked[:5])} of {table} would be hidden as a column alone, and stand in the clear "
                f"in the column {everything}. Mask {table}.{everything}, too, or declare the collection's columns "
                "(source.columns), whose other fields are left out."
            )


def _with_all_fields(config: MongoDbSourceConfig, table: TableId) -> str | None:
    """Return the column that may hold any field of a document, if there is one."""
    if config.schema_.mode is SchemaMode.DOCUMENT:
        return WHOLE
    return REST if config.infers(table) or config.on_type_mismatch is OnTypeMismatch.REST else None


def _shard_key(client: Client, table: TableId) -> list[str]:
    """Return the top-level fields of the shard key.

    Raises `SourceError` if a cluster does not permit reading it.
    """
    try:
        with errors(client, f"reading config.collections for {table}, which masks are about"):
            collection = sharded(client, table)
    except SourceUnavailableError:
        raise
    except SourceError:
        # Without a router there are no shards, and the account need not have this privilege.
        if probe(client).is_mongos:
            raise
        return []
    names = [] if collection is None else [name.partition(".")[0] for name in collection.key.names]
    return [name for name in dict.fromkeys(names) if name != ID]


def _shown(client: Client, config: MongoDbSourceConfig, table: TableId) -> list[str]:
    """Return the fields of sampled documents, and the configured ones."""
    inferring = config.schema_.model_copy(update={"mode": SchemaMode.INFERRED})
    sampled = layout_of(client, config.model_copy(update={"schema_": inferring, "columns": {}}), table, "")
    return [*(column.name for column in sampled.fields), *config.columns.get(str(table), ())]
