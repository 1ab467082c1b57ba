"""The configuration as it concerns single tables: how one is cut into chunks, and the part of it that is captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.snapshot.chunk_keys import chunk_key
from raycdc.connectors.mysql.snapshot.chunks import ChunkSettings, Strategy
from raycdc.connectors.mysql.snapshot.row_filter import parse_filter
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlTable, TypeOptions
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.source.table_options import not_captured


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of ``[source]`` by table."""

    config: MySqlSourceConfig

    @property
    def types(self) -> TypeOptions:
        """How values are read where there is a choice."""
        return self.config.types.options()

    @property
    def accept_cascades(self) -> bool:
        """Whether a table is followed although rows of it may change without being logged."""
        return self.config.on_cascade == "accept"

    def named_key(self, table: TableId) -> str | None:
        """The chunk key that the configuration names."""
        return self.config.snapshot.key.get(str(table))

    def chunks(self, table: TableId) -> ChunkSettings:
        snapshot = self.config.snapshot
        strategy = Strategy(snapshot.strategy)
        return ChunkSettings(strategy, snapshot.chunk_rows, snapshot.chunk_bytes or None, self.named_key(table))

    def capture(self, table: TableId) -> Capture:
        listed = self.config.columns.get(str(table))
        return Capture(self.config.snapshot.filter.get(str(table)), None if listed is None else tuple(listed))

    def captures(self) -> dict[TableId, Capture]:
        """The tables that are captured in part."""
        named = {**self.config.snapshot.filter, **self.config.columns}
        return {table: self.capture(table) for table in map(TableId.parse, named)}

    def require_fitting(self, tables: Mapping[TableId, MySqlTable]) -> None:
        """Raises `ConfigError` for an option of a table that is none of `tables`, and for one its columns forbid."""
        snapshot = self.config.snapshot
        for name, key in snapshot.key.items():
            chunk_key(_captured(tables, "snapshot.key", name), key)
        for name, condition in snapshot.filter.items():
            parse_filter(_captured(tables, "snapshot.filter", name), condition)
        for name, listed in self.config.columns.items():
            described = _captured(tables, "columns", name)
            for column in listed:
                if column not in {c.name for c in described.columns}:
                    raise ConfigError(f"source.columns: {name} has no column {column!r}.")
            named = snapshot.key.get(name)
            missing = {*described.primary_key, *([named] if named else ())} - set(listed)
            if missing:
                raise ConfigError(
                    f"source.columns: {name} needs {', '.join(sorted(missing))}, too: rows are told apart by it."
                )


def _captured(tables: Mapping[TableId, MySqlTable], option: str, name: str) -> MySqlTable:
    described = tables.get(TableId.parse(name))
    if described is None:
        raise ConfigError(f"source.{option}: {name} {not_captured('table')}.")
    return described
