"""Spark's part of a run: what runs tasks, its start beside other things, its end. Without Spark there are threads."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from raycdc.bridge import TaskRunner, ThreadTaskRunner


def task_runner(session: Any) -> tuple[TaskRunner, int]:
    """What runs a sink's tasks, and how many at once: Spark, or threads where there is none."""
    if session is None:
        threads = os.cpu_count() or 1
        return ThreadTaskRunner(threads), threads
    from raycdc.spark.session import parallelism
    from raycdc.spark.stage import SparkTaskRunner

    return SparkTaskRunner(session), parallelism(session)


def stop_session(started: Future[Any]) -> None:
    """End Spark, whoever else failed while it was being started; its own failure was told where it was waited for."""
    if started.exception() is None:
        started.result().stop()


def warm_up(stack: ExitStack, session: Any) -> None:
    """Start Spark's Python workers while readers start and read; whoever leaves the stack waits for that to end.

    A failure is not lost: the first stage job meets the same one, and tells it in its own words.
    """
    from raycdc.spark.stage import SparkTaskRunner

    warmer = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="spark-warm-up"))
    warmer.submit(SparkTaskRunner(session).warm_up)
