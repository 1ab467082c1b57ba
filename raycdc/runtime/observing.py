"""Makes the input of the scaling policy: the state of a job and its processes as one `Observation`, with rates."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from raycdc.runtime.launcher import ReaderHandle
from raycdc.runtime.scaling import Observation, ReadPhase, SeenLog, SeenNode, SeenReader
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus
from raycdc.source.split import STREAM_SPLIT_ID

#: Rates are measured over this time. A count that comes less than `STEP_S` after the last one is not remembered.
WINDOW_S = 15.0
STEP_S = 1.0
#: If a reader has a lower rate than this, its load is not the reason.
LEAST_BYTES_PER_S = 1 << 20


class Rate:
    """The growth rate of a counter that restarts with its process. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def of(self, count: float, *, now_s: float) -> float | None:
        """Note the count, and return its present growth per second; None if too little is known."""
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()
        if not self._seen or now_s - self._seen[-1][0] >= STEP_S:
            self._seen.append((now_s, count))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        began_s, before = self._seen[0]
        return (count - before) / (now_s - began_s) if now_s - began_s >= 2 * STEP_S else None


class Observer:
    """Makes one observation per call. One per job, owned by the supervisor's thread."""

    def __init__(self) -> None:
        self._busy: dict[tuple[int, int], Rate] = {}
        self._chunks = Rate()

    def poll(
        self,
        status: JobStatus,
        handles: Mapping[int, ReaderHandle],
        nodes: Sequence[SeenNode],
        *,
        leaving: frozenset[int],
        now_s: float,
    ) -> Observation:
        """Return the job's state according to `status` and the `handles` of its readers.

        `leaving` are the readers that were asked to end.
        """
        reported = {reader.subtask: reader for reader in status.readers}
        alive = {(reader.subtask, reader.incarnation) for reader in status.readers}
        self._busy = {key: rate for key, rate in self._busy.items() if key in alive}
        readers = tuple(
            self._reader(subtask, handle, reported.get(subtask), leaving=subtask in leaving, now_s=now_s)
            for subtask, handle in sorted(handles.items())
        )
        return Observation(
            _phase(status),
            readers,
            tuple(nodes),
            tuple(_logs(status.readers)),
            chunks_waiting=status.chunks_waiting,
            chunk_seconds=self._chunk_seconds(status, now_s),
            partitions=_partitions(status),
            is_rate_limited=status.is_rate_limited,
        )

    def _reader(
        self, subtask: int, handle: ReaderHandle, reported: ReaderStatus | None, *, leaving: bool, now_s: float
    ) -> SeenReader:
        if reported is None or reported.incarnation != handle.identity.incarnation:
            return SeenReader(subtask, handle.node, has_process=handle.has_process, leaving=leaving)
        cpu_s = reported.process.seconds.get("process_cpu")
        rate = self._busy.setdefault((subtask, reported.incarnation), Rate())
        return SeenReader(
            subtask,
            handle.node,
            has_process=handle.has_process,
            leaving=leaving or reported.leaving,
            log=STREAM_SPLIT_ID in reported.splits,
            chunks=reported.chunks,
            partitions=reported.partitions,
            busy=None if cpu_s is None else rate.of(cpu_s, now_s=now_s),
        )

    def _chunk_seconds(self, status: JobStatus, now_s: float) -> float | None:
        rate = self._chunks.of(status.counts.chunks_done, now_s=now_s)
        left = status.counts.chunks_left
        return None if not rate or not left else left / rate


def _phase(status: JobStatus) -> ReadPhase:
    if _partitions(status):
        return ReadPhase.PARTITIONS
    if status.counts.in_snapshot:
        return ReadPhase.CHUNKS
    return ReadPhase.LOG if status.counts.tables and status.sealed else ReadPhase.UNKNOWN


def _partitions(status: JobStatus) -> int:
    """Return the number of partitions with a reader and, if there are any, those that wait."""
    read = sum(reader.partitions for reader in status.readers)
    return read + status.chunks_waiting if read else 0


def _logs(readers: Sequence[ReaderStatus]) -> list[SeenLog]:
    logs = []
    for reader in readers:
        log, partitions = reader.metrics.log, reader.metrics.partitions
        if log is not None:
            lag_ms = log.fetch_lag_ms
            logs.append(SeenLog(seconds=None if lag_ms is None else lag_ms / 1000))
        if partitions is not None and reader.partitions:
            records = partitions.pending_records
            loads = (partitions.loads or {}).values()
            size, rate = sum(load.backlog_bytes for load in loads), sum(load.bytes_per_s for load in loads)
            # A reader that has just begun does not count as slow.
            seconds = size / rate if rate >= LEAST_BYTES_PER_S and records else None
            logs.append(SeenLog(records, seconds))
    return logs
