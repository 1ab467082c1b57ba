"""How many readers topics are worth, and why, from what was measured."""

from __future__ import annotations

from raycdc.split_bench.advice import ALIKE
from raycdc.split_bench.assigned import Assignment
from raycdc.split_bench.assignment_figures import AssignmentAdvice, AssignmentReport
from raycdc.split_bench.schedule import readers_text

#: A partition with more of the time than this share of a reader's is told as the one that all wait for.
HOT = 0.9


def assignment_advice(report: AssignmentReport, *, job_readers: int) -> AssignmentAdvice | None:
    """The fewest readers that are about as fast as any number; None where there was nothing to read.

    `job_readers` is how many a job has now.
    """
    times_s = report.times_s()
    if not sum(times_s.values()):
        return None
    counts = range(1, min(len(times_s), max(*report.scheduled, job_readers)) + 1)
    whole = {count: report.schedule(Assignment.BYTES, count).seconds for count in counts}
    best_s = min(whole.values())
    readers = next(count for count in counts if whole[count] <= ALIKE * best_s)
    told = sorted({1, readers, *(count for count in report.scheduled if count in whole)})
    reasons = [
        "Everything that the topics hold takes "
        + ", ".join(f"{whole[count]:.1f} s with {readers_text(count)}" for count in told)
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
    began_s = report.schedule(Assignment.NUMBER, readers).seconds
    if began_s > ALIKE * whole[readers]:
        reasons.append(
            f"As a run gives them out at first, each reader as many, it would be {began_s:.1f} s: a few partitions "
            "have most of the bytes."
        )
    if readers > report.cores:
        reasons.append("That was scheduled from what one reader took: there are fewer cores here.")
    if readers == job_readers:
        reasons.append("The configuration has that already.")
    return AssignmentAdvice(readers, f"[readers]\nmax = {readers}", " ".join(reasons))
