"""Broken configurations and surroundings end by name: an exit code, a word that says why, and `check` refuses, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer
from tests.blackbox.broken import EVERY, Broken, CasePlace
from tests.blackbox.command import Outcome, Pipeline

pytestmark = pytest.mark.server


#: One for each exit code; the others cost seconds of a core each.
IN_MAKE_TEST = {"unknown key", "closed port", "table without a key", "lake that is a file", "state that is a file"}


def cases() -> Sequence[object]:
    """All cases, with their marks."""
    marked = []
    for case in EVERY:
        marks = [] if case.name in IN_MAKE_TEST else [pytest.mark.long(suite="blackbox")]
        marked.append(pytest.param(case, marks=marks, id=case.name.replace(" ", "-")))
    return marked


def refused(outcome: Outcome, case: Broken) -> None:
    """The outcome names the fault, as an error and not as a bug."""
    outcome.expect(case.code)
    assert case.word in outcome.said, outcome.story()


@pytest.mark.parametrize("case", cases())
def test_what_is_broken_is_refused_by_name(
    case: Broken, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    world = CasePlace(tmp_path, mariadb, mariadb_database)
    world.sql("CREATE TABLE good (id INT PRIMARY KEY, a INT)", "INSERT INTO good VALUES (1, 1)")
    if case.again:
        Pipeline(tmp_path, Broken("", 0, "").text(world)).run().expect(0)
    case.prepare(world)
    try:
        pipeline = Pipeline(tmp_path, case.text(world), case.environment)
        refused(pipeline.check(), case)
        refused(pipeline.run(), case)
    finally:
        case.restore(world)


@pytest.mark.long(suite="blackbox")
def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, "")
    for arguments in (["check", "other.toml"], ["run", "other.toml", "--local"], ["run", ".", "--local"]):
        outcome = pipeline.command(*arguments).expect(2)
        assert arguments[1] in outcome.err, outcome.story()


@pytest.mark.long(suite="blackbox")
def test_a_configuration_that_is_not_text(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, "")
    (tmp_path / "bytes.toml").write_bytes(b"[pipeline]\nname = '\xff'\n")
    assert "bytes.toml" in pipeline.command("check", "bytes.toml").expect(2).err
    assert "bytes.toml" in pipeline.command("run", "bytes.toml", "--local").expect(2).err
