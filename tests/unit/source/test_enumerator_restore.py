"""What an enumerator restores when the configuration selects fewer tables than before, or a user asked for less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raycdc.model import TableId
from raycdc.source.protocol.api import EnumeratorStart
from raycdc.source.protocol.epochs import SplitStates
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import ChunkVoided
from raycdc.source.snapshot.enumerator.enumerator_state import SealedEnumerator
from raycdc.source.snapshot.enumerator.incremental_enumerator import IncrementalSnapshotEnumerator, restore_or_create
from raycdc.source.snapshot.log.stream_state import TABLES, StreamState
from raycdc.source.split import STREAM_SPLIT_ID, BackfillRows, SnapshotSplit, StreamSplit
from raycdc.source.tables.parking import Requests, RowsRequest, TableRequest
from raycdc.source.tables.table_life import ParkedPhase
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.opaque import EnumeratorState, SealedSplit
from tests.protocol.pair import OneTableDialect
from tests.unit.source.enumerator_context import KeptContext

KEPT, LEFT_OUT = TableId("shop", "kept"), TableId("shop", "left_out")


def last_manifest() -> Manifest:
    """Two tables whose snapshot has begun, and a chunk of each that is unfinished."""
    counts = {"schema": "f", "document": None, "planner": None, "planned": 1, "finished": 0, "estimate": 1}
    chunks = [SnapshotSplit(table, 0, "id", None, None) for table in (KEPT, LEFT_OUT)]
    return Manifest(
        epoch=1,
        generation=1,
        created_ms=0,
        from_splits={},
        to_splits={
            STREAM_SPLIT_ID: SealedSplit.from_json(
                {
                    "version": 1,
                    "position": {"at": 5},
                    "ordinal": 5,
                    "tables": {str(t): {"schema": "f", "announced": True, "snapshot": None} for t in (KEPT, LEFT_OUT)},
                }
            )
        },
        enumerator=EnumeratorState.from_json(
            {
                "version": 1,
                "started": True,
                "high": 0,
                "tables": {str(t): counts for t in (KEPT, LEFT_OUT)},
                "unfinished": [chunk.to_json() for chunk in chunks],
            }
        ),
        segments=(),
        tables={},
        watermark_ms=None,
        final=False,
    )


def test_a_table_left_out_meanwhile_has_ended_and_its_chunks_are_forgotten() -> None:
    """Else its changes would be passed over, and the table be gone on with when it is selected again."""
    last = last_manifest()
    context, dialect = KeptContext(), OneTableDialect()
    dialect.left_out.add(LEFT_OUT)

    asked = []

    def document(name: str) -> SchemaDocument:
        asked.append(name)
        return SchemaDocument({"fingerprint": name})

    enumerator = restore_or_create(context, dialect, EnumeratorStart(None, last, document))
    assert asked == ["f"], "tables of one schema have one document"
    enumerator.start()
    enumerator.add_reader(0)
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(0)

    streams = [split for split in context.assigned if isinstance(split, StreamSplit)]
    assert [list(split.state.followed) for split in streams] == [[KEPT]]
    assert [split.table for split in context.assigned if isinstance(split, SnapshotSplit)] == [KEPT]
    assert {table: progress.phase for table, progress in enumerator.statistics().progress.tables().items()} == {
        KEPT: "snapshot",
        LEFT_OUT: "ended",
    }
    assert [(s.state.changes, s.state.parked[LEFT_OUT].phase) for s in streams] == [(1, ParkedPhase.ENDED)]


def backfilling(last: Manifest, context: KeptContext) -> IncrementalSnapshotEnumerator:
    """With a backfill of two chunks of the table that is kept, whose reader asks for one."""
    parts = tuple(SnapshotSplit(KEPT, n, None, None, None, again=BackfillRows("c1")) for n in range(2))
    asked = Requests(rows={"c1": RowsRequest("c1", KEPT, parts=parts)})
    start = EnumeratorStart(None, last, lambda name: SchemaDocument({"fingerprint": name}), asked)
    enumerator = restore_or_create(context, OneTableDialect(), start)
    enumerator.start()
    enumerator.add_reader(0)
    enumerator.handle_split_request(0)
    return enumerator


def chunks_again(context: KeptContext) -> list[SnapshotSplit]:
    """The chunks of the backfill that were given out."""
    return [split for split in context.assigned if isinstance(split, SnapshotSplit) and split.again is not None]


def read_through(last: Manifest, **counts: int) -> Manifest:
    """The same, with the snapshot of the one table of which `counts` tell."""
    table = {"schema": "f", "document": None, "planner": None, "estimate": 2, **counts}
    state = {"version": 1, "started": True, "high": 0, "tables": {str(KEPT): table}, "unfinished": []}
    return replace(last, enumerator=EnumeratorState.from_json(state))


@pytest.mark.parametrize("counts", [{"planned": 2, "finished": 2}, {"planned": 2, "finished": 1}])
def test_a_table_that_was_made_again_after_a_new_beginning_has_backfills(counts: dict[str, int]) -> None:
    """The log follows it as one that never began again; the chunks of the one before are none of its own."""
    context = KeptContext()
    backfilling(read_through(last_manifest(), incarnation=3, **counts), context)
    (split,) = chunks_again(context)
    assert (split.table, split.incarnation) == (KEPT, 0)


@pytest.mark.parametrize("seals", ["whole", "changes"])
def test_a_backfill_of_a_table_that_is_dropped_is_over_also_where_another_one_takes_the_name(seals: str) -> None:
    context = KeptContext()
    last = read_through(last_manifest(), planned=2, finished=2)
    enumerator = backfilling(last, context)
    (split,) = chunks_again(context)
    enumerator.handle_source_event(0, ChunkVoided(split.chunk_id, "the table's schema changed"))
    stream = StreamState.of(last.to_splits[STREAM_SPLIT_ID])
    states = SplitStates({STREAM_SPLIT_ID: stream.only([LEFT_OUT]).sealed()})
    if seals == "changes":
        states.changes[STREAM_SPLIT_ID] = Patch(
            stream.position_json(as_of=False), inside={TABLES: Patch(removed=(str(KEPT),))}
        )
    enumerator.epoch_sealed(2, states)
    states = SplitStates({STREAM_SPLIT_ID: stream.sealed()})
    enumerator.epoch_sealed(3, states)
    given = len(context.assigned)
    enumerator.handle_split_request(0)
    (backfill,) = SealedEnumerator.of(enumerator.snapshot_state(3)).backfills
    assert (backfill.over, len(context.assigned)) == ("the table was dropped", given)


def test_a_request_is_sealed_at_once_however_quiet_the_log_is() -> None:
    last, context = last_manifest(), KeptContext()
    asked = Requests(0, {str(KEPT): TableRequest.PAUSE})
    start = EnumeratorStart(None, last, lambda name: SchemaDocument({"fingerprint": name}), asked)
    enumerator = restore_or_create(context, OneTableDialect(), start)
    enumerator.start()
    # While nobody has the log, whatever is sealed lacks the request.
    wants = [enumerator.wants_seal]
    enumerator.add_reader(0)
    wants.append(enumerator.wants_seal)
    stream = next(split for split in context.assigned if isinstance(split, StreamSplit))
    # Its reader was given up before it reported.
    enumerator.epoch_sealed(2, last.to_splits)
    wants.append(enumerator.wants_seal)
    enumerator.epoch_sealed(3, {STREAM_SPLIT_ID: stream.state.sealed()})
    wants.append(enumerator.wants_seal)
    assert wants == [False, True, True, False]
