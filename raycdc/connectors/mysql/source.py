"""The MySQL and MariaDB source: made from its configuration in every process, it hands out that process's part.

| process | asks for |
|---|---|
| coordinator | `enumerator_dialect` |
| reader with the stream split | `log_reader`, `key_order` |
| every reader | `chunk_reader` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.opaque import PlannerState
from raycdc.connectors.mysql.binlog.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.captured import captured_tables, findings
from raycdc.connectors.mysql.cascades import unfollowable
from raycdc.connectors.mysql.catalog import all_tables, discover_tables, load_tables
from raycdc.connectors.mysql.checks import require_source
from raycdc.connectors.mysql.client import log_files, probe, start_position
from raycdc.connectors.mysql.connections import Connections
from raycdc.connectors.mysql.enumerator_dialect import MySqlEnumeratorDialect
from raycdc.connectors.mysql.failover import resume_position
from raycdc.connectors.mysql.locks import READING_WAIT_S, connect_briefly
from raycdc.connectors.mysql.log_opening import LogOpening, chunk_keys_of, tables_of
from raycdc.connectors.mysql.log_reader import MySqlLogReader
from raycdc.connectors.mysql.planning_costs import MeteredConnections
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.room import log_room
from raycdc.connectors.mysql.snapshot.chunk_reader import MySqlChunkReader
from raycdc.connectors.mysql.snapshot.chunks import Strategy
from raycdc.connectors.mysql.snapshot.commits import sees_commits
from raycdc.connectors.mysql.snapshot.key_order import MySqlKeyOrder
from raycdc.connectors.mysql.snapshot.rows_again import require_rows
from raycdc.connectors.mysql.table_look import unread
from raycdc.connectors.mysql.table_options import TableOptions
from raycdc.connectors.mysql.values.documents import capture_of, table_of
from raycdc.connectors.mysql.warm_up import compile_all
from raycdc.model import TableId
from raycdc.source.as_begun import require_as_begun
from raycdc.source.connector import IncrementalSource, LogRoom, Restart, SourceContext, SourceFindings, SourceTable
from raycdc.source.parking import Refusal
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.selection import Selection, known_tables
from raycdc.source.snapshot.snapshot_plan import uncut
from raycdc.source.snapshot.stream_state import StreamState, stream_of
from raycdc.source.split import RowsAgain, StreamSplit
from raycdc.source.split_trial import SplitTrial


class MySqlSource(IncrementalSource[MySqlSourceConfig]):
    """See the module's docstring. Picklable: it holds the configuration, never a connection."""

    def __init__(
        self,
        config: MySqlSourceConfig,
        context: SourceContext | None = None,
        *,
        connections: Connections | None = None,
    ) -> None:
        super().__init__(config, context)
        self._connections = connections or Connections(config)
        self._options = TableOptions(config)
        #: How many snapshots of a table are over, as the key order of the log's reader counts them.
        self._snapshots_over: Mapping[TableId, int] = {}

    def __repr__(self) -> str:
        return f"MySqlSource({self.config.settings()!r})"

    def warm_up(self) -> None:
        compile_all()

    @property
    def ring_s(self) -> float:
        info = self._connections.server()
        if info.is_mariadb or info.gtid_mode:
            return 0.0
        with closing(self._connections.connect()) as connection:
            if sees_commits(connection, info):
                return 0.0
        return self.config.snapshot.visible_within_s

    def check(self, last: Manifest | None, *, names_told: bool) -> SourceFindings:
        return findings(self.config, known_tables(last))

    def tables(self) -> dict[TableId, SourceTable]:
        return captured_tables(self.config)

    def preflight(self, last: Manifest | None) -> None:
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            selector = self.config.selector()
            tables = discover_tables(connection, selector, named=selector.plain_names)
            require_source(connection, info, tables)
            self._options.require_fitting(load_tables(connection, tables))
            if (state := stream_of(last)) is not None:
                resume_position(connection, info, BinlogOffset.of(state.position))

    def unfollowable(self, stream: StreamState) -> list[Refusal]:
        if self._options.accept_cascades:
            return []
        with closing(self._connections.connect()) as connection:
            return unfollowable(connection, stream, filter(self.config.captures, stream.followed))

    def selection(self) -> Selection:
        selector = self.config.selector()
        with closing(self._connections.connect()) as connection:
            every = all_tables(connection)
            tables = discover_tables(connection, selector, named=selector.plain_names)
        return Selection.of("source.tables", selector, tables, every)

    def log_room(self, last: Manifest) -> LogRoom | None:
        if (state := stream_of(last)) is None:
            return None
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            return log_room(BinlogOffset.of(state.position), info, log_files(connection, info), last.watermark_ms)

    def restart(self, last: Manifest) -> Restart:
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            state = stream_of(last)
            if state is not None and not info.is_mariadb:
                info.owner.require_again(BinlogOffset.of(state.position).server)
            position = start_position(connection, info)
            tables = discover_tables(connection, self.config.selector(), named=self.config.selector().plain_names)
            return Restart(position.sealed(), ordinal_of(position), [str(table) for table in tables])

    def enumerator_dialect(self) -> MySqlEnumeratorDialect:
        return MySqlEnumeratorDialect(self.config, self._connections, self.context)

    def log_reader(self, split: StreamSplit) -> MySqlLogReader:
        return LogOpening(split, self._connections, self._options, self.context, self._snapshots_over).reader()

    def chunk_reader(self) -> MySqlChunkReader:
        connection = connect_briefly(self._connections.connect, seconds=READING_WAIT_S)
        return MySqlChunkReader(
            connection,
            probe(connection),
            visible_within_s=self.config.snapshot.visible_within_s,
            rows_per_s=self.config.snapshot.rows_per_second_each,
            hiding=self.context.hiding,
            source_pace=self.config.pace,
        )

    @property
    def takes_snapshot(self) -> bool:
        return self.config.startup.takes_snapshot

    def planner(self, table: TableId, document: SchemaDocument) -> PlannerState:
        with closing(self._connections.connect()) as connection:
            state = unread(connection, table_of(document), self._options.chunks(table))
        return uncut(state.key)

    def split_trials(self) -> Sequence[SplitTrial[MySqlSource]]:
        return [_trial(self, strategy) for strategy in Strategy]

    def require_rows(self, table: TableId, document: SchemaDocument, again: RowsAgain) -> None:
        require_rows(self._connections.connect, table_of(document), again, self.context.hiding)

    def require_as_begun(self, split: StreamSplit) -> None:
        options = "source.snapshot.filter, source.columns"
        require_as_begun(split, begun=capture_of, now=self._options.capture, options=options)

    def key_order(self, split: StreamSplit) -> MySqlKeyOrder:
        order = MySqlKeyOrder(self._connections.connect, tables_of(split), self.context.hiding)
        for table, key in chunk_keys_of(split).items():
            order.use(table, key)
        self._snapshots_over = order.over
        return order


def _trial(configured: MySqlSource, strategy: Strategy) -> SplitTrial[MySqlSource]:
    snapshot = configured.config.snapshot.model_copy(update={"strategy": strategy.value})
    config = configured.config.model_copy(update={"snapshot": snapshot})
    connections = MeteredConnections(config)
    source = MySqlSource(config, configured.context, connections=connections)
    settings = f'[source.snapshot]\nstrategy = "{strategy}"'
    return SplitTrial(strategy.value, settings, source, connections.costs)
