"""How many readers there should be: at once when a phase needs fewer, after a while when a backlog asks for it."""

from __future__ import annotations

from raycdc.model import TableId
from raycdc.runtime.autoscaler import BACKLOG_TARGET, GROW_AFTER_S, SHRINK_AFTER_S, Autoscaler
from raycdc.source.protocol.api import TableProgress
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus, TableStatus
from raycdc.source.protocol.metrics import PartitionMetrics, ReaderMetrics


def reader(chunks: int = 0, partitions: int = 0, behind: int | None = None) -> ReaderStatus:
    metrics = ReaderMetrics(partitions=PartitionMetrics(pending_records=behind))
    return ReaderStatus(0, 1, 1, "", chunks=chunks, partitions=partitions, metrics=metrics)


def status(*readers: ReaderStatus, phase: str | None = None, waiting: int = 0, sealed: int = 1) -> JobStatus:
    tables = {} if phase is None else {TableId("shop", "orders"): TableStatus(TableProgress(phase))}
    return JobStatus(1, sealed, 0, tables=tables, chunks_waiting=waiting, readers=readers)


def lasting(scaler: Autoscaler, told: JobStatus, *, seconds: float, start_s: float = 0.0) -> list[int]:
    """Decisions while the status stays as it is, one per second."""
    return [scaler.look(told, now_s=start_s + second) for second in range(int(seconds) + 1)]


def test_a_snapshot_begins_with_all_readers_and_the_log_needs_the_fewest() -> None:
    scaler = Autoscaler(readers_min=1, readers_max=4)
    assert scaler.look(status(sealed=0), now_s=0) == 4
    assert scaler.look(status(reader(chunks=2), phase="snapshot", waiting=7), now_s=1) == 4
    assert scaler.look(status(reader(), phase="stream"), now_s=2) == 1


def test_readers_come_back_when_a_table_is_added_to_a_running_job() -> None:
    scaler = Autoscaler(readers_min=1, readers_max=4)
    assert scaler.restart(status(phase="stream")) == 1
    added = status(reader(chunks=1), phase="snapshot", waiting=9)
    assert lasting(scaler, added, seconds=GROW_AFTER_S - 1)[-1] == 1
    assert lasting(scaler, added, seconds=1, start_s=GROW_AFTER_S)[-1] == 4


def test_a_backlog_that_lasts_brings_more_readers_but_no_more_than_there_are_partitions() -> None:
    scaler = Autoscaler(readers_min=1, readers_max=8)
    scaler.restart(status(reader(partitions=1)))
    behind = status(reader(partitions=5, behind=7 * BACKLOG_TARGET))
    assert lasting(scaler, behind, seconds=GROW_AFTER_S) == [1] * int(GROW_AFTER_S) + [5]


def test_a_backlog_that_does_not_last_changes_nothing() -> None:
    scaler = Autoscaler(readers_min=1, readers_max=8)
    scaler.restart(status(reader(partitions=1)))
    behind, fine = status(reader(partitions=5, behind=7 * BACKLOG_TARGET)), status(reader(partitions=5, behind=1))
    for round_s in range(0, 100, 4):
        lasting(scaler, behind, seconds=2, start_s=round_s)
        assert scaler.look(fine, now_s=round_s + 3) == 1


def test_readers_without_a_backlog_leave_one_at_a_time_and_late() -> None:
    scaler = Autoscaler(readers_min=2, readers_max=4)
    idle = status(reader(partitions=6, behind=0))
    decisions = lasting(scaler, idle, seconds=4 * SHRINK_AFTER_S)
    assert [decisions.index(n) for n in (3, 2)] == [int(SHRINK_AFTER_S), int(2 * SHRINK_AFTER_S) + 1]
    assert decisions[-1] == 2


def test_a_new_coordinator_decides_at_once_by_what_it_knows() -> None:
    scaler = Autoscaler(readers_min=1, readers_max=4)
    assert scaler.restart(status(phase="stream")) == 1
    assert scaler.restart(status(phase="snapshot", waiting=3)) == 4
    assert scaler.restart(status(sealed=0)) == 4
