"""Opens the log of a stream split: connects the log connection, decoder, schema history and filters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from pymysql.connections import Connection

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.positions.file_offsets import PositionFinder
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import dialect_of
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm
from raycdc.connectors.mysql.binlog.whole_transactions import WholeLog
from raycdc.connectors.mysql.ddl.follow.followed_tables import SnapshotChunkKeys
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.connectors.mysql.ddl.follow.indirect import IndirectChanges
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer, ServerResolver
from raycdc.connectors.mysql.log.log_filter import KeptRows, LogFilter, without_values_in_errors
from raycdc.connectors.mysql.log.log_reader import READ_BYTES_MAX, MySqlLogReader
from raycdc.connectors.mysql.log.prepared_search import PreparedSearch
from raycdc.connectors.mysql.server.catalog import (
    collation_numbers,
    database_charsets,
    is_in_memory,
    is_sequence,
    was_there,
)
from raycdc.connectors.mysql.server.client import probe
from raycdc.connectors.mysql.server.connections import Connections
from raycdc.connectors.mysql.server.unlogged import engines_of, logs_cascades, unlogged
from raycdc.connectors.mysql.table_probe import TableOptions, probe_table
from raycdc.connectors.mysql.values.documents import table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.source.connector import SourceContext
from raycdc.source.snapshot.key_intervals import ChunkKey, key_names
from raycdc.source.split import StreamSplit
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.source.tables.resnapshots import FollowableTable, UnfollowableTable
from raycdc.source.tables.table_life import AsOf, InSnapshot


@dataclass(frozen=True, slots=True)
class LogOpening:
    """The opening of the log of `split`.

    `snapshots_over` has the present number of finished snapshots of each table.
    """

    split: StreamSplit
    connections: Connections
    options: TableOptions
    context: SourceContext
    snapshots_over: Mapping[TableId, int]

    @property
    def start(self) -> BinlogOffset:
        return BinlogOffset.of(self.split.state.position)

    def reader(self) -> MySqlLogReader:
        """Connect, and read the log from the split's position. Blocks; raises `LogLostError`."""
        unlogged_tables = self._unlogged_tables()
        tables = tables_of(self.split)
        masking = self.context.masking
        history = self._history(tables)
        decoder = BinlogDecoder(
            MapSchemas(tables),
            wanted=partial(history.captures, has_rows=True),
            start=self.start,
            log=self.connections.server().log_kind,
            form=BatchForm(with_pos=True),
            on_ddl=without_values_in_errors(history.on_ddl, masking),
        )
        decoder.mismatches.listener = history.on_schema_mismatch
        decoder.xa.keeps = history.selects
        decoder.xa.find_prepared = search = PreparedSearch(self._connect, self.connections.server())
        decoder.files.find_position = PositionFinder(self._connect)
        decoder.files.on_file = history.temporary.begin_file
        history.attach(decoder)
        history.park_unlogged(unlogged_tables, self.start)
        row_filter = LogFilter(self.connections.connect, self.options.captures(), history.table)
        decoder.xa.keeper = KeptRows(masking, partial(self._cut_by, chunk_keys_of(self.split)), row_filter)
        reader = MySqlLogReader(
            log=WholeLog(
                self.connections.follow_catch_up if self.split.is_catch_up else self.connections.follow,
                self.start,
                decoder.cursor,
                bytes_max=self.options.config.rate_limit.bytes_at_once(READ_BYTES_MAX),
            ),
            history=history,
            decoder=decoder,
            start=self.start,
            row_filter=row_filter,
            masking=masking,
        )
        search.is_stopped = lambda: reader.is_woken
        return reader

    def _history(self, tables: Mapping[TableId, MySqlTable]) -> DdlHistory:
        selector = self.options.config.selector()
        # A table that was left out is not followed, even if another one takes its name.
        parked = {table: state for table, state in self.split.state.parked.items() if selector.matches(table)}
        return DdlHistory(
            tables,
            selector=selector,
            server=self._server(),
            terms=ParkingSetup(parked, self._probe, self.context.rules),
            state=HistoryState.from_json(self.split.state.notes.to_json()),
            snapshots=SnapshotChunkKeys(snapshots_of(self.split), self.snapshots_over),
            captured=self.options.captures(),
        )

    def _server(self) -> LogServer:
        info = self.connections.server()
        with closing(self.connections.connect()) as connection:
            databases, collations = database_charsets(connection), collation_numbers(connection)
        return LogServer(
            dialect_of(info, self.options.types),
            (info.variables.get("character_set_server", "utf8mb4"), info.variables.get("collation_server", "")),
            databases=databases,
            collations=collations,
            cascades=self.options.accept_cascades or logs_cascades(info),
            resolve=ServerResolver(self._connect, info, self.connections.open_log),
            led_to=IndirectChanges(self._connect),
            is_sequence=self._is_sequence,
            unlogged=self._unlogged,
            is_in_memory=self._is_in_memory,
            was_there=self._was_there,
            repairs=self._repairs,
        )

    def _connect(self) -> Connection[Any]:
        """Connect to the server whose log is read; no other server is accepted."""
        return self.connections.connect_to(self.start)

    def _probe(self, table: TableId) -> FollowableTable[MySqlTable] | UnfollowableTable | None:
        return probe_table(self._connect, table, self.options, self.context.rules)

    def _is_sequence(self, table: TableId) -> bool:
        with closing(self._connect()) as connection:
            return is_sequence(connection, table)

    def _unlogged(self, table: TableId) -> str:
        with closing(self._connect()) as connection:
            return unlogged(connection, self.connections.server(), [table]).get(table, "")

    def _unlogged_tables(self) -> dict[TableId, str]:
        """Return the followed tables that the server does not log, each with the reason.

        A restarted server may have new log filters. When a run starts, `MySqlSource.unfollowable` parks the tables;
        this function is for a run that continues.
        """
        followed = [table for table in self.split.state.followed if self.options.config.captures(table)]
        with closing(self._connect()) as connection:
            return unlogged(connection, probe(connection), followed)

    def _is_in_memory(self, table: TableId) -> bool:
        with closing(self._connect()) as connection:
            return is_in_memory(connection, table)

    def _repairs(self, table: TableId) -> bool:
        with closing(self._connect()) as connection:
            # InnoDB repairs tables by itself, so REPAIR TABLE changes nothing.
            return engines_of(connection, [table]).get(table, "").lower() != "innodb"

    def _was_there(self, table: TableId, ts_ms: int) -> bool:
        with closing(self._connect()) as connection:
            return was_there(connection, table, ts_ms)

    def _cut_by(self, begun: Mapping[TableId, ChunkKey], table: TableId) -> tuple[str, ...]:
        """Return the columns outside of the primary key that may be the table's chunk key."""
        named = self.options.named_key(table)
        return (*key_names(begun.get(table)), *([named] if named else ()))


def tables_of(split: StreamSplit) -> dict[TableId, MySqlTable]:
    """Return the tables in the split's state, in the schema version in force at its position."""
    return {table: table_of(split.schemas[state.schema]) for table, state in split.state.followed.items()}


def snapshots_of(split: StreamSplit) -> dict[TableId, ChunkKey | None]:
    """Return the chunk keys of tables in their snapshot; None for a table that is a single chunk."""
    return {t: s.snapshot.key for t, s in split.state.followed.items() if isinstance(s, InSnapshot | AsOf)}


def chunk_keys_of(split: StreamSplit) -> dict[TableId, ChunkKey]:
    """Return the chunk keys of tables in their snapshot, without tables that are a single chunk."""
    return {table: key for table, key in snapshots_of(split).items() if key is not None}
