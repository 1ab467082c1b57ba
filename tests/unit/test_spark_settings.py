"""What of Spark's settings is judged before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.errors import ConfigError
from raycdc.spark.session import check_settings


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2,4]",
        "local[*, 3]",
        "spark://h:7077",
        "yarn",
        "k8s://https://h",
        "local-cluster[2,1,9]",
    ],
)
def test_masters_that_spark_knows_pass(master: str) -> None:
    check_settings(master, {})


@pytest.mark.parametrize("master", ["locl", "local[x]", "local[2", "spark:/h", ""])
def test_masters_that_spark_does_not_know_are_refused(master: str) -> None:
    with pytest.raises(ConfigError, match=r"spark\.master: .* is none that Spark knows"):
        check_settings(master, {})


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({"spark.master": "nope"}, "none that Spark knows"),
        ({"spark.driver.memory": "much"}, "Invalid maximum heap size"),
        ({"spark.driver.extraJavaOptions": "-XX:+NoSuchOption"}, "NoSuchOption"),
        ({"spark.driver.extraJavaOptions": "-Da='b"}, "No closing quotation"),
    ],
)
def test_options_with_which_no_java_starts_are_refused(conf: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_settings("local[*]", conf)


def test_options_that_do_something_are_not_tried(tmp_path: Path) -> None:
    options = f"-Xlog:gc:file={tmp_path}/gc.log -agentlib:nothing -XX:StartFlightRecording=filename={tmp_path}/r.jfr"
    check_settings("local[*]", {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": options})
    assert list(tmp_path.iterdir()) == []
