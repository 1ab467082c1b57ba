"""How much of a table a target can hold: one table of limits, which every kind of target has a row in."""

from __future__ import annotations

import pytest

from raycdc.model.rules.names import LIMITS, NAMES


def test_every_kind_of_target_says_its_limits() -> None:
    assert LIMITS.keys() == NAMES.keys()
    assert [kind for kind, limits in LIMITS.items() if not limits.store] == []


@pytest.mark.parametrize(
    ("kind", "counts", "expected"),
    [
        ("mysql", (1017, 16, 3072), ""),
        ("mysql", (1018, 1, 4), "has 1,018 columns there, and InnoDB holds at most 1,017"),
        ("mariadb", (2, 1, 3073), "has 3,073 bytes in its key there, and InnoDB holds at most 3,072"),
        ("postgresql", (1600, 32), ""),
        ("postgresql", (40, 33), "has 33 columns in its key there, and PostgreSQL holds at most 32"),
        ("delta", (5000, 100, 9000), ""),
    ],
)
def test_one_more_than_a_limit_is_too_much(kind: str, counts: tuple[int, ...], expected: str) -> None:
    assert LIMITS[kind].exceeded(*counts) == expected
