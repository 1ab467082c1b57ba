"""Random sessions on real servers beside a pipeline that is killed; the suite ``fuzz-servers`` plays hours.

A seed that fails is played again alone with ``python -m tests.fuzz.servers --server NAME --seed S --stories 1``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, MySqlServer
from tests.fuzz.servers.story import Plan, play

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.timeout(600)]

SHORT = Plan(acts=2, steps=80, restarts=False)


@pytest.mark.long_variants("102", suite="fuzz-servers")
@pytest.mark.parametrize("seed", [101, 102])
def test_a_target_of_mariadb_is_equal_after_random_sessions_and_kills(
    mariadb: MariaDbServer, tmp_path: Path, seed: int
) -> None:
    assert play(mariadb, seed, SHORT, tmp_path).verdict.problems == []


@pytest.mark.parametrize("seed", [201])
def test_a_target_of_mysql_is_equal_after_random_sessions_and_kills(
    mysql80: MySqlServer, tmp_path: Path, seed: int
) -> None:
    assert play(mysql80, seed, SHORT, tmp_path).verdict.problems == []
