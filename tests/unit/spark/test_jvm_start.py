"""The start of Spark's JVM is broken off when nobody waits for it, and one that ended is started again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError

from raycdc.errors import ConfigError, EngineNotStartedError
from raycdc.spark import session
from raycdc.spark.gateway import forget_lost_jvm, start_jvm
from raycdc.spark.jvm_start import JvmStart


def test_a_start_that_is_broken_off_ends_at_once_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comes_up, codes = threading.Event(), list[int]()

    def launch(popen_kwargs: Any) -> Any:
        """As pyspark does it, with a JVM that never tells its port."""
        process = vars(java_gateway)["Popen"](["sleep", "3600"])
        comes_up.set()
        codes.append(process.wait())
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    jvm = JvmStart()
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(start_jvm, {"spark.master": "local", "spark.secret": "s"}, tmp_path, None, jvm)
        assert comes_up.wait(600)
        assert (tmp_path / "settings.properties").exists()
        jvm.break_off()
        assert not (tmp_path / "settings.properties").exists()
        with pytest.raises(PySparkRuntimeError):
            start.result()
    assert codes == [-9]
    with pytest.raises(RuntimeError, match="broken off"):
        start_jvm({"spark.master": "local"}, tmp_path, None, jvm)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [None, -9])
def test_a_session_begins_with_a_new_jvm_where_the_last_one_ended(
    code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: code))
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    monkeypatch.setattr(SparkContext, "_jvm", object())
    forget_lost_jvm()
    assert SparkContext._gateway is (gateway if code is None else None)
    assert (SparkContext._jvm is None) == (code is not None)


@pytest.mark.parametrize(("end", "kind"), [("kill -9 $$", EngineNotStartedError), ("exit 1", ConfigError)])
def test_a_jvm_that_is_killed_is_not_taken_for_one_that_refuses_its_options(
    end: str, kind: type[ConfigError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may come up later; the second would end the same way each time."""

    def launch(popen_kwargs: Any) -> Any:
        vars(java_gateway)["Popen"](["sh", "-c", end]).wait()
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(session, "_settings", lambda *_: {"spark.master": "local[1]"})
    monkeypatch.setattr(session, "fetch_delta_jars", lambda: None)
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    with pytest.raises(ConfigError, match="its JVM ended at once") as caught:
        session.spark_session("local[1]", tmp_path)
    assert type(caught.value) is kind
