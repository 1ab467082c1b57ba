"""Partitions shared out among readers for ``raycdc bench splits``, and how many readers are recommended."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.bench.splits.partition_bench import advice_for_partitions
from raycdc.bench.splits.partition_figures import (
    PartitionAdvice,
    PartitionFigures,
    PartitionRead,
    PartitionReport,
    PartitionRun,
    by_bytes,
    longest_s,
)

SIZES = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 1000), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 6))
def test_each_partition_has_one_reader(sizes: Mapping[str, int], readers: int) -> None:
    groups = by_bytes(sizes, readers)
    assert len(groups) == readers
    assert sorted(name for group in groups for name in group) == sorted(sizes)


@given(SIZES, st.integers(1, 6))
def test_more_readers_take_no_longer_than_one(sizes: Mapping[str, int], readers: int) -> None:
    times = {name: float(size) for name, size in sizes.items()}
    assert longest_s(by_bytes(sizes, readers), times)[0] <= sum(times.values())


def test_large_partitions_are_read_by_different_readers() -> None:
    groups = by_bytes({"t:0": 900, "t:1": 10, "t:2": 900, "t:3": 10}, 2)
    assert sorted(map(len, groups)) in ([1, 3], [2, 2])
    assert not any({"t:0", "t:2"} <= set(group) for group in groups)


def report(seconds: Mapping[str, float], *, share: float = 1.0, cores: int = 2) -> PartitionReport:
    reads = [PartitionRead(name, 10, 10, round(each * 1000), each) for name, each in seconds.items()]
    partitions = [PartitionFigures(read.name, "t", 10, read) for read in reads]
    alone = PartitionRun([reads], [sum(seconds.values())], 0.1, 1 << 20)
    began_ms = time.time_ns() // 1_000_000
    return PartitionReport("kafka at a:1", began_ms, cores, share, partitions, [alone], (1, 2, 4))


def advised(found: PartitionReport, job_readers: int = 2) -> PartitionAdvice:
    advice = advice_for_partitions(found, job_readers=job_readers)
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
    assert report({"t:0": 2.0, "t:1": 1.0}, share=0.1).schedule(1).seconds == pytest.approx(30.0)


def test_nothing_that_was_read_is_no_ground_for_advice() -> None:
    assert advice_for_partitions(report({"t:0": 0.0}), job_readers=1) is None


def test_more_readers_than_cores_are_mentioned() -> None:
    found = report({"t:0": 9.0, "t:1": 1.0, "t:2": 9.0, "t:3": 1.0}, cores=1)
    assert "there are fewer cores here" in advised(found).reason


def test_the_document_has_the_measured_runs_and_the_predicted_times() -> None:
    document = report({"t:0": 2.0, "t:1": 1.0}).to_json()
    assert (document["version"], document["kind"]) == (2, "partitions")
    assert document["scheduled"] == [
        {"readers": 1, "seconds": 3.0, "idle": 0.0},
        {"readers": 2, "seconds": 2.0, "idle": 0.25},
        {"readers": 4, "seconds": 2.0, "idle": 0.625},
    ]
    runs = document["runs"]
    assert isinstance(runs, list)
    assert [(run["readers"], run["partitions"]) for run in runs] == [(1, [["t:0", "t:1"]])]
