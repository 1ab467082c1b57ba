"""The questions of the split enumerator to MongoDB.

Each call has a client of its own, because the server may be away between two of them; a `planning` has one, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from raycdc.checkpoint.opaque import PlannerState
from raycdc.connectors.mongodb.catalog import discover, layout_of, require_followable
from raycdc.connectors.mongodb.client import Client, ServerInfo, connect, probe
from raycdc.connectors.mongodb.layout import ID
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.snapshot.chunk_reader import NO_LOG
from raycdc.connectors.mongodb.snapshot.chunks import cut
from raycdc.connectors.mongodb.snapshot.keys import bound_to_json
from raycdc.connectors.mongodb.stream.causal import log_end, seen_by
from raycdc.connectors.mongodb.stream.position import NoLogPosition, StreamPosition
from raycdc.connectors.mongodb.stream.token import ordinal_of
from raycdc.model import TableId
from raycdc.source.new_beginnings import unread
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.snapshot_plan import EnumeratorDialect, PlanChunks, PlannedChunks, StartPoint, TablePlan
from raycdc.source.split import SnapshotSplit
from raycdc.transform.followed import TargetRules

_log = logging.getLogger(__name__)


class MongoDbEnumeratorDialect(EnumeratorDialect):
    """`raycdc.source.snapshot.snapshot_plan.EnumeratorDialect` of a snapshot, and of a change stream."""

    #: Every reader may read chunks.
    chunk_readers_max = 0
    failover = None

    def __init__(self, config: MongoDbSourceConfig, rules: TargetRules | None = None) -> None:
        self._config = config
        self._rules = rules or TargetRules()
        self._selector = config.selector()

    def start_point(self) -> StartPoint:
        with self._server() as (client, info):
            if self._config.bounded:
                plans = self._plans(client, discover(client, self._selector))
                nowhere = NoLogPosition(info.replica_set)
                return StartPoint(nowhere.sealed(), NO_LOG, plans, parks=self._rules.parks)
            # The place first: what happens to a collection afterwards is in the stream.
            begin = self._begin(client, discover(client, self._selector))
            tables = discover(client, self._selector)
            require_followable(client, tables)
            position = StreamPosition(begin, replica_set=info.replica_set)
            return StartPoint(position.sealed(), begin, self._plans(client, tables), parks=self._rules.parks)

    def _plans(self, client: Client, tables: Mapping[TableId, str]) -> tuple[TablePlan, ...]:
        snapshot = self._config.startup.takes_snapshot
        plans = []
        for table, uuid in tables.items():
            layout = layout_of(client, self._config, table, uuid)
            document, refused = layout.document(), self._rules.refusal(table, layout.schema())
            state = unread(ID) if snapshot and not refused else None
            plans.append(TablePlan(table, document.fingerprint, document, state, refused))
        return tuple(plans)

    def _begin(self, client: Client, tables: Mapping[TableId, str]) -> int:
        """The cluster time behind which the stream begins: a majority has all up to it, or it is asked for."""
        if (moment_ms := self._config.startup.moment_ms) is not None:
            return ordinal_of(moment_ms // 1000, 0) - 1
        if not tables:
            return log_end(client)
        with client.start_session(causal_consistency=True) as session:
            return seen_by(client, session, next(iter(tables)))

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        """All chunks of a collection at once: bounds that were asked for later would be others."""
        with self.planning() as plan:
            return plan(document, table, planner, first_index)

    @contextmanager
    def planning(self) -> Iterator[PlanChunks]:
        with self._server() as server:
            yield partial(self._planned, server)

    def _planned(
        self,
        server: tuple[Client, ServerInfo],
        document: SchemaDocument,
        table: TableId,
        planner: PlannerState,
        first_index: int,
    ) -> PlannedChunks:
        client, info = server
        cuts = cut(client, info, table, self._config.snapshot)
        # Taken last, so that it is as recent as it can be.
        as_of = log_end(client) if cuts.as_of_one_time else None
        bounds = [None, *map(bound_to_json, cuts.bounds), None]
        splits = tuple(
            SnapshotSplit(table, first_index + n, ID, lower, upper, as_of=as_of)
            for n, (lower, upper) in enumerate(pairwise(bounds))
        )
        _log.info("%s is read in %s chunks (%s)", table, len(splits), cuts.strategy)
        return PlannedChunks(splits, None, len(splits), cuts.documents)

    def current_ordinal(self) -> int:
        if self._config.bounded:
            return NO_LOG
        with self._server() as (client, _):
            return log_end(client)

    def captures(self, table: TableId) -> bool:
        return self._selector.matches(table)

    @contextmanager
    def _server(self) -> Iterator[tuple[Client, ServerInfo]]:
        with connect(self._config.uri) as client:
            yield client, probe(client)
