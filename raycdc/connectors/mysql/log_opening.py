"""The log's reader, put together from where a stream split says: connection, decoder, schema changes and filters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from pymysql.connections import Connection

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.far_places import PlaceFinder
from raycdc.connectors.mysql.binlog.log_kind import LogKind
from raycdc.connectors.mysql.binlog.map_schemas import MapSchemas
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.binlog.table_decoding import BatchForm
from raycdc.connectors.mysql.cascades import logs_cascades
from raycdc.connectors.mysql.catalog import database_charsets, is_sequence
from raycdc.connectors.mysql.connections import Connections
from raycdc.connectors.mysql.ddl.dialect import dialect_of
from raycdc.connectors.mysql.ddl.history import DdlHistory
from raycdc.connectors.mysql.ddl.history_state import HistoryState
from raycdc.connectors.mysql.ddl.indirect import IndirectChanges
from raycdc.connectors.mysql.ddl.log_server import LogServer
from raycdc.connectors.mysql.ddl.resolver import ServerResolver
from raycdc.connectors.mysql.ddl.snapshot_keys import SnapshotKeys
from raycdc.connectors.mysql.hidden_changes import without_values_in_errors
from raycdc.connectors.mysql.kept_rows import KeptRows
from raycdc.connectors.mysql.log_filter import LogFilter
from raycdc.connectors.mysql.log_reader import READ_BYTES_MAX, MySqlLogReader
from raycdc.connectors.mysql.table_look import look_at
from raycdc.connectors.mysql.table_options import TableOptions
from raycdc.connectors.mysql.values.documents import table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.source.connector import SourceContext
from raycdc.source.new_beginnings import Fit, Unfit
from raycdc.source.parked_tables import ParkingTerms
from raycdc.source.snapshot.chunk_key import ChunkKey, key_names
from raycdc.source.split import StreamSplit
from raycdc.source.table_life import AsOf, InSnapshot


@dataclass(frozen=True, slots=True)
class LogOpening:
    """Opens the log of `split`. `snapshots_over` counts, while the log is read, how many of a table are over."""

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
        tables = tables_of(self.split)
        hiding = self.context.hiding
        history = self._history(tables)
        decoder = BinlogDecoder(
            MapSchemas(tables),
            wanted=history.captures,
            start=self.start,
            log=LogKind(mariadb=self.connections.server().is_mariadb),
            form=BatchForm(with_pos=True),
            on_ddl=without_values_in_errors(history.on_ddl, hiding),
        )
        decoder.misfits.listener = history.on_misfit
        decoder.xa.keeps = history.selects
        decoder.files.find_place = PlaceFinder(self._connect)
        history.attach(decoder)
        row_filter = LogFilter(self.connections.connect, self.options.captures(), history.table)
        decoder.xa.keeper = KeptRows(hiding, partial(self._cut_by, chunk_keys_of(self.split)), row_filter)
        reader = MySqlLogReader(
            open_stream=self.connections.follow_beside if self.split.beside else self.connections.follow,
            history=history,
            decoder=decoder,
            start=self.start,
            row_filter=row_filter,
            hiding=hiding,
        )
        reader.read_bytes_max = self.options.config.pace.bytes_at_once(READ_BYTES_MAX)
        return reader

    def _history(self, tables: Mapping[TableId, MySqlTable]) -> DdlHistory:
        selector = self.options.config.selector()
        # Of a table that was left out nothing is followed, whatever takes its name.
        parked = {table: state for table, state in self.split.state.parked.items() if selector.matches(table)}
        return DdlHistory(
            tables,
            selector=selector,
            server=self._server(),
            terms=ParkingTerms(parked, self._look, self.context.rules),
            state=HistoryState.from_json(self.split.state.notes.to_json()),
            snapshots=SnapshotKeys(chunk_keys_of(self.split), self.snapshots_over),
        )

    def _server(self) -> LogServer:
        info = self.connections.server()
        with closing(self.connections.connect()) as connection:
            databases = database_charsets(connection)
        return LogServer(
            dialect_of(info, self.options.types),
            (info.variables.get("character_set_server", "utf8mb4"), info.variables.get("collation_server", "")),
            databases=databases,
            cascades=self.options.accept_cascades or logs_cascades(info),
            resolve=ServerResolver(self._connect, info, self.connections.open_log),
            led_to=IndirectChanges(self._connect),
            is_sequence=self._is_sequence,
        )

    def _connect(self) -> Connection[Any]:
        """To the very server whose log is read."""
        return self.connections.connect_to(self.start)

    def _look(self, table: TableId) -> Fit[MySqlTable] | Unfit | None:
        return look_at(self._connect, table, self.options, self.context.rules)

    def _is_sequence(self, table: TableId) -> bool:
        with closing(self._connect()) as connection:
            return is_sequence(connection, table)

    def _cut_by(self, begun: Mapping[TableId, ChunkKey], table: TableId) -> tuple[str, ...]:
        """The columns that the table is, or may again be, cut by, beside those of its key."""
        named = self.options.named_key(table)
        return (*key_names(begun.get(table)), *([named] if named else ()))


def tables_of(split: StreamSplit) -> dict[TableId, MySqlTable]:
    """The tables the split's state names, in the schema version in force at its position."""
    return {table: table_of(split.schemas[state.schema]) for table, state in split.state.followed.items()}


def chunk_keys_of(split: StreamSplit) -> dict[TableId, ChunkKey]:
    """The chunk keys of tables whose snapshot is under way, where that is more than one chunk."""
    reading = [(t, s.snapshot.key) for t, s in split.state.followed.items() if isinstance(s, InSnapshot | AsOf)]
    return {table: key for table, key in reading if key is not None}
