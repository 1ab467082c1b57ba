"""The MongoDB source: created from its configuration in every process, with the parts for that process.

A pure snapshot has a log with resnapshots only; otherwise the log is a change stream. A state's position shows which of
the two logs the pipeline began with.

`server_costs` reads the server's counters (manual, ``serverStatus``), which show the cost of cutting collections.
`log_retention` returns how long a replica set keeps the unread part of its oplog.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bson import Timestamp
from pymongo.errors import PyMongoError

from raycdc.config import Secret
from raycdc.connectors.mongodb.enumerator_dialect import CollectionProbes, MongoDbEnumeratorDialect
from raycdc.connectors.mongodb.large_documents import LargeDocuments
from raycdc.connectors.mongodb.layout import COLLECTION, ID, CollectionLayout
from raycdc.connectors.mongodb.log_reader import ChangeRows, ChangeStreamReader, QuietLog
from raycdc.connectors.mongodb.plugin import MongoDbChunkStrategy, MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import (
    discover,
    listed,
    require_followable,
    require_masked,
    require_selectable,
    warn_of_capped,
)
from raycdc.connectors.mongodb.server.checks import captured_collections, findings
from raycdc.connectors.mongodb.server.client import MONGOS, VERSION_WITH_POSITIONS, Client, connect, probe
from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader, require_rows
from raycdc.connectors.mongodb.snapshot.keys import SnapshotKeyOrder, StreamKeyOrder
from raycdc.connectors.mongodb.stream.causal import log_end, read_documents
from raycdc.connectors.mongodb.stream.document_reads import DocumentReads, is_complete
from raycdc.connectors.mongodb.stream.drift import Widenings
from raycdc.connectors.mongodb.stream.events import MongoDbTransactionAssembler, Scanner
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.connectors.mongodb.stream.raw_stream import StreamOpener, require_same_set, stream_options
from raycdc.connectors.mongodb.stream.reopened_stream import ReopenedStream
from raycdc.connectors.mongodb.stream.resume_token import NoLogPosition, StreamPosition, position_of
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.connectors.mongodb.warm_up import compile_all
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.source.as_begun import require_as_begun
from raycdc.source.connector import IncrementalSource, LogRetention, Restart, SourceContext, SourceFindings, SourceTable
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.selection import TableSelection
from raycdc.source.snapshot.enumerator.snapshot_plan import uncut
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.split import BackfillRows, StreamSplit
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.source.tables.table_life import had_rows
from raycdc.source.trials import ServerCosts, SplitTrial
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import LogNotes, PlannerState

_US_PER_S = 1_000_000


def server_costs(uri: Secret) -> ServerCosts:
    """Return the work of the whole server since its start, for all clients; for a cluster, of the router alone. Blocks.

    Numbers are unknown if the account lacks the role ``clusterMonitor``.
    """
    with connect(uri) as client:
        try:
            status = client.admin.command("serverStatus")
        except PyMongoError:
            return ServerCosts()
    operations = [_number(status, "opcounters", name) for name in ("query", "getmore", "command")]
    reads = [_number(status, "metrics", "queryExecutor", name) for name in ("scanned", "scannedObjects")]
    times = [_number(status, "extra_info", name) for name in ("user_time_us", "system_time_us")]
    cpu_us = _sum(times)
    return ServerCosts(_sum(operations), _sum(reads), None if cpu_us is None else cpu_us / _US_PER_S)


def _number(document: object, *path: str) -> int | None:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, int) else None


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if a number is unknown."""
    known = list(numbers)
    known_numbers = [number for number in known if number is not None]
    return sum(known_numbers) if len(known_numbers) == len(known) else None


