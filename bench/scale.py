"""Measures the cost of coordination as a job grows: readers, tables, chunks, partitions. No server, no Spark, no Ray.

| case | grows | tells |
|---|---|---|
| ``tables`` | 1,000 to 100,000 tables, 100 of them changed per epoch | a seal, reading its manifest, bytes of it |
| ``chunks`` | 10,000 to 1,000,000 chunks, and 10 to 1,000 readers | CPU of the coordinator per chunk |
| ``heartbeats`` | 10 to 1,000 readers that wait for news all the time | how long one heartbeat takes |
| ``partitions`` | 100 to 10,000 partitions, 10 to 1,000 readers | placing and balancing them |
| ``recovery`` | 1,000 to 100,000 tables | from the state to a reader that has the log |

``rows`` are the things that a case counts: changed tables, chunks, heartbeats, partitions, tables. ``--rows`` is how
many chunks are really read in the ``chunks`` case; the others of the table count as read before.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import Measurement, Options, measure, measured
from bench.scale_job import Job, Reader, Shape
from raycdc.runtime.coordinator.coordinator_calls import CoordinatorCalls
from raycdc.runtime.reader.coordinator_connection import long_poll_s
from raycdc.runtime.reader.heartbeats import HEARTBEAT_S, pause_s
from raycdc.source.protocol.link import read_packet

CASES = ("tables", "chunks", "heartbeats", "partitions", "recovery")

#: The maximum for the largest size of each case.
GOALS = {
    "seal_ms": 100.0,
    "heartbeat_p99_ms": 200.0,
    "cpu_per_chunk_us": 150.0,
    "peak_rss_mb": 1024.0,
    "recovery_s": 20.0,
}
CHANGED = 100
SEALS = 10
CHUNKS_READ = 20_000
HEARTBEATS_S = 10.0


def run(options: Options) -> Iterator[Measurement]:
    """Run each case at each size, in separate processes."""
    for case, sizes in _SIZES.items():
        if case in options.cases:
            for size in sizes:
                arguments = {**size, **({"read": options.rows} if options.rows and case == "chunks" else {})}
                label = "_".join(str(value) for value in size.values())
                yield measure(f"{case}_{label}", "raycdc", f"bench.scale:{case}", arguments)


_SIZES: dict[str, list[dict[str, int]]] = {
    "tables": [{"count": 1_000}, {"count": 10_000}, {"count": 100_000}],
    "chunks": [
        {"count": 10_000, "readers": 10},
        {"count": 100_000, "readers": 100},
        {"count": 1_000_000, "readers": 1000},
    ],
    "heartbeats": [{"readers": 10}, {"readers": 100}, {"readers": 500}, {"readers": 1000}],
    "partitions": [
        {"count": 100, "readers": 10},
        {"count": 1_000, "readers": 100},
        {"count": 10_000, "readers": 1000},
    ],
    "recovery": [{"count": 1_000}, {"count": 10_000}, {"count": 100_000}],
}


def conclusions(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return the largest figure of each goal over all sizes, and if it is reached."""
    found: dict[str, Any] = {}
    for name, most in GOALS.items():
        values = [m.peak_rss_mb if name == "peak_rss_mb" else m.more[name] for m in measurements if _has(m, name)]
        if values:
            found[name] = {"goal": most, "measured": max(values), "reached": max(values) <= most}
    return {"goals": found}


def _has(measurement: Measurement, name: str) -> bool:
    return name == "peak_rss_mb" or name in measurement.more


# -- cases: each runs in a child process


