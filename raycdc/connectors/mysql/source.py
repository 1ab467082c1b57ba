"""The MySQL and MariaDB source: made from its configuration in every process, it hands out that process's part.

| process | asks for |
|---|---|
| coordinator | `enumerator_dialect` |
| reader with the stream split | `log_reader`, `key_order` |
| every reader | `chunk_reader` |
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

from pymysql.connections import Connection

from raycdc.checkpoint.manifest import Manifest
from raycdc.clients.mysql import close_quietly, connect
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.far_places import PlaceFinder
from raycdc.connectors.mysql.binlog.log_kind import LogKind
from raycdc.connectors.mysql.binlog.map_schemas import MapSchemas
from raycdc.connectors.mysql.binlog.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.binlog.stream import BinlogStream
from raycdc.connectors.mysql.binlog.table_decoding import BatchForm
from raycdc.connectors.mysql.captured import captured_tables, findings
from raycdc.connectors.mysql.cascades import logs_cascades, unfollowable
from raycdc.connectors.mysql.catalog import all_tables, database_charsets, discover_tables, is_sequence, load_tables
from raycdc.connectors.mysql.checks import check_source, lease_server_id, require_ok
from raycdc.connectors.mysql.client import ServerInfo, ensure_available, probe, start_position
from raycdc.connectors.mysql.ddl.dialect import dialect_of
from raycdc.connectors.mysql.ddl.history import DdlHistory
from raycdc.connectors.mysql.ddl.indirect import IndirectChanges
from raycdc.connectors.mysql.ddl.log_server import LogServer
from raycdc.connectors.mysql.ddl.resolver import ServerResolver
from raycdc.connectors.mysql.ddl.snapshot_keys import SnapshotKeys
from raycdc.connectors.mysql.enumerator_dialect import MySqlEnumeratorDialect
from raycdc.connectors.mysql.failover import require_same_server, resume_position
from raycdc.connectors.mysql.hidden import without_values_in_errors
from raycdc.connectors.mysql.kept_rows import KeptRows
from raycdc.connectors.mysql.log_filter import LogFilter
from raycdc.connectors.mysql.log_reader import MySqlLogReader
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.snapshot.chunk_keys import chunk_key
from raycdc.connectors.mysql.snapshot.chunk_reader import MySqlChunkReader
from raycdc.connectors.mysql.snapshot.chunks import ChunkSettings, Strategy
from raycdc.connectors.mysql.snapshot.commits import sees_commits
from raycdc.connectors.mysql.snapshot.key_order import MySqlKeyOrder
from raycdc.connectors.mysql.snapshot.row_filter import parse_filter
from raycdc.connectors.mysql.startup import PastPoint, PastStart, past_point
from raycdc.connectors.mysql.table_look import look_at
from raycdc.connectors.mysql.values.documents import Capture, capture_of, table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.connectors.mysql.warm_up import compile_all
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.source.as_begun import require_as_begun
from raycdc.source.connector import IncrementalSource, Restart, SourceContext, SourceFindings, SourceTable
from raycdc.source.new_beginnings import Fit, Unfit
from raycdc.source.parked_tables import ParkingTerms
from raycdc.source.parking import Refusal
from raycdc.source.selection import Selection, known_tables
from raycdc.source.snapshot.chunk_key import ChunkKey, key_names
from raycdc.source.snapshot.stream_state import StreamState, stream_of
from raycdc.source.split import StreamSplit
from raycdc.source.startup import StartupMode
from raycdc.source.table_life import AsOf, InSnapshot

#: Seconds more than a heartbeat until the server has surely noticed that a log connection is gone.
_HEARTBEAT_MARGIN_S = 2.0


class MySqlSource(IncrementalSource[MySqlSourceConfig]):
    """See the module's docstring. Picklable: it holds the configuration, never a connection."""

    def __init__(self, config: MySqlSourceConfig, context: SourceContext | None = None) -> None:
        super().__init__(config, context)
        self._info: ServerInfo | None = None
        #: How many snapshots of a table are over, as the key order of the log's reader counts them.
        self._snapshots_over: dict[TableId, int] = {}

    def __repr__(self) -> str:
        return f"MySqlSource({self.config.settings()!r})"

    def warm_up(self) -> None:
        compile_all()

    @property
    def ring_s(self) -> float:
        info = self._server()
        if info.is_mariadb or info.gtid_mode:
            return 0.0
        with closing(self._connect()) as connection:
            if sees_commits(connection, info):
                return 0.0
        return self._visible_within_s

    def check(self, last: Manifest | None, *, names_told: bool) -> SourceFindings:
        return findings(self.config, known_tables(last))

    def tables(self) -> dict[TableId, SourceTable]:
        return captured_tables(self.config)

    def preflight(self, last: Manifest | None) -> None:
        with closing(self._connect()) as connection:
            info = probe(connection)
            selector = self.config.selector()
            tables = discover_tables(connection, selector, named=selector.plain_names)
            require_ok(check_source(connection, info, tables, accept_cascades=self._accept_cascades), info)
            self._check_table_options(connection, tables)
            if (state := stream_of(last)) is not None:
                resume_position(connection, info, BinlogOffset.from_json(state.position))

    def unfollowable(self, stream: StreamState) -> list[Refusal]:
        if self._accept_cascades:
            return []
        with closing(self._connect()) as connection:
            return unfollowable(connection, stream, filter(self.config.captures, stream.followed))

    def selection(self) -> Selection:
        selector = self.config.selector()
        with closing(self._connect()) as connection:
            there = all_tables(connection)
            tables = discover_tables(connection, selector, named=selector.plain_names)
        return Selection.of("source.tables", selector, tables, there)

    def restart(self, last: Manifest) -> Restart:
        with closing(self._connect()) as connection:
            info = probe(connection)
            state = stream_of(last)
            if state is not None and not info.is_mariadb:
                info.owner.require_again(BinlogOffset.from_json(state.position).server)
            position = start_position(connection, info)
            tables = discover_tables(connection, self.config.selector(), named=self.config.selector().plain_names)
            return Restart(position.to_json(), ordinal_of(position), [str(table) for table in tables])

    def _check_table_options(self, connection: Connection[Any], tables: list[TableId]) -> None:
        """Raises `ConfigError` for an option of a table that is not captured, and for one that its columns forbid."""
        snapshot = self.config.snapshot
        loaded = load_tables(connection, tables)
        for option, values in (("snapshot.key", snapshot.key), ("snapshot.filter", snapshot.filter)):
            for name, value in values.items():
                described = _captured(loaded, option, name)
                if option == "snapshot.key":
                    chunk_key(described, value)
                else:
                    parse_filter(described, value)
        for name, listed in self.config.columns.items():
            described = _captured(loaded, "columns", name)
            for column in listed:
                if column not in {c.name for c in described.columns}:
                    raise ConfigError(f"source.columns: {name} has no column {column!r}.")
            key = snapshot.key.get(name)
            missing = {*described.primary_key, *([key] if key else [])} - set(listed)
            if missing:
                raise ConfigError(
                    f"source.columns: {name} needs {', '.join(sorted(missing))}, too: rows are told apart by it."
                )

    def enumerator_dialect(self) -> MySqlEnumeratorDialect:
        config = self.config
        return MySqlEnumeratorDialect(
            self._connect,
            selector=config.selector(),
            chunks=self._chunk_settings,
            types=config.types.options(),
            snapshot=config.startup.takes_snapshot,
            capture=self._capture,
            accept_cascades=self._accept_cascades,
            past=self._past(),
            chunk_readers_max=config.snapshot.chunk_readers_max,
            refusal=self.context.rules.refusal,
            parks=self.context.rules.parks,
            hiding=self.context.hiding,
        )

    def log_reader(self, split: StreamSplit) -> MySqlLogReader:
        start = BinlogOffset.from_json(split.state.position)
        tables = tables_of(split)
        selector = self.config.selector()
        # Of a table that was left out nothing is followed, whatever takes its name.
        parked = {table: state for table, state in split.state.parked.items() if selector.matches(table)}
        snapshot = self.config.snapshot
        captures = {t: self._capture(t) for t in map(TableId.parse, {**snapshot.filter, **self.config.columns})}
        info = self._server()
        history = DdlHistory(
            tables,
            selector=selector,
            server=self._log_server(info, start),
            terms=ParkingTerms(parked, partial(self._look_at, start), self.context.rules),
            state=split.state.source or None,
            snapshots=SnapshotKeys(_chunk_keys(split), self._snapshots_over),
        )
        decoder = BinlogDecoder(
            MapSchemas(tables),
            wanted=history.captures,
            start=start,
            log=LogKind(mariadb=info.is_mariadb),
            form=BatchForm(with_pos=True),
            on_ddl=without_values_in_errors(history.on_ddl, self.context.hiding),
        )
        decoder.misfits.listener = history.on_misfit
        decoder.xa.keeps = history.selects
        decoder.files.find_place = PlaceFinder(partial(self._connect_to, start))
        history.attach(decoder)
        row_filter = LogFilter(self._connect, captures, history.table)
        decoder.xa.keeper = KeptRows(self.context.hiding, partial(self._cut_by, _chunk_keys(split)), row_filter)
        return MySqlLogReader(
            open_stream=self._open_stream,
            history=history,
            decoder=decoder,
            start=start,
            row_filter=row_filter,
            hiding=self.context.hiding,
        )

    def _log_server(self, info: ServerInfo, read_from: BinlogOffset) -> LogServer:
        variables = info.variables
        return LogServer(
            dialect_of(info, self.config.types.options()),
            (variables.get("character_set_server", "utf8mb4"), variables.get("collation_server", "")),
            databases=self._database_charsets(),
            cascades=self._accept_cascades or logs_cascades(info),
            resolve=ServerResolver(partial(self._connect_to, read_from), info, self._open_stream),
            led_to=IndirectChanges(partial(self._connect_to, read_from)),
            is_sequence=partial(self._is_sequence, read_from),
        )

    def _is_sequence(self, read_from: BinlogOffset, table: TableId) -> bool:
        with closing(self._connect_to(read_from)) as connection:
            return is_sequence(connection, table)

    def _cut_by(self, begun: dict[TableId, ChunkKey], table: TableId) -> tuple[str, ...]:
        """The columns that the table is, or may again be, cut by, beside those of its key."""
        named = self.config.snapshot.key.get(str(table))
        return (*key_names(begun.get(table)), *([named] if named else ()))

    def _look_at(self, read_from: BinlogOffset, table: TableId) -> Fit[MySqlTable] | Unfit | None:
        return look_at(
            partial(self._connect_to, read_from),
            table,
            chunks=self._chunk_settings,
            types=self.config.types.options(),
            refusal=partial(self._refusal, table),
            accept_cascades=self._accept_cascades,
        )

    def _refusal(self, table: TableId, described: MySqlTable) -> str:
        """Why no target can hold the table as it is captured; empty where they can."""
        return self.context.rules.refusal(table, self._capture(table).narrowed(described).schema())

    def _database_charsets(self) -> dict[str, tuple[str, str]]:
        with closing(self._connect()) as connection:
            return database_charsets(connection)

    def chunk_reader(self) -> MySqlChunkReader:
        connection = self._connect()
        return MySqlChunkReader(
            connection,
            probe(connection),
            visible_within_s=self._visible_within_s,
            rows_per_s=self.config.snapshot.rows_per_second_each,
            hiding=self.context.hiding,
        )

    def key_order(self, split: StreamSplit) -> MySqlKeyOrder:
        order = MySqlKeyOrder(self._connect, tables_of(split), self.context.hiding)
        for table, key in _chunk_keys(split).items():
            order.use(table, key)
        self._snapshots_over = order.over
        return order

    def _chunk_settings(self, table: TableId) -> ChunkSettings:
        snapshot = self.config.snapshot
        return ChunkSettings(
            Strategy(snapshot.strategy),
            snapshot.chunk_rows,
            snapshot.chunk_bytes or None,
            snapshot.key.get(str(table)),
        )

    def require_as_begun(self, split: StreamSplit) -> None:
        options = "source.snapshot.filter, source.columns"
        require_as_begun(split, begun=capture_of, now=self._capture, options=options)

    def _capture(self, table: TableId) -> Capture:
        listed = self.config.columns.get(str(table))
        return Capture(self.config.snapshot.filter.get(str(table)), None if listed is None else tuple(listed))

    @property
    def _accept_cascades(self) -> bool:
        return self.config.on_cascade == "accept"

    @property
    def _visible_within_s(self) -> float:
        return self.config.snapshot.visible_within.total_seconds()

    def _past(self) -> PastPoint | None:
        """Where to begin, if not now."""
        options = self.config.startup
        match options.mode:
            case StartupMode.EARLIEST:
                start = PastStart(earliest=True)
            case StartupMode.TIMESTAMP:
                start = PastStart(timestamp_ms=options.timestamp_ms)
            case StartupMode.OFFSET:
                start = PastStart(
                    file=options.file or "",
                    pos=options.pos,
                    gtid_set=options.gtid_set or "",
                    skip_events=options.skip_events,
                    skip_rows=options.skip_rows,
                )
            case _:
                return None
        captured = self.config.selector().matches
        return partial(past_point, start=start, open_log=self._open_stream, captured=captured)

    def _connect(self) -> Connection[Any]:
        return connect(self.config.settings())

    def _connect_to(self, place: BinlogOffset) -> Connection[Any]:
        """A connection to the very server of `place`, for answers whose position is compared with the log's."""
        connection = self._connect()
        try:
            require_same_server(connection, probe(connection), place)
        except BaseException:
            close_quietly(connection)
            raise
        return connection

    def _server(self) -> ServerInfo:
        if self._info is None:
            with closing(self._connect()) as connection:
                self._info = probe(connection)
        return self._info

    def _open_stream(self, start: BinlogOffset) -> BinlogStream:
        config = self.config
        heartbeat_s = config.heartbeat.total_seconds()
        ids = range(config.server_id.first, config.server_id.last + 1)
        connection = self._connect()
        try:
            # Asked on this very connection: behind one address another server may answer the next one.
            info = probe(connection)
            require_same_server(connection, info, start)
            ensure_available(connection, info, start)
            server_id = lease_server_id(connection, info, ids, wait_s=heartbeat_s + _HEARTBEAT_MARGIN_S)
        except BaseException:
            close_quietly(connection)
            raise
        return BinlogStream(connection, server_id=server_id, offset=start, heartbeat_s=heartbeat_s)


def tables_of(split: StreamSplit) -> dict[TableId, MySqlTable]:
    """The tables the split's state names, in the schema version in force at its position."""
    return {table: table_of(split.schemas[state.schema]) for table, state in split.state.followed.items()}


def _chunk_keys(split: StreamSplit) -> dict[TableId, ChunkKey]:
    """What tables whose snapshot is under way are cut by, where that is more than one chunk."""
    reading = [(t, s.snapshot.key) for t, s in split.state.followed.items() if isinstance(s, InSnapshot | AsOf)]
    return {table: key for table, key in reading if key is not None}


def _captured(loaded: dict[TableId, MySqlTable], option: str, name: str) -> MySqlTable:
    described = loaded.get(TableId.parse(name))
    if described is None:
        raise ConfigError(f"source.{option}: {name} is none of the captured tables.")
    return described
