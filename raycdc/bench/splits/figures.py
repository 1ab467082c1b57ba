"""The results of a comparison of strategies, and their JSON document (``raycdc bench splits --json``, version 1).

A schedule predicts how long readers take for chunks with known times, if each free reader takes the next chunk. The
enumerator assigns chunks in this way: list scheduling (R. L. Graham, "Bounds for Certain Multiprocessing Anomalies",
1966), which never takes more than twice the time of the best schedule.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import heapreplace

from raycdc.core.typed_codec import Json
from raycdc.source.trials import ServerCosts


@dataclass(frozen=True, slots=True)
class ReadSchedule:
    """A predicted schedule: the seconds until the last chunk is read, and the fraction of all readers' time that is
    idle.
    """

    readers: int
    seconds: float
    idle: float

    def to_json(self) -> dict[str, Json]:
        return {"readers": self.readers, "seconds": round(self.seconds, 4), "idle": round(self.idle, 4)}


def readers_text(count: int) -> str:
    """Return the number of readers with its noun: 1 reader, 2 readers."""
    return "1 reader" if count == 1 else f"{count} readers"


def list_schedule(times_s: Sequence[float], readers: int) -> ReadSchedule:
    """Return the schedule of `readers`.

    `times_s` are the seconds per chunk, in the order of their assignment; readers do not slow each other down.
    """
    free_at = [0.0] * readers
    for seconds in times_s:
        heapreplace(free_at, free_at[0] + seconds)
    whole = max(free_at)
    return ReadSchedule(readers, whole, 1 - sum(times_s) / (readers * whole) if whole else 0.0)


def spread(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` of `count` numbers from 0, evenly spread, with the first and the last one."""
    if wanted >= count:
        return list(range(count))
    if wanted <= 1:
        return list(range(wanted))
    return sorted({round(n * (count - 1) / (wanted - 1)) for n in range(wanted)})


def filled_in(times_s: Sequence[float], numbers: Sequence[int], count: int) -> list[float]:
    """Return the times of all `count` chunks, of which only those with `numbers` are known.

    A chunk with an unknown time gets the time of the nearest known one.
    """
    if not numbers:
        return []
    filled, at = [], 0
    for number in range(count):
        while at + 1 < len(numbers) and abs(numbers[at + 1] - number) <= abs(numbers[at] - number):
            at += 1
        filled.append(times_s[at])
    return filled


#: The version of the document. A reader of the document must refuse a newer one.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Planning:
    """The cutting of a table: the key, the seconds until the first chunks and until the last, and the costs of the
    server.
    """

    key: str
    chunks: int
    first_s: float
    seconds: float
    costs: ServerCosts


