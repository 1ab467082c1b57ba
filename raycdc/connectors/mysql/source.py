"""The MySQL and MariaDB source: created from its configuration in every process, with the parts for that process.

| process | uses |
|---|---|
| coordinator | `enumerator_dialect` |
| reader with the stream split | `log_reader`, `key_order` |
| every reader | `chunk_reader` |

`findings` and `captured_tables` are for ``raycdc check`` and ``raycdc plan``, and change nothing. `MeteredConnections`
measures the cost of cutting tables at the server by its session counters (manual, "Server Status Variables").
`log_retention` returns how much of its binlog a server has after a position, and how long it keeps that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import connect, query
from raycdc.config.checks import CheckResult
from raycdc.config.tls import is_loopback
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.enumerator_dialect import MySqlEnumeratorDialect
from raycdc.connectors.mysql.log.log_opening import LogOpening, snapshots_of, tables_of
from raycdc.connectors.mysql.log.log_proof import marked, prove, read_ahead
from raycdc.connectors.mysql.log.log_reader import MySqlLogReader
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.server.catalog import (
    all_tables,
    discover_tables,
    load_tables,
    selected_tables,
    table_sizes,
)
from raycdc.connectors.mysql.server.checks import check_source, require_source, rows_in_the_open
from raycdc.connectors.mysql.server.client import MySqlServerInfo, log_files, probe, start_position
from raycdc.connectors.mysql.server.connections import Connections
from raycdc.connectors.mysql.server.failover import resume_position
from raycdc.connectors.mysql.server.locks import READING_WAIT_S, connect_briefly
from raycdc.connectors.mysql.server.unlogged import unfollowable, unlogged_at_start
from raycdc.connectors.mysql.snapshot.chunk_reader import MySqlChunkReader
from raycdc.connectors.mysql.snapshot.commits import sees_commits
from raycdc.connectors.mysql.snapshot.key_order import MySqlKeyOrder
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import prefix_note
from raycdc.connectors.mysql.snapshot.planning.chunks import MySqlChunkStrategy
from raycdc.connectors.mysql.snapshot.rows_again import require_rows
from raycdc.connectors.mysql.table_probe import TableOptions, unread
from raycdc.connectors.mysql.values.documents import capture_of, table_of
from raycdc.connectors.mysql.warm_up import compile_all
from raycdc.errors import SourceError
from raycdc.model import TableId
from raycdc.source.as_begun import require_as_begun
from raycdc.source.connector import IncrementalSource, LogRetention, Restart, SourceContext, SourceFindings, SourceTable
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.selection import TableSelection, known_tables, pattern_results
from raycdc.source.snapshot.enumerator.snapshot_plan import uncut
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.split import BackfillRows, StreamSplit
from raycdc.source.tables.parking import Refusal
from raycdc.source.trials import ServerCosts, SplitTrial
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import PlannerState

_LATER = "Tables that match it and are created while the pipeline runs are followed."


def findings(config: MySqlSourceConfig, known: Collection[str]) -> SourceFindings:
    """Return all findings, and the captured tables; `known` are the tables that the state has had.

    Raises `SourceError` when the server cannot be queried at all.
    """
    selector = config.selector()
    with closing(connect(config.settings())) as connection:
        info = probe(connection)
        tables = discover_tables(connection, selector, named=selector.plain_names)
        server_ids = range(config.server_id.first, config.server_id.last + 1)
        results = [
            CheckResult(
                "connection", f"Connected to {info.flavor_name} {info.version_text} at {info.address}.", ok=True
            ),
            *rows_in_the_open(config.settings()),
            *pattern_results("source.tables", selector.patterns, tables, noun="table", fix=_LATER),
            # Plain names are checked even if they were not found, so that a missing table is an error now. A missing
            # table that was followed was dropped, which the log reports.
            *check_source(
                connection,
                info,
                {*tables, *(name for name in selector.plain_names if str(name) not in known)},
                server_ids=server_ids,
                accept_cascades=TableOptions(config).accept_cascades,
            ),
        ]
    return SourceFindings(results, sorted(tables))


def captured_tables(config: MySqlSourceConfig) -> dict[TableId, SourceTable]:
    """Return the captured tables in their present form. Raises `SourceError`."""
    selector, options = config.selector(), TableOptions(config)
    with closing(connect(config.settings())) as connection:
        names = discover_tables(connection, selector, named=selector.plain_names)
        described, sizes = load_tables(connection, names), table_sizes(connection, names)
        notes = {
            table: prefix_note(connection, columns, options.named_key(table)) for table, columns in described.items()
        }
    tables = {}
    for table, columns in sorted(described.items()):
        rows, size = (sizes[table].rows, sizes[table].bytes) if table in sizes else (0, 0)
        schema = options.capture(table).narrowed(options.types.treat_table(columns)).schema()
        chunks = 1 if "one piece" in notes[table] else max(1, -(-rows // config.snapshot.chunk_rows))
        tables[table] = SourceTable(schema, rows, chunks, notes[table], size)
    return tables


#: The session counters of rows read by an index or by a scan.
_ROW_READS = (
    "Handler_read_first",
    "Handler_read_key",
    "Handler_read_last",
    "Handler_read_next",
    "Handler_read_prev",
    "Handler_read_rnd",
    "Handler_read_rnd_next",
)
_COUNTERS = "SHOW SESSION STATUS WHERE Variable_name IN ({})".format(
    ", ".join(f"'{name}'" for name in ("Questions", *_ROW_READS))
)


class MeteredConnections(Connections):
    """Connections whose costs on the server are read before they close. For one thread.

    The work of other sessions does not count, except for the CPU time.
    """

    def __init__(self, config: MySqlSourceConfig) -> None:
        super().__init__(config)
        self._queries = 0
        self._rows_read = 0

    def connect(self) -> Connection[Any]:
        connection: Any = super().connect()
        close = connection.close

        def counted() -> None:
            if connection.open:
                self._add(connection)
            close()

        connection.close = counted
        return connection

    def costs(self) -> ServerCosts:
        """Return the costs of all closed connections. The connection for this query does not count."""
        with closing(super().connect()) as connection:
            pid = _local_pid(connection, self._config.host)
        return ServerCosts(self._queries, self._rows_read, None if pid is None else _cpu_s(pid))

    def _add(self, connection: Connection[Any]) -> None:
        # The costs of a broken connection are unknown. Its user reports the error.
        with suppress(SourceError, pymysql.Error, OSError, LookupError, ValueError):
            found = {str(name): int(value) for name, value in query(connection, _COUNTERS)}
            # This query itself does not count.
            self._queries += found["Questions"] - 1
            self._rows_read += sum(found[name] for name in _ROW_READS)


def _cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of a process of this machine with all its threads (proc(5)); None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _local_pid(connection: Connection[Any], host: str) -> int | None:
    """Return the server's process id if it runs on this machine and is visible; otherwise None."""
    if not is_loopback(host):
        return None
    ((name, folder),) = query(connection, "SELECT @@pid_file, @@datadir")
    try:
        pid = int((Path(str(folder)) / str(name)).read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return pid if command in ("mysqld", "mariadbd") else None


def log_retention(
    position: BinlogOffset, info: MySqlServerInfo, files: Sequence[tuple[str, int]], event_ms: int | None
) -> LogRetention | None:
    """Return the retention after `position`, whose last event is of `event_ms`; None if the server lacks its file.

    A server deletes a file a fixed time after the last write to it (``binlog_expire_logs_seconds``,
    ``expire_logs_days``), and never the newest one. The file of `position` was written to at `event_ms`, or later.
    """
    names = [name for name, _ in files]
    if position.file not in names:
        return None
    number = names.index(position.file)
    unread = max(0, files[number][1] - position.pos) + sum(size for _, size in files[number + 1 :])
    if not info.expire_logs_s:
        return LogRetention(unread, forever=True)
    if number == len(files) - 1:
        return LogRetention(unread, info.expire_logs_s)
    if event_ms is None:
        return LogRetention(unread)
    return LogRetention(unread, max(0.0, info.expire_logs_s - (time.time() - event_ms / 1000)))


class MySqlSource(IncrementalSource[MySqlSourceConfig]):
    """The MySQL and MariaDB source; see the module's docstring.

    Picklable: it holds the configuration, never a connection.
    """

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
        #: True if `check` has found nothing that prevents a run, so that `preflight` need not check again.
        self._checked = False
        #: The number of finished snapshots of each table, as counted by the key order of the log's reader.
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

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        found = findings(self.config, known_tables(last))
        self._checked = all(result.ok or result.parks or not result.required for result in found.results)
        return found

    def tables(self) -> dict[TableId, SourceTable]:
        return captured_tables(self.config)

    def preflight(self, last: Manifest | None) -> None:
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            selector = self.config.selector()
            tables = discover_tables(connection, selector, named=selector.plain_names)
            loaded = load_tables(connection, tables)
            if not self._checked:
                require_source(connection, info, tables, loaded)
            self._options.require_fitting(loaded, known_tables(last))
            if (state := stream_of(last)) is not None:
                position = resume_position(connection, info, BinlogOffset.of(state.position))
                connect = partial(self._connections.connect_to, position)
                prove(connect, info, position)
                read_ahead(connect, info, position)

    def unfollowable(self, stream: StreamState) -> list[Refusal]:
        followed = list(filter(self.config.captures, stream.followed))
        with closing(self._connections.connect()) as connection:
            refused = unlogged_at_start(connection, probe(connection), stream, followed)
            if self._options.accept_cascades:
                return refused
            lacking = {refusal.table for refusal in refused}
            return [*refused, *unfollowable(connection, stream, [table for table in followed if table not in lacking])]

    def selection(self) -> TableSelection:
        selector = self.config.selector()
        with closing(self._connections.connect()) as connection:
            every = all_tables(connection)
        tables = selected_tables(every, selector, named=selector.plain_names)
        return TableSelection.of("source.tables", selector, tables, every)

    def log_retention(self, last: Manifest) -> LogRetention | None:
        if (state := stream_of(last)) is None:
            return None
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            return log_retention(BinlogOffset.of(state.position), info, log_files(connection, info), last.watermark_ms)

    def restart(self, last: Manifest) -> Restart:
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            state = stream_of(last)
            if state is not None and not info.is_mariadb:
                info.owner.require_again(BinlogOffset.of(state.position).server)
            position = start_position(connection, info)
            position = marked(partial(self._connections.connect_to, position), info, position)
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
            masking=self.context.masking,
            source_rate_limit=self.config.rate_limit,
        )

    @property
    def takes_snapshot(self) -> bool:
        return self.config.startup.takes_snapshot

    def planner(self, table: TableId, document: SchemaDocument) -> PlannerState:
        with closing(self._connections.connect()) as connection:
            state = unread(connection, table_of(document), self._options.chunks(table))
        return uncut(state.key)

    def split_trials(self) -> Sequence[SplitTrial[MySqlSource]]:
        return [_trial(self, strategy) for strategy in MySqlChunkStrategy]

    def require_rows(self, table: TableId, document: SchemaDocument, again: BackfillRows) -> None:
        require_rows(self._connections.connect, table_of(document), again, self.context.masking)

    def require_as_begun(self, split: StreamSplit) -> None:
        options = "source.snapshot.filter, source.columns"
        require_as_begun(split, begun=capture_of, now=self._options.capture, options=options)

    def key_order(self, split: StreamSplit) -> MySqlKeyOrder:
        order = MySqlKeyOrder(self._connections.connect, tables_of(split), self.context.masking)
        for table, key in snapshots_of(split).items():
            order.use(table, key)
        self._snapshots_over = order.over
        return order


def _trial(configured: MySqlSource, strategy: MySqlChunkStrategy) -> SplitTrial[MySqlSource]:
    snapshot = configured.config.snapshot.model_copy(update={"strategy": strategy.value})
    config = configured.config.model_copy(update={"snapshot": snapshot})
    connections = MeteredConnections(config)
    source = MySqlSource(config, configured.context, connections=connections)
    settings = f'[source.snapshot]\nstrategy = "{strategy}"'
    return SplitTrial(strategy.value, settings, source, connections.costs)
