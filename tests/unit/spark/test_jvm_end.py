"""What is made of a call to Spark that failed because its JVM ended, and of one that failed while it lives."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from raycdc.errors import ConfigError, EngineNotStartedError, SinkError, SparkLostError
from raycdc.model import TableId
from raycdc.model.engines import FROM_BYTES
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.segments.tasks import StageTask
from raycdc.sinks import jvm_end
from raycdc.sinks.jvm_end import LOST, MEMORY, lost
from raycdc.spark.derive import Deriver
from raycdc.spark.lifecycle import MEMORY_ENDS_MAX, MEMORY_ENDS_S, MemoryEnds, SparkThread, TaskRules, task_runner
from raycdc.spark.transforms import SparkResolver, TransformSession
from raycdc.testing.epochs import simple_schema


class _OfJavaError(Py4JJavaError):  # type: ignore[misc]
    """An answer of Java's, without a Java to ask for its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def session_of(process: object) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends, with exit code 3, when its input does."""
    with subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


CUT = [
    Py4JNetworkError("Answer from Java side is empty"),
    Py4JError("An error occurred while calling o12.collect"),
    ConnectionResetError(104, "Connection reset by peer"),
    EOFError(),
]


#: As py4j says it of a class that is not there, and of one that it could not ask for.
NO_CLASS = Py4JError("org.apache.Missing does not exist in the JVM")


@pytest.mark.parametrize(
    "cause",
    [*CUT, NO_CLASS, _OfJavaError("Job aborted: java.lang.OutOfMemoryError: Java heap space")],
    ids=lambda cause: type(cause).__name__,
)
def test_a_jvm_that_is_ending_is_waited_for(jvm: subprocess.Popen[bytes], cause: Exception) -> None:
    """Its connections are gone first."""
    assert jvm.stdin is not None
    assert jvm_end.exit_code(session_of(jvm)) is None
    jvm.stdin.close()
    error = lost(session_of(jvm), cause)
    assert isinstance(error, SparkLostError)
    assert str(error) == f"{LOST} {MEMORY}"
    assert jvm_end.exit_code(session_of(jvm)) == 3


