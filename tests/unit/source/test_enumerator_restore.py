"""What an enumerator restores when the configuration selects fewer tables than before, or a user asked for less."""

from __future__ import annotations

from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.opaque import EnumeratorState, SealedSplit
from raycdc.model import TableId
from raycdc.source.parking import Requests, TableRequest
from raycdc.source.protocol.api import EnumeratorStart
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator import restore_or_create
from raycdc.source.split import STREAM_SPLIT_ID, SnapshotSplit, StreamSplit
from raycdc.source.table_life import Phase
from tests.protocol.pair import Dialect
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
    context, dialect = KeptContext(), Dialect()
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
    assert [(s.state.changes, s.state.parked[LEFT_OUT].phase) for s in streams] == [(1, Phase.ENDED)]


def test_a_request_is_sealed_at_once_however_quiet_the_log_is() -> None:
    last, context = last_manifest(), KeptContext()
    asked = Requests(0, {str(KEPT): TableRequest.PAUSE})
    start = EnumeratorStart(None, last, lambda name: SchemaDocument({"fingerprint": name}), asked)
    enumerator = restore_or_create(context, Dialect(), start)
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
