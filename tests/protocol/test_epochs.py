"""Sealing: what is in an epoch, who is waited for, and what the death of a reader does to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from raycdc.errors import FencedError, ProtocolError, StateError
from raycdc.model.rules.rate_limit import Until
from raycdc.source.protocol.coordination import SealTimer
from raycdc.source.protocol.epochs import SEALS_KEPT
from raycdc.source.protocol.job_status import SealTimes
from raycdc.source.protocol.live_readers import LiveReader
from raycdc.source.protocol.source_event import CheckpointComplete, Heartbeat, RequestSplit, SourceEventWrapper
from raycdc.source.snapshot.chunk_events import StopAt
from raycdc.state.manifests.manifest import Manifest
from tests.protocol.pair import SETTINGS, FakeReader, Job


def heartbeat(open_bytes: int, *, wants_seal: bool = False, dirty: bool = False) -> Heartbeat:
    return Heartbeat(open_bytes, wants_seal=wants_seal, dirty=dirty)


def test_an_epoch_is_sealed_when_every_reader_has_reported_it() -> None:
    job = Job()
    log, other = job.reader(0), job.reader(1)
    job.begin_seal()
    assert (log.asked_to_seal(), other.asked_to_seal()) == ([1], [1])
    log.sealed(1, at=120)
    assert job.store.manifests == []
    other.sealed(1)
    (manifest,) = job.store.manifests
    assert manifest.epoch == 1
    assert manifest.from_splits["stream"].to_json()["ordinal"] == 100
    assert manifest.to_splits["stream"].to_json()["ordinal"] == 120


def test_a_status_says_when_the_newest_seals_were_asked_for_reported_and_durable() -> None:
    job = Job()
    log, other = job.reader(0), job.reader(1)
    for epoch in range(1, SEALS_KEPT + 3):
        job.begin_seal()
        asked_ms = int(job.now_s * 1000)
        job.now_s += 1
        log.sealed(epoch, at=100 + epoch)
        assert epoch not in {seal.epoch for seal in job.coordinator.status().seals.newest}
        job.now_s += 1
        other.sealed(epoch)
        newest = job.coordinator.status().seals.newest[-1]
        assert newest == SealTimes(epoch, asked_ms, asked_ms + 2000, {0: asked_ms + 1000, 1: asked_ms + 2000})
        job.coordinator.epoch_committed(epoch)
    assert [seal.epoch for seal in job.coordinator.status().seals.newest] == [*range(3, SEALS_KEPT + 3)]


def test_a_seal_waits_for_its_time_when_there_are_rows() -> None:
    job = Job()
    log = job.reader(0)
    log.send(heartbeat(10))
    job.coordinator.tick(now_s=1.9)
    assert log.asked_to_seal() == []
    job.coordinator.tick(now_s=2.0)
    assert log.asked_to_seal() == [1]


def test_rows_that_wait_while_the_sink_is_idle_may_be_sealed_early_so_often_an_hour() -> None:
    job = Job(settings=replace(SETTINGS, epochs_per_hour=36))
    log = job.reader(0)
    sealed: list[float] = []
    for tenth in range(1, 600 * 10):
        job.now_s = tenth / 10
        log.send(heartbeat(10))
        job.coordinator.tick(now_s=job.now_s)
        if asked := log.asked_to_seal():
            sealed.append(job.now_s)
            log.sealed(asked[-1], at=100 + len(sealed))
            job.coordinator.epoch_committed(asked[-1])
    early = [now - before for before, now in zip([0.0, *sealed], sealed, strict=False) if now - before < 1.9]
    # Six are kept for ten minutes without any; the others wait for their interval, which takes one for each of them.
    assert len(early) == 6
    assert sealed[5] < 1.5


def test_a_busy_sink_gets_no_early_epoch() -> None:
    job = Job(settings=replace(SETTINGS, epochs_per_hour=3600))
    log = job.reader(0)
    log.send(heartbeat(10))
    job.coordinator.tick(now_s=0.1)
    assert log.asked_to_seal() == [1]
    log.sealed(1, at=110)
    log.send(heartbeat(10))
    job.coordinator.tick(now_s=0.3)
    assert log.asked_to_seal() == []
    job.coordinator.epoch_committed(1)
    job.coordinator.tick(now_s=0.4)
    assert log.asked_to_seal() == [2]


def test_little_waits_until_the_sink_has_committed_and_much_is_sealed_beside_its_commit() -> None:
    """What is sealed behind an epoch under way is committed no sooner, and what comes after it one commit later."""
    job = Job()
    log = job.reader(0)
    log.send(heartbeat(10))
    job.coordinator.tick(now_s=2.0)
    assert log.asked_to_seal() == [1]
    log.sealed(1, at=110)
    job.now_s = 9.0
    log.send(heartbeat(SETTINGS.epoch_bytes_idle - 1))
    job.coordinator.tick(now_s=9.0)
    assert log.asked_to_seal() == []
    log.send(heartbeat(SETTINGS.epoch_bytes_idle))
    job.coordinator.tick(now_s=9.0)
    assert log.asked_to_seal() == [2]
    log.sealed(2, at=120)
    log.send(heartbeat(10))
    job.coordinator.epoch_committed(2)
    job.now_s = 11.0
    log.send(heartbeat(10))
    job.coordinator.tick(now_s=11.0)
    assert log.asked_to_seal() == [3]


def test_epochs_that_are_taken_by_hand_do_not_wait_for_each_other() -> None:
    """A stream of Spark tells of a commit while it asks for the next batch, which there would never be."""
    job = Job(settings=replace(SETTINGS, hand_taken=True))
    log = job.reader(0)
    log.send(heartbeat(10))
    job.coordinator.tick(now_s=2.0)
    assert log.asked_to_seal() == [1]
    log.sealed(1, at=110)
    job.now_s = 4.0
    log.send(heartbeat(10))
    job.coordinator.tick(now_s=4.0)
    assert log.asked_to_seal() == [2]


def test_rows_of_a_snapshot_are_grouped_however_idle_the_sink_is() -> None:
    job = Job(settings=replace(SETTINGS, epochs_per_hour=3600))
    log = job.reader(0)
    job.work()
    log.send(RequestSplit()).send(heartbeat(10))
    (chunk,) = log.chunks()
    job.coordinator.tick(now_s=1.9)
    assert log.asked_to_seal() == []
    log.published(chunk).send(heartbeat(10))
    job.coordinator.tick(now_s=1.9)
    assert log.asked_to_seal() == [1]


def test_early_epochs_that_were_not_needed_are_kept_for_later() -> None:
    timer = SealTimer(replace(SETTINGS, epochs_per_hour=36))
    for _ in range(10):
        timer.restart(now_s=0.0)
    reader = cast("LiveReader", SimpleNamespace(heartbeat=heartbeat(10)))

    def due(now_s: float) -> bool:
        return timer.is_due([reader], asked=False, in_flight=0, reads_chunks=False, now_s=now_s)

    assert not due(1.0), "none is left"
    timer.restart(now_s=150.0)
    assert not due(150.2), "one came, which that epoch took"
    timer.restart(now_s=350.0)
    assert due(350.2), "another one came meanwhile"


def test_a_full_epoch_is_sealed_at_once() -> None:
    job = Job()
    log = job.reader(0)
    log.send(heartbeat(SETTINGS.epoch_bytes_max))
    job.coordinator.tick(now_s=0.1)
    assert log.asked_to_seal() == [1]


def test_an_idle_sink_gets_a_smaller_epoch_and_a_busy_one_a_full_one() -> None:
    job = Job()
    log = job.reader(0)
    log.send(heartbeat(SETTINGS.epoch_bytes_idle))
    job.coordinator.tick(now_s=0.1)
    assert log.asked_to_seal() == [1]
    log.sealed(1, at=110)
    log.send(heartbeat(SETTINGS.epoch_bytes_max - 1))
    job.coordinator.tick(now_s=0.2)
    assert log.asked_to_seal() == []
    job.coordinator.epoch_committed(1)
    job.coordinator.tick(now_s=0.3)
    assert log.asked_to_seal() == [2]


def test_a_position_that_only_moved_is_sealed_now_and_then() -> None:
    job = Job()
    log = job.reader(0)
    log.send(heartbeat(0, dirty=True))
    job.coordinator.tick(now_s=9.0)
    assert log.asked_to_seal() == []
    job.now_s = 9.9
    log.exchange()
    job.coordinator.tick(now_s=10.0)
    assert log.asked_to_seal() == [1]


def test_a_wish_to_seal_from_before_the_cut_does_not_seal_twice() -> None:
    job = Job()
    log = job.reader(0)
    log.send(heartbeat(10, wants_seal=True))
    job.coordinator.tick(now_s=0.1)
    log.send(heartbeat(10, wants_seal=True))
    log.sealed(1, at=110)
    job.coordinator.tick(now_s=0.2)
    assert log.asked_to_seal() == [1]


def test_no_more_epochs_are_sealed_than_the_sink_may_lag_behind() -> None:
    job = Job()
    log = job.reader(0)
    for epoch in (1, 2):
        job.begin_seal()
        log.sealed(epoch, at=100 + epoch)
    job.begin_seal()
    assert log.asked_to_seal() == [1, 2]
    job.coordinator.epoch_committed(1)
    job.begin_seal()
    assert log.asked_to_seal() == [3]
    assert [m.epoch for m in log.take(CheckpointComplete)] == [1]


def test_numbers_of_dropped_epochs_are_not_given_again_and_do_not_block_sealing() -> None:
    job = Job()
    log = job.reader(0)
    job.begin_seal()
    log.sealed(1, at=101)
    again = Job(generation=2, store=job.store)
    again.coordinator.epochs.sealed = 7  # as with first_epoch=8 after recovery dropped 2 to 7
    again.coordinator.epoch_committed(1)
    reader = again.reader(0)
    again.begin_seal()
    assert reader.asked_to_seal() == [8]
    reader.sealed(8, at=102)
    assert again.coordinator.epochs.sealed_after(1) == 8


def test_a_reader_lost_before_its_report_is_not_waited_for_and_its_rows_are_not_in_the_epoch() -> None:
    job = Job()
    log, other = job.reader(0), job.reader(1)
    job.begin_seal()
    other.sealed(1)
    job.lose(log)
    (manifest,) = job.store.manifests
    assert manifest.to_splits == manifest.from_splits
    stream = other.stream()
    assert stream is not None
    assert stream.state.ordinal == 100


def test_a_reader_lost_after_its_report_keeps_it_and_the_stream_goes_on_behind_it() -> None:
    job = Job()
    log, other = job.reader(0), job.reader(1)
    job.begin_seal()
    log.sealed(1, at=130)
    job.lose(log)
    assert other.stream() is None
    other.sealed(1)
    assert job.store.manifests[0].to_splits["stream"].to_json()["ordinal"] == 130
    stream = other.stream()
    assert stream is not None
    assert stream.state.ordinal == 130


def test_a_successor_that_registers_before_the_manifest_keeps_its_requests_and_chunks() -> None:
    job = Job(cuts=[10])
    log, other = job.reader(0), job.reader(1)
    job.begin_seal()
    log.sealed(1, at=130)
    job.lose(log)
    successor = job.reader(0, incarnation=2)
    successor.send(RequestSplit())
    other.sealed(1)
    given = successor.stream()
    assert given is not None
    assert given.state.ordinal == 130
    assert len(successor.chunks()) <= 1
    successor.send(RequestSplit(), RequestSplit())
    assert {c.index for c in successor.chunks()} <= {0, 1}
    assert job.coordinator.status().readers[0].splits


def test_a_reader_crash_after_the_report_before_its_ack_reassigns_nothing_that_was_sealed() -> None:
    job = Job()
    log = job.reader(0)
    log.send(RequestSplit())
    (split,) = log.chunks()
    log.published(split)
    job.begin_seal()
    log.sealed(1, at=140, finished=[split])
    job.lose(log)
    successor = job.reader(0, incarnation=2)
    successor.send(RequestSplit())
    stream = successor.stream()
    assert stream is not None
    assert stream.state.ordinal == 140
    assert successor.chunks() == []
    # It has the log, and may be given chunks of a table that begins again.
    assert not successor.is_finished()


def test_a_silent_reader_is_fenced_at_a_seal_and_the_epoch_completed_without_it() -> None:
    job = Job()
    log, other = job.reader(0), job.reader(1)
    job.begin_seal()
    job.now_s += 6
    log.sealed(1, at=120)
    job.now_s += 5
    job.coordinator.tick(now_s=job.now_s)
    assert [subtask for subtask, _, _ in job.coordinator.readers.take_lost()] == [1]
    assert [m.epoch for m in job.store.manifests] == [1]
    assert other.subtask == 1


def test_a_report_nobody_asked_for_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="nobody asked"):
        Job().reader(0).sealed(1, at=100)


def test_a_new_generation_goes_on_from_the_last_manifest_and_reads_open_chunks_again() -> None:
    job = Job(cuts=[10])
    log = job.reader(0)
    log.send(RequestSplit(), RequestSplit())
    first, second = log.chunks()
    log.published(first)
    job.begin_seal()
    log.sealed(1, at=150, finished=[first])
    again = Job(cuts=[10], generation=2, store=job.store)
    reader = again.reader(0)
    reader.send(RequestSplit(), RequestSplit())
    again.work()
    stream = reader.stream()
    assert stream is not None
    assert stream.state.ordinal == 150
    assert [c.index for c in reader.chunks()] == [second.index]


def test_stopping_seals_what_is_there_as_the_final_epoch() -> None:
    job = Job()
    log = job.reader(0)
    job.coordinator.stop()
    job.coordinator.tick(now_s=0.1)
    log.sealed(1, at=110)
    assert job.store.manifests[0].final
    assert job.coordinator.epochs.final == 1


def test_a_run_stopped_before_it_knew_where_to_start_starts_afresh_next_time() -> None:
    job = Job()
    reader = FakeReader(job, 0, 1, generation=1).register()
    job.coordinator.stop()
    job.coordinator.tick(now_s=0.1)
    reader.sealed(1)
    assert job.store.manifests[0].to_splits == {}
    assert Job(generation=2, store=job.store).reader(0).stream() is not None


def test_until_caught_up_stops_at_the_run_start_or_the_greatest_high_watermark_once_all_chunks_are_out() -> None:
    job = Job(until=Until.CAUGHT_UP)
    log = job.reader(0)
    log.send(RequestSplit())
    (split,) = log.chunks()
    log.closed(split, high=170)
    log.events()
    log.published(split)
    stops = [m.event for m in log.take(SourceEventWrapper) if isinstance(m.event, StopAt)]
    assert stops == [StopAt(170)]


def test_until_caught_up_with_nothing_left_to_do_stops_at_once() -> None:
    job = Job()
    log = job.reader(0)
    log.send(RequestSplit())
    (split,) = log.chunks()
    log.published(split)
    job.begin_seal()
    log.sealed(1, at=150, finished=[split])
    again = Job(generation=2, store=job.store, until=Until.CAUGHT_UP)
    assert StopAt in again.reader(0).events()


def test_a_state_that_another_driver_took_over_ends_the_job_and_not_the_reader_that_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job()
    log = job.reader(0)
    job.begin_seal()

    def refuse(_: Manifest) -> None:
        raise FencedError("another driver took over")

    monkeypatch.setattr(job.store, "write_manifest", refuse)
    with pytest.raises(StateError, match="another driver"):
        log.sealed(1, at=120)


def test_a_seal_does_not_wait_for_a_reader_that_has_not_registered() -> None:
    job = Job()
    log = job.reader(0)
    FakeReader(job, 1, 1, generation=1).exchange()  # Its process is there, and has said nothing yet.
    job.begin_seal()
    log.sealed(1, at=120)
    assert [manifest.epoch for manifest in job.store.manifests] == [1]


def test_a_report_of_another_epoch_than_the_one_that_is_sealed_is_an_error() -> None:
    job = Job()
    log = job.reader(0)
    job.begin_seal()
    with pytest.raises(ProtocolError, match="sealed epoch 2, which nobody asked it for"):
        log.sealed(2, at=120)


def test_a_second_report_of_one_reader_is_an_error() -> None:
    job = Job()
    log, _ = job.reader(0), job.reader(1)
    job.begin_seal()
    log.sealed(1, at=120)
    with pytest.raises(ProtocolError, match="Reader 0 sealed epoch 1, which nobody asked it for"):
        log.sealed(1, at=120)
