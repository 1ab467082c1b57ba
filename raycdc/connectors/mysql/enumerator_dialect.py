"""The enumerator's side of MySQL: finds the start point and the tables there, and cuts tables into chunks.

Every method opens its own connection, blocks, and runs off the coordinator's thread; plans of one `planning` share a
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import is_of_changed_table, is_of_locked_table
from raycdc.connectors.mysql.binlog.events import LoggedThread
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.ddl.follow.history_state import begin_state
from raycdc.connectors.mysql.log.log_filter import redacted_table
from raycdc.connectors.mysql.log.log_proof import marked
from raycdc.connectors.mysql.log.startup import PastStart, past_point
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.server.catalog import below_merged, database_charsets, discover_tables, load_tables
from raycdc.connectors.mysql.server.checks import require_source, unfit, unreadable
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end, probe, start_position
from raycdc.connectors.mysql.server.connections import Connections, SharedConnection
from raycdc.connectors.mysql.server.failover import is_elsewhere, resume_position
from raycdc.connectors.mysql.server.locks import (
    PLANNING_WAIT_S,
    connect_briefly,
    locked_by,
    locked_error,
    short_lock_waits,
)
from raycdc.connectors.mysql.server.unlogged import refusal_of, unlogged
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkPlan, split_of
from raycdc.connectors.mysql.snapshot.planning.chunks import ChunkPlanner, NoIndexError
from raycdc.connectors.mysql.table_probe import TableOptions, unread
from raycdc.connectors.mysql.values.documents import document_of, table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.core.typed_codec import Json
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.connector import SourceContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import (
    PLANNED_AHEAD,
    PlanChunks,
    PlannedChunks,
    ResumePoint,
    StartPoint,
    TablePlan,
)
from raycdc.source.snapshot.key_intervals import key_names
from raycdc.state.opaque import NO_NOTES, LogNotes, PlannerState, Position

#: The number of searches for the start point while tables keep changing their schema.
_START_TRIES = 10
#: The field with a planner's state if bounds of the table are sealed.
_SEALED = "sealed"


class MySqlEnumeratorDialect:
    """The enumerator's dialect for MySQL (`EnumeratorDialect` and `FailoverDialect`)."""

    def __init__(self, config: MySqlSourceConfig, connections: Connections, context: SourceContext) -> None:
        self._config = config
        self._connections = connections
        self._context = context
        self._options = TableOptions(config)
        self._selector = config.selector()

    @property
    def chunk_readers_max(self) -> int:
        return self._config.snapshot.chunk_readers_max

    @property
    def failover(self) -> MySqlEnumeratorDialect:
        return self

    def start_point(self) -> StartPoint:
        """Return a position of the log, and the tables at this position.

        Schemas and names are read before and after the position. If they are equal, they are valid at the position. The
        driver's preflight has checked the privileges on log and tables, so they are not checked again.
        """
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            tables = self._discover(connection)
            parks = self._context.rules.parks
            if (start := PastStart.of(self._config.startup)) is not None:
                open_log = self._connections.open_log
                then, position = past_point(
                    connection, info, tables, start=start, open_log=open_log, captured=self.captures
                )
                notes = _notes(begin_state(database_charsets(connection), self._newest_session(info)))
                others = [_other_table(table, why) for table, why in sorted(then.other.items())]
                plans = (*self._plans(connection, info, dict(then.tables)), *others)
                return StartPoint(position.sealed(), ordinal_of(position), plans, notes, parks)
            for _ in range(_START_TRIES):
                before, databases = load_tables(connection, tables), database_charsets(connection)
                position = start_position(connection, info)
                after = load_tables(connection, tables)
                equal = before == after and databases == database_charsets(connection)
                tables_now = self._discover(connection)
                if equal and sorted(before) == tables_now == tables:
                    position = marked(partial(self._connections.connect_to, position), info, position)
                    plans = self._plans(connection, info, before)
                    notes = _notes(begin_state(databases, self._newest_session(info)))
                    return StartPoint(position.sealed(), ordinal_of(position), plans, notes, parks)
                tables = tables_now
            raise SourceError(
                f"The tables on {info.address} changed their schema each time they were read. "
                "Start again when no schema change is under way."
            )

    def _newest_session(self, info: MySqlServerInfo) -> LoggedThread:
        """Return a session that begins now: all sessions in the server's earlier log are older."""
        with closing(self._connections.connect()) as connection:
            return LoggedThread(info.server_id, int(connection.thread_id()))

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        """Return the next chunks of a table. At first, `planner` has only the key."""
        with self.planning() as plan:
            return plan(document, table, planner, first_index)

    @contextmanager
    def planning(self) -> Iterator[PlanChunks]:
        shared = SharedConnection(self._connect_briefly)
        with closing(shared):
            yield partial(self._planned_unless_locked, shared)

    def locked_by(self, tables: Sequence[TableId]) -> Mapping[TableId, str]:
        with closing(self._connect_briefly()) as connection:
            return locked_by(connection, tables)

    def _connect_briefly(self) -> Connection[Any]:
        return connect_briefly(self._connections.connect, seconds=PLANNING_WAIT_S)

    def _planned_unless_locked(
        self,
        shared: SharedConnection,
        document: SchemaDocument,
        table: TableId,
        planner: PlannerState,
        first_index: int,
    ) -> PlannedChunks:
        try:
            return self._planned(shared.borrow, document, table, planner, first_index)
        except SourceUnavailableError as cause:
            if not is_of_locked_table(cause.__cause__):
                raise
            raise locked_error(table) from cause

    def _planned(
        self,
        connect: Callable[[], AbstractContextManager[Connection[Any]]],
        document: SchemaDocument,
        table: TableId,
        planner: PlannerState,
        first_index: int,
    ) -> PlannedChunks:
        described, settings = table_of(document), self._options.chunks(table)
        state = planner.to_json()
        opened: Any = self._context.masking.open_json(state.get(_SEALED)) or state
        begun = ChunkPlan.restored(opened, described, rows=settings.chunk_rows) if opened else None
        chunks = ChunkPlanner(connect, described, settings, begun)
        try:
            ranges = chunks.next_chunks(PLANNED_AHEAD)
        except SourceError as cause:
            if not is_of_changed_table(cause.__cause__):
                raise
            # The table or its key was dropped. The log has the reason when the last chunk, with all remaining rows,
            # waits for it.
            chunks.leave_whole()
            ranges = chunks.next_chunks(PLANNED_AHEAD)
        except NoIndexError:
            if settings.key is not None:
                raise
            # The index was dropped, or the state's key has only a prefix of the column, so the rest becomes one chunk.
            chunks.leave_whole()
            ranges = chunks.next_chunks(PLANNED_AHEAD)
        splits = tuple(split_of(chunk, table, first_index + n, self._context.masking) for n, chunk in enumerate(ranges))
        plan = chunks.plan
        rest = None if plan.done else self._planner(table, plan)
        order = "" if plan.key is None else plan.key.ordering
        return PlannedChunks(splits, rest, plan.estimated_total, chunks.rows, order)

    def _planner(self, table: TableId, plan: ChunkPlan) -> PlannerState:
        """Return the state of a plan for manifests."""
        state = plan.to_json()
        sealed = self._context.masking.seal_json(table, key_names(None if plan.key is None else plan.key.name), state)
        return PlannerState.from_json(state if sealed is state else {_SEALED: sealed})

    def captures(self, table: TableId) -> bool:
        return self._selector.matches(table)

    def current_ordinal(self) -> int:
        with closing(self._connections.connect()) as connection:
            return ordinal_of(current_end(connection, probe(connection)))

    def resume_point(self, position: Position) -> ResumePoint | None:
        """Return where the log continues at the present server; None if it is the server of `position`, or has its
        log.
        """
        before = BinlogOffset.of(position)
        with closing(self._connections.connect()) as connection:
            info = probe(connection)
            if not is_elsewhere(info, before):
                return None  # Opening the log will check if the server still has the position.
            tables = self._discover(connection)
            require_source(connection, info, tables, load_tables(connection, tables))
            resumed_at = resume_position(connection, info, before)
            end = ordinal_of(current_end(connection, info))
            return ResumePoint(resumed_at.sealed(), ordinal_of(resumed_at), end)

    def _discover(self, connection: Connection[Any]) -> list[TableId]:
        tables = discover_tables(connection, self._selector, named=self._selector.plain_names)
        missing = sorted(set(self._selector.plain_names) - set(tables))
        if missing:
            raise SourceError(
                f"source.tables: {', '.join(map(str, missing))} not found, or not visible to this account. "
                "Check the spelling, or grant SELECT on it."
            )
        return tables

    def _plans(
        self, connection: Connection[Any], info: MySqlServerInfo, tables: dict[TableId, MySqlTable]
    ) -> tuple[TablePlan, ...]:
        plans = []
        options, rules = self._options, self._context.rules
        with short_lock_waits(connection):
            below = below_merged(connection, tables)
            unfits = {
                table: unfit(described) or below.get(table) or unreadable(connection, table)
                for table, described in tables.items()
            }
            gaps = unlogged(connection, info, list(tables))
        for table_id, described in sorted(tables.items()):
            why = unfits[table_id] or gaps.get(table_id, "")
            if why := why or ("" if options.accept_cascades else refusal_of(connection, info, table_id)):
                plans.append(TablePlan(table_id, "", SchemaDocument({}), None, why))
                continue
            table = redacted_table(options.types.treat_table(described), self._context.masking.masks)
            capture = options.capture(table_id)
            document = document_of(table, capture)
            refused = rules.refusal(table_id, capture.narrowed(table).schema())
            snapshot = self._config.startup.takes_snapshot and not refused
            state = unread(connection, table, options.chunks(table_id)) if snapshot else None
            plans.append(TablePlan(table_id, document.fingerprint, document, state, refused))
        return tuple(plans)


def _other_table(table: TableId, why: str) -> TablePlan:
    """Return the plan of a table that was a different one where the log begins."""
    return TablePlan(table, "", SchemaDocument({}), None, why)


def _notes(state: Mapping[str, Json] | None) -> LogNotes:
    return NO_NOTES if state is None else LogNotes.from_json(state)
