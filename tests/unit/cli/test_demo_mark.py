"""A configuration that a demo wrote is known to be without its servers once that demo has ended, however it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.cli.demo_mark import MARK, is_marked, mark, require_servers, serving
from raycdc.errors import SourceError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    config = tmp_path / "demo.toml"
    config.write_text("port = 1\n")
    return config


def test_a_configuration_of_a_demo_that_has_ended_is_refused_until_somebody_changes_it(config: Path) -> None:
    mark(config.parent)
    with serving(config):
        require_servers(config)
    with pytest.raises(SourceError, match="`raycdc demo` starts new servers"):
        require_servers(config)
    config.write_text("port = 2\n")
    require_servers(config)


def test_no_other_configuration_is_judged(config: Path) -> None:
    assert not is_marked(config.parent)
    require_servers(config)
    mark(config.parent)
    require_servers(config)
    (config.parent / MARK).write_text("")
    require_servers(config)
    with serving(config):
        pass
    require_servers(config.parent / "other.toml")
