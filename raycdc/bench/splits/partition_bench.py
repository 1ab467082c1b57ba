"""Reads partitions with different numbers of readers, which share them by bytes, and recommends a number of readers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from raycdc.bench.splits.advice import TIE_FACTOR
from raycdc.bench.splits.figures import readers_text
from raycdc.bench.splits.partition_figures import (
    PartitionAdvice,
    PartitionFigures,
    PartitionRead,
    PartitionReport,
    PartitionRun,
    by_bytes,
)
from raycdc.bench.splits.readers import ReaderProcesses, Worker
from raycdc.errors import ConfigError
from raycdc.model.rules.rate_limit import RateLimit
from raycdc.source.trials import PartitionTrial, TrialPartition

#: A partition that takes more than this fraction of a reader's time is reported as the bottleneck of all readers.
HOT = 0.9


def advice_for_partitions(report: PartitionReport, *, job_readers: int) -> PartitionAdvice | None:
    """Return the smallest number of readers that is about as fast as any other; None if there was nothing to read.

    `job_readers` is the present number of readers of a job.
    """
    times_s = report.times_s()
    if not sum(times_s.values()):
        return None
    counts = range(1, min(len(times_s), max(*report.scheduled, job_readers)) + 1)
    whole = {count: report.schedule(count).seconds for count in counts}
    best_s = min(whole.values())
    readers = next(count for count in counts if whole[count] <= TIE_FACTOR * best_s)
    shown_counts = sorted({1, readers, *(count for count in report.scheduled if count in whole)})
    reasons = [
        "Everything that the topics hold takes "
        + ", ".join(f"{whole[count]:.1f} s with {readers_text(count)}" for count in shown_counts)
        + ", where partitions are shared out by their bytes, which a run does after its first epochs."
    ]
    largest = max(times_s, key=lambda name: times_s[name])
    part = times_s[largest] / sum(times_s.values())
    if readers < len(times_s) and times_s[largest] >= HOT * best_s and len(times_s) > 1:
        reasons.append(
            f"More readers gain nothing: {largest} alone is {part:.0%} of the work, and one reader reads it. Only keys "
            "that are spread over more partitions would be faster."
        )
    elif readers == len(times_s):
        reasons.append("More readers would have no partition to read.")
    if readers > report.cores:
        reasons.append("That was scheduled from what one reader took: there are fewer cores here.")
    if readers == job_readers:
        reasons.append("The configuration has that already.")
    return PartitionAdvice(readers, f"[readers]\nmax = {readers}", " ".join(reasons))


@dataclass(frozen=True, slots=True)
class PartitionBenchRequest:
    """The request of a measurement.

    It has the topics (none: all that are selected), the approximate number of messages that each run reads, the numbers
    of readers for which times are predicted, the number of readers that a job would have now, and the rate limit of the
    source.
    """

    topics: Sequence[str] = ()
    messages_max: int = 1_000_000
    scheduled_readers: Sequence[int] = (1, 2, 4, 8)
    job_readers: int = 2
    rate_limit: RateLimit = field(default_factory=RateLimit)


@dataclass(frozen=True, slots=True)
class ExpectedReads:
    """The cost of the measurement: the partitions, the numbers of readers, and the maximum number of messages that are
    read in all.
    """

    partitions: Sequence[TrialPartition]
    really: Sequence[int]
    fraction: float
    messages: int


@dataclass(frozen=True, slots=True)
class _Task:
    messages_max: Mapping[TrialPartition, int]


@dataclass(frozen=True, slots=True)
class _Done:
    seconds: float
    reads: Sequence[PartitionRead]


@dataclass(frozen=True, slots=True)
class _PartitionWork:
    trial: PartitionTrial
    rate_limit: RateLimit
    readers: int

    def open(self) -> Worker:
        self.trial.warm_up()
        return _PartitionWorker(self)


class PartitionBench:
    """One measurement; see the module's docstring. For one thread."""

    def __init__(
        self, trial: PartitionTrial, where: str, terms: PartitionBenchRequest, watch: Callable[[str, float], None]
    ) -> None:
        """Prepare the measurement.

        `where` names the source for people; `watch` is called with each step and the finished fraction.
        """
        self._trial = trial
        self._where = where
        self._terms = terms
        self._watch = watch
        self._cores = os.cpu_count() or 1

    def expected(self) -> ExpectedReads:
        """Return the cost of the measurement; asks the source.

        Raises `ConfigError` for a topic that is not selected, and for empty ones.
        """
        partitions = self._trial.partitions()
        topics = sorted({partition.topic for partition in partitions})
        for name in self._terms.topics:
            if name not in topics:
                raise ConfigError(
                    f"{name} is none of the topics that the source reads (it has {', '.join(topics[:5])})."
                )
        chosen = [p for p in partitions if not self._terms.topics or p.topic in self._terms.topics]
        messages_max = sum(partition.messages_max for partition in chosen)
        if not messages_max:
            raise ConfigError(f"{self._where}: the topics hold no messages, so that there is nothing to read.")
        really = [1]
        while really[-1] * 2 <= min(self._cores, len(chosen)):
            really.append(really[-1] * 2)
        fraction = min(1.0, self._terms.messages_max / messages_max)
        # Before the first measured pass, everything is read once.
        passes = 1 + len(really)
        return ExpectedReads(chosen, really, fraction, round(messages_max * fraction) * passes)

    def run(self, expected: ExpectedReads) -> PartitionReport:
        """Read the partitions, and return the report. After a `KeyboardInterrupt` it has the measurements until then.

        Raises `SourceError`, and `DataError` for a message that a run would refuse.
        """
        began_ms = time.time_ns() // 1_000_000
        runs: list[PartitionRun] = []
        early = False
        try:
            self._measure(expected, runs)
        except KeyboardInterrupt:
            early = True
        alone = {read.name: read for run in runs[:1] for group in run.groups for read in group}
        partitions = [
            PartitionFigures(each.name, each.topic, each.messages_max, alone[each.name])
            for each in expected.partitions
            if each.name in alone
        ]
        report = PartitionReport(
            self._where,
            began_ms,
            self._cores,
            expected.fraction,
            partitions,
            runs,
            self._terms.scheduled_readers,
            ended_early=early,
        )
        return replace(report, advice=advice_for_partitions(report, job_readers=self._terms.job_readers))

    def _measure(self, expected: ExpectedReads, runs: list[PartitionRun]) -> None:
        messages_max = {each: max(1, round(each.messages_max * expected.fraction)) for each in expected.partitions}
        by_name = {each.name: each for each in expected.partitions}
        steps = 1 + len(expected.really)

        def read(groups: Sequence[Sequence[str]], text: str, step: int) -> PartitionRun:
            self._watch(text, step / steps)
            tasks = [_Task({by_name[name]: messages_max[by_name[name]] for name in group}) for group in groups]
            work = _PartitionWork(self._trial, self._terms.rate_limit, len(groups))
            with closing(ReaderProcesses(work, len(groups), module=type(self._trial).__module__)) as processes:
                answers, cpu_s, peak = processes.distribute(tasks, _Done)
            return PartitionRun([done.reads for done in answers], [done.seconds for done in answers], cpu_s, peak)

        everything = [list(by_name)]
        # The first run would read from the broker's disk, and the others from its memory.
        read(everything, "reading once before", 0)
        runs.append(read(everything, "reading with 1 reader", 1))
        sizes = {each.name: each.size for group in runs[0].groups for each in group}
        for step, readers in enumerate(expected.really[1:], start=2):
            runs.append(read(by_bytes(sizes, readers), f"reading with {readers_text(readers)}", step))


