"""The MongoDB source: made from its configuration in every process, it hands out that process's part.

A snapshot alone has a log that knows of new beginnings only; otherwise it is a change stream. Which of them a state was
begun with is in its position.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial

from raycdc.checkpoint.manifest import Manifest
from raycdc.connectors.mongodb.captured import captured_collections, findings
from raycdc.connectors.mongodb.catalog import (
    COLLECTION,
    discover,
    found,
    layout_of,
    listed,
    require_followable,
    require_selectable,
)
from raycdc.connectors.mongodb.client import MONGOS, VERSION_PLACES, Client, ServerInfo, connect, probe
from raycdc.connectors.mongodb.enumerator_dialect import MongoDbEnumeratorDialect
from raycdc.connectors.mongodb.hidden import require_hidden
from raycdc.connectors.mongodb.large import LargeDocuments
from raycdc.connectors.mongodb.layout import REST, Layout, Spelling
from raycdc.connectors.mongodb.log_reader import ChangeStreamReader
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.quiet_log import QuietLog
from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
from raycdc.connectors.mongodb.snapshot.keys import SnapshotKeyOrder, StreamKeyOrder
from raycdc.connectors.mongodb.stream.causal import log_end, read_documents
from raycdc.connectors.mongodb.stream.document_reads import DocumentReads
from raycdc.connectors.mongodb.stream.drift import Widening
from raycdc.connectors.mongodb.stream.events import Scanner
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.connectors.mongodb.stream.position import NoLogPosition, StreamPosition, position_of
from raycdc.connectors.mongodb.stream.raw_stream import (
    EventTooLargeError,
    RawStream,
    StreamEndedError,
    stream_options,
)
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.connectors.mongodb.stream.widenings import Widenings
from raycdc.connectors.mongodb.table_look import look_at
from raycdc.connectors.mongodb.warm_up import compile_all
from raycdc.errors import LogLostError, SourceError
from raycdc.model import TableId
from raycdc.source.as_begun import require_as_begun
from raycdc.source.connector import IncrementalSource, Restart, SourceContext, SourceFindings, SourceTable
from raycdc.source.new_beginnings import Fit, Unfit
from raycdc.source.parked_tables import ParkingTerms
from raycdc.source.selection import Selection
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.split import StreamSplit

_log = logging.getLogger(__name__)


class MongoDbSource(IncrementalSource[MongoDbSourceConfig]):
    """See the module's docstring. Picklable: it holds the configuration, never a connection."""

    def __init__(self, config: MongoDbSourceConfig, context: SourceContext | None = None) -> None:
        super().__init__(config, context)
        self._large = LargeDocuments()

    def __repr__(self) -> str:
        return f"MongoDbSource({', '.join(self.config.collections)})"

    @property
    def ring_s(self) -> float:
        return 0.0  # There are no dropped rows to remember.

    def statistics(self) -> dict[str, dict[str, int]]:
        """Figures by collection."""
        return {"large_documents": self._large.counts()}

    def warm_up(self) -> None:
        compile_all()

    def check(self, last: Manifest | None, *, names_told: bool) -> SourceFindings:
        first = last is None or self.config.bounded
        return findings(self.config, self.context, complete=first and not names_told)

    def tables(self) -> dict[TableId, SourceTable]:
        return captured_collections(self.config)

    def tells_before(self) -> bool:
        """Whether all captured collections keep images."""
        with connect(self.config.uri) as client:
            return stream_options(client, probe(client), self.config.selector()).images

    def preflight(self, last: Manifest | None) -> None:
        """Also refuses another replica set than the one that was begun with."""
        state = stream_of(last)
        with connect(self.config.uri) as client:
            info = probe(client)
            # One that is missing by now was dropped, which the stream says.
            first = last is None or self.config.bounded
            tables = discover(client, self.config.selector(), complete=first)
            if state is not None:
                self._require_same_set(info, state.position["replica_set"])
            for table in tables:
                require_selectable(client, table, self.config.snapshot.selection_of(table))
            followed = set() if state is None else set(state.followed)
            # Those that came since are judged where they are looked at, and parked.
            judged = [table for table in tables if first or table in followed]
            require_hidden(client, self.config, judged, self.context.rules.masks)
            if not self.config.bounded:
                require_followable(client, judged)
                if state is not None:
                    self._try(client, StreamPosition.from_json(state.position))
                else:
                    self._open(client, StreamPosition(log_end(client), replica_set=info.replica_set)).close()

    def _try(self, client: Client, place: StreamPosition) -> None:
        """Whether the log reaches back to a place is known when the first changes behind it are asked for."""
        stream = self._open(client, place)
        try:
            with suppress(StreamEndedError, EventTooLargeError):
                stream.next()
        finally:
            stream.close()

    def selection(self) -> Selection:
        selector = self.config.selector()
        with connect(self.config.uri) as client:
            every = listed(client, selector)
        there = sorted(table for table, entry in every.items() if entry.kind == COLLECTION)
        others = {table: f"a {entry.kind}" for table, entry in every.items() if entry.kind != COLLECTION}
        selected = filter(selector.matches, there)
        return Selection.of("source.collections", selector, selected, there, others=others, noun=COLLECTION)

    def restart(self, last: Manifest) -> Restart:
        with connect(self.config.uri) as client:
            info = probe(client)
            if (state := stream_of(last)) is not None:
                info.owner.require_again(state.position["replica_set"] or MONGOS)
            begin = log_end(client)
            position = StreamPosition(begin, replica_set=info.replica_set)
            tables = discover(client, self.config.selector(), complete=False)
            return Restart(position.to_json(), begin, [str(table) for table in tables])

    def _require_same_set(self, info: ServerInfo, begun: str) -> None:
        if begun != info.replica_set:
            raise SourceError(
                f"{info.address} belongs to the replica set {info.replica_set or 'none'!r}, and the pipeline was "
                f"begun with {begun or 'none'!r}. Point source.uri at that one, or begin with another pipeline.state."
            )

    def enumerator_dialect(self) -> MongoDbEnumeratorDialect:
        return MongoDbEnumeratorDialect(self.config, self.context.rules)

    def log_reader(self, split: StreamSplit) -> QuietLog | ChangeStreamReader:
        """Connect and open the change stream where the split says. Blocks; raises `LogLostError`."""
        # Of a collection that was left out nothing is followed, whatever takes its name.
        parked = {table: state for table, state in split.state.parked.items() if self.config.captures(table)}
        start = position_of(split.state.position)
        if isinstance(start, NoLogPosition):
            again = [table for table, state in parked.items() if state.again]
            return QuietLog(self._layout_now, again, start)
        client = connect(self.config.uri)
        try:
            info = probe(client)
            if info.version < VERSION_PLACES:
                _log.warning(
                    "%s is MongoDB %s: a quiet stream keeps no place there. Upgrade to 4.0.7 or later.",
                    info.address,
                    info.version_text,
                )
            captures = self.config.captures
            followed = FollowedCollections(
                layouts_of(split),
                captures=captures,
                terms=ParkingTerms(parked, self._look_at, self.context.rules),
                widenings=Widenings(self._widens),
            )
            return ChangeStreamReader(
                open_stream=partial(self._open, client),
                start=start,
                followed=followed,
                scanner=Scanner(captures),
                document_reads=DocumentReads(partial(read_documents, client), split.state.source),
                large=self._large,
                whole_when_idle=not info.is_mongos,
                close=client.close,
                demands_images=self.context.demands_before,
            )
        except BaseException:
            client.close()
            raise

    def _open(self, client: Client, position: StreamPosition, *, lean: bool = False) -> RawStream:
        info = probe(client)
        self._require_same_set(info, position.replica_set)
        if position.token is not None and not info.is_mongos and (end := log_end(client)) < position.cluster_time:
            raise LogLostError(
                f"{info.address} is at {seconds_of(end)}, and was read to {seconds_of(position.cluster_time)} before: "
                "it was restored, or is another replica set of the same name. Take a new snapshot with "
                'pipeline.on_log_lost = "resnapshot", or point source.uri at the one that was read.'
            )
        options = replace(stream_options(client, info, self.config.selector()), lean=lean)
        if self.context.demands_before:
            # Where one collection has none any more the changes of the others are told with theirs.
            options = replace(options, images=True)
        return RawStream(client, info, options, token=position.token, after=position.cluster_time)

    def _widens(self, table: TableId) -> Widening | None:
        """How a collection gets more columns; None where it does not, or where its targets would not have them.

        Nor where somebody works with what is in the rest, which it would leave, or puts documents together again, or
        where images must be the rows that targets have.
        """
        options = self.config.schema_
        rules = self.context.rules
        fixed = self.config.spelling is Spelling.BSON or self.context.demands_before
        if fixed or not self.config.infers(table) or not rules.gets_added or rules.speaks_of(table, REST):
            return None
        return Widening(options.fields_max, options.on_conflict, rules)

    def _layout_now(self, table: TableId) -> Layout | None:
        with connect(self.config.uri) as client:
            uuid = found(client, table)
            return None if uuid is None else layout_of(client, self.config, table, uuid)

    def _look_at(self, table: TableId) -> Fit[Layout] | Unfit | None:
        return look_at(self.config, table, self.context.rules)

    def chunk_reader(self) -> MongoDbChunkReader:
        selection_of = self.config.snapshot.selection_of
        return MongoDbChunkReader(connect(self.config.uri), self._large, selection_of=selection_of)

    def require_as_begun(self, split: StreamSplit) -> None:
        options = "source.schema, source.columns, source.snapshot"
        require_as_begun(
            split, begun=lambda d: Layout.from_document(d).asked, now=self.config.asked_of, options=options
        )

    def key_order(self, split: StreamSplit) -> SnapshotKeyOrder | StreamKeyOrder:
        no_log = isinstance(position_of(split.state.position), NoLogPosition)
        return SnapshotKeyOrder() if no_log else StreamKeyOrder(layouts_of(split))


def layouts_of(split: StreamSplit) -> dict[TableId, Layout]:
    """How documents of the collections that a state follows become rows."""
    tables = split.state.followed.items()
    return {table: Layout.from_document(split.schemas[state.schema]) for table, state in tables}