@dataclass(frozen=True, slots=True)
class ChunkTiming:
    """A chunk that was read: its reader, and the begin and end of the reading in seconds of the run.

    `size` is the size of its rows in memory. If `cut_off` is True, it has more rows, which were not read.
    """

    number: int
    reader: int
    began_s: float
    seconds: float
    rows: int
    size: int
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Chunks that were really read by this number of readers.

    `cpu_s` is the CPU time of all readers, `peak_bytes` the memory of the largest one.
    """

    readers: int
    seconds: float
    chunks: Sequence[ChunkTiming]
    cpu_s: float
    peak_bytes: int

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def rows_per_s(self) -> float:
        return self.rows / max(self.seconds, 1e-9)

    @property
    def idle(self) -> float:
        """Return the fraction of all readers' time in which they had nothing to read."""
        busy = sum(chunk.seconds for chunk in self.chunks)
        return max(0.0, 1 - busy / max(self.readers * self.seconds, 1e-9))


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution over chunks."""

    p50: float
    p99: float
    most: float
    mean: float

    @property
    def unevenness(self) -> float:
        """Return the largest value as a multiple of the mean."""
        return self.most / self.mean if self.mean else 0.0


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The result of one strategy on one table.

    `refused` is the reason why the strategy cannot cut the table; there are no figures then. The first of `runs` has
    one reader, and the times of chunks are from this run. `known` has the numbers of the chunks that were read.
    """

    name: str
    settings: str
    planning: Planning | None = None
    runs: Sequence[MeasuredRun] = ()
    refused: str = ""

    @property
    def known(self) -> list[int]:
        return sorted(chunk.number for chunk in self.runs[0].chunks) if self.runs else []

    @property
    def alone(self) -> list[ChunkTiming]:
        """Return the chunks as a single reader read them, in the order of the table."""
        return sorted(self.runs[0].chunks, key=lambda chunk: chunk.number) if self.runs else []

    @property
    def cut_off(self) -> bool:
        """Return True if a chunk has more rows than were read."""
        return any(chunk.cut_off for chunk in self.alone)

    def times_s(self) -> list[float]:
        """Return the seconds of each chunk.

        A chunk that was not read takes as long as the nearest one that was read.
        """
        assert self.planning is not None
        alone = self.alone
        return filled_in([c.seconds for c in alone], [c.number for c in alone], self.planning.chunks)

    def slowdown(self, readers: int) -> float:
        """Return the factor by which a chunk takes longer with this number of readers than with one.

        Readers share the server's processors and disks. Beyond the measured numbers, each additional reader is assumed
        to slow the others as much as the measured ones did (Amdahl's law). If only one number of readers was measured,
        the factor is unknown, and 1 is returned.
        """
        alone = [chunk.seconds for chunk in self.alone]
        measured = {
            run.readers: run.seconds / planned
            for run in self.runs
            if (planned := list_schedule(alone, run.readers).seconds) > 0
        }
        if readers in measured:
            return measured[readers]
        most = max(measured, default=1)
        if most == 1:
            return 1.0
        shared = max(0.0, (measured[most] - 1) / (most - 1))
        return 1 + shared * (readers - 1)

    def schedule(self, readers: int) -> ReadSchedule:
        """Return the predicted schedule of this number of readers for the whole table, including their `slowdown`."""
        slower = self.slowdown(readers)
        return list_schedule([slower * seconds for seconds in self.times_s()], readers)

    def rows(self) -> Spread:
        return _spread([chunk.rows for chunk in self.alone])

    def sizes(self) -> Spread:
        """Return the bytes of a chunk's rows in memory, as a distribution."""
        return _spread([chunk.size for chunk in self.alone])

    def whole_s(self, readers: int) -> float:
        """Return the seconds until the table is read. The first chunks are read while the table is still being cut."""
        assert self.planning is not None
        return self.planning.first_s + max(
            self.schedule(readers).seconds, self.planning.seconds - self.planning.first_s
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommended strategy, the lines of the configuration for it, and the reason in words."""

    strategy: str
    settings: str
    reason: str


@dataclass(frozen=True, slots=True)
class TableBenchResult:
    """The results of all strategies on one table; `rows` is the source's estimate (0: none)."""

    table: str
    rows: int
    strategies: Sequence[StrategyResult]
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a comparison.

    `source` is the examined source, and `readers` has the numbers of readers with a schedule.
    """

    source: str
    began_ms: int
    cores: int
    readers: Sequence[int]
    tables: Sequence[TableBenchResult]
    advice: Advice | None
    #: True if the comparison was ended before everything was measured.
    ended_early: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return the JSON document."""
        return {
            "version": VERSION,
            "source": self.source,
            "began_ms": self.began_ms,
            "cores": self.cores,
            "ended_early": self.ended_early,
            "tables": [self._table(table) for table in self.tables],
            "advice": None if self.advice is None else asdict(self.advice),
        }

    def _table(self, table: TableBenchResult) -> dict[str, Json]:
        return {
            "table": table.table,
            "rows_estimated": table.rows or None,
            "strategies": [self._strategy(strategy) for strategy in table.strategies],
            "advice": None if table.advice is None else asdict(table.advice),
        }

    def _strategy(self, result: StrategyResult) -> dict[str, Json]:
        begun = {"strategy": result.name, "settings": result.settings}
        if result.planning is None or not result.runs:
            return {**begun, "refused": result.refused}
        planning = result.planning
        return {
            **begun,
            "refused": "",
            "key": planning.key,
            "chunks": planning.chunks,
            "chunks_read": len(result.known),
            "chunk_cut_off": result.cut_off,
            "planning_s": round(planning.seconds, 4),
            "first_chunks_s": round(planning.first_s, 4),
            "planning_queries": planning.costs.queries,
            "planning_rows_read": planning.costs.rows_read,
            "planning_server_cpu_s": None if planning.costs.cpu_s is None else round(planning.costs.cpu_s, 3),
            "chunk_rows": _spread_json(result.rows()),
            "chunk_bytes": _spread_json(result.sizes()),
            "runs": [_run_json(run) for run in result.runs],
            "scheduled": [result.schedule(readers).to_json() for readers in self.readers],
        }


def _run_json(run: MeasuredRun) -> dict[str, Json]:
    return {
        "readers": run.readers,
        "seconds": round(run.seconds, 4),
        "rows": run.rows,
        "rows_per_s": round(run.rows_per_s),
        "idle": round(run.idle, 4),
        "cpu_s": round(run.cpu_s, 3),
        "peak_bytes": run.peak_bytes,
        "chunks": [
            {
                "number": chunk.number,
                "reader": chunk.reader,
                "began_s": round(chunk.began_s, 4),
                "seconds": round(chunk.seconds, 4),
                "rows": chunk.rows,
                "bytes": chunk.size,
                "cut_off": chunk.cut_off,
            }
            for chunk in run.chunks
        ],
    }


def _spread_json(found: Spread) -> dict[str, float]:
    return {
        "p50": round(found.p50),
        "p99": round(found.p99),
        "max": round(found.most),
        "mean": round(found.mean, 1),
        "max_over_mean": round(found.unevenness, 2),
    }


def _spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread(0, 0, 0, 0)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return Spread(statistics.median(ordered), p99, ordered[-1], statistics.fmean(ordered))