@pytest.mark.parametrize("cause", CUT, ids=lambda cause: type(cause).__name__)
def test_a_jvm_that_nobody_can_speak_to_is_ended(
    jvm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    monkeypatch.setattr(jvm_end, "ENDS_S", 0.01)
    error = lost(session_of(jvm), cause)
    assert str(error) == LOST
    assert jvm.returncode == -9


@pytest.mark.parametrize(
    "cause",
    [
        _OfJavaError("Job aborted: [DIVIDE_BY_ZERO]"),
        _OfJavaError("java.lang.OutOfMemoryError: of an executor"),
        Py4JError("An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([]) does not exist\n"),
        Py4JError("Trying to call a package."),
        NO_CLASS,
    ],
    ids=str,
)
def test_a_jvm_that_lives_on_is_not_lost(
    jvm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    monkeypatch.setattr(jvm_end, "ENDS_S", 0.01)
    assert lost(session_of(jvm), cause) is None
    assert jvm_end.exit_code(session_of(jvm)) is None


def test_an_error_of_java_that_came_by_an_answer_is_waited_for_by_nobody(jvm: subprocess.Popen[bytes]) -> None:
    cause = RuntimeError("converted")
    cause.__cause__ = _OfJavaError("[DIVIDE_BY_ZERO]")
    assert lost(session_of(jvm), cause) is None


def test_a_transform_that_is_looked_up_in_a_jvm_that_ended_is_looked_up_again(
    jvm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.sql.types.StructType.fromDDL", lambda _: None)  # It asks a session of Spark's.
    assert jvm.stdin is not None
    jvm.stdin.close()
    transform = Transform(table="shop.orders", projection="*, qty + 1 AS more")
    session = session_of(jvm)

    def cut_off(*_: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    session.createDataFrame = cut_off
    resolver = SparkResolver(TransformSession(lambda: session, Transforms([transform])))
    with pytest.raises(SparkLostError, match="its JVM ended"):
        resolver.resolve(TableId("shop", "orders"), transform, simple_schema(), "transform[0]")


@pytest.mark.parametrize("cause", CUT, ids=lambda cause: type(cause).__name__)
def test_a_jvm_that_is_not_ours_is_not_judged(cause: Exception) -> None:
    assert lost(session_of(None), cause) is None
    assert lost(SimpleNamespace(), cause) is None


def test_a_jvm_that_ends_for_want_of_memory_again_and_again_is_started_no_more() -> None:
    clock = [0.0]
    ends = MemoryEnds(lambda: clock[0])

    def ended(code: int) -> object:
        return session_of(SimpleNamespace(poll=lambda: code))

    ends.require_few(None)
    for _ in range(10):
        ends.require_few(ended(-9))
    for _ in range(MEMORY_ENDS_MAX - 1):
        clock[0] += 1
        last = ended(3)
        ends.require_few(last)
        ends.require_few(last)
    with pytest.raises(
        SinkError, match=r"ended 3 times within 1 s\. It had no memory left: set .spark\.driver\.memory"
    ):
        ends.require_few(ended(52))
    with pytest.raises(SinkError):
        ends.require_few(None)
    clock[0] += MEMORY_ENDS_S
    ends.require_few(None)


def test_tasks_of_a_jvm_that_ended_can_be_run_again_on_the_next_one() -> None:
    """As of a run whose rows need Spark: nobody else could do its work."""
    made, starts = list[int](), [True]

    def session(_: object) -> Any:
        if not starts:
            raise EngineNotStartedError("Spark did not start.")
        number = len(made)
        made.append(number)
        process = SimpleNamespace(returncode=None, wait=lambda _: None)
        process.poll = lambda: process.returncode

        def parallelize(groups: list[list[bytes]], _: int) -> Any:
            if number == 0:
                process.returncode = 3
                raise Py4JNetworkError("Answer from Java side is empty")
            return SimpleNamespace(
                flatMap=lambda run: SimpleNamespace(collect=lambda: [a for g in groups for a in run(g)])
            )

        context = SimpleNamespace(defaultParallelism=1, _gateway=SimpleNamespace(proc=process), parallelize=parallelize)
        return SimpleNamespace(sparkContext=context, stop=lambda: None)

    told = list[str]()
    spark = SparkThread(session, warn=told.append)
    spark.session()
    run_tasks, _ = task_runner(spark, TaskRules())
    with pytest.raises(SparkLostError, match="no memory left"):
        run_tasks([_Large()])
    starts.clear()
    with pytest.raises(SparkLostError, match="did not start"):
        run_tasks([_Large()])
    with pytest.raises(ConfigError):
        spark.session()
    starts.append(True)
    assert run_tasks([_Large()]) == ["done"]
    assert made == [0, 1]
    assert told == [f"{LOST} {MEMORY} It is started anew."], "once, however often it is tried"
    spark.end()


class _Large(StageTask[str]):
    """Too large for the driver's process."""

    @property
    def input_bytes(self) -> int:
        return FROM_BYTES

    def run(self) -> str:
        return "done"


class _BreaksOff(Deriver):
    """Its JVM goes when it has made the first of several segments."""

    def _here(self, segments: Any, task: Any, spark: Any) -> Any:
        (self._folder / f"7-derived-{task.run}-first.arrow").write_bytes(b"rows")
        raise EOFError


def test_files_that_were_made_before_the_jvm_went_are_not_left_behind(tmp_path: Path) -> None:
    gone: Any = session_of(SimpleNamespace(poll=lambda: 1, returncode=1))
    gone.sparkContext.master = "local[1]"
    deriver, unused = _BreaksOff(cast("Any", lambda: gone), tmp_path), cast("Any", None)
    (tmp_path / "another.arrow").write_bytes(b"rows")
    with pytest.raises(SparkLostError):
        deriver([], unused, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["another.arrow"]
