"""Spark that starts beside a run, and the tasks that run in this process until it is up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from raycdc.errors import RaycdcError
from raycdc.model.engines import FROM_BYTES
from raycdc.segments.tasks import StageTask, ThreadTaskRunner
from raycdc.sinks.jvm_end import LOST, MEMORY
from raycdc.spark.lifecycle import AGAIN_S, HERE, DeferredTaskRunner, SparkThread


class _Jvm:
    """The process of a JVM, which is there as an ended one only when somebody waits for its end."""

    def __init__(self, code: int) -> None:
        self.returncode: int | None = None
        self._code = code
        self.ends = False

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, _timeout_s: float | None = None) -> int:
        assert self.ends, "it lives"
        self.returncode = self._code
        return self._code


@pytest.mark.parametrize(("code", "said"), [(-9, LOST), (3, f"{LOST} {MEMORY}")])
def test_tasks_run_in_this_process_when_spark_is_lost_until_it_is_up_again(code: int, said: str) -> None:
    """Also those that it had when it went, whose connections broke before its process was seen to have ended."""
    jvms, warnings, clock = list[_Jvm](), list[str](), [0.0]

    def parallelize(*_: object) -> object:
        jvms[-1].ends = True
        raise Py4JNetworkError("Answer from Java side is empty")

    def session(_: object) -> object:
        jvms.append(_Jvm(code))
        gateway = SimpleNamespace(proc=jvms[-1])
        context = SimpleNamespace(defaultParallelism=1, _gateway=gateway, parallelize=parallelize)
        return SimpleNamespace(stop=lambda: None, sparkContext=context)

    spark = SparkThread(session)
    spark.session()
    run_tasks = DeferredTaskRunner(spark, ThreadTaskRunner(1), warnings.append, clock=lambda: clock[0])
    for loss in (1, 2):
        assert run_tasks([_Large(1), _Large(2)]) == [1, 2]
        assert run_tasks([_Large(3)]) == [3]
        assert warnings == [f"{said} {HERE}"] * loss
        assert len(jvms) == loss, "it is not started anew at once"
        with pytest.raises(RaycdcError, match="Spark is gone"):
            spark.poll()
        clock[0] += 2 * AGAIN_S
        assert run_tasks([_Large(4)]) == [4]
        spark.session()
        assert len(jvms) == loss + 1
    spark.end()


def test_spark_is_not_started_when_nobody_would_end_it() -> None:
    made: list[str] = []
    spark = SparkThread(lambda _: made.append("session"), at_once=False)
    assert spark.now is None
    spark.begin_end()
    with pytest.raises(RuntimeError):
        spark.session()
    spark.end()
    assert made == []


class _Large(StageTask[int]):
    """Too much for the threads that Spark's runner has of its own."""

    input_bytes = FROM_BYTES

    def __init__(self, answer: int) -> None:
        self._answer = answer

    def run(self) -> int:
        return self._answer
