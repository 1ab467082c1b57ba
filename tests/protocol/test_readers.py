"""Registration, fencing and the life of chunks between coordinator, chunk readers and the log reader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raycdc.errors import FencedError, ProtocolError
from raycdc.source.protocol.link import SenderIdentity
from raycdc.source.protocol.metrics import CutProgress, PartitionMetrics, ProcessMetrics, ReaderMetrics, SplitLoad
from raycdc.source.protocol.source_event import (
    PROTOCOL_VERSION,
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    ReaderFailed,
    ReaderRegistration,
    Registered,
    RequestSplit,
    SealEpoch,
    Shutdown,
    SourceEventWrapper,
    pack,
)
from raycdc.source.snapshot.chunk_events import (
    ChunkOpened,
    ChunkPublished,
    ChunkVoided,
    CloseChunkRequest,
    DiscardSegments,
    Fate,
    OpenChunkRequest,
    StopAt,
    VoidChunkRequest,
)
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.table_life import InSnapshot, SnapshotState, followed_to_json
from raycdc.state.opaque import SealedSplit
from tests.protocol.pair import DOCUMENT, SETTINGS, TABLE, FakeReader, Job, segment


def two_readers(*cuts: int) -> tuple[Job, FakeReader, FakeReader]:
    """A job whose reader 0 has the log and whose reader 1 has asked for a chunk."""
    job = Job(cuts=cuts)
    log, chunks = job.reader(0), job.reader(1)
    chunks.send(RequestSplit())
    job.work()
    return job, log, chunks


def opened(log: FakeReader, chunks: FakeReader) -> SnapshotSplit:
    """A chunk that reader 1 has and the log reader has opened."""
    (split,) = chunks.chunks()
    chunks.event(OpenChunkRequest(split))
    assert log.events() == [OpenChunkRequest]
    log.opened(split)
    assert chunks.events() == [ChunkOpened]
    return split


def closed(log: FakeReader, chunks: FakeReader) -> SnapshotSplit:
    split = opened(log, chunks)
    chunks.closed(split)
    assert log.events() == [CloseChunkRequest]
    return split


# --- registration and fencing ---


def test_a_registration_is_answered_with_the_open_epoch() -> None:
    assert Job().reader(0).take(Registered) == [Registered(1)]


def test_a_reader_that_registers_during_a_seal_begins_with_the_next_epoch() -> None:
    job = Job()
    job.reader(0)
    job.begin_seal()
    assert job.reader(1).take(Registered) == [Registered(2)]


def test_a_repeated_registration_packet_registers_once() -> None:
    job = Job()
    reader = FakeReader(job, 0, 1, generation=1)
    reader.link.send(ReaderRegistration("here", 1, ""))
    packet = reader.link.packet()
    job.coordinator.receive(0, packet, now_s=0)
    job.coordinator.receive(0, packet, now_s=0)
    assert reader.take(Registered) == [Registered(1)]


def test_a_newer_incarnation_replaces_the_older_one_and_nothing_of_that_is_accepted_any_more() -> None:
    job = Job()
    old = job.reader(0)
    job.reader(0, incarnation=2)
    with pytest.raises(FencedError, match=r"replaced by \.2"):
        old.send(RequestSplit())
    assert job.coordinator.readers.take_lost() == [(0, 1, "a newer incarnation registered")]


def test_a_reader_of_another_generation_is_refused() -> None:
    job = Job(generation=2)
    with pytest.raises(FencedError, match="generation 1; this is 2"):
        FakeReader(job, 0, 1, generation=1).register()


def test_a_reader_silent_for_too_long_is_fenced_although_it_lives() -> None:
    job = Job()
    reader = job.reader(0)
    job.now_s += 10.5
    job.coordinator.tick(now_s=job.now_s)
    assert job.coordinator.readers.take_lost() == [(0, 1, "silent for 10 s")]
    with pytest.raises(FencedError, match="given up as lost"):
        reader.exchange()


def test_a_reader_whose_process_answers_but_whose_main_thread_hangs_is_fenced() -> None:
    job = Job()
    reader = job.reader(0)
    for _ in range(12):
        job.now_s += 5.1
        reader.exchange()  # The receiver thread's empty packets.
        job.coordinator.tick(now_s=job.now_s)
    assert job.coordinator.readers.take_lost() == [(0, 1, "stuck for 60 s")]


def test_the_end_of_an_older_process_does_not_touch_its_successor() -> None:
    job = Job()
    old = job.reader(0)
    job.reader(0, incarnation=2)
    job.coordinator.readers.take_lost()
    job.lose(old)
    assert job.coordinator.readers.take_lost() == []
    assert list(job.coordinator.readers.registered) == [0]


def test_a_message_before_the_registration_is_out_of_turn() -> None:
    job = Job()
    with pytest.raises(ProtocolError, match="RequestSplit before its ReaderRegistration"):
        FakeReader(job, 0, 1, generation=1).send(RequestSplit())


def test_an_unknown_message_is_an_error_that_names_it() -> None:
    job = Job()
    job.reader(0)
    with pytest.raises(ProtocolError, match="'Gossip'"):
        job.coordinator.receive(0, pack([PROTOCOL_VERSION, 1, 1, 0, [[2, ["Gossip"]]]]), now_s=0)


@pytest.mark.parametrize("message", [SealEpoch(1), Shutdown("bye")])
def test_a_message_that_is_not_for_the_coordinator_is_named(message: SealEpoch | Shutdown) -> None:
    with pytest.raises(ProtocolError, match=type(message).__name__):
        Job().reader(0).send(message)


def test_a_failed_reader_ends_the_job_with_its_error() -> None:
    job = Job()
    job.reader(0).send(ReaderFailed("LogLostError", "purged"))
    assert [type(job.coordinator.failure).__name__, str(job.coordinator.failure)] == ["LogLostError", "purged"]


def test_a_packet_for_a_replaced_reader_is_not_made() -> None:
    job = Job()
    job.reader(0)
    assert job.coordinator.readers.outgoing(0, 2) is None
    assert job.coordinator.readers.outgoing(1, 1) is None


def test_identities_are_ordered_by_generation_first() -> None:
    assert SenderIdentity(1, 9) < SenderIdentity(2, 1)


# --- chunks ---


def test_the_stream_goes_to_the_first_reader_and_chunks_to_whoever_asks() -> None:
    _, log, chunks = two_readers(10)
    assert log.stream() is not None
    assert [c.index for c in chunks.chunks()] == [0]
    chunks.send(RequestSplit())
    assert [c.index for c in chunks.chunks()] == [1]


def test_no_chunk_is_given_out_while_nobody_reads_the_log() -> None:
    job, log, chunks = two_readers(10)
    chunks.chunks()
    job.lose(log)
    assert chunks.stream() is not None
    assert [(c.index, c.attempt) for c in chunks.chunks()] == []
    chunks.send(RequestSplit())
    assert [(c.index, c.attempt) for c in chunks.chunks()] == [(0, 1)]


def test_a_chunk_whose_reader_dies_is_read_again_once_the_log_reader_has_voided_it() -> None:
    job, log, chunks = two_readers()
    split = opened(log, chunks)
    third = job.reader(2)
    third.send(RequestSplit())
    job.lose(chunks)
    assert log.events() == [VoidChunkRequest]
    assert third.chunks() == []
    log.voided(split, "its reader is gone")
    assert [(c.index, c.attempt) for c in third.chunks()] == [(0, 1)]


def test_a_chunk_published_just_before_its_reader_died_is_not_read_again() -> None:
    job, log, chunks = two_readers()
    split = closed(log, chunks)
    job.lose(chunks)
    log.published(split)
    log.voided(split, "its reader is gone")
    third = job.reader(2)
    third.send(RequestSplit())
    assert third.chunks() == []


def test_a_chunk_whose_reader_died_before_opening_it_is_read_again() -> None:
    job, log, chunks = two_readers()
    (split,) = chunks.chunks()
    job.lose(chunks)
    log.voided(split, "its reader is gone")
    third = job.reader(2)
    third.send(RequestSplit())
    assert [(c.index, c.attempt) for c in third.chunks()] == [(0, 1)]


def test_the_death_of_the_log_reader_voids_every_chunk_that_no_manifest_has() -> None:
    job, log, chunks = two_readers(10)
    published = closed(log, chunks)
    log.published(published)
    assert chunks.events() == [ChunkPublished]
    chunks.send(RequestSplit())
    under_way = opened(log, chunks)
    job.lose(log)
    assert chunks.events() == [ChunkVoided, ChunkVoided]
    chunks.send(RequestSplit(), RequestSplit())
    again = {(c.index, c.attempt) for c in chunks.chunks()}
    assert again == {(published.index, 1), (under_way.index, 1)}


def test_what_a_fenced_chunk_reader_still_says_about_its_chunk_is_refused() -> None:
    job, log, chunks = two_readers()
    split = opened(log, chunks)
    job.reader(1, incarnation=2)
    log.events()
    with pytest.raises(FencedError):
        chunks.closed(split)
    assert log.events() == []


def test_an_event_about_an_attempt_that_is_over_is_ignored() -> None:
    _, log, chunks = two_readers()
    split = opened(log, chunks)
    log.voided(split, "schema changed")
    chunks.closed(split)
    assert log.events() == []


def test_an_unknown_event_is_an_error_that_names_it() -> None:
    _, log, chunks = two_readers()
    split = opened(log, chunks)
    with pytest.raises(ProtocolError, match="does not know the event StopAt"):
        log.event(StopAt(split.index))


def test_the_chunks_of_a_dropped_table_are_not_read_again() -> None:
    job, log, chunks = two_readers(10, 20)
    split = opened(log, chunks)
    log.voided(split, "the table was dropped", Fate.TABLE_DROPPED)
    chunks.send(RequestSplit())
    assert chunks.chunks() == []
    assert chunks.is_finished()
    assert job.coordinator.status().chunks_waiting == 0


def test_a_successor_of_a_dead_reader_gets_its_own_requests_answered() -> None:
    job, log, chunks = two_readers()
    split = opened(log, chunks)
    chunks.send(RequestSplit())
    successor = job.reader(1, incarnation=2)
    successor.send(RequestSplit())
    log.voided(split, "its reader is gone")
    assert [(c.index, c.attempt) for c in successor.chunks()] == [(0, 1)]


def test_no_more_readers_get_chunks_than_may_and_the_place_of_a_dead_one_is_taken() -> None:
    job, log, first = two_readers(10, 20, 30)
    job.dialect.chunk_readers_max = 1
    assert [c.index for c in first.chunks()] == [0]
    second = job.reader(2)
    second.send(RequestSplit())
    first.send(RequestSplit())
    assert (first.chunks()[-1].index, second.chunks()) == (1, [])
    job.lose(first)
    log.send(RequestSplit())
    assert [c.index for c in second.chunks()] == [2]
    assert log.chunks() == []


def test_no_more_splits_is_said_only_when_every_chunk_is_in_a_manifest() -> None:
    job, log, chunks = two_readers()
    split = closed(log, chunks)
    chunks.send(RequestSplit())
    log.published(split)
    assert not chunks.is_finished()
    job.begin_seal()
    chunks.sealed(1)
    log.sealed(1, at=150, finished=[split])
    assert chunks.is_finished()


def test_a_reader_that_was_told_of_no_more_chunks_reads_those_of_a_table_that_begins_again() -> None:
    job, log, chunks = two_readers()
    split = closed(log, chunks)
    chunks.send(RequestSplit())
    log.published(split)
    job.begin_seal()
    chunks.sealed(1)
    log.sealed(1, at=150, finished=[split])
    assert chunks.is_finished()
    job.begin_seal()
    chunks.sealed(2)
    snapshot = {"key": "id", "foldable": True, "needs_null": False, "null_closed": False, "closed": []}
    begun = {"schema": "f1", "announced": True, "snapshot": snapshot, "incarnation": 1}
    state = {**job.stream_state(160), "changes": 1, "tables": {str(TABLE): begun}, "parked": {}}
    log.send(
        EpochSealed(2, {"stream": SealedSplit.from_json(state)}, (), {}, {"f1": DOCUMENT}, (), None, end_of_input=False)
    )
    job.work()
    assert [chunk.incarnation for chunk in chunks.chunks()] == [1]


def test_a_reader_with_nothing_to_do_can_be_retired_and_one_with_a_chunk_cannot() -> None:
    job, log, chunks = two_readers()
    split = opened(log, chunks)
    assert not job.coordinator.retire(1)
    assert not job.coordinator.retire(0)
    chunks.closed(split)
    log.published(split)
    assert job.coordinator.retire(1)
    with pytest.raises(FencedError):
        chunks.send(Heartbeat())


def test_a_chunks_reader_that_is_to_leave_ends_its_chunk_and_gets_no_other() -> None:
    job, log, chunks = two_readers(10)
    split = opened(log, chunks)
    assert not job.coordinator.retire(1)
    chunks.send(RequestSplit())
    assert chunks.chunks() == []
    chunks.closed(split, segment("/there/c.arrow", node="there"))
    log.published(split)
    # Its segments are in no manifest yet: whoever serves them must live on.
    assert job.coordinator.status().owing == {"there"}
    assert job.coordinator.retire(1)
    log.send(RequestSplit())
    assert [chunk.index for chunk in log.chunks()] == [1]


def test_the_logs_reader_that_is_to_leave_gives_the_log_away_behind_a_seal() -> None:
    job, log, other = two_readers()
    split = opened(log, other)
    assert not job.coordinator.retire(0)
    other.closed(split, segment("/here/c.arrow"))
    log.published(split)
    # Nothing else asks for a seal, and the interval is not over.
    job.coordinator.tick(now_s=job.now_s)
    assert log.exchange().asked_to_seal() == [1]
    other.exchange()
    log.sealed(1, at=150, finished=[split])
    assert other.stream() is None
    other.sealed(1)
    moved = other.stream() or other.exchange().stream()
    assert moved is not None
    assert moved.state.position.to_json() == {"at": 150}
    with pytest.raises(FencedError):
        log.send(Heartbeat())
    assert job.coordinator.retire(0)
    assert [reader.splits for reader in job.coordinator.status().readers] == [("stream",)]
    # The process ends, as it was told, and nobody misses it.
    job.coordinator.reader_lost(0, 1, "ended")
    assert job.coordinator.readers.take_lost() == []


def test_the_logs_reader_stays_while_a_chunk_needs_it_and_no_other_chunk_is_begun() -> None:
    job, log, chunks = two_readers(10)
    split = opened(log, chunks)
    assert not job.coordinator.retire(0)
    third = job.reader(2).send(RequestSplit())
    assert third.chunks() == []
    job.coordinator.tick(now_s=job.now_s)
    assert log.exchange().asked_to_seal() == []
    job.begin_seal()
    log.exchange()
    log.sealed(1, at=150)
    chunks.exchange()
    chunks.sealed(1)
    third.exchange()
    third.sealed(1)
    assert not job.coordinator.retire(0)
    assert log.exchange().stream() is not None
    chunks.closed(split)
    log.published(split)


def test_the_logs_reader_may_die_on_its_way_out() -> None:
    job, log, other = two_readers()
    assert not job.coordinator.retire(0)
    job.lose(log)
    assert other.exchange().stream() is not None


def test_a_reader_whose_chunk_was_voided_by_the_log_readers_death_can_be_retired() -> None:
    job, log, chunks = two_readers()
    opened(log, chunks)
    third = job.reader(2)
    job.lose(log)
    assert chunks.stream() is not None
    assert job.coordinator.retire(2)
    assert third.subtask == 2


def test_the_only_reader_gets_the_chunks_of_a_table_that_begins_again_after_all_was_read() -> None:
    job = Job()
    log = job.reader(0)
    log.send(RequestSplit())
    (split,) = log.chunks()
    log.published(split)
    job.begin_seal()
    log.sealed(1, at=140, finished=[split])
    log.send(RequestSplit())
    assert log.chunks() == []
    assert not log.is_finished()
    state = dict(job.stream_state(150), changes=1)
    snapshot = SnapshotState("id", foldable=True, needs_null=False)
    begun = InSnapshot("f1", announced=True, incarnation=1, snapshot=snapshot)
    state["tables"] = {str(TABLE): followed_to_json(begun)}
    job.begin_seal()
    log.send(EpochSealed(2, {"stream": SealedSplit.from_json(state)}, (), {}, {}, (), None, end_of_input=False))
    job.work()
    assert [(chunk.table, chunk.incarnation) for chunk in log.chunks()] == [(TABLE, 1)]


def test_a_reader_that_tells_of_its_cut_is_not_given_up_and_one_that_tells_nothing_is() -> None:
    job = Job(settings=replace(SETTINGS, progress_timeout_s=30))
    reader = job.reader(0)
    job.begin_seal()
    for synced in range(20):
        job.now_s += 9
        reader.send(Heartbeat(process=ProcessMetrics(sealing=CutProgress(1, synced, 20, 0))))
        job.coordinator.tick(now_s=job.now_s)
    for _ in range(4):
        job.now_s += 9
        reader.exchange()
        job.coordinator.tick(now_s=job.now_s)
    assert job.coordinator.readers.take_lost() == [(0, 1, "stuck for 30 s")]


def test_the_time_in_which_the_coordinator_was_busy_itself_is_no_silence_of_its_readers() -> None:
    job = Job()
    job.reader(0)
    job.now_s += 25
    job.coordinator.readers.was_busy(20)
    job.coordinator.tick(now_s=job.now_s)
    assert job.coordinator.readers.take_lost() == []


def discarded(reader: FakeReader) -> list[str]:
    """What a reader was told to delete since the last look."""
    told = [message.event for message in reader.take(SourceEventWrapper)]
    return [s.path for event in told if isinstance(event, DiscardSegments) for s in event.segments]


def test_what_a_published_chunk_wrote_is_deleted_when_the_log_reader_dies_before_the_manifest() -> None:
    job, log, chunks = two_readers()
    split = opened(log, chunks)
    chunks.closed(split, segment("first"))
    chunks.closed(split, segment("folded"))
    log.published(split)
    job.lose(log)
    job.work()
    assert discarded(chunks) == ["folded"]


def test_what_a_dead_readers_chunk_wrote_is_deleted_once_the_chunk_is_void_and_not_while_it_may_be_published() -> None:
    job, log, chunks = two_readers()
    split = opened(log, chunks)
    chunks.closed(split, segment("read"))
    job.lose(chunks)
    assert discarded(log) == []
    log.voided(split, "its reader is gone")
    assert discarded(log) == ["read"]


def test_without_any_reader_the_next_one_deletes_what_is_left() -> None:
    job = Job()
    log = job.reader(0)
    log.send(RequestSplit())
    (split,) = log.chunks()
    log.closed(split, segment("read"))
    log.published(split)
    job.lose(log)
    successor = job.reader(0, incarnation=2)
    assert discarded(successor) == ["read"]


def test_segments_on_a_node_that_has_no_reader_any_more_are_deleted_by_another_one() -> None:
    job, log, chunks = two_readers()
    job.begin_seal()
    far = segment("/there/s.arrow", node="far", flight="grpc://far")
    chunks.send(EpochSealed(1, {}, (far,), {}, {}, (), None, end_of_input=False))
    log.sealed(1, at=120)
    chunks.take(CheckpointComplete)
    job.coordinator.epoch_committed(1)
    told = [message.elsewhere for reader in (log, chunks) for message in reader.take(CheckpointComplete)]
    assert sorted(told, key=len) == [(), (replace(far, path="/there/s.arrow"),)]


def test_the_death_of_the_log_reader_takes_the_chunks_of_all_other_readers() -> None:
    job = Job(cuts=(10, 20))
    log, idle, chunks = (job.reader(subtask) for subtask in range(3))
    chunks.send(RequestSplit())
    job.work()
    opened(log, chunks)
    job.lose(log)
    assert idle.stream() is not None
    readers = {reader.subtask: list(reader.splits) for reader in job.coordinator.status().readers}
    assert readers == {1: ["stream"], 2: []}
    assert job.coordinator.retire(2)


def test_loads_that_a_heartbeat_does_not_tell_are_those_told_before() -> None:
    _, log, _ = two_readers()
    loads = {"p:0": SplitLoad(10.0)}
    log.send(Heartbeat(metrics=ReaderMetrics(partitions=PartitionMetrics(pending_records=7, loads=loads))))
    log.send(Heartbeat(metrics=ReaderMetrics(partitions=PartitionMetrics(pending_records=5))))
    told = log.job.coordinator.status().readers[0].metrics.partitions
    assert told == PartitionMetrics(pending_records=5, loads=loads)
