"""Which runs on Ray and Spark begin in the driver's own process."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc.config.load import config_from_dict
from raycdc.core import background_tasks
from raycdc.driver.engine_promotion import begins_in_process
from tests.unit.driver.state_admin.small_pipeline import configured


@pytest.mark.parametrize(
    ("sections", "whether"),
    [
        ({}, True),
        ({"pipeline": {"engines": "always"}}, False),
        ({"pipeline": {"engines": "never"}}, False),
        ({"ray": {"address": "auto"}}, False),
        ({"spark": {"master": "spark://host:7077"}}, False),
        ({"transform": [{"table": "shop.a", "projection": "id, 1 AS one"}]}, True),
        ({"transform": [{"table": "shop.a", "filter": "id > 1"}]}, False),
        ({"transform": [{"table": "shop.a", "projection": "id + 1 AS id"}]}, False),
    ],
)
def test_a_run_begins_in_process_where_no_row_needs_another(
    tmp_path: Path, sections: dict[str, Any], whether: bool
) -> None:
    """Engines of somebody else's, and rows that Spark goes through, are waited for."""
    document: dict[str, Any] = tomllib.loads(configured(tmp_path).read_text())
    document["pipeline"]["engines"] = "auto"
    for name, section in sections.items():
        document[name] = section if isinstance(section, list) else {**document.get(name, {}), **section}
    assert begins_in_process(config_from_dict(document), local=False) is whether


def test_the_ray_that_a_run_before_left_to_its_end_is_not_taken_for_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run of the process begins while it ends: nothing is left of it a moment later."""
    left: Future[None] = Future()

    def wait_for(works: Collection[Future[Any]]) -> None:
        assert left in works
        left.set_result(None)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: not left.done()))
    monkeypatch.setattr(background_tasks, "wait_for", wait_for)
    background_tasks.leave(left)
    document = tomllib.loads(configured(tmp_path).read_text())
    document["pipeline"]["engines"] = "auto"
    try:
        assert begins_in_process(config_from_dict(document), local=False)
    finally:
        left.cancel()
