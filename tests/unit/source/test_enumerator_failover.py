"""What an enumerator does with a stream whose server was replaced by another one meanwhile."""

from __future__ import annotations

from raycdc.model.rules.rate_limit import Until
from raycdc.source.protocol.api import EnumeratorStart
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import StopAt
from raycdc.source.snapshot.enumerator.enumerator_state import SealedEnumerator
from raycdc.source.snapshot.enumerator.incremental_enumerator import IncrementalSnapshotEnumerator, Restored
from raycdc.source.snapshot.enumerator.snapshot_plan import ResumePoint
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import StreamSplit
from raycdc.state.opaque import Position
from tests.protocol.pair import OneTableDialect
from tests.unit.source.enumerator_context import KeptContext

HERE = Position.from_json({"server": "a", "at": 900})
THERE = Position.from_json({"server": "b", "at": 4})


class TwoServers(OneTableDialect):
    """Server b answers; positions of it count from 4 to 50."""

    def __init__(self) -> None:
        super().__init__()
        self.failover = self

    def resume_point(self, position: Position) -> ResumePoint | None:
        return ResumePoint(THERE, 4, 50) if position == HERE else None

    def current_ordinal(self) -> int:
        return 900  # Asked while a still answered.


def unknown(fingerprint: str) -> SchemaDocument:
    raise AssertionError(f"nobody needs the schema {fingerprint}")


def restored(context: KeptContext, *, until: Until | None) -> IncrementalSnapshotEnumerator:
    state = SealedEnumerator(started=True, high=950)
    start = EnumeratorStart(until, None, unknown)
    restored = Restored(state, StreamSplit(StreamState(HERE, 900)))
    enumerator = IncrementalSnapshotEnumerator(context, TwoServers(), start, restored=restored)
    enumerator.start()
    enumerator.add_reader(0)
    return enumerator


def test_the_stream_is_given_away_only_with_a_place_of_the_server_that_answers() -> None:
    context = KeptContext()
    enumerator = restored(context, until=None)
    assert context.assigned == []

    context.make_calls()

    (stream,) = context.assigned
    assert isinstance(stream, StreamSplit)
    assert (stream.state.position, stream.state.ordinal) == (THERE, 4)
    enumerator.add_splits_back([stream], 0)
    context.make_calls()
    assert context.assigned == [stream, stream]


def test_a_bounded_run_stops_where_the_new_servers_log_ends() -> None:
    context = KeptContext()
    restored(context, until=Until.CAUGHT_UP)
    context.make_calls()
    assert [event for event in context.events if isinstance(event, StopAt)] == [StopAt(50)]
