"""Marks in the comments of MySQL's tables, by which a target is told from another one of the same name."""

from __future__ import annotations

import pytest

from raycdc.model import TableId
from raycdc.sinks.jdbc.database import is_same_table, short
from raycdc.sinks.jdbc.mysql_tables import _identity

TARGET, OTHER = TableId("shop", "orders"), TableId("shop", "items")


def marked(target: TableId, words: str = "") -> str:
    return f"{words} raycdc {short('pipeline')}:{short(str(target))}:7".strip()


@pytest.mark.parametrize(
    ("comment", "identity"),
    [
        (None, None),
        ("", ""),
        ("of the shop", ""),
        (marked(TARGET), "marked"),
        (marked(TARGET, "of the shop"), "marked"),
        (marked(OTHER), f"marked as {short(str(OTHER))}"),
        ("raycdc 0123abcd:7", "marked"),
        ("of the shop [raycdc]", "marked"),
    ],
)
def test_a_mark_of_another_target_is_another_identity(comment: str | None, identity: str | None) -> None:
    assert _identity(comment, TARGET) == identity


def test_a_table_that_another_pipeline_had_marked_stays_the_same_with_our_own_mark() -> None:
    ours, theirs = _identity(marked(TARGET), TARGET), _identity(marked(OTHER), TARGET)
    assert ours is not None
    assert theirs is not None
    same = [is_same_table(held, found) for held in ("", ours, theirs) for found in (ours, theirs)]
    assert same == [True, True, True, False, True, True]
    assert not is_same_table("16384", "16385")
