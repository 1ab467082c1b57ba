"""Stage tasks: units of sink work that run wherever a runner puts them, in a Spark task or in the driver process.

A task is a function *named* by text and JSON arguments, so that nothing is captured by accident and the same task gives
the same files wherever and however often it runs. The runner is handed to the sink (`SinkContext.run_tasks`); the sink
does not know which engine is behind it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StageTask:
    """Call `function` (``"package.module:name"``) with keyword arguments `args`; it returns a JSON-able dict.

    The function must be harmless to run twice, at once or after a failure: it writes files under names of its own and
    returns their names. `input_bytes` lets a runner judge what the task costs.
    """

    function: str
    args: dict[str, Any]
    input_bytes: int = 0

    def to_json(self) -> str:
        return json.dumps({"function": self.function, "args": self.args})


#: Runs all tasks, in any order and place, and returns their results in the order of the tasks.
TaskRunner = Callable[[Sequence[StageTask]], list[dict[str, Any]]]


def run_task(task: StageTask) -> dict[str, Any]:
    """Run one task here and now."""
    module, _, name = task.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    result: dict[str, Any] = function(**task.args)
    return result


def run_in_process(tasks: Sequence[StageTask]) -> list[dict[str, Any]]:
    """The runner without an engine: one task after the other on the calling thread."""
    return [run_task(task) for task in tasks]


class ThreadTaskRunner:
    """A `TaskRunner` on threads of this process: tasks spend their time in Arrow, which releases the GIL.

    For runs without Spark. A failed task fails the call, after the others have ended.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __call__(self, tasks: Sequence[StageTask]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="raycdc-stage") as pool:
            return list(pool.map(run_task, tasks))
