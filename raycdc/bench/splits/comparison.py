"""Compares every strategy on every table: cuts it, reads chunks with one reader and with more, and recommends one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from raycdc.bench.splits.advice import advice_for, advice_for_all
from raycdc.bench.splits.figures import (
    ChunkTiming,
    MeasuredRun,
    Planning,
    Report,
    StrategyResult,
    TableBenchResult,
    readers_text,
    spread,
)
from raycdc.bench.splits.readers import ChunkWork, ReaderProcesses, Task
from raycdc.errors import ConfigError, RaycdcError
from raycdc.model import TableId
from raycdc.source.connector import IncrementalSource, Source
from raycdc.source.snapshot.enumerator.snapshot_plan import TablePlan
from raycdc.source.snapshot.key_intervals import key_names
from raycdc.source.split import OpenedAt, SnapshotSplit
from raycdc.source.trials import SplitTrial

#: The minimum number of chunks from whose sizes the evenness of a strategy can be judged.
CHUNKS_READ_MIN = 16


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The request of a comparison.

    It has the tables (none: all that the source captures), the strategies (none: all), the approximate number of rows
    to read with each strategy and each number of readers, and the numbers of readers for which schedules are made.
    `job_readers` is the number of readers that a job would have.
    """

    tables: Sequence[str] = ()
    strategies: Sequence[str] = ()
    rows_max: int = 1_000_000
    scheduled_readers: Sequence[int] = (1, 2, 4, 8)
    job_readers: int = 2


@dataclass(frozen=True, slots=True)
class Expected:
    """The cost of a comparison: `rows` of each table, estimated by the source, and the number of rows that are read."""

    tables: dict[TableId, int]
    strategies: Sequence[str]
    really: Sequence[int]
    rows_read: int


@dataclass(frozen=True, slots=True)
class ComparisonProgress:
    """The progress of a comparison.

    A step is one strategy on one table. `done` of `steps` are finished, and the fraction `part` (0 to 1) of the next
    one.
    """

    text: str
    done: int
    steps: int
    part: float


class SplitComparison:
    """One comparison; see the module's docstring. For one thread."""

    def __init__(
        self, source: Source[Any], where: str, terms: ComparisonRequest, watch: Callable[[ComparisonProgress], None]
    ) -> None:
        """Create the comparison; `where` names the source for people.

        Raises `ConfigError` for a source with only one strategy, or for an unknown name.
        """
        tables = source.incremental()
        if tables is None or not (trials := tables.split_trials()):
            raise ConfigError(
                f"raycdc bench splits: a {source.config.type} source is cut in one way alone, so that there is nothing "
                "to compare."
            )
        names = [trial.name for trial in trials]
        for name in terms.strategies:
            if name not in names:
                raise ConfigError(f'--strategies: "{name}" is none of {", ".join(names)}.')
        self._source = tables
        self._trials = [trial for trial in trials if not terms.strategies or trial.name in terms.strategies]
        self._where = where
        self._terms = terms
        self._watch = watch
        self._cores = os.cpu_count() or 1

    def expected(self) -> Expected:
        """Return the cost of the comparison. Queries the source about its tables.

        Raises `ConfigError` for a table that it does not capture.
        """
        captured = self._source.tables()
        chosen = [TableId.parse(name) for name in self._terms.tables] or sorted(captured)
        for table in chosen:
            if table not in captured:
                known = ", ".join(map(str, sorted(captured)[:5]))
                raise ConfigError(f"{table} is none of the tables that the source captures (it has {known}).")
        rows = {table: captured[table].rows for table in chosen}
        really = self._really()
        passes = len(self._trials) * len(really) + 1
        return Expected(
            rows,
            [trial.name for trial in self._trials],
            really,
            sum(min(count, self._terms.rows_max) for count in rows.values()) * passes,
        )

    def run(self, expected: Expected) -> Report:
        """Compare, and return the report.

        After a `KeyboardInterrupt` it has the measurements until then. Raises `SourceError`.
        """
        began_ms = time.time_ns() // 1_000_000
        found: dict[TableId, list[StrategyResult]] = {}
        early = False
        try:
            self._compare(expected, found)
        except KeyboardInterrupt:
            early = True
        readers = self._terms.job_readers
        tables = [
            TableBenchResult(str(table), expected.tables[table], results, advice_for(results, readers))
            for table, results in found.items()
        ]
        advice = advice_for_all(tables, readers)
        return Report(self._where, began_ms, self._cores, self._terms.scheduled_readers, tables, advice, early)

    def _compare(self, expected: Expected, found: dict[TableId, list[StrategyResult]]) -> None:
        self._source.preflight(None)
        start = self._source.enumerator_dialect().start_point()
        plans = {plan.table: plan for plan in start.tables}
        opened = OpenedAt(start.position, self._source.ring_s)
        steps = len(expected.tables) * len(self._trials)
        for index, (table, rows) in enumerate(expected.tables.items()):
            plan = plans.get(table)
            trials = None if plan is None else _TableTrials(plan, rows, opened, self._terms, expected.really)
            for number, trial in enumerate(self._trials, index * len(self._trials)):

                def notify(text: str, part: float, begun: str = f"{table}, {trial.name}", number: int = number) -> None:
                    self._watch(ComparisonProgress(f"{begun}: {text}", number, steps, part))

                gone = StrategyResult(trial.name, trial.settings, refused="the table is gone")
                found.setdefault(table, []).append(gone if trials is None else trials.result(trial, notify))

    def _really(self) -> list[int]:
        """Return the numbers of readers that are really run: powers of two from one up to the number of cores."""
        most = self._source.config.readers_max or self._cores
        counts = [1]
        while counts[-1] * 2 <= min(self._cores, most):
            counts.append(counts[-1] * 2)
        return counts


