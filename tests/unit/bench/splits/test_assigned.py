"""Partitions shared out among readers for ``raycdc bench splits``, and how many readers are recommended."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.bench.splits.assignment_figures import (
    Assignment,
    AssignmentAdvice,
    AssignmentReport,
    PartitionFigures,
    PartitionRead,
    SharedRun,
    longest_s,
)
from raycdc.bench.splits.assignments import assignment_advice

SIZES = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 1000), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 6))
def test_each_partition_has_one_reader_by_either_assignment(sizes: Mapping[str, int], readers: int) -> None:
    for assignment in Assignment:
        groups = assignment.of(sizes, readers)
        assert len(groups) == readers
        assert sorted(name for group in groups for name in group) == sorted(sizes)


@given(SIZES, st.integers(1, 6))
def test_nobody_waits_longer_by_bytes_than_by_number(sizes: Mapping[str, int], readers: int) -> None:
    """But for what each partition counts in any case, so that empty ones are shared out, too."""
    times = {name: float(size) for name, size in sizes.items()}
    by_number, by_bytes = (longest_s(assignment.of(sizes, readers), times)[0] for assignment in Assignment)
    assert by_bytes <= by_number + 0.02 * sum(sizes.values())


def test_large_partitions_that_share_a_reader_are_moved_apart() -> None:
    sizes = {"t:0": 900, "t:1": 10, "t:2": 900, "t:3": 10}
    assert Assignment.NUMBER.of(sizes, 2) == [["t:0", "t:2"], ["t:1", "t:3"]]
    assert sorted(map(len, Assignment.BYTES.of(sizes, 2))) in ([1, 3], [2, 2])
    assert ["t:0", "t:2"] not in Assignment.BYTES.of(sizes, 2)


def report(seconds: Mapping[str, float], *, share: float = 1.0, cores: int = 2) -> AssignmentReport:
    reads = [PartitionRead(name, 10, 10, round(each * 1000), each) for name, each in seconds.items()]
    partitions = [PartitionFigures(read.name, "t", 10, read) for read in reads]
    alone = SharedRun([reads], [sum(seconds.values())], 0.1, 1 << 20)
    began_ms = time.time_ns() // 1_000_000
    return AssignmentReport(
        "kafka at a:1", began_ms, cores, share, partitions, {kind: [alone] for kind in Assignment}, (1, 2, 4)
    )


def advised(found: AssignmentReport, job_readers: int = 2) -> AssignmentAdvice:
    advice = assignment_advice(found, job_readers=job_readers)
    assert advice is not None
    return advice


@pytest.mark.parametrize(
    ("seconds", "readers", "told"),
    [
        ({"t:0": 4.0, "t:1": 4.0, "t:2": 4.0, "t:3": 4.0}, 4, "More readers would have no partition to read."),
        ({"t:0": 19.2, "t:1": 0.2, "t:2": 0.2, "t:3": 0.4}, 1, "t:0 alone is 96% of the work"),
        ({"t:0": 6.0, "t:1": 2.0, "t:2": 2.0, "t:3": 2.0}, 2, "t:0 alone is 50% of the work"),
        ({"t:0": 5.0}, 1, "More readers would have no partition to read."),
    ],
)
def test_the_fewest_readers_that_are_as_fast_as_any_are_recommended(
    seconds: Mapping[str, float], readers: int, told: str
) -> None:
    advice = advised(report(seconds))
    assert (advice.readers, advice.settings) == (readers, f"[readers]\nmax = {readers}")
    assert told in advice.reason


def test_what_was_not_read_counts_in_proportion() -> None:
    assert report({"t:0": 2.0, "t:1": 1.0}, share=0.1).schedule(Assignment.BYTES, 1).seconds == pytest.approx(30.0)


def test_nothing_that_was_read_is_no_ground_for_advice() -> None:
    assert assignment_advice(report({"t:0": 0.0}), job_readers=1) is None


def test_more_readers_than_cores_and_a_beginning_by_number_are_told() -> None:
    found = report({"t:0": 9.0, "t:1": 1.0, "t:2": 9.0, "t:3": 1.0}, cores=1)
    reason = advised(found).reason
    assert "there are fewer cores here" in reason
    assert "As a run gives them out at first, each reader as many, it would be 10.0 s" in reason
