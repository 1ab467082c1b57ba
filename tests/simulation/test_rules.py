"""Every rule that keeps rows from being lost, repeated or reordered is needed: without it the simulation fails.

Each test switches one rule off and lets seeds run until one of them breaks a promise. A rule whose absence goes
unnoticed is either not needed or not tested; both are bugs of the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raycdc.errors import FencedError
from raycdc.segments import writing
from raycdc.source.protocol.coordinator import SourceCoordinator
from raycdc.source.protocol.link import Link, read_packet
from raycdc.source.protocol.source_event import decode
from raycdc.source.snapshot.enumerator.chunk_assignments import ChunkAssignments
from raycdc.source.snapshot.enumerator.incremental_enumerator import IncrementalSnapshotEnumerator
from raycdc.source.snapshot.handoff import hand_off, open_chunk, table_chunks
from raycdc.source.snapshot.handoff.chunk_openings import ChunkOpenings
from raycdc.source.snapshot.handoff.hand_off import HandOff, PublishChunkRequest
from raycdc.source.snapshot.handoff.open_chunk import DROP, EMIT, HOLD
from raycdc.source.snapshot.handoff.table_chunks import DroppedRows, Removals, TableChunks
from raycdc.source.snapshot.log import stream_state
from raycdc.source.snapshot.log.log_reader import LogReader
from raycdc.source.snapshot.log.log_rows import HeldRows
from raycdc.source.snapshot.log.log_unit import SchemaChange
from raycdc.source.snapshot.reader.chunks_in_flight import ChunksInFlight
from raycdc.source.tables import table_life
from raycdc.state.opaque import Position
from tests.simulation.missing_rules import Switch, name_of, require_noticed, select_at_once
from tests.support.simulation import Settings, TableKind, Visibility, cluster
from tests.support.simulation.chunk_source import SimChunkSource
from tests.support.simulation.database import SimPosition
from tests.support.simulation.log_source import SimLogSource
from tests.support.simulation.source import SimFailoverDialect, SimReaderDialect
from tests.support.simulation.state import MemoryState


def settings(
    visibility: Visibility,
    *kinds: TableKind,
    crashes: float = 0.0,
    faults: float = 0.0,
    readers: int = 2,
    steps: int = 1200,
    truncations: float = 0.0,
    failovers: float = 0.0,
    swaps: float = 0.0,
) -> Settings:
    chosen = Settings(visibility, kinds or (TableKind.PLAIN,), steps, faults, crashes, readers, truncations)
    return replace(chosen, failovers=failovers, swaps=swaps)


SNAPSHOT = settings(Visibility.SNAPSHOT, TableKind.PLAIN)
WAIT = settings(Visibility.WAIT, TableKind.PLAIN)
RING = settings(Visibility.RING, TableKind.PLAIN)
MOVING = settings(Visibility.SNAPSHOT, TableKind.MOVING, TableKind.MOVING)
AS_OF = settings(Visibility.SNAPSHOT, TableKind.AS_OF, TableKind.PLAIN)
SWAPS = settings(Visibility.SNAPSHOT, TableKind.PLAIN, TableKind.MOVING, swaps=0.1)
KEYLESS_SWAPS = settings(Visibility.SNAPSHOT, TableKind.KEYLESS, TableKind.KEYLESS, swaps=0.1)
CRASHES = settings(Visibility.SNAPSHOT, TableKind.PLAIN, crashes=0.006)
FAILOVERS = settings(Visibility.SNAPSHOT, TableKind.PLAIN, TableKind.PLAIN, TableKind.PLAIN, failovers=0.006)


def recode(change: Callable[[np.ndarray], np.ndarray]) -> Switch:
    """Judge rows otherwise than the hand-off does."""

    def switch(patch: pytest.MonkeyPatch) -> None:
        real = TableChunks._codes
        patch.setattr(TableChunks, "_codes", lambda self, rows: change(real(self, rows)))

    return switch


def drop_what_is_to_be_held(patch: pytest.MonkeyPatch) -> None:
    recode(lambda codes: np.where(codes >= HOLD, DROP, codes))(patch)


def emit_what_is_to_be_held(patch: pytest.MonkeyPatch) -> None:
    recode(lambda codes: np.where(codes >= HOLD, EMIT, codes))(patch)


def emit_what_is_to_be_dropped(patch: pytest.MonkeyPatch) -> None:
    recode(lambda codes: np.where(codes == DROP, EMIT, codes))(patch)


def drop_what_is_to_be_emitted(patch: pytest.MonkeyPatch) -> None:
    recode(lambda codes: np.where(codes == EMIT, DROP, codes))(patch)


def publish_without_folding(patch: pytest.MonkeyPatch) -> None:
    real = HandOff.close
    patch.setattr(HandOff, "close", lambda self, *names, **values: real(self, *names, **{**values, "exact": True}))


def publish_before_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    real = HandOff.advance
    patch.setattr(HandOff, "advance", lambda self, ordinal, **values: real(self, 1 << 60, **values))


def publish_before_the_log_has_said_which_table_was_read(patch: pytest.MonkeyPatch) -> None:
    real = HandOff.close

    def close(self: HandOff, *names: Any, **values: Any) -> None:
        real(self, *names, **{**values, "log_end": values["high"]})

    patch.setattr(HandOff, "close", close)


def lose_what_was_put_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldRows, "__iter__", lambda self: iter([*self.recalled, *self.newest]))


def open_chunks_before_what_was_put_down_is_visible(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster, "HELD_BYTES_MAX", 0)
    patch.setattr(HandOff, "opens_from_s", lambda self, table: 0.0)


def open_chunks_before_what_was_forgotten_is_visible(patch: pytest.MonkeyPatch) -> None:
    def evict(self: DroppedRows) -> None:
        self._forget_oldest()

    patch.setattr(DroppedRows, "evict", evict)


def release_nothing_held(patch: pytest.MonkeyPatch) -> None:
    real = TableChunks._decide

    def decide(self: TableChunks, *values: Any) -> Any:
        decision = real(self, *values)
        return (
            PublishChunkRequest(decision.split, decision.segments, ())
            if isinstance(decision, PublishChunkRequest)
            else decision
        )

    patch.setattr(TableChunks, "_decide", decide)


def keep_moves_as_updates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_chunks, "split_moves", lambda batch, codes, key: batch)


def select_before_what_was_dropped_is_visible(patch: pytest.MonkeyPatch) -> None:
    select_at_once(patch)


def take_the_high_watermark_from_what_is_visible(patch: pytest.MonkeyPatch) -> None:
    real = SimChunkSource._finish

    def finish(self: SimChunkSource, read: Any) -> None:
        view_end = self._tasks[0].view_end if self._tasks[0].read is None else read.high
        real(self, replace(read, high=view_end))

    patch.setattr(SimChunkSource, "_finish", finish)


def remember_nothing_dropped(patch: pytest.MonkeyPatch) -> None:
    real = SimReaderDialect.__init__

    def init(self: SimReaderDialect, *values: Any) -> None:
        real(self, *values)
        self.ring_s = 0.0

    patch.setattr(SimReaderDialect, "__init__", init)


def open_chunks_right_after_a_start(patch: pytest.MonkeyPatch) -> None:
    real = ChunkOpenings.__init__

    def init(self: ChunkOpenings, *values: Any, **named: Any) -> None:
        real(self, *values, **named)
        self._opens_from_s = 0.0

    patch.setattr(ChunkOpenings, "__init__", init)


def forget_what_a_voided_chunk_held(patch: pytest.MonkeyPatch) -> None:
    # As much as there is: what does not fit has chunks wait.
    patch.setattr(cluster, "HELD_BYTES_MAX", 1 << 20)

    def void(self: TableChunks, chunk: Any, *, now_s: float) -> None:
        del self._open[chunk.split.split_id]
        self._index = None

    patch.setattr(TableChunks, "void", void)


def keep_chunks_open_over_a_schema_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HandOff, "void_table", lambda self, table, now_s: [])


def remember_dropped_rows_over_a_schema_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DroppedRows, "clear", lambda self: None)


def let_a_schema_change_into_the_epoch(patch: pytest.MonkeyPatch) -> None:
    real = LogReader.on_unit

    def on_unit(self: LogReader, unit: Any, *, now_s: float) -> None:
        if isinstance(unit, SchemaChange):
            self._epoch.changed = self._cursor.moved = False
        real(self, unit, now_s=now_s)

    patch.setattr(LogReader, "on_unit", on_unit)


def cut_inside_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogReader, "can_cut", property(lambda self: True))


def void_nothing_when_a_chunk_reader_dies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChunkAssignments, "lose", lambda self, split: None)


def keep_published_chunks_of_a_dead_log_reader(patch: pytest.MonkeyPatch) -> None:
    real = ChunkAssignments.lose_log

    def lose_log(self: ChunkAssignments) -> None:
        published = {split_id: out for split_id, out in self._out.items() if out.published}
        for split_id in published:
            del self._out[split_id]
        real(self)
        self._out.update(published)

    patch.setattr(ChunkAssignments, "lose_log", lose_log)


def give_the_stream_back_before_the_report_counts(patch: pytest.MonkeyPatch) -> None:
    real = SourceCoordinator._lose

    def lose(self: SourceCoordinator, subtask_id: int, reason: str) -> None:
        if self.epochs.sealing is not None:
            self.epochs.sealing.reported.pop(subtask_id, None)
        real(self, subtask_id, reason)

    patch.setattr(SourceCoordinator, "_lose", lose)


def acknowledge_what_is_only_sealed(patch: pytest.MonkeyPatch) -> None:
    real = SourceCoordinator._finish_seal

    def complete(self: SourceCoordinator, *given: Any) -> None:
        real(self, *given)
        manifest = self.epochs.manifest(self.epochs.sealed)
        if manifest is not None:
            self._surroundings.acknowledgements.committed(manifest.to_splits)

    patch.setattr(SourceCoordinator, "_finish_seal", complete)


def stop_before_all_chunks_are_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IncrementalSnapshotEnumerator, "_all_published", lambda self: True)


def handle_messages_twice(patch: pytest.MonkeyPatch) -> None:
    def receive(self: Link, packet: Any) -> list[Any]:
        if packet.identity != self.identity:
            raise FencedError("stale")
        while self._unacknowledged and self._unacknowledged[0][0] <= packet.acknowledged:
            self._unacknowledged.popleft()
        self._received = max([self._received, *(n for n, _ in packet.messages)])
        return [decode(message) for _, message in packet.messages]

    patch.setattr(Link, "receive", receive)


def accept_stale_incarnations(patch: pytest.MonkeyPatch) -> None:
    real = SourceCoordinator.receive
    links: dict[Any, Link] = {}

    def receive(self: SourceCoordinator, subtask_id: int, data: bytes, *, now_s: float) -> None:
        packet = read_packet(data)
        try:
            real(self, subtask_id, data, now_s=now_s)
            reader = self.readers[subtask_id]
            links[self, subtask_id, packet.identity] = reader.link
        except FencedError:
            stale, successor = links.get((self, subtask_id, packet.identity)), self.readers.get(subtask_id)
            if stale is None or successor is None:
                raise
            for message in stale.receive(packet):
                if self.readers.get(subtask_id) is not None:
                    self._handle(subtask_id, successor, message)

    patch.setattr(SourceCoordinator, "receive", receive)


def accept_manifests_of_older_generations(patch: pytest.MonkeyPatch) -> None:
    real = MemoryState.write_manifest

    def write(self: MemoryState, manifest: Any) -> None:
        generation, self.generation = self.generation, manifest.generation
        try:
            real(self, manifest)
        finally:
            self.generation = generation

    patch.setattr(MemoryState, "write_manifest", write)


def publish_chunks_that_rows_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(open_chunk, "removes", lambda rows: False)


def publish_behind_removals_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Removals, "note", lambda self, emitted: None)


def publish_chunks_in_the_epoch_of_a_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HandOff, "truncate", lambda self, table: None)


def say_nothing_of_truncations(patch: pytest.MonkeyPatch) -> None:
    real = SimLogSource._schema_change

    def silently(self: SimLogSource, transaction: Any) -> Any:
        change = real(self, transaction)
        return replace(change, truncations=()) if isinstance(change, SchemaChange) else change

    patch.setattr(SimLogSource, "_schema_change", silently)


def delete_what_is_being_folded(patch: pytest.MonkeyPatch) -> None:
    def discard(self: ChunksInFlight, chunk: Any) -> None:
        if chunk.read is not None:
            self._io().discard(chunk.read.segments)

    patch.setattr(ChunksInFlight, "_discard", discard)


def keep_the_old_servers_place_in_the_log(patch: pytest.MonkeyPatch) -> None:
    real = SimFailoverDialect.resume_point

    def resume_point(self: SimFailoverDialect, position: Position) -> Any:
        point = real(self, position)
        place = SimPosition.of(position)
        counted = self._database.counted(place.ordinal, place.server)
        return None if point is None else replace(point, ordinal=counted)

    patch.setattr(SimFailoverDialect, "resume_point", resume_point)


def read_chunks_at_any_server(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimChunkSource, "cut_off", property(lambda self: False))


def partition_by_number_instead_of_key(patch: pytest.MonkeyPatch) -> None:
    def numbers(batch: Any, _key: Any, count: int) -> np.ndarray:
        return np.arange(batch.num_rows, dtype=np.uint8) % np.uint8(count)

    patch.setattr(writing, "partition_numbers", numbers)


def let_changes_pass_that_chunks_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hand_off, "later", lambda state, rows: rows)


def let_the_log_pass_a_table_that_is_read_as_of_a_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_life.AsOf, "bars", lambda self, ordinal: False)


def forget_the_place_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    real = table_life.followed_from_json

    def from_json(data: Any) -> table_life.Followed:
        snapshot: Any = data["snapshot"]
        kept: Any = None if snapshot is None else {name: value for name, value in snapshot.items() if name != "as_of"}
        return real({**data, "snapshot": kept})

    patch.setattr(stream_state, "followed_from_json", from_json)


def open_chunks_as_of_a_place_before_the_log_reader(patch: pytest.MonkeyPatch) -> None:
    real = HandOff.open
    patch.setattr(HandOff, "open", lambda self, split, **values: real(self, split, **{**values, "ordinal": 0}))


#: Rule, circumstances in which it matters, and a seed that is known to miss it (only to be quick).
RULES: list[tuple[Switch, Settings, int]] = [
    (drop_what_is_to_be_held, SNAPSHOT, 0),
    (emit_what_is_to_be_held, SNAPSHOT, 0),
    (emit_what_is_to_be_dropped, SNAPSHOT, 0),
    (drop_what_is_to_be_emitted, SNAPSHOT, 0),
    (publish_without_folding, WAIT, 0),
    (publish_before_the_high_watermark, WAIT, 0),
    (publish_before_the_log_has_said_which_table_was_read, SWAPS, 81),
    (publish_before_the_log_has_said_which_table_was_read, KEYLESS_SWAPS, 0),
    (lose_what_was_put_down, WAIT, 0),
    (
        open_chunks_before_what_was_put_down_is_visible,
        settings(Visibility.RING, TableKind.PLAIN, crashes=0.006, readers=3),
        150,
    ),
    (open_chunks_before_what_was_forgotten_is_visible, RING, 16),
    (release_nothing_held, WAIT, 0),
    (keep_moves_as_updates, MOVING, 0),
    (select_before_what_was_dropped_is_visible, SNAPSHOT, 18),
    (select_before_what_was_dropped_is_visible, WAIT, 4),
    (take_the_high_watermark_from_what_is_visible, WAIT, 0),
    (remember_nothing_dropped, RING, 0),
    (open_chunks_right_after_a_start, settings(Visibility.RING, crashes=0.005), 21),
    (forget_what_a_voided_chunk_held, settings(Visibility.RING, TableKind.PLAIN, crashes=0.006, readers=3), 606),
    (keep_chunks_open_over_a_schema_change, WAIT, 0),
    (remember_dropped_rows_over_a_schema_change, RING, 43),
    (let_a_schema_change_into_the_epoch, SNAPSHOT, 0),
    (cut_inside_transactions, CRASHES, 21),
    (void_nothing_when_a_chunk_reader_dies, settings(Visibility.SNAPSHOT, crashes=0.008, readers=3), 22),
    (keep_published_chunks_of_a_dead_log_reader, CRASHES, 52),
    (
        give_the_stream_back_before_the_report_counts,
        settings(Visibility.SNAPSHOT, crashes=0.008, readers=3, faults=0.3),
        43,
    ),
    (acknowledge_what_is_only_sealed, SNAPSHOT, 0),
    (stop_before_all_chunks_are_out, SNAPSHOT, 0),
    (handle_messages_twice, settings(Visibility.SNAPSHOT, faults=0.2), 0),
    (accept_stale_incarnations, settings(Visibility.SNAPSHOT, crashes=0.008, faults=0.2), 0),
    (accept_manifests_of_older_generations, settings(Visibility.SNAPSHOT, crashes=0.008), 0),
    (publish_chunks_that_rows_left, MOVING, 16),
    (publish_behind_removals_of_the_epoch, MOVING, 63),
    (publish_chunks_in_the_epoch_of_a_truncation, settings(Visibility.SNAPSHOT, truncations=0.5), 81),
    (say_nothing_of_truncations, settings(Visibility.SNAPSHOT, truncations=0.5), 0),
    (keep_the_old_servers_place_in_the_log, FAILOVERS, 21),
    (read_chunks_at_any_server, FAILOVERS, 0),
    (partition_by_number_instead_of_key, SNAPSHOT, 0),
    (let_changes_pass_that_chunks_have, AS_OF, 28),
    (let_the_log_pass_a_table_that_is_read_as_of_a_place, AS_OF, 0),
    (forget_the_place_at_a_restart, settings(Visibility.SNAPSHOT, TableKind.AS_OF, crashes=0.008), 0),
    (open_chunks_as_of_a_place_before_the_log_reader, AS_OF, 0),
    (delete_what_is_being_folded, settings(Visibility.WAIT, crashes=0.008, readers=3), 15),
]


@pytest.mark.parametrize(("switch", "circumstances", "first"), RULES, ids=name_of)
def test_a_run_without_the_rule_is_noticed(
    switch: Switch, circumstances: Settings, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_noticed(switch, circumstances, first, monkeypatch)