def log_retention(client: Client, position: StreamPosition) -> LogRetention | None:
    """Return the retention after `position`; None if ``local.oplog.rs`` may not be read or does not exist (mongos).

    The server removes the oldest entries when new ones need their room. At the present write rate, the entry at
    `position` is therefore removed after as much time as lies between the oldest entry and `position`.
    ``storage.oplogMinRetentionHours`` can only extend that time.
    """
    try:
        oldest = client["local"]["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
    except PyMongoError:
        return None
    written = None if oldest is None else oldest.get("ts")
    if not isinstance(written, Timestamp):
        return None
    seconds, _ = seconds_of(position.cluster_time)
    return LogRetention(kept_s=float(max(0, seconds - written.time)))


_log = logging.getLogger(__name__)


class MongoDbSource(IncrementalSource[MongoDbSourceConfig]):
    """The MongoDB source; see the module's docstring. Picklable: it holds the configuration, never a connection."""

    def __init__(self, config: MongoDbSourceConfig, context: SourceContext | None = None) -> None:
        super().__init__(config, context)
        self._large = LargeDocuments()

    def __repr__(self) -> str:
        return f"MongoDbSource({', '.join(self.config.collections)})"

    @property
    def ring_s(self) -> float:
        return 0.0  # There are no dropped rows to remember.

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return the counts of large documents by collection."""
        return {"large_documents": self._large.counts()}

    def warm_up(self) -> None:
        compile_all()

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        first = last is None or self.config.bounded
        return findings(self.config, self.context, complete=first and not names_reported)

    def tables(self) -> dict[TableId, SourceTable]:
        return captured_collections(self.config)

    def has_before_images(self) -> bool:
        """Return True if all captured collections keep images."""
        with connect(self.config.uri) as client:
            return stream_options(client, probe(client), self.config.selector()).images

    def preflight(self, last: Manifest | None) -> None:
        """Check the source. Also refuses a replica set other than that of the state."""
        state = stream_of(last)
        with connect(self.config.uri) as client:
            info = probe(client)
            # A missing collection was dropped, which the stream reports.
            first = last is None or self.config.bounded
            tables = discover(client, self.config.selector(), complete=first)
            if state is not None:
                require_same_set(info, position_of(state.position).replica_set)
            for table in tables:
                require_selectable(client, table, self.config.snapshot.selection_of(table))
            followed = set() if state is None else set(state.followed)
            # Collections that are not in the state are checked when they are probed, and parked if necessary.
            judged = [table for table in tables if first or table in followed]
            require_masked(client, self.config, judged, self.context.rules.masks)
            if not self.config.bounded:
                require_followable(client, judged)
                opener = self._opener(client)
                if state is not None:
                    opener.require_reached(StreamPosition.of(state.position))
                else:
                    opener.open(StreamPosition(log_end(client), replica_set=info.replica_set)).close()

    def _opener(self, client: Client) -> StreamOpener:
        rate_limit = self.config.rate_limit
        return StreamOpener(
            client, self.config.selector(), needs_before_images=self.context.needs_before_images, rate_limit=rate_limit
        )

    def selection(self) -> TableSelection:
        selector = self.config.selector()
        with connect(self.config.uri) as client:
            every = listed(client, selector)
        there = sorted(table for table, entry in every.items() if entry.kind == COLLECTION)
        others = {table: f"a {entry.kind}" for table, entry in every.items() if entry.kind != COLLECTION}
        selected = filter(selector.matches, there)
        return TableSelection.of("source.collections", selector, selected, there, others=others, noun=COLLECTION)

    def restart(self, last: Manifest) -> Restart:
        with connect(self.config.uri) as client:
            info = probe(client)
            if (state := stream_of(last)) is not None:
                info.owner.require_again(position_of(state.position).replica_set or MONGOS)
            begin = log_end(client)
            position = StreamPosition(begin, replica_set=info.replica_set)
            tables = discover(client, self.config.selector(), complete=False)
            return Restart(position.sealed(), begin, [str(table) for table in tables])

    def log_retention(self, last: Manifest) -> LogRetention | None:
        state = stream_of(last)
        position = None if state is None else position_of(state.position)
        if not isinstance(position, StreamPosition):
            return None
        with connect(self.config.uri) as client:
            return log_retention(client, position)

    def enumerator_dialect(self) -> MongoDbEnumeratorDialect:
        return MongoDbEnumeratorDialect(self.config, self.context.rules)

    def log_reader(self, split: StreamSplit) -> QuietLog | ChangeStreamReader:
        """Connect and open the change stream at the split's position. Blocks; raises `LogLostError`."""
        # A collection that was left out is not followed, even if another one takes its name.
        parked = {table: state for table, state in split.state.parked.items() if self.config.captures(table)}
        looks = CollectionProbes(self.config, self.context)
        start = position_of(split.state.position)
        if isinstance(start, NoLogPosition):
            again = {table: had_rows(state) for table, state in parked.items() if state.again}
            return QuietLog(looks.layout_now, again, start)
        followed = FollowedCollections(
            layouts_of(split),
            captures=self.config.captures,
            terms=ParkingSetup(parked, looks.probe, self.context.rules),
            widenings=Widenings(looks.widening),
        )
        client = connect(self.config.uri)
        try:
            warn_of_capped(client, split.state.followed)
            return self._change_stream(client, start, followed, split.state.notes.to_json())
        except BaseException:
            client.close()
            raise

    def _change_stream(
        self, client: Client, start: StreamPosition, followed: FollowedCollections, absent: Mapping[str, Any]
    ) -> ChangeStreamReader:
        """Return the reader of a stream that is opened at `start`; `absent` is the state of `DocumentReads`."""
        info = probe(client)
        if info.version < VERSION_WITH_POSITIONS:
            _log.warning(
                "%s is MongoDB %s: a quiet stream keeps no position there. Upgrade to 4.0.7 or later.",
                info.address,
                info.version_text,
            )
        document_reads = DocumentReads(partial(read_documents, client), absent)
        rows = ChangeRows(followed, document_reads, self._large, needs_before_images=self.context.needs_before_images)
        return ChangeStreamReader(
            ReopenedStream(self._opener(client).open, start, close=client.close),
            transactions=MongoDbTransactionAssembler(whole_when_idle=not info.is_mongos),
            scanner=Scanner(self.config.captures),
            followed=followed,
            document_reads=document_reads,
            rows=rows,
        )

    def chunk_reader(self) -> MongoDbChunkReader:
        selection_of = self.config.snapshot.selection_of
        client = connect(self.config.uri)
        return MongoDbChunkReader(client, self._large, selection_of=selection_of, rate_limit=self.config.rate_limit)

    @property
    def takes_snapshot(self) -> bool:
        return self.config.startup.takes_snapshot

    def split_trials(self) -> Sequence[SplitTrial[MongoDbSource]]:
        trials = []
        for strategy in MongoDbChunkStrategy:
            snapshot = self.config.snapshot.model_copy(update={"strategy": strategy, "per_collection": {}})
            source = MongoDbSource(self.config.model_copy(update={"snapshot": snapshot}), self.context)
            settings = f'[source.snapshot]\nstrategy = "{strategy}"'
            trials.append(SplitTrial(strategy.value, settings, source, partial(server_costs, self.config.uri)))
        return trials

    def planner(self, table: TableId, document: SchemaDocument) -> PlannerState:
        return uncut(ID)

    def require_rows(self, table: TableId, document: SchemaDocument, again: BackfillRows) -> None:
        if self.config.bounded:
            raise ConfigError("A run that reads a snapshot and no change stream has nothing to read rows beside.")
        with connect(self.config.uri) as client:
            require_rows(client, table, CollectionLayout.from_document(document), again)

    def require_as_begun(self, split: StreamSplit) -> None:
        options = "source.schema, source.columns, source.snapshot"
        require_as_begun(
            split, begun=lambda d: CollectionLayout.from_document(d).asked, now=self.config.asked_of, options=options
        )

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        return is_complete(notes, up_to)

    def key_order(self, split: StreamSplit) -> SnapshotKeyOrder | StreamKeyOrder:
        no_log = isinstance(position_of(split.state.position), NoLogPosition)
        return SnapshotKeyOrder() if no_log else StreamKeyOrder(layouts_of(split))


def layouts_of(split: StreamSplit) -> dict[TableId, CollectionLayout]:
    """Return the layouts of the collections that a state follows."""
    tables = split.state.followed.items()
    return {table: CollectionLayout.from_document(split.schemas[state.schema]) for table, state in tables}
