"""What of Spark's settings is judged before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.errors import ConfigError
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
