"""Every mutant of `tests/mutants` still says what the source says, so that none is forgotten when the source moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.run import ROOT, Mutant, mutants

ALL = mutants()


def test_there_are_enough_and_each_rule_has_one_name() -> None:
    assert len(ALL) >= 60
    assert len({mutant.rule for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: str(mutant.rule))
def test_a_mutant_changes_one_place_of_the_source(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(text) != text
    for word in mutant.test.partition(" -k ")[0].split():
        assert (Path(ROOT) / word).exists(), word