class _PartitionWorker:
    """A process that reads partitions."""

    def __init__(self, work: _PartitionWork) -> None:
        self._reader = work.trial.reader()
        self._work = work

    def read(self, task: _Task) -> _Done:
        began_s = time.monotonic()
        found = {partition.name: PartitionRead(partition.name, 0, 0, 0, 0.0) for partition in task.messages_max}
        rate_limit, messages, size = self._work.rate_limit, 0, 0
        ended_s = began_s
        for piece in self._reader.read(task.messages_max):
            before = found[piece.name]
            found[piece.name] = PartitionRead(
                piece.name,
                before.messages + piece.messages,
                before.rows + piece.rows,
                before.size + piece.size,
                before.seconds + piece.decode_s,
            )
            messages, size = messages + piece.messages, size + piece.size
            due_s = self._work.readers * max(rate_limit.seconds_of_rows(messages), rate_limit.seconds_of_bytes(size))
            if due_s:
                time.sleep(max(0.0, began_s + due_s - time.monotonic()))
            ended_s = time.monotonic()
        seconds = ended_s - began_s
        # The rest of the time was spent on fetching, which serves all partitions together.
        fetching = max(0.0, seconds - sum(read.seconds for read in found.values()))
        reads = [
            replace(read, seconds=read.seconds + fetching * read.size / size if size else 0.0)
            for read in found.values()
        ]
        return _Done(seconds, reads)

    def close(self) -> None:
        self._reader.close()
