"""Which tests are long, and the suites of `make test-long` that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.long import SUITES, check_suites, main, mark_variants

KILLS = "tests/kill/test_kills.py::test_a"
STORES = pytest.mark.long(suite="stores").mark


class Item:
    """A test with one marker, as far as suites ask it."""

    def __init__(self, nodeid: str, mark: pytest.Mark) -> None:
        self.nodeid = nodeid
        self._mark = mark
        self.added: list[pytest.Mark] = []

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return iter([self._mark] if self._mark.name == name else [])

    def add_marker(self, marker: Any) -> None:
        self.added.append(marker.mark)


def long_ones(*variants: str, patterns: tuple[str, ...], whole: bool = True) -> list[str]:
    """Those of the variants that become long."""
    mark = pytest.mark.long_variants(*patterns, suite="servers").mark
    items = [Item(f"tests/e2e/test_run.py::test_a[{variant}]", mark) for variant in variants]
    mark_variants(cast("list[pytest.Item]", items), whole=whole)
    assert {added.kwargs["suite"] for item in items for added in item.added} <= {"servers"}
    return [variant for variant, item in zip(variants, items, strict=True) if item.added]


def test_variants_whose_ids_match_are_long() -> None:
    variants = ("mariadb", "mysql80", "mysql80_nogtid")
    assert long_ones(*variants, patterns=("mysql80",)) == ["mysql80"]
    assert long_ones(*variants, patterns=("mysql80*",)) == ["mysql80", "mysql80_nogtid"]


def test_a_pattern_that_matches_no_variant_is_refused_where_all_are_there() -> None:
    with pytest.raises(ValueError, match=r"names no variant of .*test_a: mysql57"):
        long_ones("mariadb", patterns=("mysql57",))
    assert long_ones("mariadb", patterns=("mysql57",), whole=False) == []


def test_a_suite_has_what_is_marked_so_and_plays_again_what_nobody_marked() -> None:
    assert SUITES["stores"].has(KILLS, [STORES], "stores")
    assert not SUITES["kill"].has(KILLS, [STORES], "kill")
    assert SUITES["kill"].has(KILLS, [], "kill")
    assert not SUITES["stores"].has(KILLS, [], "stores")


@pytest.mark.parametrize(
    "marker",
    [pytest.mark.long, pytest.mark.long("stores"), pytest.mark.long(suite="storse"), pytest.mark.long(suite="mutants")],
)
def test_a_long_test_names_a_suite_that_has_tests(marker: pytest.MarkDecorator) -> None:
    check_suites(KILLS, [STORES])
    with pytest.raises(ValueError, match="a long test names a suite"):
        check_suites(KILLS, [marker.mark])


def test_a_suite_that_is_none_is_named_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["storse"])
    assert "no suite is called storse; there are stories, " in capsys.readouterr().err
