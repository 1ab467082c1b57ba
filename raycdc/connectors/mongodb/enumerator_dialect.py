"""The split enumerator's queries to MongoDB.

Each call, and each `planning`, opens its own client, because the server may be unreachable between two calls.

`CollectionProbes` probes a collection that is resnapshotted while other collections stream
(`raycdc.source.tables.resnapshots`). A probe returns the collection's layout, the position of the change stream at
which the layout is valid, and the start of the snapshot. It runs in the thread that reads the change stream, or the
quiet log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from raycdc.connectors.mongodb.layout import ID, REST, CollectionLayout, Spelling
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import (
    discover,
    found,
    layout_of,
    require_followable,
    require_masked,
    warn_of_capped,
)
from raycdc.connectors.mongodb.server.client import Client, MongoDbServerInfo, connect, probe
from raycdc.connectors.mongodb.snapshot.chunk_reader import NO_LOG
from raycdc.connectors.mongodb.snapshot.chunks import cut
from raycdc.connectors.mongodb.snapshot.keys import bound_to_json
from raycdc.connectors.mongodb.stream.causal import log_end, seen_by
from raycdc.connectors.mongodb.stream.drift import Widening
from raycdc.connectors.mongodb.stream.resume_token import NoLogPosition, StreamPosition
from raycdc.connectors.mongodb.stream.token import ordinal_of
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError, TableLockedError
from raycdc.model import TableId
from raycdc.source.connector import SourceContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import (
    EnumeratorDialect,
    PlanChunks,
    PlannedChunks,
    StartPoint,
    TablePlan,
)
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.resnapshots import FollowableTable, UnfollowableTable, unread
from raycdc.state.opaque import PlannerState
from raycdc.transform.target_rules import TargetRules

_log = logging.getLogger(__name__)


class MongoDbEnumeratorDialect(EnumeratorDialect):
    """The dialect of a snapshot, and of a snapshot with a change stream (`EnumeratorDialect`)."""

    #: There is no limit: every reader may read chunks.
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
            # The position comes first, so that the stream has every later event about the collections.
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
        """Return the cluster time after which the stream begins.

        It is configured, or the time of a majority read.
        """
        if (moment_ms := self._config.startup.moment_ms) is not None:
            return ordinal_of(moment_ms // 1000, 0) - 1
        if not tables:
            return log_end(client)
        with client.start_session(causal_consistency=True) as session:
            return seen_by(client, session, next(iter(tables)))

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        """Return all chunks of a collection together, because bounds queried later would differ."""
        with self.planning() as plan:
            return plan(document, table, planner, first_index)

    @contextmanager
    def planning(self) -> Iterator[PlanChunks]:
        with self._server() as server:
            yield partial(self._planned, server)

    def _planned(
        self,
        server: tuple[Client, MongoDbServerInfo],
        document: SchemaDocument,
        table: TableId,
        planner: PlannerState,
        first_index: int,
    ) -> PlannedChunks:
        client, info = server
        cuts = cut(client, info, table, self._config.snapshot)
        # The time is taken last, so that it is as recent as possible.
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
    def _server(self) -> Iterator[tuple[Client, MongoDbServerInfo]]:
        with connect(self._config.uri) as client:
            yield client, probe(client)


#: A probe is repeated up to this many times if a different collection takes the name meanwhile.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class CollectionProbes:
    """The probes of collections; see the module's docstring. Each probe has its own client, and blocks.

    `context` has the rules of targets, and whether row images must be the target's rows.
    """

    config: MongoDbSourceConfig
    context: SourceContext

    def layout_now(self, table: TableId) -> CollectionLayout | None:
        """Return the layout of the collection; None if it does not exist. For a source that follows no log."""
        with connect(self.config.uri) as client:
            uuid = found(client, table)
            return None if uuid is None else layout_of(client, self.config, table, uuid)

    def probe(self, table: TableId) -> FollowableTable[CollectionLayout] | UnfollowableTable | None:
        """Return the layout of a collection, with a cluster time from which on the collection can be followed.

        The collection had the same UUID before and after its layout was determined.

        Returns None if it does not exist.
        """
        config, rules = self.config, self.context.rules
        with connect(config.uri) as client:
            for _ in range(_TRIES):
                uuid = found(client, table)
                if uuid is None:
                    return None
                try:
                    require_followable(client, [table])
                    require_masked(client, config, [table], rules.masks)
                    layout = layout_of(client, config, table, uuid)
                except SourceUnavailableError:
                    raise
                except (ConfigError, SourceError) as refused:
                    return UnfollowableTable(str(refused), log_end(client))
                if why := rules.refusal(table, layout.schema()):
                    return UnfollowableTable(why, log_end(client))
                warn_of_capped(client, [table])
                if found(client, table) == uuid:
                    return FollowableTable(layout, log_end(client), unread(ID))
        # The source probes this collection again later, and reads the others meanwhile.
        raise TableLockedError(f"{table} was another collection at each probe.")

    def widening(self, table: TableId) -> Widening | None:
        """Return the limits for adding columns to a collection; None if it keeps its columns.

        It keeps its columns if they are not inferred, if its targets do not get added columns, if a rule uses the rest
        column, if its values are BSON, or if before-images must equal the targets' rows.
        """
        options, rules = self.config.schema_, self.context.rules
        fixed = self.config.spelling is Spelling.BSON or self.context.needs_before_images
        if fixed or not self.config.infers(table) or not rules.gets_added or rules.speaks_of(table, REST):
            return None
        return Widening(options.fields_max, options.on_conflict, rules)
