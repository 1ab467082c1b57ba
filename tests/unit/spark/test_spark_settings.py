"""What of Spark's settings is judged before Spark is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raycdc.errors import ConfigError
from raycdc.spark.gateway import on_loopback
from raycdc.spark.session import check_settings


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({"spark.driver.memory": "much"}, "Invalid maximum heap size"),
        ({"spark.driver.extraJavaOptions": "-XX:+NoSuchOption"}, "NoSuchOption"),
        ({"spark.driver.extraJavaOptions": "-Da='b"}, "No closing quotation"),
    ],
)
def test_options_with_which_no_java_starts_are_refused(conf: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_settings(conf)


def test_options_that_do_something_are_not_tried(tmp_path: Path) -> None:
    options = f"-Xlog:gc:file={tmp_path}/gc.log -agentlib:nothing -XX:StartFlightRecording=filename={tmp_path}/r.jfr"
    check_settings({"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("master", "given", "address"),
    [("local[2,4]", None, "127.0.0.1"), ("local[2,4]", "10.0.0.7", "10.0.0.7"), ("spark://db1:7077", None, None)],
)
def test_a_spark_of_this_machine_alone_listens_to_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch, master: str, given: str | None, address: str | None
) -> None:
    """Its web UI asks for no login; who names an address for it gets that."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if given is not None:
        monkeypatch.setenv("SPARK_LOCAL_IP", given)
    with on_loopback({"spark.master": master}):
        assert os.environ.get("SPARK_LOCAL_IP") == address
    assert os.environ.get("SPARK_LOCAL_IP") == given
