"""A part of MariaDB's own regression suite is played on a real server while raycdc follows it: SQL that nobody here
wrote. Each table is equal afterwards, or parked for a named reason; the suite ``server-suites`` plays the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer
from tests.suites.compare import table_differences
from tests.suites.following import Batch, follow
from tests.suites.known import unexpected
from tests.suites.package import suite_package
from tests.suites.playing import Stage
from tests.suites.selection import SMALL, find, loaded

pytestmark = pytest.mark.server


@dataclass(frozen=True, slots=True)
class Followed:
    """The batch, and where everything is."""

    stage: Stage
    folder: Path
    batch: Batch


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    folder = tmp_path_factory.mktemp("suites")
    package = suite_package()
    with MariaDbServer() as server:
        stage = Stage(server, package, folder / "var")
        stage.prepare()
        batch = follow(stage, loaded(package, find(package, SMALL)), folder / "run")
        yield Followed(stage, folder / "run", batch)


def test_each_table_is_equal_or_parked_for_a_named_reason(followed: Followed) -> None:
    problems = unexpected(followed.batch)
    assert not problems, "\n".join([*problems, followed.batch.summary()])


def test_most_scripts_are_there_and_have_tables(followed: Followed) -> None:
    """Another version of the package may lack some of them, but not all."""
    batch = followed.batch
    missing = sorted(set(SMALL) - {played.script.name for played in batch.played})
    assert len(missing) < len(SMALL) / 4, missing
    assert len(batch.verdicts) > 200
    assert batch.read_once == []
    assert batch.read_twice > 3000


def test_a_line_that_is_lost_is_noticed(followed: Followed) -> None:
    name = next(verdict.table for verdict in followed.batch.verdicts if not verdict.parked and not verdict.problems)
    database, _, table = name.partition(".")
    changelog = followed.folder / "target" / database / table
    with followed.stage.connect() as connection:
        assert table_differences(connection, changelog, database, table) == []
        file = sorted(changelog.glob("*.jsonl"))[-1]
        lines = file.read_text().splitlines()
        file.write_text("\n".join(lines[:-1]) + "\n")
        assert table_differences(connection, changelog, database, table)