#: Called with the progress of a strategy: a text, and a fraction from 0 to 1.
_ReportProgress = Callable[[str, float], None]


class _TableTrials:
    """Measures the strategies on one table, one after the other; `rows` is the source's estimate."""

    def __init__(
        self, plan: TablePlan, rows: int, opened: OpenedAt, terms: ComparisonRequest, really: Sequence[int]
    ) -> None:
        self._plan = plan
        self._rows = rows
        self._opened = opened
        self._terms = terms
        self._really = really
        #: The strategies that were measured.
        self._measured: list[tuple[list[SnapshotSplit], Sequence[MeasuredRun]]] = []

    def result(self, trial: SplitTrial[IncrementalSource[Any]], notify: _ReportProgress) -> StrategyResult:
        """Measure one more strategy, and return its result. If it cannot cut the table, the result has the reason."""
        if self._plan.refused:
            return StrategyResult(trial.name, trial.settings, refused=self._plan.refused)
        notify("cutting", 0.0)
        try:
            planning, chunks = self._cut(trial, notify)
            # Two strategies often cut in the same way; `auto` always equals another strategy. Reading the same chunks
            # again would show nothing new.
            runs = next((runs for cut, runs in self._measured if cut == chunks), None)
            if runs is None:
                runs = self._runs(
                    trial, [self._task(number, chunks[number]) for number in self._picked(chunks)], notify
                )
                self._measured.append((chunks, runs))
        except RaycdcError as error:
            return StrategyResult(trial.name, trial.settings, refused=str(error))
        return StrategyResult(trial.name, trial.settings, planning, runs)

    def _cut(
        self, trial: SplitTrial[IncrementalSource[Any]], notify: _ReportProgress
    ) -> tuple[Planning, list[SnapshotSplit]]:
        """Return all chunks, planned in steps like by an enumerator."""
        plan, dialect = self._plan, trial.source.enumerator_dialect()
        before, began_s = trial.costs(), time.monotonic()
        state = trial.source.planner(plan.table, plan.document)
        chunks: list[SnapshotSplit] = []
        first_s = 0.0
        while state is not None:
            planned = dialect.plan(plan.document, plan.table, state, len(chunks))
            chunks += planned.splits
            first_s = first_s or time.monotonic() - began_s
            state = planned.planner
            notify(f"cutting, {len(chunks)} chunks", 0.2 * min(1.0, len(chunks) / max(planned.estimate, 1)))
        seconds = time.monotonic() - began_s
        if not chunks:
            raise ConfigError("it is read in one piece")
        key = ", ".join(key_names(chunks[0].key)) or "none: it is one chunk"
        return Planning(key, len(chunks), first_s, seconds, trial.costs().since(before)), chunks

    def _picked(self, chunks: Sequence[SnapshotSplit]) -> list[int]:
        fraction = min(1.0, self._terms.rows_max / max(self._rows, 1))
        return spread(len(chunks), max(CHUNKS_READ_MIN, round(len(chunks) * fraction)))

    def _task(self, number: int, split: SnapshotSplit) -> Task:
        at = OpenedAt(self._opened.position, self._opened.ring_s, split.as_of)
        return Task(number, split, at, self._plan.document, self._terms.rows_max)

    def _runs(
        self, trial: SplitTrial[IncrementalSource[Any]], tasks: Sequence[Task], notify: _ReportProgress
    ) -> list[MeasuredRun]:
        if not self._measured:
            # The chunks are read once before the measurement. Otherwise the first strategy would read from the server's
            # disk, and the next ones from its memory.
            _read(trial, tasks, 1, lambda done: notify(f"reading once before, {done}", 0.1))
        runs = []
        for turn, readers in enumerate(self._really):
            text = f"reading with {readers_text(readers)}"

            def read(done: str, text: str = text, part: float = turn / len(self._really)) -> None:
                notify(f"{text}, {done}", 0.2 + 0.8 * part)

            read("which start")
            runs.append(_read(trial, tasks, readers, read))
        return runs


def _read(
    trial: SplitTrial[IncrementalSource[Any]], tasks: Sequence[Task], readers: int, notify: Callable[[str], None]
) -> MeasuredRun:
    done = 0

    def read(_: ChunkTiming) -> None:
        nonlocal done
        done += 1
        notify(f"{done} of {len(tasks)} chunks")

    source = trial.source
    work = ChunkWork(source, float(source.config.rate_limit.rows_per_s or 0) / readers)
    with closing(ReaderProcesses(work, readers, module=type(source).__module__)) as processes:
        return processes.read(tasks, read)
