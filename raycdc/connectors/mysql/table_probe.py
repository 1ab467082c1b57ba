"""Probes a table: its present schema, a position at which this schema is valid, and the start of its snapshot.

A table is probed before it is resnapshotted while other tables stream (`raycdc.source.tables.resnapshots`). The probe
runs in the log's fetcher thread.

`TableOptions` is the configuration of single tables: how one is cut into chunks, and its captured part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import is_of_locked_table
from raycdc.connectors.mysql.binlog.positions.position import ordinal_of
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.server.catalog import below_merged, is_sequence, load_tables
from raycdc.connectors.mysql.server.checks import unfit, unreadable
from raycdc.connectors.mysql.server.client import current_end, probe
from raycdc.connectors.mysql.server.locks import PLANNING_WAIT_S, connect_briefly, locked_error
from raycdc.connectors.mysql.server.unlogged import refusal_of, unlogged
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import KeyColumns, best_key, chunk_key
from raycdc.connectors.mysql.snapshot.planning.chunks import ChunkSettings, MySqlChunkStrategy
from raycdc.connectors.mysql.snapshot.row_filter import uncapturable
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlTable, TypeOptions
from raycdc.errors import ConfigError, SourceUnavailableError, TableLockedError
from raycdc.model import TableId
from raycdc.source.startup import not_captured
from raycdc.source.tables.resnapshots import FollowableTable, UnfollowableTable
from raycdc.source.tables.table_life import SnapshotState
from raycdc.transform.target_rules import TargetRules


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of ``[source]`` by table."""

    config: MySqlSourceConfig

    @property
    def types(self) -> TypeOptions:
        """Return the options of reading values."""
        return self.config.types.options()

    @property
    def accept_cascades(self) -> bool:
        """Return True if a table is followed although rows of it may change without being logged."""
        return self.config.on_cascade == "accept"

    def named_key(self, table: TableId) -> str | None:
        """Return the configured chunk key."""
        return self.config.snapshot.key.get(str(table))

    def chunks(self, table: TableId) -> ChunkSettings:
        snapshot = self.config.snapshot
        strategy = MySqlChunkStrategy(snapshot.strategy)
        return ChunkSettings(strategy, snapshot.chunk_rows, snapshot.chunk_bytes or None, self.named_key(table))

    def capture(self, table: TableId) -> Capture:
        listed = self.config.columns.get(str(table))
        return Capture(self.config.snapshot.filter.get(str(table)), None if listed is None else tuple(listed))

    def captures(self) -> dict[TableId, Capture]:
        """Return the captured parts of tables that are not captured completely."""
        named = {**self.config.snapshot.filter, **self.config.columns}
        return {table: self.capture(table) for table in map(TableId.parse, named)}

    def require_fitting(self, tables: Mapping[TableId, MySqlTable], known: Collection[str] = ()) -> None:
        """Raise `ConfigError` for an option of a table that is not in `tables`, or that its columns forbid.

        A table that is `known` to the state is not judged by its present columns: if it has changed, the log reader
        parks it alone, and a probe judges it before a resnapshot. Only a list in ``source.columns`` that lacks a
        key column is an error for known tables, too.
        """
        snapshot = self.config.snapshot
        for name, key in snapshot.key.items():
            if name not in known:
                chunk_key(_captured(tables, "snapshot.key", name), key)
        for name in snapshot.filter:
            if name not in known and (why := self._uncapturable(_captured(tables, "snapshot.filter", name))):
                raise ConfigError(why)
        for name, listed in self.config.columns.items():
            if name in known and TableId.parse(name) not in tables:
                continue
            described = _captured(tables, "columns", name)
            if name not in known and (why := self._uncapturable(described)):
                raise ConfigError(why)
            named = snapshot.key.get(name)
            missing = {*described.primary_key, *([named] if named else ())} - set(listed)
            if missing:
                raise ConfigError(
                    f"source.columns: {name} needs {', '.join(sorted(missing))}, too: rows are told apart by it."
                )

    def _uncapturable(self, described: MySqlTable) -> str:
        treated = self.types.treat_table(described)
        return uncapturable(treated, self.capture(described.id))


def _captured(tables: Mapping[TableId, MySqlTable], option: str, name: str) -> MySqlTable:
    described = tables.get(TableId.parse(name))
    if described is None:
        raise ConfigError(f"source.{option}: {name} {not_captured('table')}.")
    return described


#: The number of probes of a table while it keeps changing its schema.
_TRIES = 10


def probe_table(
    connect: Callable[[], Connection[Any]], table: TableId, options: TableOptions, rules: TargetRules
) -> FollowableTable[MySqlTable] | UnfollowableTable | None:
    """Return the table's schema and a position at which the schema is valid; None if the table does not exist.

    The schema is read before and after the position, and must be the same. `rules` has what targets can hold. Raises
    `TableLockedError` if even its columns cannot be queried, or change all the time.
    """
    with closing(connect_briefly(connect, seconds=PLANNING_WAIT_S)) as connection:
        try:
            return _probed(connection, table, options, rules)
        except SourceUnavailableError as cause:
            if not is_of_locked_table(cause.__cause__):
                raise
            raise locked_error(table) from cause


def _probed(
    connection: Connection[Any], table: TableId, options: TableOptions, rules: TargetRules
) -> FollowableTable[MySqlTable] | UnfollowableTable | None:
    info = probe(connection)
    for _ in range(_TRIES):
        before = load_tables(connection, [table]).get(table)
        position = current_end(connection, info)
        after = load_tables(connection, [table]).get(table)
        if before != after:
            continue
        if after is None or is_sequence(connection, table):
            return None
        treated = options.types.treat_table(after)
        captured = options.capture(table).narrowed(treated)
        why = (
            unfit(after)
            or uncapturable(treated, options.capture(table))
            or below_merged(connection, {table: after}).get(table, "")
            or rules.refusal(table, captured.schema())
            or unreadable(connection, table)
        )
        why = why or unlogged(connection, info, [table]).get(table, "")
        if not why and not options.accept_cascades:
            why = refusal_of(connection, info, table)
        if why:
            return UnfollowableTable(why, ordinal_of(position))
        try:
            state = unread(connection, treated, options.chunks(table))
        except ConfigError as cause:
            return UnfollowableTable(str(cause), ordinal_of(position))
        return FollowableTable(treated, ordinal_of(position), state)
    # The source probes this table again later, like a locked one, and reads the others meanwhile.
    raise TableLockedError(
        f"{table} on {info.address} changed its schema at each probe. It is read when it stays the same."
    )


def unread(connection: Connection[Any], table: MySqlTable, chosen: ChunkSettings) -> SnapshotState:
    """Return the state of the table's snapshot before its first chunk."""
    several = chosen.strategy is not MySqlChunkStrategy.EVEN
    key = best_key(connection, table, chosen.key, chunk_rows=chosen.chunk_rows, several=several)
    needs_null = key is None or KeyColumns.named(table, key).has_null_chunk
    return SnapshotState(key, foldable=bool(table.primary_key), needs_null=needs_null)
