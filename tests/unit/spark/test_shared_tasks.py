"""Stage tasks share Spark's tasks: each of them is in one group, and groups are few and of like size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raycdc.spark.stage import SHARED_BYTES_MAX, TASK_COST_BYTES, group_tasks


@given(st.lists(st.integers(0, 200 << 20), max_size=200), st.integers(1, 16))
def test_every_task_is_in_one_group(sizes: list[int], parallelism: int) -> None:
    groups = group_tasks(sizes, parallelism=parallelism)
    assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
    assert all(groups)


def test_hundreds_of_small_tasks_are_a_task_per_core() -> None:
    assert [len(group) for group in group_tasks([4096] * 100, parallelism=2)] == [50, 50]


def test_a_large_task_does_not_wait_for_small_ones() -> None:
    groups = group_tasks([*[4096] * 30, 60 << 20], parallelism=2)
    assert sorted(map(len, groups)) == [1, 30]


def test_a_group_is_no_larger_than_a_retry_may_repeat() -> None:
    sizes = [8 << 20] * 64
    groups = group_tasks(sizes, parallelism=2)
    assert max(len(group) for group in groups) * ((8 << 20) + TASK_COST_BYTES) <= 1.2 * SHARED_BYTES_MAX