def tables(count: int) -> dict[str, Any]:
    """Measure epochs that each change the same number of tables."""
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        job = Job(folder, Shape(count, readers=2))
        job.register()
        job.ask_for_seal()
        job.read_and_commit(job.sealed())  # The first epoch names every table.
        walls, reads, sizes, others = [], [], [], []
        figures: dict[str, Any] = {"rows": CHANGED * SEALS}
        with measured(figures):
            for number in range(SEALS):
                job.change([(number * CHANGED + n) % count for n in range(CHANGED)])
                job.spent.coordinator_s = job.spent.readers_s = 0.0
                begun = time.perf_counter()
                job.ask_for_seal()
                epoch = job.sealed()
                walls.append(time.perf_counter() - begun)
                others.append((job.spent.coordinator_s, job.spent.readers_s))
                sizes.append(_written(folder, epoch))
                reads.append(job.read_and_commit(epoch))
        job.close()
        return figures | {
            "seal_ms": _ms(walls),
            "seal_max_ms": round(max(walls) * 1000, 1),
            "coordinator_cpu_ms": _ms([coordinator for coordinator, _ in others]),
            "reader_cpu_ms": _ms([readers for _, readers in others]),
            "manifest_read_ms": _ms(reads),
            "driver_rss_mb": round(job.driver.peak_bytes / 2**20),
            "manifest_bytes": sorted(sizes)[len(sizes) // 2],
            "status_ms": _status_ms(job, tables=True),
            "look_ms": _status_ms(job, tables=False),
        }
    finally:
        shutil.rmtree(folder)


def chunks(count: int, readers: int, read: int = CHUNKS_READ) -> dict[str, Any]:
    """Measure chunks of one large table on their way through the coordinator, with epochs between them."""
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        job = Job(folder, Shape(1000, readers, chunks=count))
        read = min(read, count)
        done, epochs = 0, 0
        figures: dict[str, Any] = {}
        job.register()
        job.spent.coordinator_s = job.spent.readers_s = 0.0
        with measured(figures):
            while done < read:
                wanted = min(read - done, 4 * readers)
                job.settle(partial(_has_published, job, wanted), limit_s=3600)
                job.ask_for_seal()
                epoch = job.sealed()
                manifest = job.store.manifest(epoch)
                done += sum(segment.kind == "snapshot" for segment in manifest.segments)
                job.read_and_commit(epoch)
                epochs += 1
        job.close()
        return figures | {
            "rows": done,
            "epochs": epochs,
            "cpu_per_chunk_us": round(job.spent.coordinator_s / done * 1e6, 1),
            "reader_cpu_per_chunk_us": round(job.spent.readers_s / done * 1e6, 1),
        }
    finally:
        shutil.rmtree(folder)


def heartbeats(readers: int) -> dict[str, Any]:
    """Measure heartbeats while every reader has a call open that waits for messages, as in a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        job = Job(folder, Shape(1000, readers))
        job.register()
        front = Front(job)
        figures: dict[str, Any] = {}
        with measured(figures):
            took = asyncio.run(front.run(HEARTBEATS_S))
        front.close()
        job.close()
        took.sort()
        return figures | {
            "rows": len(took),
            "heartbeat_p50_ms": round(took[len(took) // 2] * 1000, 1),
            "heartbeat_p99_ms": round(took[len(took) * 99 // 100] * 1000, 1),
            "heartbeat_max_ms": round(took[-1] * 1000, 1),
        }
    finally:
        shutil.rmtree(folder)


def partitions(count: int, readers: int) -> dict[str, Any]:
    """Measure the assignment of partitions, and their balancing when half as many readers come."""
    from raycdc.source.partitions.assigner import distribute, moves

    splits = [f"orders-{number:05d}" for number in range(count)]
    figures: dict[str, Any] = {"rows": count}
    with measured(figures):
        begun = time.perf_counter()
        placed = distribute(splits, dict.fromkeys(range(readers), ()))
        placed_s = time.perf_counter() - begun
        begun = time.perf_counter()
        moved = moves({**placed, **{reader: [] for reader in range(readers, readers + readers // 2)}})
        moved_s = time.perf_counter() - begun
    return figures | {"place_ms": _ms([placed_s]), "balance_ms": _ms([moved_s]), "moved": len(moved)}


def recovery(count: int) -> dict[str, Any]:
    """Measure the time from the state of a job with this many tables to a reader that has the log."""
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        # The state is written in a separate process, whose memory does not count for the recovery.
        before = multiprocessing.get_context("spawn").Process(target=_leave_state, args=(folder, count))
        before.start()
        before.join()
        assert before.exitcode == 0, before.exitcode
        figures: dict[str, Any] = {"rows": count}
        with measured(figures):
            again = Job(folder, Shape(count, readers=2))
            again.register()
        again.close()
        return figures | {"recovery_s": figures["wall_s"]}
    finally:
        shutil.rmtree(folder)


def _leave_state(folder: Path, count: int) -> None:
    """End a job with this many tables, and two epochs that are not committed."""
    job = Job(folder, Shape(count, readers=2, chunks=10))
    job.register()
    job.ask_for_seal()
    job.read_and_commit(job.sealed())
    for number in range(SEALS):
        job.change([(number * CHANGED + n) % count for n in range(CHANGED)])
        job.ask_for_seal()
        epoch = job.sealed()
        if number < SEALS - 2:
            job.read_and_commit(epoch)
    job.close()


class Front:
    """Makes the readers' calls like the coordinator's actor: as coroutines of one event loop."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._calls = CoordinatorCalls(job.host)
        self._took: list[float] = []
        self._ends_s = 0.0

    async def run(self, seconds: float) -> list[float]:
        """Return the seconds of each heartbeat, from the call to its answer."""
        readers = self._job.readers
        self._ends_s = time.monotonic() + seconds
        step_s = HEARTBEAT_S / len(readers)
        beats = (self._beats(reader, after_s=step_s * number) for number, reader in enumerate(readers))
        await asyncio.gather(*beats, *map(self._polls, readers))
        return self._took

    def close(self) -> None:
        self._calls.close()

    async def _polls(self, reader: Reader) -> None:
        while time.monotonic() < self._ends_s:
            await self._exchange(reader, long_poll_s(reader.number))

    async def _beats(self, reader: Reader, *, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while time.monotonic() < self._ends_s:
            reader.link.send(reader.reader.heartbeat())
            called = time.monotonic()
            await self._exchange(reader, 0.0)
            took_s = time.monotonic() - called
            self._took.append(took_s)
            await asyncio.sleep(pause_s(took_s))

    async def _exchange(self, reader: Reader, wait_s: float) -> None:
        answer = await self._calls.exchange(reader.number, 1, reader.link.packet(), wait_s=wait_s)
        reader.link.receive(read_packet(answer))


def _has_published(job: Job, count: int) -> bool:
    return job.log.reader.context.output.open_bytes >= count


def _written(folder: Path, epoch: int) -> int:
    return (folder / "state" / "epochs" / f"{epoch:010d}.json").stat().st_size


def _status_ms(job: Job, *, tables: bool) -> float:
    """Return the time of a status as people request it, or without tables as the supervisor requests it."""
    begun = time.perf_counter()
    job.host.status(tables=tables)
    return _ms([time.perf_counter() - begun])


def _ms(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return round(sorted(seconds)[len(seconds) // 2] * 1000, 2)
